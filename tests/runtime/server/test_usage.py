"""Usage adds up over prompts and answers."""

import msgspec

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import RequestStats
from ramet.runtime.server.usage import UsageCounter


def test_a_prompt_counts_once_and_answers_each() -> None:
    counter = UsageCounter(prompt_tokens=30, answers_per_prompt=2)
    counter.add(Increment(request_id="r", index=0))
    for index, (cached, output) in enumerate([(4, 5), (12, 6), (8, 7), (12, 8)]):
        stats = RequestStats(num_cached_tokens=cached, num_output_tokens=output)
        counter.add(Increment(request_id="r", index=index, stats=stats))
    usage = counter.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (30, 26, 56)
    assert usage.prompt_tokens_details.cached_tokens == 12
    assert "completion_tokens_details" not in msgspec.to_builtins(usage)


def test_reasoning_is_said_where_a_model_reasons() -> None:
    counter = UsageCounter(prompt_tokens=1, answers_per_prompt=1, reasoning_tokens=3)
    assert msgspec.to_builtins(counter.usage())["completion_tokens_details"] == {"reasoning_tokens": 3}
