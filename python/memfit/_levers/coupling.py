"""Whether a loss couples the samples of a batch, seen from the operations of one forward.

Samples go through a model side by side: each operation keeps the batch's dimension, until the loss takes a
mean over it. A loss that couples them does more: it multiplies samples with samples (contrastive losses), or
takes something over the batch and brings it back to the samples (a batch's mean that is subtracted, weights
that are normalised over the batch). And one that is no mean over them takes a sum, or makes a root, a product
or a quotient of what was taken over the batch (a mean over a mask, Dice's coefficient of all samples
together).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from .taking import SELECTED, Taken, combined, fused, is_even, of_selected, selects

# What takes something over dimensions that its second argument, or nothing, names.
_REDUCTIONS = {
    *("sum", "mean", "var", "std", "var_mean", "amax", "amin", "max", "min", "prod", "logsumexp", "median"),
    *("linalg_vector_norm", "norm", "any", "all", "count_nonzero", "argmax", "argmin"),
}
_ALONG = {"_softmax", "_log_softmax", "cumsum", "cumprod", "sort"}
_PRODUCTS = {"mm", "addmm", "_cdist_forward", "_euclidean_dist"}


class Mixing(TorchDispatchMode):  # type: ignore[misc]
    """Watches the operations on tensors that a batch's samples were in; `coupled` and `taken` are the
    answers.
    """

    def __init__(self, inputs: list[torch.Tensor], items: int) -> None:
        super().__init__()
        self.coupled = False
        # Whether it is so by more than a number that all samples are divided by, as the count of what a mask
        # leaves.
        self.compared = False
        # Whether an operation came that could not be followed: nothing is said from then on.
        self.lost = False
        # Tensors of the batch that are labels, by their place in it, and the label that is ignored.
        self.labels: list[tuple[int, int]] = []
        self._inputs = {
            each.untyped_storage().data_ptr(): place for place, each in enumerate(inputs) if _plain(each)
        }
        self._items = items
        # Where the batch's dimension is, and how long: a multiple where another one is folded into it. Or
        # what was taken over the batch. What is not here is not known to depend on the samples.
        self._batch: Any = WeakTensorKeyDictionary()
        # Sums over the batch to which each sample gave as much.
        self._even: Any = WeakTensorKeyDictionary()
        # Numbers that were read from what was taken over the batch.
        self._read: list[float] = []
        for tensor in inputs:
            self.follow(tensor)

    def follow(self, tensor: torch.Tensor) -> None:
        """Samples lie in this one, if its first dimension is as long as there are samples."""
        if tensor.dim() > 0 and tensor.size(0) == self._items:
            self._batch[tensor] = (0, self._items)

    def taken(self, loss: torch.Tensor) -> Taken | None:
        """What of the batch a loss is; None where that cannot be told."""
        found = self._batch.get(loss)
        return found if isinstance(found, Taken) else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        if not self.lost:
            try:
                self._follow(func._schema, args, returned)
            except Exception:
                # A training does not end because of who looks on.
                self.lost = True
        return returned

    def _follow(self, schema: Any, args: Any, returned: Any) -> None:
        name = schema.name.split("::")[-1].rstrip("_") or ""
        known = [(value, self._batch[value]) for value in _flat(args) if _known(value, self._batch)]
        if name == "_local_scalar_dense" and known and isinstance(known[0][1], Taken):
            self._read.append(float(returned))
        outputs = [value for value in _flat(returned) if isinstance(value, torch.Tensor)]
        if not outputs or not known:
            return
        if any(place is SELECTED for _, place in known):
            for output in outputs:
                self._batch[output] = of_selected(name, output)
            return
        samples = [(value, place) for value, place in known if not isinstance(place, Taken)]
        if not samples:
            if name in ("_to_copy", "clamp", "clamp_min") and args[0] in self._even:
                self._even.update(dict.fromkeys(outputs, True))
            taken = combined(name, args, self._batch, self._even, self._read, self._items)
            for output in outputs:
                self._batch[output] = taken
            return
        first, (place, rows) = samples[0]
        # Of one sample nothing can be told: any dimension of one may be the batch's.
        if self._items > 1:
            # Something that was taken over the batch comes back to its samples.
            if len(samples) < len(known) and any(_has(output, place, rows) for output in outputs):
                self.coupled = True
                self.compared |= any(isinstance(where, Taken) and value.dim() > 0 for value, where in known)
            along = _dimensions(args[1] if len(args) > 1 else -1, first.dim())
            if (name in _PRODUCTS and len(samples) > 1 and outputs[0].shape == (rows, rows)) or (
                name in _ALONG and first.dim() > 1 and place in along
            ):
                self.coupled = self.compared = True
        # Norms name which one they are before they name dimensions.
        named = 2 if name in ("linalg_vector_norm", "norm") else 1
        over = _dimensions(args[named] if len(args) > named else None, first.dim())
        whole = fused(schema, args, outputs, self._items, self._label)
        for output in outputs:
            if whole is not None:
                self._batch[output] = whole
            elif name in _REDUCTIONS and place in over:
                if name == "sum" and output.dim() == 0 and place == 0 and is_even(first, self._items):
                    self._even[output] = True
                self._batch[output] = {"mean": Taken.MEAN, "sum": Taken.SUM}.get(name, Taken.OTHER)
            elif selects(name, args):
                # All of them selected are all of them.
                every = output.numel() == first.numel()
                self._batch[output] = (0, output.size(0)) if every else SELECTED
            else:
                there = self._moved(name, args, place, rows, first, output)
                if there is not None:
                    self._batch[output] = there

    def _label(self, target: torch.Tensor, ignored: int) -> bool:
        place = self._inputs.get(target.untyped_storage().data_ptr()) if _plain(target) else None
        if place is not None:
            self.labels.append((place, ignored))
        return place is not None

    def _moved(
        self, name: str, args: Any, place: int, rows: int, first: torch.Tensor, output: torch.Tensor
    ) -> tuple[int, int] | None:
        """Where the batch's dimension is after an operation, and how long; None where that cannot be told."""
        if name in ("t", "transpose", "permute"):
            order = list(range(first.dim()))
            if name == "permute":
                order = [index % first.dim() for index in args[1]]
            else:
                one, other = (0, 1) if name == "t" else (args[1] % first.dim(), args[2] % first.dim())
                if first.dim() > 1:
                    order[one], order[other] = order[other], order[one]
            return order.index(place), rows
        if name == "unsqueeze" and args[1] % (first.dim() + 1) <= place:
            place += 1
        if _has(output, place, rows) and output.dim() > place:
            return place, rows
        # Folded into rows with another dimension, or taken apart again.
        folds = name in ("view", "_unsafe_view", "reshape", "_reshape_alias", "clone", "flatten")
        if folds and place == 0 and output.dim() and output.size(0) and output.size(0) % self._items == 0:
            return 0, output.size(0)
        return None


def _plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided


def _has(tensor: torch.Tensor, place: int, rows: int) -> bool:
    return bool(tensor.dim() > place and tensor.size(place) == rows)


def _known(value: Any, table: Any) -> bool:
    return isinstance(value, torch.Tensor) and value in table


def _dimensions(named: Any, count: int) -> set[int]:
    """The dimensions that an operation names; all where it names none."""
    if isinstance(named, bool) or named is None or isinstance(named, (float, torch.Tensor)):
        return set(range(count))
    listed = [named] if isinstance(named, int) else [value for value in named if isinstance(value, int)]
    return {value % max(count, 1) for value in listed} or set(range(count))


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [inner for entry in value for inner in _flat(entry)]
    return [value]
