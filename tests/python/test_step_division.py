"""Trainings as people write them: those that are equal in micro-batches are split, and the others are refused
before a weight differs.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import memfit
import numpy as np
import pytest
import torch
from loop_models import rows
from torch import nn
from torch.nn import functional
from training import Perceptron, flat

BATCHES = 6


def entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


class Trainer:
    """A training that runs by `memfit.Step` and by hand, until memfit refuses to split a batch."""

    def __init__(self, make: Callable[[], tuple[nn.Module, Any, Any]], data: Any = rows) -> None:
        generator = torch.Generator().manual_seed(3)
        self._batches = [data(generator, size) for size in (12, 12, 7, 12, 12, 7)]
        self._make = make

    def refused_at(self) -> int | None:
        """Train; return the number of the batch that was refused, if any. The weights before are those of
        plain PyTorch.
        """
        after: list[torch.Tensor] = []
        model, loss, follow = self._made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in self._batches:
            optimizer.zero_grad()
            returned = loss(model, batch)
            (returned[0] / returned[1] if isinstance(returned, tuple) else returned).backward()
            optimizer.step()
            after.append(flat(model))
            follow()
        model, loss, follow = self._made()
        step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, micro_batch=4)
        for number, batch in enumerate(self._batches):
            before = flat(model)
            try:
                assert step(batch).micro_batches > 1
            except memfit.StepDoesNotFit:
                assert torch.equal(flat(model), before)
                return number
            torch.testing.assert_close(flat(model), after[number], rtol=1e-9, atol=1e-11)
            follow()
        return None

    def _made(self) -> tuple[nn.Module, Any, Any]:
        torch.manual_seed(0)
        model, loss, follow = self._make()
        return model.double(), loss, follow


def nothing() -> None:
    """Change nothing between two batches."""


# ------------------------------------------------------------------------ equal, and split


class Cached(Perceptron):
    """Makes a table of numbers on first use and keeps it, as rotary embeddings and masks are."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: Any = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.tables is None:
            width = inputs.shape[1]
            mask = torch.full((width, width), float("-inf")).triu(1)
            self.tables = torch.arange(width).cos().to(inputs.dtype), mask.to(inputs.dtype)
        scale, mask = self.tables
        return super().forward((inputs * scale) @ mask.exp())


class Remembering(Perceptron):
    """Keeps its last outputs for a plot."""

    last: Any = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(inputs)
        return self.last


def numbered(generator: torch.Generator, size: int) -> Any:
    """Samples with their numbers in the data set."""
    return *rows(generator, size), torch.arange(size)


def ensemble() -> tuple[nn.Module, Any, Any]:
    """A moving average of the outputs for each sample (temporal ensembling)."""
    averages = torch.zeros(12, 5, dtype=torch.float64)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        found = model(batch[0])
        value = functional.cross_entropy(found, batch[1])
        value = value + functional.mse_loss(found.softmax(1), averages[batch[2]])
        averages[batch[2]] = 0.6 * averages[batch[2]] + 0.4 * found.detach().softmax(1)
        return value

    return Perceptron(), loss, nothing


def by_last_loss() -> tuple[nn.Module, Any, Any]:
    """The last loss of each sample is its weight, in a dictionary."""
    last: dict[int, float] = {}

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        losses = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        weights = [last.get(number, 1.0) for number in batch[2].tolist()]
        last.update(zip(batch[2].tolist(), losses.tolist(), strict=True))
        return (losses * torch.tensor(weights, dtype=torch.float64)).mean()

    return Perceptron(), loss, nothing


def loop_of_hinges() -> tuple[nn.Module, Any, Any]:
    """A number with a kink for each sample."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for inputs, label in zip(*batch, strict=True):
            total = total + functional.relu(0.1 + (1 if label > 2 else -1) * model(inputs)[0])
        return total / len(batch[0])

    return Perceptron(), loss, nothing


def logged() -> tuple[nn.Module, Any, Any]:
    """The loss is read and compared, and nothing follows from that."""
    best = [float("inf")]

    def loss(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        value = entropy(model, batch)
        if value > 1e4 or not np.isfinite(value.item()):
            raise RuntimeError
        best[0] = min(best[0], value.item())
        return {"loss": value, "perplexity": value.clamp(max=20).exp()}

    return Perceptron(), loss, nothing


def on_padded_rows() -> tuple[nn.Module, Any, Any]:
    """Batches are padded to one size, so that each micro-batch has the shapes of the whole batch."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        padded = torch.zeros(12, 6, dtype=torch.float64)
        padded[: len(batch[0])] = batch[0]
        return functional.cross_entropy(model(padded).relu()[: len(batch[0])], batch[1])

    return Perceptron(), loss, nothing


EQUAL: dict[str, Any] = {
    "a table kept in a tuple": (lambda: (Cached(), entropy, nothing), rows),
    "outputs kept in an attribute": (lambda: (Remembering(), entropy, nothing), rows),
    "a moving average for each sample": (ensemble, numbered),
    "a weight for each sample": (by_last_loss, numbered),
    "a loop over samples": (loop_of_hinges, rows),
    "a loss that is read": (logged, rows),
    "padded rows": (on_padded_rows, rows),
}


@pytest.mark.filterwarnings("ignore:memfit")
@pytest.mark.parametrize("name", EQUAL)
def test_a_training_that_is_equal_in_micro_batches_is_split(name: str) -> None:
    make, data = EQUAL[name]
    if name == "a loss that is read":
        # By hand, `Trainer` has no use for metrics.
        torch.manual_seed(0)
        model, loss, _ = make()
        step = memfit.Step(model.double(), torch.optim.SGD(model.parameters(), 0.1), loss, micro_batch=4)
        assert step(data(torch.Generator().manual_seed(3), 12)).changed == ()
        return
    assert Trainer(make, data).refused_at() is None


def test_a_variable_that_holds_the_last_micro_batch_is_named() -> None:
    model = Remembering().double()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), 0.1), entropy, micro_batch=4)
    with pytest.warns(UserWarning, match=r"values of the last micro-batch .* left in `Remembering.last`"):
        step(rows(torch.Generator().manual_seed(3), 12))


# ------------------------------------------------------------------------ other, and refused


class Gated(Perceptron):
    """A term that compares samples, with a weight that the training loop sets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = 0.0
        self.register_buffer("share", torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = super().forward(inputs)
        return found + self.weight * self.share * (found - found.mean(0))


class GatedByBuffer(Gated):
    def __init__(self) -> None:
        super().__init__()
        self.weight = 1.0
        self.share.zero_()


def compared(found: torch.Tensor) -> torch.Tensor:
    """A term that compares samples."""
    found = functional.normalize(found, dim=1)
    return torch.logsumexp(found @ found.T, 1).mean()


def from_an_attribute() -> tuple[nn.Module, Any, Any]:
    model, batches = Gated(), [0]

    def follow() -> None:
        batches[0] += 1
        model.weight = float(batches[0] >= 4)

    return model, entropy, follow


def from_a_buffer() -> tuple[nn.Module, Any, Any]:
    model, batches = GatedByBuffer(), [0]

    def follow() -> None:
        batches[0] += 1
        if batches[0] == 4:
            model.share.fill_(1.0)

    return model, entropy, follow


def from_a_file(path: Path) -> tuple[nn.Module, Any, Any]:
    """The weight of a term that is read where no variable shows it."""
    path.write_text("0.0")
    batches = [0]

    def follow() -> None:
        batches[0] += 1
        path.write_text(json.dumps(float(batches[0] >= 4)))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        found = model(batch[0])
        weight = json.loads(path.read_text())
        return functional.cross_entropy(found, batch[1]) + weight * compared(found)

    return Perceptron(), loss, follow


def test_a_weight_that_is_zero_at_first_is_noticed(tmp_path: Path) -> None:
    """The fifth batch is the first with the term, and the next comparison is due at the eighth."""
    assert Trainer(from_an_attribute).refused_at() == 4
    assert Trainer(from_a_buffer).refused_at() == 4
    assert Trainer(lambda: from_a_file(tmp_path / "weight.json")).refused_at() == 4


def guarded(value: torch.Tensor) -> torch.Tensor:
    return value * (0.1 if value.item() > 5 else 1.0)


def branched(value: torch.Tensor) -> torch.Tensor:
    return value * (0.1 if value > 5 else 1.0)


def selected(value: torch.Tensor) -> torch.Tensor:
    return torch.where(value > 5, 0.1 * value, value)


@pytest.mark.parametrize("guard", [guarded, branched, selected])
def test_a_threshold_for_a_number_of_the_batch_is_refused_before_it_is_passed(guard: Any) -> None:
    """As a guard against outliers: no loss of these batches is above five."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return guard(entropy(model, batch))

    assert Trainer(lambda: (Perceptron(), loss, nothing)).refused_at() == 0


def free_bits(found: torch.Tensor) -> torch.Tensor:
    return found.pow(2).mean(0).clamp(min=50).sum()


def hinge_on_spread(found: torch.Tensor) -> torch.Tensor:
    return functional.relu(found.mean(0).abs() - 50).sum()


@pytest.mark.parametrize("term", [free_bits, hinge_on_spread])
def test_a_kink_in_several_means_over_the_batch_is_refused_before_one_passes_it(term: Any) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        found = model(batch[0])
        return functional.cross_entropy(found, batch[1]) + term(found)

    assert Trainer(lambda: (Perceptron(), loss, nothing)).refused_at() == 0


def test_counts_that_do_not_add_up_are_refused() -> None:
    """A micro-batch without a counted label counts one."""

    def loss(model: nn.Module, batch: Any) -> tuple[torch.Tensor, Any]:
        losses, mask = functional.cross_entropy(model(batch[0]), batch[1], reduction="none"), batch[1] > 3
        return losses[mask].sum(), mask.sum().clamp(min=1)

    torch.manual_seed(0)
    model = Perceptron().double()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), 0.1), loss, micro_batch=4)
    with pytest.raises(memfit.StepDoesNotFit, match=r"counts of micro-batches add up to .*max\(count, 1\)"):
        step(rows(torch.Generator().manual_seed(3), 12))


def test_an_effect_of_more_samples_than_six_is_noticed_later() -> None:
    """Experts that take at most six samples: none is full at first."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.ModuleList(nn.Linear(6, 5) for _ in range(2))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found = inputs.new_zeros(len(inputs), 5)
            for number, expert in enumerate(self.net):
                mine = torch.where((inputs[:, 0] > 0) == bool(number))[0][:6]
                found = found.index_add(0, mine, expert(inputs[mine]))
            return found

    def data(generator: torch.Generator, full: bool) -> Any:
        inputs, labels = rows(generator, 12)
        inputs[:, 0] = 1.0 if full else torch.tensor([1.0, -1.0] * 6)
        return inputs, labels

    torch.manual_seed(0)
    generator, model = torch.Generator().manual_seed(3), Experts().double()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), 0.1), entropy, micro_batch=4)
    for _ in range(3):
        step(data(generator, full=False))
    with pytest.raises(memfit.StepDoesNotFit, match="depends on the number of samples"):
        step(data(generator, full=True))


def test_a_sum_is_named_as_one() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    model = Perceptron().double()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), 0.1), loss, micro_batch=4)
    with pytest.raises(memfit.StepDoesNotFit, match=r"(?s)the loss is a sum over samples.*learning rate"):
        step(rows(torch.Generator().manual_seed(3), 12))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_loss_that_fails_on_single_samples_is_split_into_others(kind: torch.dtype) -> None:
    """As `squeeze()` does, which also removes a batch dimension of one."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0].to(kind)[:, None]).squeeze(), batch[1])

    model = Perceptron().to(kind)
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), 0.1), loss, micro_batch=4)
    generator = torch.Generator().manual_seed(3)
    assert step(rows(generator, 12)).micro_batches == 3
    with pytest.raises((RuntimeError, ValueError)) as error:
        step(rows(generator, 9))
    if hasattr(error.value, "add_note"):
        assert any("in a micro-batch, samples 8 to 9 of 9" in note for note in error.value.__notes__)


def test_a_comparison_restores_arrays_and_tuples() -> None:
    """A class prior in NumPy, replaced and written in place, and the two hidden states of an LSTM."""
    state = SimpleNamespace(prior=np.full(5, 0.2), hidden=(torch.zeros(()), torch.zeros(())))
    counts = np.zeros(5)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        found = np.bincount(batch[1].numpy(), minlength=5)
        counts[:] += found
        state.prior = 0.5 * state.prior + 0.5 * found / len(batch[1])
        state.hidden = tuple(each + batch[0].sum() for each in state.hidden)
        return functional.cross_entropy(model(batch[0]) + torch.from_numpy(np.log(state.prior + 1)), batch[1])

    model = Perceptron().double()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), 0.1), loss, micro_batch=4)
    before = copy.deepcopy(vars(state))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(memfit.StepDoesNotFit, match=r"state differs: .*prior"):
            step(rows(torch.Generator().manual_seed(3), 12))
    assert not counts.any()
    np.testing.assert_array_equal(state.prior, before["prior"])
    assert state.hidden == before["hidden"]
