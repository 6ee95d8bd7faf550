from ramet.runtime.engine.client import EngineStats


def test_the_hit_rate_is_the_share_of_prompt_tokens_that_were_cached() -> None:
    assert EngineStats().hit_rate == 0.0
    assert EngineStats(prompt_tokens=8, cached_tokens=6).hit_rate == 0.75
