"""Measures on a few samples if a divided batch trains like the whole batch.

The samples run whole and divided, with the same random numbers for each of them, and everything that affects
later training is compared: gradients, losses, buffers, and other state that the forward pass writes to. If
all are equal within rounding, the batch may be divided; otherwise dividing it would change the training.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from .batches import Batch
from .comparing import Draws, NotComparable, RanksMeet, widened
from .differences import Outcome, Verification, agreeing, describe_kink, judge, loss_differs
from .faults import collect, forget, is_memory
from .running import Runner
from .slots import Advance
from .surroundings import Changes
from .trial import Trial
from .ways import divisions

# Maximum number of attempts when memory runs out: the second and the third use two samples.
_MAX_ATTEMPTS = 3
# A loss may begin to depend on a counter after many updates, or at each update whose number is a multiple of
# another one: this number is one of 1 to 16, 30, 100, 1000 and many others.
_MULTIPLE = 36_036_000
_ADVANCES = (Advance(10, 0, 1.0), Advance(_MULTIPLE, -1, 100.0), Advance(_MULTIPLE, 0, 0.01))


class Verifier(Runner):
    """Compares a training run's batches with their micro-batches."""

    def changes(self) -> Changes:
        """Return the changes to the variables around the loss function."""
        return self._outside.changes()

    def verify(self, entry: Batch, size: int, samples: Sequence[int]) -> Verification:
        """Compare these samples of a batch with micro-batches of them. `size` is the micro-batch size of the
        training.
        """
        began = time.perf_counter()
        items = len(samples)
        ways = divisions(items, size, self._pairs)
        found: Verification | None = None
        self._goes_on = self._drew = self._is_fresh = False
        with self._undoing.undone():
            for _ in range(_MAX_ATTEMPTS):
                try:
                    found = self._measure(entry, samples[:items], ways)
                    break
                except Exception as error:
                    if not is_memory(error, self._device):
                        raise
                    forget(error)
                collect(self._device)
                items, ways = 2, ((1, 1),)
            if found is not None and not (found.equal or found.failed):
                found = self._keyed(entry, size, samples[:items]) or found
                if not found.equal and self._adds_up(entry, samples[:items], ways):
                    found = replace(
                        found, is_sum=True, why=f"the loss is a sum over samples, not a mean; {found.why}"
                    )
        if found is None:
            why = "two samples do not fit, so there is nothing to compare with"
            found = Verification(False, items, ways, self._name(), why=why, failed=True)
        if self._device.type == "cuda":
            # Memory used by the comparison must not count towards the step.
            collect(self._device)
        return replace(found, seconds=time.perf_counter() - began)

    def whole_loss_differs(self, entry: Batch, size: int) -> str:
        """Compare the loss of all samples with that of their micro-batches, without gradients; return how
        they differ, or "". A loss that depends on the number of samples shows it only with all of them.
        If memory does not suffice for them, or the loss needs gradients, nothing is compared.
        """
        if self._embedded is not None:
            return ""
        items = entry.items
        ways = divisions(items, size, self._pairs)[:1]
        draws = Draws(items)
        self._goes_on = self._drew = self._is_fresh = False
        try:
            with self._undoing.undone(), torch.no_grad():
                trial = Trial(entry, range(items), (items,), draws)
                whole = self._run(trial)
                parts = self._run(trial.parts(ways[0], whole.counts))
        except Exception as error:
            self._skip(error)
            return ""
        # Python's and NumPy's numbers cannot be given to the samples that they belong to.
        return "" if self._drew else loss_differs(whole, parts, self._name(), draws.coarse)

    # ----------------------------------------------------------------------------------------- measuring

    def _measure(
        self, entry: Batch, samples: Sequence[int], ways: tuple[tuple[int, ...], ...]
    ) -> Verification:
        """Compare in the training's precision, and in float64 if possible; the latter decides."""
        if not self._widens or self._name() == "float64":
            return self._compare_with_numbers(entry, samples, ways, False)
        # One way of dividing shows if the training's own kernels behave like those of float64.
        own = self._compare_with_numbers(entry, samples, ways[:1], False)
        if own.difference is None:
            return own
        try:
            wide = self._compare_with_numbers(entry, samples, ways, True)
        except Exception as error:
            # A kernel has no float64 variant, or there is no memory for it.
            forget(error)
            collect(self._device)
            return self._compare_with_numbers(entry, samples, ways, False)
        finally:
            self._outside.prune()
        if wide.difference is not None:
            return wide
        return self._compare_with_numbers(entry, samples, ways, False)

    def _keyed(self, entry: Batch, size: int, samples: Sequence[int]) -> Verification | None:
        """Compare once more without the sample that occurs twice, if nothing but state makes the difference:
        state may be kept for each sample, such as a moving average of its outputs, and a batch has each
        sample once. Return `None` if that makes a difference, too.
        """
        distinct = list(dict.fromkeys(samples))
        if len(distinct) in (len(samples), 1):
            return None
        try:
            self._is_fresh = True
            fresh = self._measure(entry, samples, divisions(len(samples), size, self._pairs))
            self._is_fresh = False
            if not fresh.equal:
                return None
            found = self._measure(entry, distinct, divisions(len(distinct), size, self._pairs))
        except Exception as error:
            if isinstance(error, RanksMeet):
                raise
            forget(error)
            return None
        finally:
            self._is_fresh = False
        return found if found.equal else None

    def _adds_up(self, entry: Batch, samples: Sequence[int], ways: tuple[tuple[int, ...], ...]) -> bool:
        """Return `True` if the losses of micro-batches add up to that of the batch."""
        if self.sums or self._embedded is not None:
            return False
        try:
            self.sums = True
            return self._measure(entry, samples, ways).equal
        except Exception as error:
            if isinstance(error, RanksMeet):
                raise
            forget(error)
            return False
        finally:
            self.sums = False

    def _compare_with_numbers(
        self, entry: Batch, samples: Sequence[int], ways: tuple[tuple[int, ...], ...], is_wide: bool
    ) -> Verification:
        """Compare with Python's and NumPy's random state restored for each micro-batch; if that is not equal,
        with state that continues from micro-batch to micro-batch. Which of the two gives a sample its own
        numbers depends on the code that draws them.
        """
        self._goes_on = False
        anew = self._compare(entry, samples, ways, is_wide)
        if anew.equal and self._drew:
            # Each micro-batch drew the numbers of the whole batch.
            return replace(anew, shared=(*anew.shared, "numbers of Python's or NumPy's generator"))
        if anew.equal or not self._drew:
            return anew
        self._goes_on = True
        going_on = self._compare(entry, samples, ways, is_wide)
        return going_on if going_on.equal else anew

    def _compare(
        self, entry: Batch, samples: Sequence[int], ways: tuple[tuple[int, ...], ...], is_wide: bool
    ) -> Verification:
        items = len(samples)
        draws = Draws(items)
        trial = Trial(entry, samples, (items,), draws, is_wide)
        name = "float64" if is_wide else self._name()
        with widened(self._tensors()) if is_wide else contextlib.nullcontext():
            try:
                whole = self._run(trial)
            except Exception as error:
                if is_memory(error, self._device) or is_wide or isinstance(error, RanksMeet):
                    raise
                if isinstance(error, NotComparable):
                    return Verification(False, items, ways, name, why=str(error))
                why = f"the loss function fails on {items} samples: {_describe_error(error)}"
                return Verification(False, items, ways, name, why=why, failed=True)
            worst: Verification | None = None
            later: _NextBatch | None = None
            for sizes in ways:
                try:
                    divided = trial.parts(sizes, whole.counts)
                    parts = self._run(divided)
                    is_coarse = draws.coarse and not is_wide
                    found = judge(items, ways, name, whole, parts, is_coarse)
                    if found.state and not found.equal:
                        stateless = judge(
                            items, ways, name, whole, replace(parts, state=whole.state), is_coarse
                        )
                        if stateless.equal and self._is_overwritten(divided, whole, name):
                            found = replace(stateless, overwritten=found.state)
                    if found.equal and found.counters:
                        later = later or self._next_batch(divided, whole, name, found.counters)
                        found = later.apply(found)
                except NotComparable as error:
                    found = Verification(False, items, ways, name, why=str(error))
                except Exception as error:
                    if is_memory(error, self._device) or isinstance(error, RanksMeet):
                        raise
                    if worst is not None:
                        # No micro-batches of the training's size: they need not occur.
                        forget(error)
                        continue
                    way = " + ".join(map(str, sizes))
                    why = (
                        f"the loss function fails on micro-batches of {way} samples: {_describe_error(error)}"
                    )
                    found = Verification(False, items, ways, name, why=why, failed=True)
                if worst is None or _rank(found) > _rank(worst):
                    worst = found
                if not found.equal:
                    break
            assert worst is not None
            if worst.equal and draws.turns:
                worst = self._turned(trial, ways, name) or worst
            if worst.equal and draws.decisions.kink:
                worst = replace(worst, equal=False, why=describe_kink(draws.decisions.kink, "numbers"))
            if worst.equal and draws.decisions:
                worst = self._decided(trial, ways, name, whole) or worst
        self.constants |= draws.constants
        return _with_random(worst, draws)

    def _is_overwritten(self, divided: Trial, whole: Outcome, name: str) -> bool:
        """Return `True` if a whole batch after these micro-batches computes the same as without them, and
        leaves the same state: the next batch overwrites the state without having read it.
        """
        if self._embedded is not None:
            return False
        again = self._run_after(divided)
        return judge(len(divided.samples), (), name, whole, again, _is_coarse(divided)).equal

    def _next_batch(self, divided: Trial, whole: Outcome, name: str, changed: tuple[str, ...]) -> _NextBatch:
        """Run a whole batch after these micro-batches. A value in Python that it overwrites is of no
        consequence. Another one is counted up, as many batches would, which shows if the loss depends on it:
        a schedule by the number of calls, or a history that is used once it is long enough.
        """
        if self._embedded is not None:
            return _NextBatch(frozenset(), "")
        items = len(divided.samples)
        try:
            after = self._run_after(divided)
        except Exception as error:
            self._skip(error)
            return _NextBatch(frozenset(), "")
        overwritten = agreeing(whole.numbers, after.numbers, divided.is_wide)
        counters = frozenset(changed) - overwritten
        after = replace(after, state={}, numbers={}, kinks=[])
        for advance in _ADVANCES if counters else ():
            try:
                later = self._run_after(divided._replace(advanced=(counters, advance)))
            except NotComparable as error:
                return _NextBatch(overwritten, str(error))
            except Exception as error:
                self._skip(error)
                continue
            later = replace(later, state={}, numbers={}, kinks=[])
            found = judge(items, (), name, after, later, _is_coarse(divided))
            if not found.equal:
                return _NextBatch(overwritten, found.why)
        return _NextBatch(overwritten, "")

    def _run_after(self, divided: Trial) -> Outcome:
        """Run the whole batch in the state that these micro-batches leave."""
        draws, shared = divided.draws, dict(divided.draws.shared)
        try:
            whole = divided._replace(sizes=(len(divided.samples),))
            return self._run(whole, before=divided._replace(advanced=None))
        finally:
            # The whole batch is run as a micro-batch of all samples, which shares nothing.
            draws.shared = shared

    def _turned(self, trial: Trial, ways: tuple[tuple[int, ...], ...], name: str) -> Verification | None:
        """Compare again with comparisons of the model's numbers inverted for one sample: they may decide how
        much it counts, and may have had the same result in all of these few samples. Return `None` if that
        makes no difference.
        """
        trial = trial._replace(opposite=True)
        try:
            whole = self._run(trial)
            parts = self._run(trial.parts(ways[0], whole.counts))
        except Exception as error:
            self._unclear(error)
            return None
        return _judge_again(
            *(len(trial.samples), ways, name, whole, parts, _is_coarse(trial)),
            "how much a sample counts depends on a comparison of values that the model computed; with "
            "another result, ",
        )

    def _decided(
        self, trial: Trial, ways: tuple[tuple[int, ...], ...], name: str, whole: Outcome
    ) -> Verification | None:
        """Compare again with other results of comparisons of numbers that were computed over a micro-batch,
        and with other numbers where the script reads such a number: a micro-batch's number may be on the
        other side of a threshold than the batch's, in other samples than these few. Return `None` if that
        makes no difference to the gradients.
        """
        whole = replace(whole, state={}, numbers={}, kinks=[])
        for otherwise in (1, -1):
            try:
                parts = self._run(trial.parts(ways[0], whole.counts)._replace(otherwise=otherwise))
            except Exception as error:
                self._unclear(error)
                continue
            parts = replace(parts, loss=whole.loss, counts=whole.counts, state={}, numbers={}, kinks=[])
            found = _judge_again(
                *(len(trial.samples), ways, name, whole, parts, _is_coarse(trial)),
                "the loss depends on a comparison of a number that is computed over the batch, or on such a "
                "number that the script reads; in a micro-batch it may come out differently, and then ",
            )
            if found is not None:
                return found
        return None

    def _unclear(self, error: Exception) -> None:
        """Ignore an error of a run that decides otherwise: the loss function raises it, or has another shape.
        Raise one of lacking memory, or of another rank.
        """
        if is_memory(error, self._device) or isinstance(error, RanksMeet):
            raise error
        forget(error)

    def _skip(self, error: Exception) -> None:
        """Ignore any error of a further run but that of another rank: if memory ran out, it is due to the
        script's own state, since as many samples had enough before.
        """
        if isinstance(error, RanksMeet):
            raise error
        forget(error)
        collect(self._device)


class _NextBatch(NamedTuple):
    """The values in Python that a batch after the micro-batches overwrites, and how the others affect it."""

    overwritten: frozenset[str]
    why: str

    def apply(self, found: Verification) -> Verification:
        """Return a comparison in which values differ, with what they mean for the next batch."""
        lasting = tuple(name for name in found.counters if name not in self.overwritten)
        last = tuple(name for name in found.counters if name in self.overwritten)
        found = replace(found, counters=lasting, overwritten=(*found.overwritten, *last))
        if not self.why:
            return found
        names = ", ".join(f"`{name}`" for name in lasting[:3])
        why = (
            f"the loss depends on values in Python ({names}) that the forward pass updates, once per "
            f"micro-batch if the batch is split; after more updates, {self.why}"
        )
        return replace(found, equal=False, why=why)


def _is_coarse(trial: Trial) -> bool:
    return trial.draws.coarse and not trial.is_wide


def _rank(found: Verification) -> tuple[bool, float]:
    difference = found.difference
    return (not found.equal, float("inf") if difference is None or difference != difference else difference)


def _judge_again(
    items: int,
    ways: tuple[tuple[int, ...], ...],
    name: str,
    whole: Outcome,
    parts: Outcome,
    coarse: bool,
    why: str,
) -> Verification | None:
    """Judge two runs that decide otherwise than the script; `None` if they are equal or say nothing."""
    found = judge(items, ways, name, whole, parts, coarse)
    finite = found.difference is not None and found.difference == found.difference
    if found.equal or not finite or whole.loss != whole.loss:
        return None
    return replace(found, why=why + found.why)


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def _with_random(found: Verification, draws: Draws) -> Verification:
    notes = []
    if draws.any:
        notes.append("each sample had the same random numbers; in training every micro-batch draws its own")
    if draws.fused_dropout:
        notes.append("dropout inside fused kernels was turned off")
    return replace(found, random="; ".join(notes), shared=tuple(draws.shared))
