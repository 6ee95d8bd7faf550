"""The prompts of the serving workloads and the traces of the cache simulation: recorded, or generated.

Recorded ones lie in a shared folder that is no part of the repository; other engines were measured with them.
Without it, prompts of the same shapes are generated from a seed: the same effects, but other figures.
"""

import gzip
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS_FILE = Path("peers/workloads.json.gz")
NUM_VARIANTS = 6
"""Variant 0 is for warming up; repetition r runs variant 1 + r % 5, so that no cache sees a prompt twice."""

# Short, common English words: one token each in the vocabularies of all models that the benchmark runs.
_WORD_LIST = """
about above across after again against almost alone along already also always among another answer any
anyone around ask away back bad ball bank base bed before began behind being below best better between
big bird black blue board boat body book both bottom box boy bring brought build built business call came
car care carry case cat cause center certain change check child city class clean clear close cold color
come common complete could country course cover cross cut dark day deep did different direct dog done
door down draw dry during each early earth east eat end enough even ever every face fact fall family far
farm fast father feel feet few field figure fill find fine fire first fish five floor follow food foot
force form found four free friend front full game gave girl give glass go gold good great green ground
group grow half hand happen hard
"""
_WORDS = _WORD_LIST.split()


class SharedDataMissingError(Exception):
    """The shared folder, or a file in it, is not there; the message says where it was looked for."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Either ``prompts``, ``concurrency`` of them at a time, or ``conversations``, a turn of all at once."""

    name: str
    title: str
    concurrency: int
    max_tokens: int
    prompts: tuple[str, ...] = ()
    conversations: tuple[tuple[str, ...], ...] = ()
    """User turns; the answers in between come from the engine that runs it."""


@dataclass(frozen=True, slots=True)
class _Shape:
    title: str
    concurrency: int
    max_tokens: int
    count: int
    tokens: int
    shared: int = 0
    """Leading tokens that all prompts have in common."""
    turns: int = 0


SHAPES = {
    "W1": _Shape("one stream: 4 prompts of 128, 128 out", 1, 128, 4, 128),
    "W2": _Shape("batch: 64 prompts of 128, 64 out, 32 at a time", 32, 64, 64, 128),
    "W3": _Shape("shared prefix: 64 of 1,024 + 32, 32 out, 16 at a time", 16, 32, 64, 32, shared=1024),
    "W4": _Shape("chat: 8 conversations of 6 turns, 64 in, 48 out", 8, 48, 8, 64, turns=6),
    "W6": _Shape("long prompt: 3 of 2,048, 1 out", 1, 1, 3, 2048),
}


def shared_folder() -> Path | None:
    """$RAMET_SHARED, else a sibling of the repository named ``shared``; None where that is no folder."""
    named = os.environ.get("RAMET_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    return folder if folder.is_dir() else None


def shared_file(relative: Path) -> Path:
    """Raises SharedDataMissingError where it is absent."""
    folder = shared_folder()
    if folder is None:
        raise SharedDataMissingError(
            f"no shared folder: set RAMET_SHARED, or put one beside the repository at {ROOT.parent / 'shared'}"
        )
    if not (folder / relative).is_file():
        raise SharedDataMissingError(f"{folder / relative} does not exist")
    return folder / relative


def read_workload(name: str, variant: int) -> Workload:
    """The recorded prompts. Raises SharedDataMissingError without them, KeyError for an unknown name."""
    shape = SHAPES[name]
    with gzip.open(shared_file(WORKLOADS_FILE), "rt", encoding="utf-8") as file:
        entries = json.load(file)["variants"][variant][name]
    return _workload(name, shape, entries)


def generate_workload(name: str, variant: int, seed: int) -> Workload:
    """Prompts of the same shape, from words. Deterministic in (name, variant, seed)."""
    shape = SHAPES[name]
    source = random.Random(f"{name} {variant} {seed}")
    if shape.turns:
        return _workload(
            name,
            shape,
            [[random_words(source, shape.tokens) for _ in range(shape.turns)] for _ in range(shape.count)],
        )
    prefix = random_words(source, shape.shared)
    return _workload(
        name,
        shape,
        [" ".join(filter(None, (prefix, random_words(source, shape.tokens)))) for _ in range(shape.count)],
    )


def shorten(workload: Workload) -> Workload:
    """The same shape with the same concurrency at a tenth of the work or less, for a quick look."""
    prompts = workload.prompts[: max(1, min(len(workload.prompts) // 2, workload.concurrency))]
    conversations = tuple(turns[:3] for turns in workload.conversations[:4])
    return replace(
        workload,
        prompts=tuple(map(_cut, prompts)),
        conversations=conversations,
        max_tokens=min(workload.max_tokens, 16),
    )


def _cut(text: str) -> str:
    """The first quarter of the words, which is where prompts are shared, and the last 32."""
    words = text.split()
    return " ".join(words[: len(words) // 4] + words[-32:])


def _workload(name: str, shape: _Shape, entries: list[str] | list[list[str]]) -> Workload:
    conversations = tuple(tuple(entry) for entry in entries if not isinstance(entry, str))
    prompts = tuple(entry for entry in entries if isinstance(entry, str))
    return Workload(name, shape.title, shape.concurrency, shape.max_tokens, prompts, conversations)


def random_words(source: random.Random, words: int) -> str:
    """Words that are one token each in the vocabularies of all models that the benchmarks run."""
    return " ".join(source.choice(_WORDS) for _ in range(words))


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace: which blocks its prompt consists of, and how much of the last one is used."""

    block_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_output_tokens: int


TRACE_BLOCK_TOKENS = 512
"""A block id of the Mooncake traces stands for this many tokens (arXiv 2407.00079)."""


def read_trace(name: str, limit: int) -> list[TraceRequest]:
    """The first ``limit`` requests of data/mooncake_<name>.jsonl.gz, in the order of their arrival.

    Raises SharedDataMissingError where the shared folder has no such trace.
    """
    with gzip.open(shared_file(Path(f"data/mooncake_{name}.jsonl.gz")), "rt", encoding="utf-8") as file:
        return list(islice(_trace_requests(file), limit))


def read_gsm8k(limit: int) -> list[tuple[str, str]]:
    """The first problems of data/gsm8k_test.jsonl.gz (arXiv 2110.14168), each with the number that is right.

    Raises SharedDataMissingError where the shared folder has none.
    """
    with gzip.open(shared_file(Path("data/gsm8k_test.jsonl.gz")), "rt", encoding="utf-8") as file:
        entries = [json.loads(line) for line in islice(file, limit)]
    return [(entry["question"], entry["answer"].rpartition("####")[2].strip()) for entry in entries]


def read_mt_bench(limit: int) -> list[tuple[str, ...]]:
    """The first questions of data/mt_bench_questions.jsonl.gz (arXiv 2306.05685), each with its later turns.

    Raises SharedDataMissingError where the shared folder has none.
    """
    with gzip.open(shared_file(Path("data/mt_bench_questions.jsonl.gz")), "rt", encoding="utf-8") as file:
        return [tuple(json.loads(line)["turns"]) for line in islice(file, limit)]


def _trace_requests(lines: Iterator[str]) -> Iterator[TraceRequest]:
    for line in lines:
        entry = json.loads(line)
        yield TraceRequest(tuple(entry["hash_ids"]), entry["input_length"], entry["output_length"])
