"""Measures the gradient noise scale from the gradients that a step computes anyway."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit import _core

# Number of windows whose norms stay on the device, so that reading them rarely waits for it.
_MAX_PENDING = 16


@dataclass(frozen=True)
class NoiseScale:
    """The gradient noise scale so far: `print` it, or read its fields."""

    value: float | None
    """The noise scale in `unit`; `None` without an estimate, or if the mean gradient is lost in the noise."""
    low: float | None
    """Lower end of the 95 % confidence interval; `None` before the tenth estimate."""
    high: float | None
    """Upper end; `None` if there is no bound."""
    batch: float | None
    """Mean global batch in `unit`."""
    unit: str
    """"samples", or "counted items" for a loss with counts (tokens, say)."""
    estimates: int
    """Number of optimizer steps that gave an estimate."""
    undivided: int
    """Number of optimizer steps with a single micro-batch, which give no estimate."""
    advice: str
    """Advice on another global batch size; nothing is changed."""

    def __str__(self) -> str:
        if self.estimates == 0:
            return self.advice
        ends = (
            f", {self.low:.3g} to {'∞' if self.high is None else f'{self.high:.3g}'}"
            if self.low is not None
            else ""
        )
        value = "unknown" if self.value is None else f"{self.value:.3g}"
        return f"noise scale {value} {self.unit}{ends} ({self.estimates} estimates). {self.advice}"


class Noise:
    """Squared norms of a window's gradients, micro-batch by micro-batch.

    Hooks on the parameters see each micro-batch's gradient before it is accumulated, so no gradient is
    copied.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = type(optimizer).__name__
        self._scale = _core.NoiseScale()
        self._hooks: dict[int, tuple[torch.Tensor, Any]] = {}
        # Norms of the gradients of the running backward pass; `None` outside of one.
        self._norms: list[torch.Tensor] | None = None
        # Each micro-batch's count, and its squared norm.
        self._parts: list[tuple[float, torch.Tensor | None]] = []
        self._pending: list[tuple[list[float], torch.Tensor, float]] = []
        self._unit = "samples"
        # Set if this window gives no estimate.
        self._spoiled = False
        # Set if the loss function returned several losses, whose gradients have no common count.
        self._several = False

    def begin(self, parameters: Iterable[torch.Tensor]) -> None:
        """Start a window, or start it again."""
        self._parts.clear()
        self._spoiled = False
        self._norms = None
        for parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._hooks:
                self._hooks[id(parameter)] = parameter, parameter.register_hook(self._look)

    def _look(self, gradient: torch.Tensor) -> None:
        if self._norms is not None:
            self._norms.append(_norm(gradient))

    @contextlib.contextmanager
    def part(self, count: float, unit: str | None) -> Iterator[None]:
        """Measure the backward pass of a micro-batch; `unit` is `None` for several losses."""
        self._norms = []
        try:
            yield
            self._parts.append((count, _squared(self._norms)))
        finally:
            self._norms = None
        self._several |= unit is None
        self._unit = unit or self._unit

    def spoil(self) -> None:
        """Leave this window out: some of its gradients were computed elsewhere."""
        self._spoiled = True

    def whole(self, parameters: Sequence[torch.Tensor], divisor: float | None, scale: float) -> None:
        """End a window whose gradients are complete. They are sums of losses divided by `divisor`, or by the
        window's count, and multiplied by the scaler's `scale`.
        """
        counts = [count for count, norm in self._parts if norm is not None]
        norms = [norm for _, norm in self._parts if norm is not None]
        whole = _squared([_norm(each.grad) for each in parameters if each.grad is not None])
        if self._spoiled or self._several or whole is None:
            return
        factor = (sum(counts) if divisor is None else divisor) / scale
        self._pending.append((counts, torch.stack([*norms, whole]), factor * factor))
        if len(self._pending) >= _MAX_PENDING:
            self._settle()

    def _settle(self) -> None:
        for counts, squares, factor in self._pending:
            *parts, whole = (value * factor for value in squares.tolist())
            self._scale.step(list(zip(counts, parts, strict=True)), whole)
        self._pending.clear()

    def result(self) -> NoiseScale:
        """Return the noise scale from all windows so far."""
        self._settle()
        scale = self._scale
        value, low, high, batch = scale.estimate() or (None, None, None, None)
        advice = scale.advice(self._optimizer, self._unit)
        if self._several:
            advice = "No estimate: several losses, each with a count of its own, have no common batch size."
        return NoiseScale(value, low, high, batch, self._unit, scale.estimates, scale.undivided, advice)

    def close(self) -> None:
        """Remove the hooks."""
        for _, hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return torch.linalg.vector_norm(values.detach(), dtype=_wide(values.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _squared(norms: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the squared norm of several gradients together, as a double on the first one's device."""
    if not norms:
        return None
    place = norms[0].device
    return torch.stack([each.to(place, torch.float64) for each in norms]).square().sum()
