"""Evaluation in micro-batches that fit into memory."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from memfit import _core

from .batches import Batch
from .device import Meter, device_of
from .faults import Fault, StepDoesNotFit, collect, forget
from .joining import join
from .precision import Precision
from .rules import Rules


class Inference:
    """Runs a model without gradients, in micro-batches that fit, and concatenates their outputs in order."""

    def __init__(
        self,
        model: nn.Module,
        *,
        precision: str | None = None,
        batch_size: int | None = None,
        output_device: torch.device | str | None = "cpu",
        forward: Callable[[nn.Module, Any], Any] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.model = model
        self.device, self._move = device_of(model, device)
        self._precision = precision
        self._output = torch.device(output_device) if output_device is not None else None
        self._forward = forward if forward is not None else _call
        self._meter = Meter(self.device)
        self._controller = _core.Controller(micro_batch=batch_size, careful=self.device.type == "cuda")
        self._rules = Rules()
        self._modes: dict[nn.Module, bool] = {}
        self._stack: contextlib.ExitStack | None = None

    def __enter__(self) -> Inference:
        self._modes = {module: module.training for module in self.model.modules()}
        self._stack = contextlib.ExitStack()
        precision = Precision(self._precision, self.device, scaler=False)
        self._stack.callback(precision.close)
        self.model.eval()
        self._stack.enter_context(torch.inference_mode())
        self._stack.enter_context(precision())
        return self

    def __exit__(self, *_: object) -> None:
        if self._stack is not None:
            self._stack.close()
            self._stack = None
        for module, mode in self._modes.items():
            module.training = mode
        self._modes = {}

    def __call__(self, batch: Any) -> Any:
        """Return the model's outputs for a batch."""
        if self._stack is None:
            raise RuntimeError(
                "`Inference` is a context manager: write `with memfit.inference(model) as infer:`"
            )
        entry = Batch(batch, self._rules)
        self._controller.arrive(entry.shape, entry.elements, entry.items, float(entry.items), entry.costs)
        try:
            outputs, sizes = self._run(entry)
        except BaseException:
            self._controller.abandon()
            raise
        self._controller.stepped(False)
        return join(outputs, sizes)

    def over(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the outputs for each batch of a loader."""
        for batch in loader:
            yield self(batch)

    def _run(self, entry: Batch) -> tuple[list[Any], list[int]]:
        """Return the outputs of a batch's micro-batches and the number of samples in each."""
        outputs: list[Any] = []
        sizes: list[int] = []
        done = 0
        self._meter.begin()
        while (turn := self._controller.next(0, self._meter.space)) is not None:
            start, stop, empties, watched = turn
            if stop <= done:
                # Done before a later micro-batch failed: its output is stored already.
                self._controller.passed(0, stop - start)
                continue
            start = max(start, done)
            if empties:
                self._meter.empty()
            fault = None
            try:
                value = entry.part(start, stop, self.device if self._move else None)
                outputs.append(_to(self._forward(self.model, value), self._output))
                sizes.append(stop - start)
                del value
                done = stop
            except Exception as error:
                fault = Fault.from_error(error, self.device)
                if fault.kind in ("other", "sticky"):
                    raise
                forget(error)
            if fault is None:
                self._controller.passed(0, stop - start, self._meter.need()[0] if watched else None)
                continue
            decision = self._controller.failed(
                0, stop - start, fault.types, fault.message, fault.free, fault.capacity
            )
            collect(self.device)
            if decision != "again":
                raise StepDoesNotFit(
                    "a single sample does not fit into the device's memory\n"
                    "hint: `infer.sliding` runs images in windows; a lower precision makes a sample "
                    "smaller\n"
                    f"{fault.message}"
                )
            self._controller.restart()
        return outputs, sizes

    def sliding(
        self,
        image: torch.Tensor,
        window: int | Sequence[int],
        *,
        overlap: float = 0.25,
        blend: str = "centre",
    ) -> torch.Tensor:
        """Run a fully convolutional model on images that are too large for it, in sliding windows.

        `image` is (N, C, then one to three spatial sizes). `overlap` is the share of a window that overlaps
        the next one. Where windows overlap, "centre" takes each value from the window in which it lies
        farthest from the border; "cosine" blends the outputs with weights that decrease towards the border,
        and "constant" averages them. "centre" equals the output of the whole image if an output pixel depends
        only on input pixels at most half an overlap away; the others are smoother if it does not. The spatial
        size of the output has to be that of the input, or a whole fraction or multiple of it.
        """
        spatial = tuple(image.shape[2:])
        sizes = (window,) * len(spatial) if isinstance(window, int) else tuple(window)
        if len(sizes) != len(spatial):
            raise ValueError(
                f"`window` has {len(sizes)} sizes, but the image has {len(spatial)} spatial dimensions"
            )
        if not 0 <= overlap < 1:
            raise ValueError(f"`overlap` is {overlap}, but has to be at least 0 and less than 1")
        if blend not in ("cosine", "constant", "centre"):
            raise ValueError(f'`blend` is {blend!r}, but has to be "cosine", "constant" or "centre"')
        sizes = tuple(min(size, length) for size, length in zip(sizes, spatial, strict=True))
        starts = [_starts(length, size, overlap) for length, size in zip(spatial, sizes, strict=True)]
        total: torch.Tensor | None = None
        weights = torch.empty(0)
        weight = torch.empty(0)
        scale = [1.0] * len(spatial)
        for corner in itertools.product(*starts):
            cut = tuple(slice(start, start + size) for start, size in zip(corner, sizes, strict=True))
            output = self(image[(slice(None), slice(None), *cut)])
            if total is None:
                scale = [out / size for out, size in zip(output.shape[2:], sizes, strict=True)]
                shape = [_scaled(length, factor) for length, factor in zip(spatial, scale, strict=True)]
                kind = torch.float64 if output.dtype == torch.float64 else torch.float32
                total = torch.zeros(*output.shape[:2], *shape, dtype=kind, device=output.device)
                weights = torch.zeros(shape, dtype=kind, device=output.device)
                weight = _weight(output.shape[2:], blend, kind, output.device)
            place = tuple(
                slice(_scaled(start, factor), _scaled(start, factor) + length)
                for start, factor, length in zip(corner, scale, output.shape[2:], strict=True)
            )
            here = total[(slice(None), slice(None), *place)]
            if blend == "centre":
                edges = [
                    (start == 0, start + size == length)
                    for start, size, length in zip(corner, sizes, spatial, strict=True)
                ]
                weight = _depth(output.shape[2:], edges, kind, output.device)
                better = weight > weights[place]
                here.copy_(torch.where(better, output.to(kind), here))
                weights[place] = torch.maximum(weights[place], weight)
                continue
            here += output * weight
            weights[place] += weight
        assert total is not None
        return total if blend == "centre" else total / weights


def inference(model: nn.Module, **settings: Any) -> Inference:
    """Return a context manager that evaluates a model: `with memfit.inference(model) as infer: outputs =
    infer(batch)`.

    Runs without gradients, in evaluation mode (restored afterwards), in micro-batches that fit. Outputs are
    moved to the host as they are computed.
    """
    return Inference(model, **settings)


def _call(model: nn.Module, batch: Any) -> Any:
    """Call a model with a batch: a mapping's entries become keyword arguments, and of a pair the first entry
    is the input.
    """
    if hasattr(batch, "keys"):
        return model(**{key: batch[key] for key in batch.keys()})  # noqa: SIM118
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[0], torch.Tensor):
        return model(batch[0])
    return model(batch)


def _to(value: Any, device: torch.device | None) -> Any:
    if device is None:
        return value
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if hasattr(value, "keys") and not isinstance(value, type):
        moved = {key: _to(value[key], device) for key in value.keys()}  # noqa: SIM118
        return moved if type(value) is dict else type(value)(**moved)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_to(entry, device) for entry in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_to(entry, device) for entry in value)
    return value


def _scaled(length: int, factor: float) -> int:
    return round(length * factor)


def _starts(length: int, size: int, overlap: float) -> list[int]:
    """Return the starts of the windows; the last one ends with the image."""
    stride = max(int(size * (1 - overlap)), 1)
    return [*range(0, max(length - size, 0), stride), max(length - size, 0)]


def _depth(
    shape: Sequence[int], edges: Sequence[tuple[bool, bool]], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return each position's distance from the window's borders; borders of the image itself do not count."""
    depth = torch.full((), float("inf"), dtype=dtype, device=device)
    for length, (first, last) in zip(shape, edges, strict=True):
        places = torch.arange(length, dtype=dtype, device=device)
        before = torch.full_like(places, float("inf")) if first else places + 1
        after = torch.full_like(places, float("inf")) if last else length - places
        depth = torch.minimum(depth.unsqueeze(-1), torch.minimum(before, after))
    return depth


def _weight(shape: Sequence[int], blend: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    weight = torch.ones((), dtype=dtype, device=device)
    for length in shape:
        if blend == "cosine":
            middle = (torch.arange(length, dtype=dtype, device=device) + 0.5) / length
            # Never zero: at the border of the image only one window contributes.
            line = torch.sin(middle * torch.pi) + 1e-3
        else:
            line = torch.ones(length, dtype=dtype, device=device)
        weight = weight.unsqueeze(-1) * line
    return weight
