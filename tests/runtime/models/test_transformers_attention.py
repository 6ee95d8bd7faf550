"""Single attention calls as transformers makes them: what is recorded, computed and refused."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ramet.kernels import attention
from ramet.runtime.forward import AttentionSpec
from ramet.runtime.models.dense_attention import DensePlan, DenseSequence
from ramet.runtime.models.transformers_attention import (
    IMPLEMENTATION,
    RECORDING,
    AttentionBinding,
    register,
)
from ramet.runtime.protocol import UnsupportedModelError

transformers = pytest.importorskip("transformers")
masking_utils = pytest.importorskip("transformers.masking_utils")

HORIZON, LENGTH = 64, 6
Call = Callable[..., tuple[Tensor, None]]
MaskFunction = Callable[..., Tensor]


class Attention(nn.Module):
    """Stands for a layer of somebody's model."""


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    register(transformers)
    register(transformers)  # again: no change


@pytest.fixture
def record() -> Call:
    return transformers.AttentionInterface()[RECORDING]  # type: ignore[no-any-return]


@pytest.fixture
def attend() -> Call:
    return transformers.AttentionInterface()[IMPLEMENTATION]  # type: ignore[no-any-return]


def mask_of(function: MaskFunction, horizon: int = HORIZON) -> Tensor:
    text_config = SimpleNamespace(max_position_embeddings=horizon)
    make = transformers.AttentionMaskInterface()[RECORDING]
    mask: Tensor = make(
        batch_size=1,
        q_length=LENGTH,
        kv_length=LENGTH,
        q_offset=0,
        kv_offset=0,
        mask_function=function,
        attention_mask=None,
        dtype=torch.float32,
        config=SimpleNamespace(get_text_config=lambda: text_config),
        device=torch.device("cpu"),
    )
    return mask


def causal() -> Tensor:
    return mask_of(masking_utils.causal_mask_function)


def window_of(size: int) -> Tensor:
    return mask_of(masking_utils.sliding_window_causal_mask_function(size))


def layer() -> tuple[Attention, AttentionBinding]:
    module, binding = Attention(), AttentionBinding(HORIZON)
    binding.attach(module)
    return module, binding


def tensors(length: int = LENGTH) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, 8, generator=generator) for heads in (4, 2, 2))
    return q, k, v


def flat(*parts: Tensor) -> list[Tensor]:
    return [part[0].transpose(0, 1) for part in parts]


class TestRecording:
    def test_a_plain_layer(self, record: Call) -> None:
        module, binding = layer()
        q, k, v = tensors()
        out, weights = record(module, q, k, v, causal())
        assert weights is None
        (found,) = binding.layers.values()
        assert found.spec == AttentionSpec(layer_id=0, scale=8**-0.5, sliding_window=None, softcap=None)
        assert (found.num_heads, found.num_kv_heads, found.head_dim) == (4, 2, 8)
        expected = attention(*flat(q, k, v), scale=8**-0.5, sliding_window=None, softcap=None)
        assert torch.equal(out, expected[None])

    def test_options_reach_the_spec_and_the_result(self, record: Call) -> None:
        module, binding = layer()
        q, k, v = tensors()
        out, _ = record(module, q, k, v, window_of(3), scaling=0.25, softcap=4.0, sliding_window=3, dropout=0.0)
        (found,) = binding.layers.values()
        assert found.spec == AttentionSpec(layer_id=0, scale=0.25, sliding_window=3, softcap=4.0)
        expected = attention(*flat(q, k, v), scale=0.25, sliding_window=3, softcap=4.0)
        assert torch.equal(out, expected[None])

    def test_layers_are_numbered_in_the_order_of_their_calls(self, record: Call) -> None:
        model = nn.ModuleList([Attention(), Attention()])
        binding = AttentionBinding(HORIZON)
        binding.attach(model)
        for module in (model[1], model[0]):
            record(module, *tensors(), causal())
        assert [(m is model[1], found.spec.layer_id) for m, found in binding.layers.items()] == [
            (True, 0),
            (False, 1),
        ]

    def test_options_without_effect_are_passed_over(self, record: Call) -> None:
        module, binding = layer()
        record(
            module,
            *tensors(),
            causal(),
            position_ids=torch.arange(6),
            use_cache=False,
            is_causal=True,
            s_aux=None,
        )
        assert len(binding.layers) == 1

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"s_aux": torch.zeros(4)}, "passes s_aux"),
            ({"position_bias": torch.zeros(1)}, "passes position_bias"),
            ({"output_router": True}, "passes output_router"),
            ({"is_causal": False}, "is_causal=False"),
            ({"sliding_window": 3}, "sliding_window=3 but its mask has None"),
        ],
    )
    def test_what_a_spec_cannot_say_is_refused(self, options: dict[str, Any], said: str, record: Call) -> None:
        module, binding = layer()
        with pytest.raises(UnsupportedModelError, match=f"^Attention .*{said}"):
            record(module, *tensors(), causal(), **options)
        assert binding.layers == {}

    def test_shapes_that_are_refused(self, record: Call) -> None:
        q, k, v = tensors()
        with pytest.raises(UnsupportedModelError, match="cross attention"):
            record(layer()[0], q, k[:, :, :3], v[:, :, :3], causal())
        with pytest.raises(UnsupportedModelError, match="value heads of size 4 but key heads of 8"):
            record(layer()[0], q, k, v[..., :4], causal())

    def test_a_layer_that_attends_twice_is_refused(self, record: Call) -> None:
        module, _ = layer()
        record(module, *tensors(), causal())
        with pytest.raises(UnsupportedModelError, match="more than once in a step"):
            record(module, *tensors(), causal())

    def test_a_mask_of_other_origin_is_refused(self, record: Call) -> None:
        for mask in (None, torch.zeros(1, 1, LENGTH, LENGTH)):
            with pytest.raises(
                UnsupportedModelError, match="without a mask of transformers' masking functions"
            ):
                record(layer()[0], *tensors(), mask)

    def test_a_window_beyond_the_context_is_none(self, record: Call) -> None:
        module, binding = layer()
        record(module, *tensors(), causal(), sliding_window=HORIZON)
        (found,) = binding.layers.values()
        assert found.spec.sliding_window is None


class TestMasks:
    @pytest.mark.parametrize("size", [1, 2, LENGTH, LENGTH + 1, HORIZON // 2, HORIZON - 1])
    def test_a_window_is_found_however_short_the_prompt(self, size: int, record: Call) -> None:
        module, binding = layer()
        record(module, *tensors(), window_of(size))
        (found,) = binding.layers.values()
        assert found.spec.sliding_window == size

    def test_a_window_as_long_as_the_context_hides_nothing(self, record: Call) -> None:
        module, binding = layer()
        record(module, *tensors(), window_of(HORIZON))
        (found,) = binding.layers.values()
        assert found.spec.sliding_window is None

    @pytest.mark.parametrize("horizon", [1, 2, 3])
    def test_a_tiny_context(self, horizon: int, record: Call) -> None:
        module, binding = layer()
        record(module, *tensors(), mask_of(masking_utils.causal_mask_function, horizon))
        assert len(binding.layers) == 1

    def test_the_mask_is_transformers_own(self) -> None:
        own = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        assert torch.equal(causal()[0, 0] == 0, own)

    @pytest.mark.parametrize(
        ("function", "said"),
        [
            (lambda b, h, q, k: k >= 0 * q, "shows later tokens"),
            (lambda b, h, q, k: (k <= q) & (k // 8 == q // 8), "neither causal nor a sliding window"),
            (lambda b, h, q, k: (k <= q) & ((q - k) % 2 == 0), "neither causal nor a sliding window"),
            (lambda b, h, q, k: (k <= q) & ((k > q - 5) | (k == 0)), "neither causal nor a sliding window"),
            (lambda b, h, q, k: (k <= q) | (k < 4), "shows later tokens"),
            (lambda b, h, q, k: torch.arange(LENGTH)[k] <= torch.arange(LENGTH)[q], "depends on the tokens"),
        ],
        ids=["all", "chunks", "dilated", "sink", "prefix", "by-token"],
    )
    def test_other_masks_are_refused(self, function: MaskFunction, said: str, record: Call) -> None:
        with pytest.raises(UnsupportedModelError, match=f"^Attention attends with a mask .*{said}"):
            record(layer()[0], *tensors(), mask_of(function))


class TestAttending:
    def test_the_steps_plan_attends(self, record: Call, attend: Call) -> None:
        module, binding = layer()
        q, k, v = tensors()
        expected, _ = record(module, q, k, v, window_of(3), softcap=2.0)
        sequence, parts = DenseSequence(), []
        for rows in (slice(0, 4), slice(4, 6)):
            binding.plan = DensePlan([sequence], [rows.stop - rows.start])
            out, weights = attend(module, q[:, :, rows], k[:, :, rows], v[:, :, rows], None, softcap=2.0)
            assert weights is None
            parts.append(out)
        torch.testing.assert_close(torch.cat(parts, dim=1), expected)

    def test_outside_of_a_step_or_unseen_at_load_is_an_error(self, record: Call, attend: Call) -> None:
        module, binding = layer()
        binding.plan = DensePlan([DenseSequence()], [LENGTH])
        with pytest.raises(RuntimeError, match="Attention attends outside of a step or was not seen"):
            attend(module, *tensors(), None)
        record(module, *tensors(), causal())
        binding.plan = None
        with pytest.raises(RuntimeError, match="outside of a step"):
            attend(module, *tensors(), None)

    def test_another_scale_than_at_load_is_an_error(self, record: Call, attend: Call) -> None:
        module, binding = layer()
        record(module, *tensors(), causal(), scaling=0.5)
        binding.plan = DensePlan([DenseSequence()], [LENGTH])
        with pytest.raises(RuntimeError, match=r"scales attention by 0\.4, when loaded by 0\.5"):
            attend(module, *tensors(), None, scaling=0.4)
        attend(module, *tensors(), None, scaling=0.5)

    def test_a_module_of_another_model_is_an_error(self, record: Call, attend: Call) -> None:
        for call in (record, attend):
            with pytest.raises(RuntimeError, match="belongs to no model that ramet loaded"):
                call(Attention(), *tensors(), causal())


def test_attaching_reaches_every_module_of_the_model() -> None:
    model = nn.Sequential(Attention(), nn.Sequential(Attention()))
    binding = AttentionBinding(HORIZON)
    binding.attach(model)
    assert {getattr(module, "_ramet_binding", None) for module in model.modules()} == {binding}
