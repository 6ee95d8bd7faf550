"""Our attention inside transformers' modelling code, through its AttentionInterface.

transformers calls a registered function for every attention layer, with (module, query, key, value,
attention_mask, options), query [1, num_heads, num_tokens, head_dim]; here it hands the flattened batch to the
step's AttentionPlan. A layer is recognised by its module: at load one recorded step turns what each module
passes into an AttentionSpec, and refuses what a spec cannot say. The causal mask's window is read from the very
function that transformers would fill its mask with, so a window of 4096 is found with a prompt of ten tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ramet.kernels import attention
from ramet.runtime.forward import AttentionPlan, AttentionSpec
from ramet.runtime.protocol import UnsupportedModelError

IMPLEMENTATION = "ramet"
RECORDING = "ramet_recording"
_BINDING = "_ramet_binding"
_WINDOW = "_ramet_window"
_NO_EFFECT = frozenset(
    # Options of the whole forward pass that transformers hands through to attention.
    {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "return_dict", "layer_idx"}
)
_READ = frozenset({"scaling", "sliding_window", "softcap", "is_causal", "dropout"})


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What the KV pool and the plan have to know of a layer."""

    spec: AttentionSpec
    num_heads: int
    num_kv_heads: int
    head_dim: int


class AttentionBinding:
    """The modules of one model and the plan of the step that it computes; set on every module of that model.

    Mutable: ``layers`` grows while recording, ``plan`` is set for the time of a step.
    """

    def __init__(self, horizon: int) -> None:
        """horizon: the context length; masks are told apart up to it."""
        self.horizon = horizon
        self.layers: dict[nn.Module, AttentionLayer] = {}
        self.plan: AttentionPlan | None = None

    def attach(self, model: nn.Module) -> None:
        for module in model.modules():
            setattr(module, _BINDING, self)


def register(transformers: Any) -> None:
    """Make the two implementations known to transformers (again: no change)."""
    transformers.AttentionInterface.register(IMPLEMENTATION, _attend)
    transformers.AttentionInterface.register(RECORDING, _record)
    # IMPLEMENTATION has no mask function: transformers then builds no mask.
    transformers.AttentionMaskInterface.register(RECORDING, _mask_with_window)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    binding = _binding_of(module)
    layer, plan = binding.layers.get(module), binding.plan
    if layer is None or plan is None:
        raise RuntimeError(
            f"{type(module).__name__} attends outside of a step or was not seen when the model was loaded"
        )
    scaling = options.get("scaling")
    if scaling is not None and scaling != layer.spec.scale:
        raise RuntimeError(
            f"{type(module).__name__} scales attention by {scaling}, when loaded by {layer.spec.scale}"
        )
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return plan(q, k, v, layer.spec)[None], None


def _record(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Note what the layer is, and attend within the one row of the recorded step."""
    binding, name = _binding_of(module), type(module).__name__
    if module in binding.layers:
        raise UnsupportedModelError(
            f"{name} attends more than once in a step (shared layers), which is not supported"
        )
    if key.shape[2] != query.shape[2]:
        raise UnsupportedModelError(
            f"{name} attends to other tokens than its own (cross attention): not supported"
        )
    if value.shape[-1] != key.shape[-1]:
        raise UnsupportedModelError(
            f"{name} has value heads of size {value.shape[-1]} but key heads of {key.shape[-1]}: not supported"
        )
    _refuse_options(name, options)
    window = _window_of(name, attention_mask, options.get("sliding_window"), binding.horizon)
    scaling = options.get("scaling")
    spec = AttentionSpec(
        layer_id=len(binding.layers),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        sliding_window=window,
        softcap=options.get("softcap"),
    )
    binding.layers[module] = AttentionLayer(spec, query.shape[1], key.shape[1], query.shape[3])
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    out = attention(q, k, v, scale=spec.scale, sliding_window=spec.sliding_window, softcap=spec.softcap)
    return out[None], None


def _binding_of(module: nn.Module) -> AttentionBinding:
    binding = getattr(module, _BINDING, None)
    if not isinstance(binding, AttentionBinding):
        raise RuntimeError(f"{type(module).__name__} belongs to no model that ramet loaded")
    return binding


def _refuse_options(name: str, options: dict[str, Any]) -> None:
    if options.get("is_causal") is False:
        raise UnsupportedModelError(f"{name} attends to later tokens (is_causal=False): not supported")
    for option, value in options.items():
        if option not in _READ and option not in _NO_EFFECT and value is not None and value is not False:
            raise UnsupportedModelError(
                f"{name} passes {option} to its attention (sinks, biases ...): not supported"
            )


def _window_of(name: str, mask: Tensor | None, declared: int | None, horizon: int) -> int | None:
    if mask is None or not hasattr(mask, _WINDOW):
        raise UnsupportedModelError(
            f"{name} attends without a mask of transformers' masking functions: not supported"
        )
    found = getattr(mask, _WINDOW)
    if isinstance(found, str):
        raise UnsupportedModelError(f"{name} attends with {found}, which is not supported")
    window: int | None = found
    if declared is not None and declared < horizon and declared != window:
        raise UnsupportedModelError(
            f"{name} passes sliding_window={declared} but its mask has {window}: not supported"
        )
    return window


def _mask_with_window(
    *, mask_function: Callable[..., Tensor], q_length: int, kv_length: int, dtype: torch.dtype, **others: Any
) -> Tensor:
    """The mask of the recorded step, with the window that its function describes as an attribute."""
    from transformers.masking_utils import eager_mask

    others["allow_is_bidirectional_skip"] = False
    mask: Tensor = eager_mask(
        mask_function=mask_function, q_length=q_length, kv_length=kv_length, dtype=dtype, **others
    )
    horizon = others["config"].get_text_config().max_position_embeddings
    setattr(mask, _WINDOW, _described_window(mask_function, horizon, mask.device))
    return mask


def _described_window(
    mask_function: Callable[..., Tensor], horizon: int, device: torch.device
) -> int | str | None:
    """The sliding window of a causal mask, None for no window, or in words what the mask is instead.

    Asked at positions up to the context length: at both ends and at places that no chunk size has in common.
    """
    queries = sorted(
        {0, 1, horizon // 3, horizon // 2, horizon // 2 + 1, horizon - 2, horizon - 1} & set(range(horizon))
    )
    q = torch.tensor(queries, device=device)[:, None]
    k = torch.arange(horizon, device=device)[None, :]
    zero = torch.zeros((1, 1), dtype=torch.int64, device=device)
    try:
        visible = mask_function(zero, zero, q, k).expand(len(queries), horizon)
    except (IndexError, RuntimeError):
        return "a mask that depends on the tokens"
    if bool((visible & (k > q)).any()):
        return "a mask that shows later tokens"
    count = int(visible[-1].sum())
    window = None if count == horizon else count
    expected = k <= q if window is None else (k <= q) & (k > q - window)
    return window if torch.equal(visible, expected) else "a mask that is neither causal nor a sliding window"
