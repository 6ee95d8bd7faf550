"""Workloads of prompts that share prefixes, as token ids, and what an infinite cache would find in them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.workloads import TRACE_BLOCK_TOKENS, TraceRequest

_FIRST_UNUSED = 1 << 20
"""Token ids from here on are generated in the simulation, and are in no prompt."""
_SHORT_ANSWER = 8


@dataclass(frozen=True, slots=True)
class PrefixRequest:
    """A prompt, what is generated after it, and the request (by index) whose end it waits for."""

    token_ids: list[int]
    output_token_ids: list[int]
    after: int | None = None
    num_reusable: int | None = None
    """Leading tokens that may come from a cache; None: all but the last, whose logits are needed."""


def few_shot(seed: int, scale: float = 1.0) -> list[PrefixRequest]:
    """8 instructions of 1,024 tokens, 40 questions of 64 tokens for each, in random order."""
    source = random.Random(f"few shot {seed}")
    instructions = [_tokens(source, 1024) for _ in range(8)]
    prompts = [start + _tokens(source, 64) for start in instructions for _ in range(_scaled(40, scale))]
    source.shuffle(prompts)
    return [PrefixRequest(prompt, _answer(index)) for index, prompt in enumerate(prompts)]


def chats(seed: int, scale: float = 1.0) -> list[PrefixRequest]:
    """64 conversations of 6 turns, in rounds: 64 tokens of the user, 32 of the answer."""
    source = random.Random(f"chats {seed}")
    count = _scaled(64, scale)
    requests: list[PrefixRequest] = []
    for turn in range(6):
        for index in range(count):
            before = requests[-count] if turn else None
            history = before.token_ids + before.output_token_ids if before is not None else []
            asked, answer = history + _tokens(source, 64), _tokens(source, 32)
            after = (turn - 1) * count + index if turn else None
            requests.append(PrefixRequest(asked, answer, after))
    return requests


def thought_trees(seed: int, scale: float = 1.0) -> list[PrefixRequest]:
    """20 problems of 256 tokens, each a tree of thoughts: 3 levels of 4 branches, 48 tokens a thought."""
    source = random.Random(f"trees {seed}")
    paths: list[tuple[list[int], int | None]] = [
        (_tokens(source, 256), None) for _ in range(_scaled(20, scale))
    ]
    requests: list[PrefixRequest] = []
    for _ in range(3):
        children: list[tuple[list[int], int | None]] = []
        for path, parent in paths:
            for _ in range(4):
                child = path + _tokens(source, 48)
                children.append((child, len(requests)))
                requests.append(PrefixRequest(child, _answer(len(requests)), parent))
        paths = children
    return requests


def no_reuse(seed: int, scale: float = 1.0) -> list[PrefixRequest]:
    """300 prompts of 512 tokens that have nothing in common."""
    source = random.Random(f"none {seed}")
    return [PrefixRequest(_tokens(source, 512), _answer(index)) for index in range(_scaled(300, scale))]


def from_trace(trace: Sequence[TraceRequest], max_output_tokens: int) -> list[PrefixRequest]:
    """Prompts of the trace's blocks: a block is its id, 512 times. Outputs end at ``max_output_tokens``."""
    requests = []
    for index, item in enumerate(trace):
        token_ids = [block for block in item.block_ids for _ in range(TRACE_BLOCK_TOKENS)]
        length = min(item.num_prompt_tokens, len(token_ids))
        num_outputs = max(1, min(max_output_tokens, item.num_output_tokens))
        requests.append(PrefixRequest(token_ids[:length], _answer(index, num_outputs)))
    return requests


def infinite_hit_share(requests: Sequence[PrefixRequest], page_size: int) -> float:
    """Share of the prompts' tokens that a cache without limits finds.

    Prefixes are found in whole pages of prompts and outputs. The last token of a prompt is always computed,
    because its logits are needed; the last token of an output never is.
    """
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    num_hit = num_prompt = 0
    for request in requests:
        num_prompt += len(request.token_ids)
        computed = request.token_ids + request.output_token_ids[:-1]
        limit = len(request.token_ids) - 1 if request.num_reusable is None else request.num_reusable
        node, matched = 0, True
        for start in range(0, len(computed) - page_size + 1, page_size):
            key = node, tuple(computed[start : start + page_size])
            found = known.get(key)
            if found is None:
                matched = False
                found = known[key] = len(known) + 1
            elif matched and start + page_size <= limit:
                num_hit += page_size
            node = found
    return num_hit / num_prompt


def _answer(index: int, length: int = _SHORT_ANSWER) -> list[int]:
    """Tokens that are in no prompt, and different for each request."""
    return [_FIRST_UNUSED + index * 64 + position for position in range(length)]


def _tokens(source: random.Random, count: int) -> list[int]:
    return [source.randrange(1000, 49000) for _ in range(count)]


def _scaled(count: int, scale: float) -> int:
    return max(1, round(count * scale))
