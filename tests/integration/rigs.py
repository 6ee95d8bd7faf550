"""Engines over one model in every configuration, requests of every kind, and what can be done to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import torch

from ramet.runtime.attention import TorchAttentionBackend
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.executor.model_runner import ModelRunner, RunnerConfig
from ramet.runtime.forward import DeviceKVPool
from ramet.runtime.grammar import ChoiceBackend, GrammarBackend, GrammarCompiler
from ramet.runtime.grammar.guide import MaskWork
from ramet.runtime.grammar.service import JobThreads
from ramet.runtime.models.config import ModelConfig, MoeConfig
from ramet.runtime.models.decoder import DecoderModel
from ramet.runtime.models.model import Model
from ramet.runtime.models.prepare import Quantization, prepare_weights
from ramet.runtime.protocol import (
    Choice,
    FinishReason,
    GenerateInput,
    SamplingParams,
    TextOutput,
    TokenLogprobs,
)
from ramet.runtime.scheduler import (
    DraftProposer,
    Executor,
    Fcfs,
    LongestPrefixMatch,
    Request,
    RowResult,
    ScheduledBatch,
    Scheduler,
    SchedulerConfig,
)
from ramet.runtime.tokenizer import Tokenizer

CPU = torch.device("cpu")
CONTEXT = 1024
NUM_TINY_LAYERS = 3


@dataclass(frozen=True)
class Setting:
    """How an engine is set up; the defaults compute a request in one chunk, with nothing cached."""

    page_size: int = 16
    kv_tokens: int = 1024
    budget: int = 4096
    cache: bool = False
    max_running: int = 32
    headroom: int = 32
    fcfs: bool = False

    @classmethod
    def draw(cls, rng: Random, longest: int) -> "Setting":
        """``longest``: most tokens of one request; a third of the settings have hardly room for it."""
        return cls(
            page_size=rng.choice((1, 4, 16)),
            kv_tokens=longest + rng.choice((16, 300, 3000)),
            budget=rng.choice((9, 33, 64, 200, 4096)),
            cache=rng.random() < 0.75,
            max_running=rng.choice((1, 3, 16, 32)),
            headroom=rng.choice((0, 32)),
            fcfs=rng.random() < 0.3,
        )


@dataclass(frozen=True)
class Rig:
    """A model from which engines are made."""

    model: Model
    tokenizer: Tokenizer

    def core(
        self,
        setting: Setting,
        proposer: DraftProposer | None = None,
        wrap: Callable[[Executor, DeviceKVPool], Executor] | None = None,
        mask_work: MaskWork | None = None,
        backend: GrammarBackend | None = None,
    ) -> EngineCore:
        config, page_size = self.model.config, setting.page_size
        num_pages = -(-setting.kv_tokens // page_size)
        num_slots = num_pages * page_size
        pool = DeviceKVPool(
            num_layers=config.num_layers,
            num_slots=num_slots,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=torch.float32,
            device=CPU,
        )
        attention = TorchAttentionBackend(
            pool,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            page_size=page_size,
            device=CPU,
        )
        runner: Executor = ModelRunner(
            self.model,
            attention,
            RunnerConfig(setting.max_running, min(CONTEXT, num_slots), page_size),
            CPU,
        )
        sizes = SchedulerConfig(
            num_pages=num_pages,
            page_size=page_size,
            context_length=CONTEXT,
            vocab_size=config.vocab_size,
            max_running_requests=setting.max_running,
            max_tokens_per_step=setting.budget,
            enable_prefix_cache=setting.cache,
            admission_headroom=setting.headroom,
        )
        scheduler = Scheduler(
            sizes,
            policy=Fcfs() if setting.fcfs else LongestPrefixMatch(),
            stop_token_ids=self.tokenizer.stop_token_ids,
            proposer=proposer,
            mask_work=mask_work,
        )
        executor = runner if wrap is None else wrap(runner, pool)
        grammar = GrammarCompiler(backend or ChoiceBackend(self.tokenizer), vocabulary=self.tokenizer)
        return EngineCore(scheduler, executor, self.tokenizer, grammar, seed=0)

    def alone(self, source: GenerateInput, backend: GrammarBackend | None = None) -> "Answer":
        """What a request answers in an engine of its own, without drafts of any kind."""
        plain = MaskWork(JobThreads("mask", 0), drafts_forced=False)
        core = self.core(Setting(), mask_work=plain, backend=backend)
        return drain(core, [(0, source)])[source.request_id]


@dataclass
class Answer:
    """All that a request's increments say; equal where tokens, text and the log probabilities' bits are."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, output: TextOutput) -> None:
        assert self.finish_reason is None, f"{output.request_id} ended twice"
        self.token_ids += output.token_ids
        self.text += output.text
        self.logprobs += output.logprobs or []
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason


def drain(
    core: EngineCore,
    arrivals: Sequence[tuple[int, GenerateInput]],
    between: Callable[[], Sequence[TextOutput]] | None = None,
) -> dict[str, Answer]:
    """Run requests that arrive at the given steps to their ends; ``between`` is called after each step."""
    answers = {source.request_id: Answer() for _, source in arrivals}
    pending = sorted(arrivals, key=lambda arrival: -arrival[0])
    step = 0
    while pending or core.has_work():
        while pending and pending[-1][0] <= step:
            core.add(pending.pop()[1])
        for output in (*core.step(), *(between() if between is not None else ())):
            answers[output.request_id].add(output)
        step += 1
    core.check_integrity()
    core.flush_cache()
    stats = core.stats()
    assert stats.free_pages == stats.total_pages
    assert all(answer.finish_reason is not None for answer in answers.values())
    return answers


class Drafts:
    """Right tokens and wrong ones, in a mixture; knows the answers by the part of the id before the slash."""

    def __init__(self, rng: Random, answers: dict[str, Answer], vocab_size: int) -> None:
        self._rng = rng
        self._answers = answers
        self._vocab_size = vocab_size

    def propose(self, request: Request, ahead: Sequence[int]) -> list[int]:
        if ahead:
            return []
        answer = self._answers[request.request_id.partition("/")[0]].token_ids[request.num_output_tokens :]
        return [
            token_id if self._rng.random() < 0.8 else self._rng.randrange(self._vocab_size)
            for token_id in answer[: self._rng.randrange(7)]
        ]

    def observe(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        assert 0 <= num_accepted <= num_proposed

    def forget(self, request: Request) -> None:
        pass


class FaultyExecutor:
    """Fails some steps after it has written rubbish where they were to write KV, and says of some decode rows
    that their logits were not finite."""

    def __init__(self, inner: Executor, pool: DeviceKVPool, setting: Setting, rng: Random) -> None:
        self._inner = inner
        self._pool = pool
        self._page_size = setting.page_size
        self._rng = rng
        self._pages: list[list[int]] = [[] for _ in range(setting.max_running)]
        self.num_failures = 0

    def run(self, batch: ScheduledBatch) -> list[RowResult]:
        for row in batch.rows:
            self._pages[row.slot][row.first_new_page :] = (
                row.new_pages or self._pages[row.slot][row.first_new_page :]
            )
        fate = self._rng.random()
        if fate < 0.05:
            self._spoil(batch, range(len(batch.rows)))
            self.num_failures += 1
            raise RuntimeError("the device gave up")
        results = self._inner.run(batch)
        if fate < 0.1:
            self._spoil(batch, range(len(batch.rows)))
            self.num_failures += 1
            return results[1:]
        decoding = [i for i, row in enumerate(batch.rows) if len(row.token_ids) == 1 + row.num_drafts]
        if fate < 0.15 and decoding:
            index = self._rng.choice(decoding)
            if batch.rows[index].samples and batch.rows[index].start >= batch.rows[index].num_prompt_tokens:
                self._spoil(batch, [index])
                results[index] = RowResult([], error="not finite")
        return results

    def _spoil(self, batch: ScheduledBatch, indices: Sequence[int]) -> None:
        rubbish = self._rng.choice((float("nan"), 3.0))
        for row in (batch.rows[index] for index in indices):
            size, pages = self._page_size, self._pages[row.slot]
            slots = [pages[position // size] * size + position % size for position in range(row.start, row.end)]
            for layer in range(NUM_TINY_LAYERS):
                for tensor in self._pool.layer(layer):
                    tensor[slots] = rubbish


def draw_requests(rng: Random, corpus: Sequence[int], vocab_size: int, count: int) -> list[GenerateInput]:
    """Requests whose prompts share beginnings, of all lengths around the sizes that attention is cut into."""
    return [
        GenerateInput(request_id=f"r{index}", token_ids=_prompt(rng, corpus), params=_params(rng, vocab_size))
        for index in range(count)
    ]


def _prompt(rng: Random, corpus: Sequence[int]) -> list[int]:
    length = rng.choice((1, 2, 4, 5, 16, 17, 33, 63, 64, 65))
    start = 450 + 40 * rng.randrange(4)
    tail = list(corpus[start : start + length])
    shared = rng.choice((0, 0, 1, 2))
    if shared == 1:
        return list(corpus[: rng.choice((100, 191, 192, 193, 384, 400))]) + tail
    return list(corpus[400 : rng.choice((416, 464, 528))]) + tail if shared else tail


def _params(rng: Random, vocab_size: int) -> SamplingParams:
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {},
        {"top_p": 0.9},
        {"top_k": 5, "min_p": 0.02},
        {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.2},
        {"logit_bias": {rng.randrange(vocab_size): 5.0, 10: -100.0}},
        {"grammar": Choice(("yes", "no", "yes indeed", "a longer answer"))},
    ]
    fields: dict[str, object] = {"max_tokens": rng.choice((1, 3, 8, 12)), "seed": rng.randrange(100)}
    fields |= rng.choice(kinds)
    if "grammar" in fields:
        fields["max_tokens"] = 24
    if rng.random() < 0.6:
        fields["logprobs"] = rng.choice((0, 3))
    if rng.random() < 0.2:
        fields |= {"prompt_logprobs": 1, "prompt_logprobs_start": rng.choice((0, 10))}
    if rng.random() < 0.3:
        fields["ignore_eos"] = True
    if rng.random() < 0.3:
        fields["stop_token_ids"] = (rng.randrange(vocab_size), rng.randrange(vocab_size))
    return SamplingParams(**fields)  # type: ignore[arg-type]


TINY: dict[str, dict[str, object]] = {
    "llama": {},
    "window": {"sliding_window": 37, "sliding_layers": (0, 2), "num_kv_heads": 1},
    "experts": {
        "architecture": "Qwen3MoeForCausalLM",
        "moe": MoeConfig(
            num_experts=8,
            num_experts_per_token=2,
            intermediate_size=48,
            normalize_top_k=True,
            sparse_layers=(0, 1, 2),
        ),
    },
    "soft-capped": {
        "attention_softcap": 20.0,
        "logit_softcap": 30.0,
        "activation": "gelu_tanh",
        "head_dim": 24,
    },
}


def tiny_model(kind: str, quantization: Quantization) -> DecoderModel:
    """Three random layers over the byte tokenizer's vocabulary."""
    fields: dict[str, object] = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 258,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_layers": NUM_TINY_LAYERS,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "max_positions": CONTEXT,
        "tie_embeddings": True,
    }
    config = ModelConfig(**(fields | TINY[kind]))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(shape, generator=generator) * 1.5 * shape[1] ** -0.5
        for name, shape in _matrices(config).items()
    }
    norms = ["model.norm.weight"]
    for layer in range(config.num_layers):
        norms += [
            f"model.layers.{layer}.{norm}.weight" for norm in ("input_layernorm", "post_attention_layernorm")
        ]
    tensors |= {name: 1.0 + 0.1 * torch.randn(config.hidden_size, generator=generator) for name in norms}
    weights = prepare_weights(config, tensors, quantization=quantization, dtype=torch.float32)
    return DecoderModel(config, weights, CPU, torch.float32)


def _matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        shapes |= {
            f"{attention}.q_proj.weight": (queries, hidden),
            f"{attention}.k_proj.weight": (keys, hidden),
            f"{attention}.v_proj.weight": (keys, hidden),
            f"{attention}.o_proj.weight": (hidden, queries),
        }
        blocks = [(mlp, inner)]
        if config.moe is not None:
            shapes[f"{mlp}.gate.weight"] = (config.moe.num_experts, hidden)
            blocks = [
                (f"{mlp}.experts.{expert}", config.moe.intermediate_size)
                for expert in range(config.moe.num_experts)
            ]
        for name, size in blocks:
            shapes |= {
                f"{name}.gate_proj.weight": (size, hidden),
                f"{name}.up_proj.weight": (size, hidden),
                f"{name}.down_proj.weight": (hidden, size),
            }
    return shapes
