"""Expressions drawn at random over PyTorch's operators, on small tensors that are uploaded: each as a size on
the virtual device, compared with the host.

Run by `test_values_unknown.py`. MEMFIT_EXPRESSIONS and MEMFIT_SEED ask for others than the suite's.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import types
import unittest
import warnings

warnings.filterwarnings("ignore")
# PyTorch's operator database is part of its tests, which import this package and use nothing of it here.
sys.modules.setdefault("expecttest", types.ModuleType("expecttest")).TestCase = unittest.TestCase  # type: ignore[attr-defined]

import torch  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

KINDS = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32)
SAMPLES = 6


def size(result: object) -> int:
    """A size to which every element of a result contributes."""
    total = 0
    for tensor in tree_leaves(result):
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_complex():
            continue
        total += tensor.numel()
        if tensor.is_floating_point():
            tensor = tensor.float().nan_to_num(0, 7, -7).clamp(-1e4, 1e4).mul(4).round()
        total += int(tensor.long().sum()) if tensor.numel() else 0
    return len(torch.empty(abs(total) % 10_000, device="meta"))


def evaluate(operator: object, sample: object, seed: int, device: str) -> int:
    def move(value: object) -> object:
        return value.detach().clone().to(device) if isinstance(value, torch.Tensor) else value

    torch.manual_seed(seed)
    arguments = tree_map(move, (sample.input, *sample.args))  # type: ignore[attr-defined]
    return size(operator(*arguments, **tree_map(move, sample.kwargs)))  # type: ignore[attr-defined, operator]


def main() -> None:
    count, seed = (
        int(os.environ.get(name, default))
        for name, default in (("MEMFIT_EXPRESSIONS", "300"), ("MEMFIT_SEED", "7"))
    )
    assumptions = ctypes.PyDLL(None).memfit_vgpu_assumptions
    assumptions.restype = ctypes.c_uint64
    draw = random.Random(seed)
    outcomes = {"equal": 0, "said to be unknown": 0, "refused": 0}
    silent: list[list[object]] = []
    while sum(outcomes.values()) + len(silent) < count:
        operator, kind, number = draw.choice(op_db), draw.choice(KINDS), draw.randrange(1 << 30)
        # Uninitialised memory may hold any value.
        if kind not in operator.dtypes or "empty" in operator.name:
            continue
        try:
            torch.manual_seed(number)
            samples = [
                sample for sample, _ in zip(operator.sample_inputs("cpu", kind), range(SAMPLES), strict=False)
            ]
            sample = draw.choice(samples)
            here = evaluate(operator, sample, number, "cpu")
            if here != evaluate(operator, sample, number + 1, "cpu"):
                # It draws random numbers, or leaves memory as it was.
                continue
        except Exception:
            # The host refuses it.
            continue
        before = assumptions()
        try:
            there = evaluate(operator, sample, number, "cuda")
        except Exception:
            outcomes["refused"] += 1
            continue
        if there == here:
            outcomes["equal"] += 1
        elif assumptions() != before:
            outcomes["said to be unknown"] += 1
        else:
            silent.append([operator.formatted_name, str(kind), here, there])
    with open(os.environ["MEMFIT_TEST_ANSWER"], "w", encoding="utf-8") as file:
        json.dump({"outcomes": outcomes, "silent": silent}, file)


if __name__ == "__main__":
    main()
