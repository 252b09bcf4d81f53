"""Block-wise quantisation to 8 or 4 bits: one scale per block, and a table of the values for each code."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace

import torch

# Number of elements that share a scale.
BLOCK = 256
# Number of elements that are quantised at once, to keep temporaries small.
_ELEMENTS_AT_ONCE = 1 << 22


@dataclass
class Coded:
    """A quantised tensor."""

    codes: torch.Tensor
    scales: torch.Tensor
    shape: torch.Size
    dtype: torch.dtype
    table: str

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return int(self.codes.nbytes + self.scales.nbytes)

    def to(self, device: torch.device) -> Coded:
        """Copy to a device."""
        return replace(self, codes=self.codes.to(device), scales=self.scales.to(device))


@functools.cache
def _table(name: str) -> tuple[float, ...]:
    """Return the values of the codes in ascending order, between -1 and 1.

    Optimizer state spans many orders of magnitude within a block, so its codes are denser near zero: a factor
    of ten for each doubling of the number of steps. Weights are approximately normal, so their codes are
    quantiles of the normal distribution.
    """
    if name == "normal4":
        # Quantiles of 16 equally likely intervals of a normal distribution, one of them zero.
        normal = torch.distributions.Normal(0.0, 1.0)
        below = normal.icdf(torch.linspace(1 - 0.9677083, 0.5, 8)).tolist()
        above = normal.icdf(torch.linspace(0.5, 0.9677083, 9)).tolist()
        values = [*below[:-1], 0.0, *above[1:]]
        most = max(abs(value) for value in values)
        return tuple(value / most for value in values)
    signed = name == "signed8"
    values = [0.0]
    for power in range(7):
        # Without a sign bit there are twice as many steps.
        steps = 2 ** (power if signed else power + 1)
        edges = [0.1 + 0.9 * index / steps for index in range(steps + 1)]
        values += [(low + high) / 2 * 10.0 ** (power - 6) for low, high in itertools.pairwise(edges)]
    values[-1] = 1.0
    both = sorted({*values, *(-value for value in values)}) if signed else sorted(set(values))
    assert len(both) <= 256
    return tuple(both)


def _table_on(name: str, device: torch.device) -> torch.Tensor:
    return torch.tensor(_table(name), dtype=torch.float32, device=device)


def encode(value: torch.Tensor, table: str) -> Coded:
    """Quantise a tensor with a table: "signed8", "unsigned8" or "normal4"."""
    half = table == "normal4"
    flat = value.detach().reshape(-1)
    levels = _table_on(table, value.device)
    edges = (levels[1:] + levels[:-1]) / 2
    if table == "unsigned8":
        # A second moment rounded to zero would make Adam divide by almost zero, so only zero is coded as
        # zero.
        edges[0] = 0.0
    count = flat.numel()
    blocks = math.ceil(count / BLOCK)
    codes = torch.empty(blocks * (BLOCK // 2 if half else BLOCK), dtype=torch.uint8, device=value.device)
    scales = torch.empty(blocks, dtype=torch.float32, device=value.device)
    per_slice = _ELEMENTS_AT_ONCE // BLOCK
    for first in range(0, blocks, per_slice):
        last = min(first + per_slice, blocks)
        part = flat[first * BLOCK : last * BLOCK].float()
        lacking = (last - first) * BLOCK - part.numel()
        # Padding copies even if there is nothing to pad, and this code is bound by memory bandwidth.
        padded = (torch.nn.functional.pad(part, (0, lacking)) if lacking else part).view(-1, BLOCK)
        most = torch.linalg.vector_norm(padded, math.inf, dim=1, out=scales[first:last])
        inner = torch.bucketize(
            padded / most.clamp_min(torch.finfo(torch.float32).tiny)[:, None], edges, out_int32=True
        )
        if half:
            narrow = inner.to(torch.uint8)
            codes[first * BLOCK // 2 : last * BLOCK // 2] = (narrow[:, 0::2] * 16 + narrow[:, 1::2]).reshape(
                -1
            )
        else:
            codes[first * BLOCK : last * BLOCK].view(-1, BLOCK).copy_(inner)
    return Coded(codes, scales, value.shape, value.dtype, table)


def decode(coded: Coded, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Dequantise a tensor."""
    device = coded.codes.device
    kind = dtype or coded.dtype
    levels = _table_on(coded.table, device)
    out = torch.empty(coded.scales.numel() * BLOCK, dtype=kind, device=device)
    half = coded.table == "normal4"
    per_slice = _ELEMENTS_AT_ONCE // BLOCK
    for first in range(0, coded.scales.numel(), per_slice):
        last = min(first + per_slice, coded.scales.numel())
        if half:
            pairs = coded.codes[first * BLOCK // 2 : last * BLOCK // 2]
            inner = torch.stack((pairs // 16, pairs % 16), 1).reshape(-1)
        else:
            inner = coded.codes[first * BLOCK : last * BLOCK]
        values = levels.index_select(0, inner.int()).view(-1, BLOCK)
        part = out[first * BLOCK : last * BLOCK].view(-1, BLOCK)
        if kind == torch.float32:
            torch.mul(values, coded.scales[first:last, None], out=part)
        else:
            part.copy_(values.mul_(coded.scales[first:last, None]))
    return out[: coded.shape.numel()].view(coded.shape)
