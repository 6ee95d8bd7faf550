"""RMS norms."""

from torch import Tensor

from ramet.kernels import add_rms_norm, rms_norm


class RMSNorm:
    """weight: [size] fp32, with Gemma's 1 already added."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., size]; the norm is over the last dimension."""
        return rms_norm(x, self._weight, self._eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm of residual + x, residual + x)."""
        return add_rms_norm(x, residual, self._weight, self._eps)
