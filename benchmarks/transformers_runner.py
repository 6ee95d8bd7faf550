"""transformers as a baseline, fp32, with the weights that ramet loads.

``generate`` on static batches, and its continuous batching with block sharing.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.rounds import CallRecord, Meter, Run, prompts_of
from benchmarks.workloads import Workload
from ramet.runtime.env import environment
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.gguf_config import config_from_gguf
from ramet.runtime.models.loading.embedded import EmbeddedModel, locate
from ramet.runtime.models.loading.gguf_file import GgufTensors, open_gguf
from ramet.runtime.models.loading.source import GgufFile, HfFolder, resolve
from ramet.runtime.protocol.errors import UnsupportedModelError

if TYPE_CHECKING:
    from transformers import GenerationConfig, LlamaConfig, PreTrainedModel

RESULT_SECONDS = 600.0
"""Longest wait for the next finished request of the continuous-batching manager."""


def make(*, model: str, threads: int | None) -> dict[str, Any]:
    """Worker factory: both ways to run on one loaded model."""
    from transformers.utils import logging

    # It warns once a call that -1 is an odd end token.
    logging.set_verbosity_error()
    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load_model(model)
    return {"generate": GenerateRunner(loaded).run, "continuous": ContinuousRunner(loaded).run}


def load_model(model: str) -> "PreTrainedModel":
    """The model in fp32, with the weights that ramet reads from the same files.

    Raises:
        UnsupportedModelError: a GGUF file of another architecture than Llama, or a hub id.
    """
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    match source := resolve(model):
        case HfFolder(path):
            loaded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        case EmbeddedModel():
            return load_model(str(locate(source, environment().cache_dir, lambda _fraction: None)))
        case GgufFile(paths):
            file = open_gguf(paths)
            config = config_from_gguf(file.metadata, file.tensor_names)
            if config.architecture != "LlamaForCausalLM":
                raise UnsupportedModelError(
                    f"no transformers baseline for a GGUF file of {config.architecture}"
                )
            loaded = LlamaForCausalLM(_llama_config(config))
            loaded.load_state_dict(
                {name: tensor.float() for name, tensor in GgufTensors(file, config).items()}, strict=False
            )
            loaded.tie_weights()
        case _:
            raise UnsupportedModelError(f"no transformers baseline for {model}: give a folder or a GGUF file")
    loaded.set_attn_implementation("sdpa")
    return loaded.eval()


class GenerateRunner:
    """``generate`` on batches of as many calls as the workload has at a time."""

    def __init__(self, model: "PreTrainedModel") -> None:
        self._model = model

    def run(self, workload: Workload, replay: Run) -> Run:
        """``replay``: another engine's run of the same workload, whose prompts are used token for token."""
        meter = Meter()
        rounds = []
        for turn, prompts in enumerate(prompts_of(replay)):
            size = len(prompts) if workload.conversations else workload.concurrency
            chunks = [prompts[start : start + size] for start in range(0, len(prompts), size)]
            rounds.append([call for chunk in chunks for call in self._batch(chunk, workload.max_tokens, turn)])
        return meter.stop(rounds)

    def _batch(self, prompts: Sequence[list[int]], max_tokens: int, turn: int) -> list[CallRecord]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        clock = _Clock()
        sent = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=_greedy(max_tokens),
                streamer=clock,
            )
        # The first entry is the prompt.
        _, first, *_ = clock.times
        return [
            CallRecord(prompt, tokens, 0, sent, first, clock.times[-1], turn)
            for prompt, tokens in zip(prompts, output[:, longest:].tolist(), strict=True)
        ]


class _Clock:
    """A streamer that only notes when something came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _value: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        return None


class ContinuousRunner:
    """The continuous-batching manager with as many requests in flight as the workload has at a time."""

    def __init__(self, model: "PreTrainedModel") -> None:
        self._model = model

    def run(self, workload: Workload, replay: Run) -> Run:
        """As GenerateRunner.run. Manager and cache live as long as the repetition; their start is not timed."""
        from transformers.generation import ContinuousBatchingConfig

        rounds = prompts_of(replay)
        # Room for everything in flight, so that blocks of finished requests can stay and be shared.
        longest = max(len(prompt) for prompts in rounds for prompt in prompts) + workload.max_tokens
        in_flight = max(map(len, rounds)) if workload.conversations else workload.concurrency
        page = 32
        config = ContinuousBatchingConfig(
            page_size=page,
            num_blocks=2 * (in_flight + 1) * (longest // page + 1),
            max_batch_tokens=512,
        )
        with self._model.continuous_batching_context_manager(
            generation_config=_greedy(workload.max_tokens), continuous_batching_config=config, warmup=False
        ) as manager:
            meter = Meter()
            records = [
                self._round(manager, prompts, in_flight, workload.max_tokens, turn)
                for turn, prompts in enumerate(rounds)
            ]
            return meter.stop(records)

    def _round(
        self, manager: Any, prompts: Sequence[list[int]], in_flight: int, max_tokens: int, turn: int
    ) -> list[CallRecord]:
        records: dict[int, CallRecord] = {}
        sent: dict[str, tuple[int, float]] = {}
        waiting = list(enumerate(prompts))[::-1]
        while waiting or sent:
            while waiting and len(sent) < in_flight:
                index, prompt = waiting.pop()
                key = manager.add_request(
                    prompt, max_new_tokens=max_tokens, record_timestamps=True, eos_token_id=-1
                )
                sent[key] = index, time.perf_counter()
            result = manager.get_result(timeout=RESULT_SECONDS)
            if result is None or result.error is not None:
                raise RuntimeError(
                    f"continuous batching gave no result: {result.error if result else 'timeout'}"
                )
            index, when = sent.pop(result.request_id)
            times = result.timestamps
            records[index] = CallRecord(
                prompts[index], list(result.generated_tokens), 0, when, times[0], times[-1], turn
            )
        return [records[index] for index in range(len(prompts))]


def _greedy(max_tokens: int) -> "GenerationConfig":
    from transformers import GenerationConfig

    # -1 is no token's id, so that the end of text is ignored, as it is in the other engines.
    return GenerationConfig(
        max_new_tokens=max_tokens, min_new_tokens=0, do_sample=False, eos_token_id=-1, pad_token_id=0
    )


def _llama_config(config: ModelConfig) -> "LlamaConfig":
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
        tie_word_embeddings=config.tie_embeddings,
    )
