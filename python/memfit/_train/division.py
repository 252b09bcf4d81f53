"""Checks by measurement that a batch may be split, once for each control-flow path of the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from memfit._levers.saying import Once, warn

from .batches import Batch
from .comparing import RanksMeet
from .differences import Verification
from .graph import node_number, tail
from .tally import split_metrics
from .variation import Variation
from .verification import Verifier
from .ways import chosen

LABELS = ("exact", "rounding", "precision", "changes-training")
# Number of comparisons caused by a new count of autograd nodes. A forward pass that depends on the data has
# another count in nearly every batch; past this number only every sixteenth is compared.
_MAX_NEW_PATHS = 16
# Number of batch sizes for which the loss of all samples is compared as well; due comparisons do not count.
_MAX_WHOLE_COUNTS = 4
# Number of comparisons of one batch, for samples that vary in ways that a comparison revealed.
_MAX_COMPARISONS = 4
_NOT_MEASURED = (
    "the effect of splitting a batch was not measured: ranks exchange data inside the forward or backward "
    "pass, so all of them would have to compare at the same time; run `step.verify(batch)` in a single "
    "process to measure it"
)
_BATCH_NORM = nn.modules.batchnorm._BatchNorm


class ChangesTraining(UserWarning):
    """A step does not compute what the whole batch would."""


class Undividable(Exception):  # noqa: N818
    """A batch needs to be split but may not be."""

    # Set if some of the batch ran before this was found.
    ran = False


class Division:
    """The measurements of a training run's batches, and the decisions based on them."""

    def __init__(self, model: nn.Module, verifier: Verifier | None, allow: str, *, meets: bool) -> None:
        if allow not in LABELS:
            raise ValueError(f"`allow` is {allow!r}, but has to be one of {', '.join(map(repr, LABELS))}")
        self._verifier = verifier
        self._allow = allow
        # Set if ranks exchange data inside a micro-batch, so that all would have to compare at the same time.
        self._meets = meets
        self._model = model
        self._norms = [module for module in model.modules() if is_batch_norm(module)]
        self._found: dict[Any, Verification] = {}
        self._variation: dict[Any, Variation] = {}
        # Difference of the loss of all samples from that of their micro-batches, by the number of samples.
        self._whole_counts: dict[Any, dict[int, str]] = {}
        self._paths: set[Any] = set()
        self._new_paths = 0
        # Number of divided batches, and at which of them the next comparison is due; some changes to a loss
        # leave no trace, such as a threshold that moves.
        self._batches = 0
        self._due = 1
        # The first sample to compare next.
        self._first = 0
        # Changes to the variables around the loss function.
        self._changes = verifier.changes() if verifier is not None else None
        self._once = Once()
        # Raised after a micro-batch ran whose comparison ended with an error. If the micro-batch fails as
        # well, the user sees that error instead.
        self._pending: Undividable | None = None
        self.last: Verification | None = None
        # Number of comparisons so far.
        self.comparisons = 0

    def lend(self, sums: bool, autocast: str | None) -> None:
        """Compare another trainer's losses. With `sums`, the losses of micro-batches add up to that of their
        batch; `autocast` is the precision in which the trainer computes them.
        """
        if self._verifier is not None:
            self._verifier.autocast = autocast
            if self._verifier.sums != sums:
                self._verifier.sums = sums
                self._found.clear()

    def require(self, entry: Batch, size: int) -> tuple[str, ...]:
        """Check that a batch may be run in micro-batches of this size, and return what that changes. Raises
        `Undividable`.
        """
        self._pending = None
        if self._allow == "exact":
            raise Undividable(
                'splitting a batch changes the order of its sums, and `allow="exact"` does not permit that'
            )
        if self._verifier is None:
            return ()
        if entry.divided is None:
            changes = self._measured(lambda: self._known(entry, size))
            # A failed comparison may be due to memory that is free again for the next micro-batch.
            entry.divided = None if self._pending is not None else changes
            return changes
        return entry.divided

    def require_as(self, entry: Batch, size: int, found: Verification | None) -> tuple[str, ...]:
        """Do the same with a comparison that all ranks have made together; without one, nothing is known."""
        if found is not None and entry.divided is None:
            self.last = found
            entry.divided = self._evaluate(found)
            self.raise_pending()
        return self.require(entry, size)

    def _measured(self, compare: Callable[[], Verification]) -> tuple[str, ...]:
        """Evaluate a comparison. If ranks exchange data inside it, warn that it was not measured."""
        if not self._meets:
            try:
                return self._evaluate(compare())
            except RanksMeet:
                self._meets = True
        return self._once.warn(_NOT_MEASURED, ChangesTraining)

    def check_path(
        self, entry: Batch, start: int, size: int, before: int | None, returned: Any
    ) -> tuple[str, ...]:
        """Compare once more if a micro-batch's forward pass, which started at node number `before`, made a
        number of autograd nodes that no compared run made, or ended in other operations: it took another
        path.
        """
        if self._verifier is None or self._meets or before is None:
            return ()
        made = (node_number() or 0) - before, tail(split_metrics(returned)[0])
        if made in self._paths:
            return ()
        self._new_paths += 1
        known = self._found.get(self._key(entry))
        if (
            self._new_paths > _MAX_NEW_PATHS
            and self._new_paths % _MAX_NEW_PATHS
            and known is not None
            and known.equal
        ):
            return ()
        self._paths.add(made)
        try:
            return self._measured(lambda: self._compare(entry, size, (), start, size + 1))
        except Undividable as error:
            error.ran = True
            raise

    def advise(self, error: Exception, entry: Batch, start: int, stop: int) -> None:
        """Add to the user's own error that it occurred in a micro-batch, and why the batch could not be
        compared, if it could not: the way it is split may be the reason.
        """
        text = f"this error occurred in a micro-batch, samples {start} to {stop} of {entry.items}"
        if self._pending is not None:
            text += f": {self._pending}"
        elif stop - start == entry.items or not hasattr(error, "add_note"):
            return
        add = getattr(error, "add_note", None)
        if add is not None:
            add(text)
        else:
            # Before Python 3.11.
            warn(text)

    def raise_pending(self) -> None:
        """Raise the pending error after a micro-batch ran of a batch that may not be split."""
        if self._pending is not None:
            error, self._pending = self._pending, None
            error.ran = True
            raise error

    def verify(self, entry: Batch, size: int) -> Verification:
        """Repeat the comparison."""
        if self._verifier is None:
            raise RuntimeError(
                "a virtual GPU computes no values, so there is nothing to compare\n"
                "hint: `step.verify(batch)` works on the CPU and on a real GPU"
            )
        try:
            if not self._meets:
                self._postpone()
                self._whole_counts.pop(self._key(entry), None)
                return self._compare(entry, size, self._varied(self._key(entry)).new(entry), 0)
        except RanksMeet:
            self._meets = True
        raise RuntimeError(_NOT_MEASURED)

    def _key(self, entry: Batch) -> Any:
        return entry.structure, self._model.training, tuple(module.training for module in self._norms)

    def _known(self, entry: Batch, size: int) -> Verification:
        key = self._key(entry)
        self._batches += 1
        assert self._changes is not None
        known = before = self._found.get(key)
        is_due = self._batches >= self._due
        if is_due:
            self._postpone()
        if self._changes.look() or is_due:
            self._whole_counts.get(key, {}).pop(entry.items, None)
            # A layout whose division was found to change the training is not compared again.
            known = None if known is not None and known.equal else known
        for _ in range(_MAX_COMPARISONS):
            varied = self._varied(key).new(entry) if known is None or known.equal else []
            if known is not None and not varied:
                break
            known = self._compare(entry, size, varied, self._first)
            self._first = (self._first + known.samples) % entry.items
            if not known.tells or known.failed:
                break
        assert known is not None
        # An error in a repeated comparison occurs in the step as well, which raises the user's own error.
        return before if known.failed and before is not None else known

    def _postpone(self) -> None:
        """Make the next comparison due after as many divided batches as there were until now."""
        assert self._changes is not None
        self._due = 2 * max(self._batches, 1)
        self._changes.list_again()

    def _varied(self, key: Any) -> Variation:
        return self._variation.setdefault(key, Variation())

    def _compare(
        self, entry: Batch, size: int, wanted: Sequence[int], first: int, least: int = 0
    ) -> Verification:
        """Compare the wanted samples and some from `first` on, at least this many."""
        assert self._verifier is not None
        self.comparisons += 1
        key = self._key(entry)
        samples = chosen(entry, wanted, first, least)
        found = self._verifier.verify(entry, size, samples)
        if found.equal and found.tells and found.samples < entry.items:
            found = self._with_all(entry, size, found)
        self._paths |= self._verifier.paths
        self.last = found
        # A gradient of zero proves nothing, and an error may be temporary: the next batch is compared as
        # well.
        if found.tells and not found.failed:
            self._found[key] = found
            varied = self._varied(key)
            varied.counts_by(self._verifier.constants)
            varied.compared(entry, samples[: found.samples])
        return found

    def _with_all(self, entry: Batch, size: int, found: Verification) -> Verification:
        """Compare the loss of all samples as well, for each of the first numbers of samples, and whenever a
        comparison is due or a variable changed.
        """
        assert self._verifier is not None
        key = self._key(entry)
        counts = self._whole_counts.setdefault(key, {})
        if entry.items not in counts and len(counts) < _MAX_WHOLE_COUNTS:
            counts[entry.items] = self._verifier.whole_loss_differs(entry, size)
        apart = counts.get(entry.items)
        if not apart:
            return found
        return replace(
            found,
            equal=False,
            why=f"the loss of all {entry.items} samples differs by {apart} from that of their micro-batches, "
            f"unlike that of {found.samples}: it depends on the number of samples",
        )

    def _evaluate(self, found: Verification) -> tuple[str, ...]:
        if found.counters:
            names = ", ".join(f"`{name}`" for name in found.counters[:3])
            self._once.warn(
                f"the forward pass updates values in Python ({names}): once per micro-batch if the batch is "
                "split; update them after the step instead"
            )
        if found.overwritten:
            names = ", ".join(f"`{name}`" for name in found.overwritten[:3])
            self._once.warn(
                f"after a split batch, only the values of the last micro-batch are left in {names}"
            )
        if found.equal:
            if not found.shared:
                return ()
            return self._once.warn(
                "the batch's samples share random numbers, which are drawn once per micro-batch if the batch "
                f"is split: {', '.join(found.shared[:3])}",
                ChangesTraining,
            )
        text = f"splitting the batch changes training results: {found.why} ({_method(found)})"
        if self._allow != "changes-training":
            error = Undividable(f"{text}\nhint: {self._remedy(found)}")
            if not found.failed:
                raise error
            self._pending = error
            return ()
        return self._once.warn(text, ChangesTraining)

    def _remedy(self, found: Verification) -> str:
        remedies = []
        if any(norm.training for norm in self._norms):
            remedies.append(
                "batch normalisation computes its statistics per micro-batch: use GroupNorm, or call "
                "`.eval()` on these modules"
            )
        elif found.is_sum:
            remedies.append(
                "return `(loss, number of samples)` from the loss function: this trains on the mean, so "
                "multiply the learning rate of SGD by the batch size (Adam normalises gradients)"
            )
        elif found.loss_difference is None or found.loss_difference > 0:
            remedies.append(
                "if the loss is a sum, is weighted, or ignores labels, return `(sum, count)` from the loss "
                "function or pass `count=`; if the samples are not along the first dimension, pass "
                "`batch_dim=` or `split=`; a loss that compares samples needs the whole batch"
            )
        remedies.append('`allow="changes-training"` splits it anyway')
        return "; ".join(remedies)


def _method(found: Verification) -> str:
    ways = " and ".join("+".join(map(str, way)) for way in found.sizes)
    return f"{found.samples} samples whole and as {ways}, in {found.computed_in}"


def is_batch_norm(module: nn.Module) -> bool:
    """Return `True` if a module computes statistics over the batch on this rank."""
    return isinstance(module, _BATCH_NORM) and not isinstance(module, nn.SyncBatchNorm)


def is_compiled(model: nn.Module) -> bool:
    """Return `True` if any of a model runs as compiled code, whose autograd nodes differ from the source
    code's.
    """
    return torch.compiler.is_compiling() or any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
