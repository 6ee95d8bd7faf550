"""Architectures without an implementation here: transformers' own modelling code with our attention plugged in.

That is right for causal decoders whose tokens meet in attention only. Nothing of it is assumed: what the config
names otherwise is refused before the weights are read, what a layer passes otherwise is refused when it is
recorded, and the whole is compared with transformers' own attention on a few tokens, in chunks and beside
another sequence, before a model is handed out.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from ramet.runtime.forward import ForwardBatch
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.dense_attention import DenseSequence, dense_batch
from ramet.runtime.models.transformers_attention import IMPLEMENTATION, RECORDING, AttentionBinding, register
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError

_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
"""Relative error of a token's logits in the self-test. A token that sees wrong tokens is off by about 1."""
_LAYER_TYPES = ("full_attention", "sliding_attention", "attention")


class TransformersModel:
    """A causal language model of transformers (see ``Model`` for the contract of ``forward``).

    Of ``config`` only the names and sizes describe the model; how it computes is in transformers' code. One
    step at a time: the step's plan is kept on the model while it runs.
    """

    def __init__(self, model: Any) -> None:
        """model: a transformers PreTrainedModel with a language-model head, with its weights.

        It is switched to our attention for good. Raises UnsupportedModelError where that would not be right.
        """
        refuse_architecture(type(model), model.config)
        if model.get_output_embeddings() is None:
            raise UnsupportedModelError(f"{type(model).__name__} has no output head over the vocabulary")
        register(_transformers())
        self._model = model.eval()
        self._name = type(model).__name__
        self._binding = AttentionBinding(_context_length(model.config))
        self._binding.attach(model)
        self._takes_indices = "logits_to_keep" in inspect.signature(model.forward).parameters
        with torch.inference_mode():
            self._config = self._record()
            self._check_against_own_attention()

    @property
    def config(self) -> ModelConfig:
        return self._config

    def forward(self, batch: ForwardBatch) -> Tensor:
        kept = {"logits_to_keep": batch.logit_indices} if self._takes_indices else {}
        self._binding.plan = batch.attention
        try:
            logits = self._logits(batch.input_ids, batch.positions, **kept)
        finally:
            self._binding.plan = None
        return (logits if self._takes_indices else logits.index_select(0, batch.logit_indices)).float()

    def _logits(self, input_ids: Tensor, positions: Tensor, **options: Any) -> Tensor:
        out = self._model(input_ids=input_ids[None], position_ids=positions[None], use_cache=False, **options)
        logits: Tensor = out.logits[0]
        return logits

    def _record(self) -> ModelConfig:
        """Run a few tokens through the model to see its attention layers."""
        text = self._model.config.get_text_config()
        self._model.set_attn_implementation(RECORDING)
        ids = self._test_tokens(8, text.vocab_size)
        try:
            logits = self._logits(ids, torch.arange(len(ids), device=ids.device))
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise UnsupportedModelError(f"{self._name} fails on a few tokens: {error}") from error
        self._model.set_attn_implementation(IMPLEMENTATION)
        layers = list(self._binding.layers.values())
        if not layers:
            raise UnsupportedModelError(
                f"{self._name} does not call transformers' AttentionInterface: not supported"
            )
        if len({(layer.num_heads, layer.num_kv_heads, layer.head_dim) for layer in layers}) > 1:
            raise UnsupportedModelError(f"{self._name} has layers whose attention heads differ: not supported")
        return ModelConfig(
            architecture=self._name,
            vocab_size=logits.shape[-1],
            hidden_size=text.hidden_size,
            intermediate_size=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            num_layers=len(layers),
            num_heads=layers[0].num_heads,
            num_kv_heads=layers[0].num_kv_heads,
            head_dim=layers[0].head_dim,
            max_positions=self._binding.horizon,
            tie_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
            bos_token_id=text.bos_token_id if isinstance(text.bos_token_id, int) else None,
            eos_token_ids=_token_ids(text.eos_token_id),
        )

    def _check_against_own_attention(self) -> None:
        """Two sequences, in chunks and side by side, against each whole and alone through the model's own."""
        first, second = (
            self._test_tokens(13, self._config.vocab_size),
            self._test_tokens(7, self._config.vocab_size, 1),
        )
        self._model.set_attn_implementation("eager")
        expected = [self._logits(ids, torch.arange(len(ids), device=ids.device)) for ids in (first, second)]
        self._model.set_attn_implementation(IMPLEMENTATION)
        a, b, device = DenseSequence(), DenseSequence(), first.device
        one = self.forward(dense_batch([(a, first[:8].tolist()), (b, second[:4].tolist())], device))
        two = self.forward(dense_batch([(b, second[4:].tolist()), (a, first[8:12].tolist())], device))
        last = self.forward(dense_batch([(a, first[12:].tolist())], device, all_logits=False))
        got = torch.cat((one[:8], two[3:], last, one[8:], two[:3]))
        wanted = torch.cat(expected).float()
        error = (got - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        # In half precision a token near a tie may go to another expert; the rest of the tokens have to agree.
        worst = float(error.max() if self._model.dtype == torch.float32 else error.quantile(0.75))
        if not worst <= _TOLERANCE.get(self._model.dtype, 8e-2):
            raise UnsupportedModelError(
                f"{self._name} cannot run with a paged KV cache: in the self-test its logits differ from those "
                f"of its own attention (relative error {worst:.2g})"
            )

    def _test_tokens(self, count: int, vocab_size: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(vocab_size, (count,), generator=generator).to(self._model.device)


def load_transformers_model(folder: Path, *, device: torch.device, dtype: torch.dtype) -> TransformersModel:
    """Read a Hugging Face folder (config.json, safetensors) with transformers; code in the folder is not run.

    Raises UnsupportedModelError for an architecture that cannot run here, and ModelLoadError where transformers
    is not installed, the files are damaged, or tensors are missing or left over.
    """
    transformers = _transformers()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError) as error:
        raise UnsupportedModelError(f"transformers does not know the model in {folder}: {error}") from error
    named = (config.architectures or ["no architecture"])[0]
    model_class = getattr(transformers, named, None)
    if model_class is None:
        raise UnsupportedModelError(
            f"{folder} names {named!r}, which transformers {transformers.__version__} lacks"
        )
    refuse_architecture(model_class, config)
    try:
        with _quiet(transformers):
            model, report = model_class.from_pretrained(
                folder, config=config, dtype=dtype, local_files_only=True, output_loading_info=True
            )
    except (ValueError, KeyError, OSError, RuntimeError, SafetensorError) as error:
        raise ModelLoadError(f"transformers cannot load {folder}: {error}") from error
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if names := sorted(map(str, report.get(kind) or ())):
            raise ModelLoadError(
                f"{folder}: {kind.removesuffix('_keys')} tensors ({len(names)}): {', '.join(names[:3])}"
            )
    return TransformersModel(model.to(device))


def refuse_architecture(model_class: Any, config: Any) -> None:
    """Raise UnsupportedModelError for what class and config already tell; needs no weights."""
    name, text = model_class.__name__, config.get_text_config()
    reason = None
    if getattr(config, "is_encoder_decoder", False):
        reason = "it has an encoder and a decoder"
    elif getattr(model_class, "_is_stateful", False):
        reason = "its layers keep a recurrent state besides keys and values"
    elif other := [kind for kind in getattr(text, "layer_types", None) or () if kind not in _LAYER_TYPES]:
        reason = f"layer type {other[0]!r} keeps more than keys and values, or sees other tokens"
    elif getattr(text, "alibi", False):
        reason = "its attention has biases by distance (alibi)"
    elif rope := sorted(_rope_types(text) & {"dynamic", "longrope"}):
        reason = f"rope type {rope[0]!r} lets a token's position depend on the rest of the batch"
    elif not getattr(model_class, "_supports_attention_backend", False):
        reason = "its code does not call transformers' AttentionInterface"
    elif "position_ids" not in inspect.signature(model_class.forward).parameters:
        reason = "its code takes no positions"
    if reason is not None:
        raise UnsupportedModelError(f"{name} cannot run through transformers with a paged KV cache: {reason}")
    _context_length(config)


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """transformers' own bars and reports of missing tensors: the caller has its bars, and the error says the
    rest."""
    log = transformers.utils.logging
    verbosity, had_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if had_bars:
            log.enable_progress_bar()


def _rope_types(text: Any) -> set[str]:
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {str(rope.get("rope_type", "default")) for rope in nested or [parameters]}


def _context_length(config: Any) -> int:
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(length, int) or length < 1:
        raise UnsupportedModelError(
            f"{type(config).__name__} names no context length (max_position_embeddings)"
        )
    return length


def _token_ids(value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list | tuple) else [value]
    return tuple(token for token in ids if isinstance(token, int))


def _transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise ModelLoadError(
            "this architecture needs transformers, which is not installed: pip install 'ramet[transformers]'"
        ) from error
    return transformers  # type: ignore[no-any-return]
