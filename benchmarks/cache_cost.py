"""What one look into the radix tree costs, depending on the size of the tree."""

import random
import time
from collections.abc import Callable

from ramet.runtime.cache import PageAllocator, RadixCache

PROMPT_TOKENS = 1024
SHARED_TOKENS = 512
"""Leading tokens that all prompts in the tree have in common: they all hang below one node."""
_BATCHES = 40
_CALLS = 25


def match_costs(num_prompts: int, page_size: int, seed: int) -> dict[str, float | None]:
    """Microseconds of one ``match`` in a tree of ``num_prompts`` prompts of 1,024 tokens.

    ``hit``: a whole prompt is found; ``half``: its shared half is; ``miss``: nothing is. The fastest of 40
    batches of 25 calls, each with another prompt: the rest is what else the machine did.
    """
    source = random.Random(seed)
    shared = _tokens(source, SHARED_TOKENS)
    prompts = [shared + _tokens(source, PROMPT_TOKENS - SHARED_TOKENS) for _ in range(num_prompts)]
    cache = RadixCache(PageAllocator(num_prompts * (PROMPT_TOKENS // page_size + 1), page_size))
    for prompt in prompts:
        pages = cache.allocator.allocate(PROMPT_TOKENS // page_size)
        assert pages is not None
        result = cache.insert(prompt, pages)
        cache.allocator.free(pages[index] for index in result.duplicates)
    halves = [shared + _tokens(source, PROMPT_TOKENS - SHARED_TOKENS) for _ in range(_CALLS)]
    misses = [_tokens(source, PROMPT_TOKENS) for _ in range(_CALLS)]
    return {
        "match_hit_us": _fastest(lambda _: cache.match(source.choice(prompts))),
        "match_half_us": _fastest(lambda call: cache.match(halves[call])),
        "match_miss_us": _fastest(lambda call: cache.match(misses[call])),
        "tree_nodes": float(cache.stats.num_nodes),
        "tree_tokens": float(cache.stats.num_cached_pages * page_size),
    }


def _fastest(call: Callable[[int], object]) -> float:
    best = float("inf")
    for _ in range(_BATCHES):
        started = time.perf_counter()
        for index in range(_CALLS):
            call(index)
        best = min(best, time.perf_counter() - started)
    return best / _CALLS * 1e6


def _tokens(source: random.Random, count: int) -> list[int]:
    return [source.randrange(1000, 49000) for _ in range(count)]
