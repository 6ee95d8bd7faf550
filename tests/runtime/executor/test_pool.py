"""Sizing of the KV pool."""

from pathlib import Path

import pytest
import torch

from ramet.runtime.executor.pool import (
    HOST_DEFAULT_TOKENS,
    available_host_bytes,
    kv_bytes_per_token,
    kv_pool_size,
)
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.protocol import InvalidRequestError, ModelLoadError

CPU = torch.device("cpu")


def config(num_layers: int = 2, max_positions: int = 2048, head_dim: int = 8) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=10,
        hidden_size=16,
        intermediate_size=16,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=head_dim,
        max_positions=max_positions,
    )


def size(
    model: ModelConfig,
    *,
    page_size: int = 16,
    kv_tokens: int | None = None,
    memory_fraction: float | None = None,
) -> int:
    return kv_pool_size(
        model,
        device=CPU,
        dtype=torch.float32,
        page_size=page_size,
        kv_tokens=kv_tokens,
        memory_fraction=memory_fraction,
    )


def test_bytes_per_token() -> None:
    assert kv_bytes_per_token(config(), torch.float32) == 2 * 2 * 2 * 8 * 4
    assert kv_bytes_per_token(config(), torch.bfloat16) == 2 * 2 * 2 * 8 * 2
    assert kv_bytes_per_token(config(), torch.float8_e4m3fn) == 2 * 2 * 2 * 8
    # A scale for each token's head.
    assert kv_bytes_per_token(config(), torch.int8) == 2 * 2 * 2 * (8 + 4)


@pytest.mark.parametrize(("kv_tokens", "pages"), [(1, 1), (16, 1), (17, 2), (160, 10)])
def test_kv_tokens_is_honoured_in_whole_pages(kv_tokens: int, pages: int) -> None:
    assert size(config(), kv_tokens=kv_tokens) == pages
    assert size(config(), kv_tokens=kv_tokens, page_size=1) == kv_tokens


def test_the_default_is_modest_on_a_cpu() -> None:
    assert size(config()) == HOST_DEFAULT_TOKENS // 16
    assert size(config(max_positions=2 * HOST_DEFAULT_TOKENS)) == 2 * HOST_DEFAULT_TOKENS // 16


def test_the_default_leaves_three_quarters_of_the_memory() -> None:
    # 4 MiB a token: HOST_DEFAULT_TOKENS of them do not fit.
    model = config(num_layers=64, head_dim=4096)
    assert (
        size(model, page_size=1) <= available_host_bytes() / 4 / kv_bytes_per_token(model, torch.float32) * 1.2
    )


def test_memory_fraction_is_honoured() -> None:
    model = config(num_layers=64, head_dim=4096)
    assert 1 <= size(model, memory_fraction=0.05) < size(model, memory_fraction=0.5)


def test_kv_tokens_that_do_not_fit_are_refused_with_the_numbers() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"kv_tokens is 10\d+, which takes .* MiB .* free, enough"
    ) as caught:
        size(config(), kv_tokens=10**15)
    assert caught.value.field == "kv_tokens"


def test_a_model_of_which_no_page_fits_is_refused_with_the_numbers() -> None:
    with pytest.raises(ModelLoadError, match=r"a page of 1024 tokens takes .* MiB"):
        size(config(num_layers=4096, head_dim=65536), page_size=1024)


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5])
def test_memory_fraction_out_of_range(fraction: float) -> None:
    with pytest.raises(InvalidRequestError, match=f"memory_fraction is {fraction}"):
        size(config(), memory_fraction=fraction)


def test_kv_tokens_must_be_positive() -> None:
    with pytest.raises(InvalidRequestError, match="kv_tokens is 0"):
        size(config(), kv_tokens=0)


class TestAvailableHostBytes:
    def write(self, folder: Path, **files: str) -> tuple[Path, Path]:
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        return folder / "meminfo", folder

    def test_what_linux_says(self, tmp_path: Path) -> None:
        meminfo = "MemTotal: 900 kB\nMemAvailable:   500 kB\n"
        assert available_host_bytes(*self.write(tmp_path, meminfo=meminfo)) == 500 * 1024

    def test_a_cgroup_limit(self, tmp_path: Path) -> None:
        files = {"meminfo": "MemAvailable: 500 kB\n", "memory_max": "4096\n", "memory_current": "1000\n"}
        assert available_host_bytes(*self.write(tmp_path, **files)) == 3096

    def test_no_cgroup_limit(self, tmp_path: Path) -> None:
        files = {"meminfo": "MemAvailable: 5 kB\n", "memory_max": "max\n", "memory_current": "1000\n"}
        assert available_host_bytes(*self.write(tmp_path, **files)) == 5 * 1024

    def test_elsewhere_half_of_the_machines_memory(self, tmp_path: Path) -> None:
        assert available_host_bytes(tmp_path / "none", tmp_path) > 0
