"""Whether a batch may be divided: as measured, once for each way that the loss takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memfit._levers.saying import Once

from .batches import Batch
from .comparing import Meets
from .differences import Verification
from .graph import node_number
from .variation import Variation
from .verification import Verifier
from .ways import chosen

LABELS = ("exact", "rounding", "precision", "changes-training")
# Comparisons because a forward made another number of nodes: past so many, one that depends on the data makes
# another number in nearly every batch, and every sixteenth is compared.
_WAYS = 16
_NOT_MEASURED = (
    "what dividing a batch changes was not measured: ranks meet inside the forward or the backward, and would all have to "
    "compare at the same time; `step.verify(batch)` in a training of one process tells"
)
_BATCH_NORM = nn.modules.batchnorm._BatchNorm


class ChangesTraining(UserWarning):
    """A step does not compute what the whole batch would."""


class Undividable(Exception):  # noqa: N818
    """A batch that would have to be divided, and may not be."""

    # Whether something of the batch ran before it was known.
    ran = False


class Division:
    """What was measured of a training's batches, and what follows."""

    def __init__(self, model: nn.Module, verifier: Verifier | None, allow: str, *, meets: bool) -> None:
        if allow not in LABELS:
            raise ValueError(f"`allow` is {allow!r}, and is one of {', '.join(map(repr, LABELS))}")
        self._verifier = verifier
        self._allow = allow
        # Whether ranks meet inside a part, so that all would have to compare at the same time.
        self._meets = meets
        self._model = model
        self._norms = [module for module in model.modules() if is_batch_norm(module)]
        self._found: dict[Any, Verification] = {}
        self._variation: dict[Any, Variation] = {}
        self._ways: set[int] = set()
        self._new_ways = 0
        self._once = Once()
        # What is raised once a part has run whose comparison ended with an error: if the part does as well,
        # its own error is what its owner wants to see.
        self._pending: Undividable | None = None
        self.last: Verification | None = None

    def require(self, entry: Batch, size: int) -> tuple[str, ...]:
        """See to it that a batch may be run in parts of so many samples: what that changes, or an error."""
        self._pending = None
        if self._allow == "exact":
            raise Undividable(
                'dividing a batch changes the order of its sums, which `allow="exact"` does not permit'
            )
        if self._verifier is None:
            return ()
        if entry.divided is None:
            changes = self._measured(lambda: self._known(entry, size))
            # An error in the comparison may be one of memory that is gone by the next part.
            entry.divided = None if self._pending is not None else changes
            return changes
        return entry.divided

    def _measured(self, compare: Callable[[], Verification]) -> tuple[str, ...]:
        """What a comparison says; where ranks meet inside what is compared, that there is none."""
        if not self._meets:
            try:
                return self._answer(compare())
            except Meets:
                self._meets = True
        return self._once.warn(_NOT_MEASURED, ChangesTraining)

    def took(self, entry: Batch, size: int, before: int | None) -> tuple[str, ...]:
        """A part's forward ran, which began when so many nodes had been made: if it took another way than
        those that were compared, this one is, too.
        """
        if self._verifier is None or self._meets or before is None:
            return ()
        made = (node_number() or 0) - before
        if made in self._ways:
            return ()
        self._new_ways += 1
        known = self._found.get(self._key(entry))
        if self._new_ways > _WAYS and self._new_ways % _WAYS and known is not None and known.equal:
            return ()
        self._ways.add(made)
        try:
            return self._measured(lambda: self._compare(entry, size, 0, size + 1))
        except Undividable as error:
            error.ran = True
            raise

    def ran(self) -> None:
        """A part ran to its end: raises if it may not have been run."""
        if self._pending is not None:
            error, self._pending = self._pending, None
            error.ran = True
            raise error

    def verify(self, entry: Batch, size: int) -> Verification:
        """Compare anew."""
        if self._verifier is None:
            raise RuntimeError(
                "a virtual card computes no numbers, so nothing can be compared on it\n"
                "hint: `step.verify(batch)` works on the CPU, and on a real card"
            )
        try:
            if not self._meets:
                return self._compare(entry, size, 0)
        except Meets:
            self._meets = True
        raise RuntimeError(_NOT_MEASURED)

    def _key(self, entry: Batch) -> Any:
        return entry.structure, self._model.training, tuple(module.training for module in self._norms)

    def _known(self, entry: Batch, size: int) -> Verification:
        key = self._key(entry)
        known = self._found.get(key)
        if known is None:
            first = self._varied(key).new(entry)
            return self._compare(entry, size, max((first or 0) - 1, 0))
        if known.equal:
            first = self._varied(key).new(entry)
            if first is not None:
                return self._compare(entry, size, first - 1)
        return known

    def _varied(self, key: Any) -> Variation:
        return self._variation.setdefault(key, Variation())

    def _compare(self, entry: Batch, size: int, first: int, samples: int | None = None) -> Verification:
        assert self._verifier is not None
        key = self._key(entry)
        found = self._verifier.verify(entry, size, first, samples or 0)
        self._ways |= self._verifier.nodes
        self.last = found
        # A gradient that is nothing tells nothing, and an error may be gone: the next batch is compared as
        # well.
        if found.tells and not found.failed:
            self._found[key] = found
            varied = self._varied(key)
            varied.counts_by(self._verifier.constants)
            begin = max(0, min(first, entry.items - found.samples))
            varied.compared(entry, chosen(entry, begin, found.samples))
        return found

    def _answer(self, found: Verification) -> tuple[str, ...]:
        if found.counters:
            names = ", ".join(f"`{name}`" for name in found.counters[:3])
            self._once.warn(
                f"the forward counts in Python ({names}): in a divided batch it does so once for each part"
            )
        if found.equal:
            return ()
        text = f"dividing the batch changes the training: {found.why} ({_how(found)})"
        if self._allow != "changes-training":
            error = Undividable(f"{text}\nhint: {self._remedy(found)}")
            if not found.failed:
                raise error
            self._pending = error
            return ()
        return self._once.warn(text, ChangesTraining)

    def _remedy(self, found: Verification) -> str:
        ways = []
        if any(norm.training for norm in self._norms):
            ways.append(
                "batch normalisation takes its statistics from each part: GroupNorm, or `.eval()` on these modules, does not"
            )
        elif found.loss_difference is None or found.loss_difference > 0:
            ways.append(
                "where the loss is a sum, is weighed, or leaves labels out, return `(sum, count)` from the loss function or pass "
                "`count=`; where the batch is not cut along its samples, pass `batch_dim=` or `split=`; a loss that compares "
                "samples needs the whole batch"
            )
        ways.append('`allow="changes-training"` divides it all the same')
        return "; ".join(ways)


def _how(found: Verification) -> str:
    ways = " and ".join("+".join(map(str, way)) for way in found.sizes)
    return f"{found.samples} samples whole and as {ways}, in {found.computed_in}"


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a module takes statistics over the batch that runs on this rank."""
    return isinstance(module, _BATCH_NORM) and not isinstance(module, nn.SyncBatchNorm)


def computes() -> bool:
    """Whether operations compute numbers here: on a virtual card they do not."""
    session = getattr(sys.modules.get("memfit_probe.session"), "_session", None)
    return not getattr(session, "virtual", False)


def is_compiled(model: nn.Module) -> bool:
    """Whether some of a model runs as compiled code, whose nodes are not those of what is written."""
    return torch.compiler.is_compiling() or any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
