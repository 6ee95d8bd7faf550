"""What the radix tree costs where nothing is shared, as a share of the time that the real model takes.

Two runs of the real model differ by far more than the tree costs, so it is measured where it can be seen: the
scheduler's own time over the whole workload, with the cache on and off, without a model. The difference is the
tree's; it is compared with the time that the same workload takes with the model.
"""

import random
import time

from benchmarks.prefixes import PrefixRequest
from benchmarks.simulation import CacheSetup, simulate
from ramet import Engine, SamplingParams

REPETITIONS = 7
"""Of the scheduling; the fastest counts, because all that others do to it makes it slower."""


def tree_overhead(model: str, seed: int, *, quick: bool) -> dict[str, float | None]:
    """Milliseconds of scheduling with and without the tree, seconds with the model, the tree's share."""
    count, num_outputs = (16, 16) if quick else (64, 64)
    source = random.Random(f"overhead {seed}")
    requests = [
        PrefixRequest(
            [source.randrange(1000, 49000) for _ in range(source.randrange(32, 513))], [7] * num_outputs
        )
        for _ in range(count)
    ]
    # What the engine itself runs with on a CPU.
    setup = CacheSetup(65536, max_running_requests=128, max_tokens_per_step=512)
    on = min(simulate(requests, setup).seconds for _ in range(REPETITIONS))
    off = min(simulate(requests, setup, enable_prefix_cache=False).seconds for _ in range(REPETITIONS))
    seconds = _model_seconds(model, requests)
    return {
        "cache_on_ms": on * 1e3,
        "cache_off_ms": off * 1e3,
        "tree_ms": (on - off) * 1e3,
        "model_s": seconds,
        "tree_share": (on - off) / seconds,
        "scheduling_share": on / seconds,
    }


def _model_seconds(model: str, requests: list[PrefixRequest]) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=len(requests[0].output_token_ids), ignore_eos=True)
    with Engine(model) as engine:
        engine.generate(requests[0].token_ids, params)
        engine.flush_cache()
        started = time.perf_counter()
        engine.generate([request.token_ids for request in requests], params, progress=False)
        return time.perf_counter() - started
