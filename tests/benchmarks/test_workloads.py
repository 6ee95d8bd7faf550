"""Recorded and generated workloads have the same shapes; a missing shared folder is said, not guessed."""

from pathlib import Path

import pytest

from benchmarks.workloads import (
    SHAPES,
    SharedDataMissingError,
    Workload,
    generate_workload,
    read_trace,
    read_workload,
    shared_folder,
    shorten,
)

needs_shared = pytest.mark.skipif(shared_folder() is None, reason="no shared folder")


def shape(workload: Workload) -> tuple[int, int, int, list[int]]:
    turns = [len(item) for item in workload.conversations]
    return workload.concurrency, workload.max_tokens, len(workload.prompts), turns


@pytest.mark.parametrize("name", SHAPES)
def test_generated_workloads_are_deterministic_and_differ_between_variants(name: str) -> None:
    first = generate_workload(name, 1, seed=0)
    assert first == generate_workload(name, 1, seed=0)
    assert first.prompts + first.conversations != ()
    for other in (generate_workload(name, 2, seed=0), generate_workload(name, 1, seed=1)):
        assert shape(other) == shape(first)
        assert (other.prompts, other.conversations) != (first.prompts, first.conversations)


@needs_shared
@pytest.mark.parametrize("name", SHAPES)
def test_generated_workloads_have_the_recorded_shapes(name: str) -> None:
    recorded, generated = read_workload(name, 1), generate_workload(name, 1, seed=0)
    assert shape(recorded) == shape(generated)
    words = [len(text.split()) for text in recorded.prompts or recorded.conversations[0]]
    made = [len(text.split()) for text in generated.prompts or generated.conversations[0]]
    assert words == made


def test_the_shared_prefix_is_shared() -> None:
    prompts = generate_workload("W3", 1, seed=0).prompts
    assert len({" ".join(prompt.split()[:1024]) for prompt in prompts}) == 1
    assert len(set(prompts)) == len(prompts)


def test_shortening_keeps_concurrency_and_what_is_shared() -> None:
    whole = generate_workload("W2", 1, seed=0)
    short = shorten(whole)
    assert short.concurrency == whole.concurrency
    assert len(short.prompts) == 32
    assert short.max_tokens == 16
    assert {len(prompt.split()) for prompt in short.prompts} == {64}
    shared = shorten(generate_workload("W3", 1, seed=0)).prompts
    assert len({" ".join(prompt.split()[:256]) for prompt in shared}) == 1
    assert len(set(shared)) == len(shared) == 16
    chat = shorten(generate_workload("W4", 1, seed=0))
    assert [len(turns) for turns in chat.conversations] == [3] * 4


def test_a_missing_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAMET_SHARED", str(tmp_path / "nowhere"))
    assert shared_folder() is None
    with pytest.raises(SharedDataMissingError, match="RAMET_SHARED"):
        read_workload("W1", 1)


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAMET_SHARED", str(tmp_path))
    with pytest.raises(SharedDataMissingError, match=r"mooncake_other\.jsonl\.gz does not exist"):
        read_trace("other", 5)


@needs_shared
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_traces_are_read_in_order(name: str) -> None:
    requests = read_trace(name, 50)
    assert len(requests) == 50
    for request in requests:
        assert 0 < request.num_prompt_tokens <= 512 * len(request.block_ids)
        assert request.num_output_tokens >= 1
