"""What a load consists of: chains of calls, each sent when the one before it has been answered.

Prompts are made of words, or are those of recorded agents, scaled down. No two cases of a run have a prompt in
common, so that no cache has seen what a case asks.
"""

import gzip
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.workloads import random_words, shared_file

AGENTS = ("magagent", "miniswe", "taubench")
SCALED_BLOCK = 256
"""Characters: of each such block of a recorded prompt the leading part stays."""
CHARS_PER_TOKEN = 4
LONGEST_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One call. ``pause``: seconds between the answer before it and itself."""

    prompt: str
    max_tokens: int
    pause: float = 0.0


Chain = list[LoadRequest]


@dataclass(frozen=True, slots=True)
class TraceScale:
    """How recorded agents are made small: their text, their answers, their pauses, their number."""

    text: float = 0.25
    time: float = 0.1
    sessions: int = 4
    """Of each kind of agent."""
    calls: int = 6
    """Leading ones of a session."""
    max_prompt_chars: int = 6000
    """After scaling; longer ones are left out."""
    max_tokens: int = 64


def unique_prompts(count: int, max_tokens: int, seed: str) -> list[Chain]:
    """128 words each, with nothing in common."""
    source = random.Random(f"unique {seed}")
    return [[LoadRequest(random_words(source, 128), max_tokens)] for _ in range(count)]


def shared_prefixes(count: int, max_tokens: int, seed: str) -> list[Chain]:
    """8 instructions of 512 words, each in front of every eighth question of 32, in random order."""
    source = random.Random(f"shared {seed}")
    starts = [random_words(source, 512) for _ in range(8)]
    prompts = [f"{starts[index % 8]} {random_words(source, 32)}" for index in range(count)]
    source.shuffle(prompts)
    return [[LoadRequest(prompt, max_tokens)] for prompt in prompts]


def recorded_agents(scale: TraceScale, seed: str) -> list[Chain]:
    """A chain for each session of data/agent_<kind>.jsonl.gz, its calls in the order of their times.

    Raises:
        SharedDataMissingError: the shared folder has none.
    """
    chains = []
    for kind in AGENTS:
        with gzip.open(shared_file(Path(f"data/agent_{kind}.jsonl.gz")), "rt", encoding="utf-8") as file:
            chains += agent_chains((json.loads(line) for line in file), scale, seed)
    random.Random(f"agents {seed}").shuffle(chains)
    return chains


def agent_chains(entries: Iterable[dict[str, Any]], scale: TraceScale, seed: str) -> list[Chain]:
    """``entries`` have ``session``, ``timestamp`` in microseconds, ``input`` and ``output``; sessions lie
    together.
    """
    chains: list[Chain] = []
    for _, group in groupby(entries, key=lambda entry: entry["session"]):
        if len(chains) == scale.sessions:
            break
        calls = sorted(group, key=lambda entry: entry["timestamp"])[: scale.calls]
        chain: Chain = []
        before = calls[0]["timestamp"]
        for entry in calls:
            # The same words in front of all: agents of one kind go on sharing their instructions.
            prompt = f"{seed}\n{scaled_text(entry['input'], scale.text)}"
            if len(prompt) <= scale.max_prompt_chars:
                pause = min(LONGEST_PAUSE, (entry["timestamp"] - before) / 1e6 * scale.time) if chain else 0.0
                num_tokens = round(len(entry["output"]) / CHARS_PER_TOKEN * scale.text)
                chain.append(LoadRequest(prompt, max(4, min(scale.max_tokens, num_tokens)), pause))
            before = entry["timestamp"]
        if chain:
            chains.append(chain)
    return chains


def scaled_text(text: str, share: float) -> str:
    """The first ``share`` of each block. Texts with a common beginning have one afterwards, as much shorter."""
    keep = max(1, round(SCALED_BLOCK * share))
    return "".join(text[start : start + keep] for start in range(0, len(text), SCALED_BLOCK))
