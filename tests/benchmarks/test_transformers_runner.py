"""Both baselines run the replayed prompts and, on the same weights, say the same."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.rounds import CallRecord, Run, metrics, same_outputs
from benchmarks.workloads import Workload

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


def replay(*rounds: list[list[int]]) -> Run:
    return Run([[CallRecord(prompt, [], 0, 0, 0, 0) for prompt in one] for one in rounds], 1.0, 1.0, 1)


def workload(*, chat: bool) -> Workload:
    conversations = (("a", "b"),) * 2 if chat else ()
    return Workload("T", "a test", concurrency=2, max_tokens=5, conversations=conversations)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    path = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True])
def test_both_baselines_agree(folder: Path, chat: bool) -> None:
    from benchmarks.transformers_runner import make

    handlers = make(model=str(folder), threads=None)
    prompts = replay([[3, 4, 5], [6, 7, 8, 9, 10, 11], [12]], [[13, 14, 15, 16]]) if not chat else None
    prompts = prompts or replay([[3, 4, 5], [6, 7]], [[3, 4, 5, 8, 9], [6, 7, 10, 11]])
    generated = handlers["generate"](workload(chat=chat), prompts)
    continuous = handlers["continuous"](workload(chat=chat), prompts)
    assert [len(one) for one in generated.rounds] == [len(one) for one in prompts.rounds]
    assert all(len(call.output_token_ids) == 5 for call in generated.calls())
    assert same_outputs(generated, continuous) == 1.0
    for run in (generated, continuous):
        for call in run.calls():
            assert call.sent < call.first_token < call.last_token
        assert (metrics(run)["ttft_later_turns_ms"] is not None) == (len(run.rounds) > 1)


def test_what_has_no_baseline_is_refused_by_name() -> None:
    from benchmarks.transformers_runner import load_model
    from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError

    with pytest.raises(UnsupportedModelError, match="some-org/some-model"):
        load_model("some-org/some-model")
    with pytest.raises(ModelLoadError, match="unknown"):
        load_model("smollm3")
