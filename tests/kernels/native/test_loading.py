"""A library is used only where it computes what it should."""

from pathlib import Path

import pytest
from torch import Tensor

from ramet.kernels import native
from ramet.kernels.native import loading
from ramet.kernels.native.build import NativeBuildError
from ramet.kernels.native.library import NativeInt8Weight, NativeLibrary


class Wrong(NativeLibrary):
    def linear_int8(self, x: Tensor, weight: NativeInt8Weight, bias: Tensor | None) -> Tensor:
        return super().linear_int8(x, weight, bias) + 1.0


def test_wrong_results_are_noticed(tmp_path: Path) -> None:
    if reason := native.enable(tmp_path):
        pytest.skip(reason)
    right = native.library()
    assert right is not None
    with pytest.raises(NativeBuildError, match="computes wrong products of 1x64x32"):
        loading._checked(Wrong(right.path, right.name))


def test_the_first_call_decides(tmp_path: Path) -> None:
    reason = native.enable(tmp_path)
    library = native.library()
    assert (library is None) == bool(reason)
    assert native.enable(tmp_path / "elsewhere") == reason
    assert native.library() is library
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_text("text")
    with pytest.raises(NativeBuildError, match=r"x\.so cannot be loaded"):
        NativeLibrary(tmp_path / "x.so", "x")
