"""Chains of calls: what they share, and what stays of a recorded agent."""

import pytest

from benchmarks.load_shapes import (
    TraceScale,
    agent_chains,
    recorded_agents,
    scaled_text,
    shared_prefixes,
    unique_prompts,
)
from benchmarks.workloads import SharedDataMissingError


def test_prompts_follow_from_the_seed_and_nothing_else() -> None:
    assert unique_prompts(3, 8, "a") == unique_prompts(3, 8, "a")
    assert unique_prompts(3, 8, "a") != unique_prompts(3, 8, "b")
    assert [request.max_tokens for chain in unique_prompts(3, 8, "a") for request in chain] == [8, 8, 8]


def test_shared_prefixes_are_shared_by_every_eighth() -> None:
    prompts = [chain[0].prompt for chain in shared_prefixes(16, 8, "a")]
    starts = [tuple(prompt.split()[:512]) for prompt in prompts]
    assert len(set(starts)) == 8
    assert len(set(prompts)) == 16


def test_scaled_texts_share_what_the_texts_shared() -> None:
    first, second = "a" * 1000 + "b" * 1000, "a" * 1000 + "c" * 1000
    one, other = scaled_text(first, 0.25), scaled_text(second, 0.25)
    assert len(one) == 512
    shared = sum(1 for left, right in zip(one, other, strict=True) if left == right)
    assert shared == 4 * 64 - 64 + 64
    assert scaled_text("short", 1.0) == "short"
    assert scaled_text(first, 1.0) == first


def entry(session: str, seconds: float, text: str, output: str = "x" * 400) -> dict[str, object]:
    return {"session": session, "timestamp": int(seconds * 1e6), "input": text, "output": output}


def test_a_session_is_a_chain_in_the_order_of_its_times() -> None:
    entries = [entry("one", 9.0, "late"), entry("one", 1.0, "early"), entry("two", 0.0, "other")]
    chains = agent_chains(entries, TraceScale(text=1.0, time=0.1), "seed")
    assert [[request.prompt for request in chain] for chain in chains] == [
        ["seed\nearly", "seed\nlate"],
        ["seed\nother"],
    ]
    assert [request.pause for request in chains[0]] == [0.0, pytest.approx(0.8)]
    assert chains[0][0].max_tokens == 64


def test_what_a_scale_leaves_out() -> None:
    entries = [
        entry("one", 0.0, "a" * 900),
        entry("one", 1.0, "b", output=""),
        entry("one", 1000.0, "c"),
        entry("one", 1001.0, "d"),
        entry("two", 0.0, "e"),
    ]
    scale = TraceScale(text=1.0, time=1.0, sessions=1, calls=3, max_prompt_chars=500)
    (chain,) = agent_chains(entries, scale, "s")
    assert [request.prompt for request in chain] == ["s\nb", "s\nc"]
    assert chain[0].max_tokens == 4, "an answer has at least a few tokens"
    assert chain[1].pause == 2.0, "no pause is long"


def test_recorded_agents(tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_SHARED", str(tmp_path))
    with pytest.raises(SharedDataMissingError, match="agent_magagent"):
        recorded_agents(TraceScale(), "s")
    monkeypatch.delenv("RAMET_SHARED")
    try:
        chains = recorded_agents(TraceScale(sessions=2, calls=3), "s")
    except SharedDataMissingError as missing:
        pytest.skip(str(missing))
    assert len(chains) == 6
    assert all(0 < len(chain) <= 3 for chain in chains)
