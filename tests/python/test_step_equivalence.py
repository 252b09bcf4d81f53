"""Dividing a batch: equal to plain PyTorch in float64, or refused before any weight moves. Never different
without a word.
"""

from __future__ import annotations

import copy
import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import memfit
import pytest
import torch
from loop_cases import LOOPS, MODELS, PER_SAMPLE, SIZES, TAKEN, Loop
from loop_losses_papers import ctc
from loop_models import rows
from loop_models_papers import jagged, joined_targets
from loop_others import OTHERS, SHARED
from tiers import EXHAUSTIVE
from torch import nn
from training import flat

TOLERANCE = 1e-8
PARTS = (1, 2, 3, 7)
# Loops that draw random numbers: what is drawn for each part is another number by nature.
DRAWS = {
    "dropout",
    "attention with dropout",
    "convolution with dropout",
    "variational",
    "a generator of its own",
    "dropout by its own generator",
    "noise in the loss",
    "a penalty between real and made",
}
ALL = LOOPS | {name: Loop(*parts) for name, parts in OTHERS.items()}
COMPOSED = 200 if EXHAUSTIVE else 80


def plain(loop: Loop, model: nn.Module, data: list[Any]) -> torch.Tensor:
    """The weights after a loop over whole batches."""
    loss = loop.loss(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in data:
        optimizer.zero_grad()
        total(loss(model, copy.deepcopy(batch))).backward()
        optimizer.step()
    return flat(model)


def total(returned: Any) -> torch.Tensor:
    """Return the total of a loss function's return value."""
    if isinstance(returned, dict) and "loss" in returned:
        return total(returned["loss"])
    if isinstance(returned, dict):
        return torch.stack([total(each) for each in returned.values()]).sum()
    return returned[0] / returned[1] if isinstance(returned, tuple) else returned


def divided(
    loop: Loop, model: nn.Module, data: list[Any], micro: int, allow: str
) -> tuple[torch.Tensor, bool]:
    """The weights after the same by `memfit.Step`, and whether it said that they are others."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = memfit.Step(model, optimizer, loop.loss(model), micro_batch=micro, allow=allow, **loop.settings)
    said = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in data:
            said |= bool(step(copy.deepcopy(batch)).changed)
    return flat(model), said


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    difference = float((one - other).norm() / other.norm())
    return difference if difference == difference else float("inf")


def judge(loop: Loop, micro: int, seed: int, draws: bool) -> str:
    """Classify a loop: "equal", "refused", "refused though equal", or "silent"."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = loop.build().double()
    data = [loop.data(generator, size) for size in SIZES]
    try:
        found, said = divided(loop, copy.deepcopy(model), data, micro, "rounding")
    except memfit.StepDoesNotFit:
        # Check if the refusal was right: the weights may be equal even so.
        try:
            anyway, _ = divided(loop, copy.deepcopy(model), data, micro, "changes-training")
        except Exception:
            return "refused"
        expected = plain(loop, copy.deepcopy(model), data)
        return "refused though equal" if apart(anyway, expected) < TOLERANCE else "refused"
    if draws:
        return "equal" if not said else "refused"
    return "equal" if apart(found, plain(loop, copy.deepcopy(model), data)) < TOLERANCE else "silent"


@pytest.mark.parametrize("name", ALL)
def test_a_loop_in_parts_is_equal_or_refused(name: str) -> None:
    """No loop is refused that is equal, so that all of these divide without `allow`."""
    parts = PARTS if EXHAUSTIVE or name in LOOPS else PARTS[1:2]
    found = {micro: judge(ALL[name], micro, 3, name in DRAWS) for micro in parts}
    assert "silent" not in found.values(), found
    assert "refused though equal" not in found.values(), found
    if name in DRAWS:
        assert set(found.values()) == {"equal"}


def composed(seed: int) -> tuple[str, Loop]:
    """A loop of a model, a loss of each sample, and what is made of these losses."""
    chance = random.Random(seed)
    model, each, taken = (chance.choice(list(choices)) for choices in (MODELS, PER_SAMPLE, TAKEN))
    build, forward = MODELS[model]

    def loss(module: nn.Module, batch: Any) -> Any:
        return TAKEN[taken](PER_SAMPLE[each](forward(module, batch[0]), batch[1]), batch[1])

    def made(_: nn.Module) -> Callable[[nn.Module, Any], Any]:
        return loss

    return f"{model}, {each}, {taken}", Loop(build, rows, made)


def test_loops_composed_at_random_are_equal_or_refused() -> None:
    """A seed names a loop; those that may be divided are."""
    outcomes: dict[str, list[str]] = {}
    for seed in range(COMPOSED):
        name, loop = composed(seed)
        draws = name.startswith(("dropout", "attention"))
        outcomes.setdefault(judge(loop, 1 + seed % 4, seed, draws), []).append(f"{seed}: {name}")
    assert not outcomes.get("silent"), outcomes["silent"]
    wrongly = len(outcomes.get("refused though equal", ()))
    assert wrongly <= 0.05 * (wrongly + len(outcomes["equal"])), outcomes["refused though equal"]
    assert len(outcomes["equal"]) > COMPOSED // 4
    assert len(outcomes["refused"]) > COMPOSED // 4


def test_every_part_size_of_a_batch_is_the_same_training() -> None:
    """Means and sums in parts of every size, the ragged ones included."""
    for name, micro in itertools.product(["a mean", "sums of tokens", "several losses"], range(1, 9)):
        loop = LOOPS.get(name) or LOOPS["two losses"]
        assert judge(loop, micro, micro, draws=False) == "equal", (name, micro)


@pytest.mark.parametrize("name", SHARED)
def test_random_numbers_that_samples_share_are_named(name: str) -> None:
    """Each micro-batch draws its own, which no comparison with the same numbers shows."""
    loop = Loop(*SHARED[name])
    model = loop.build().double()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.05), loop.loss(model), micro_batch=3)
    with pytest.warns(UserWarning, match="share random numbers, which are drawn once per micro-batch"):
        result = step(rows(torch.Generator().manual_seed(1), 8))
    assert result.micro_batches == 3
    assert "share random numbers" in result.changed[0]
    assert step.verification is not None
    assert step.verification.equal
    assert step.verification.shared


@pytest.mark.parametrize(
    "loss",
    [
        lambda losses: losses.topk(min(8, len(losses))).values.mean(),
        lambda losses: losses.mean() if len(losses) <= 8 else losses.var(),
        lambda losses: losses[:7].sum() / 7 if len(losses) >= 7 else losses.mean(),
    ],
    ids=["the largest eight", "from nine samples on", "the first seven"],
)
def test_a_loss_that_depends_on_the_number_of_samples_is_refused(
    loss: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Six samples are equal in parts; the whole batch is not."""

    def each(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss(nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"))

    torch.manual_seed(0)
    model = MODELS["dense"][0]().double()
    before = flat(model)
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.05), each, micro_batch=4)
    with pytest.raises(memfit.StepDoesNotFit, match="depends on the number of samples"):
        step(rows(torch.Generator().manual_seed(1), 20))
    assert torch.equal(flat(model), before)


def test_an_error_in_a_part_says_that_the_batch_is_split() -> None:
    """Targets one behind the other have no batch dimension, so each micro-batch is given all of them."""
    model = Loop(*OTHERS["CTC with joined targets"]).build().double()
    step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.05), ctc, micro_batch=3)
    batch = joined_targets(torch.Generator().manual_seed(1), 8)
    with warnings.catch_warnings(record=True) as given, pytest.raises(RuntimeError, match="target") as error:
        step(batch)
    said = [*getattr(error.value, "__notes__", ()), *(str(each.message) for each in given)]
    assert any("in a micro-batch, samples 0 to 3 of 8" in text and "`split=`" in text for text in said)


def means_of_rows(model: nn.Module, batch: Any) -> torch.Tensor:
    """Entropy of the mean of each sequence of a jagged tensor."""
    found = torch.stack([each.mean(0) for each in model(batch[0]).unbind()])
    return nn.functional.cross_entropy(found, batch[1])


def mean_of_all_rows(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch[0]).values().pow(2).mean()


@pytest.mark.parametrize("micro", PARTS)
def test_jagged_tensors_are_divided(micro: int) -> None:
    """Their values are memory of the forward pass, not state that it writes to."""
    torch.manual_seed(3)
    whole, model = nn.Linear(6, 5).double(), nn.Linear(6, 5).double()
    model.load_state_dict(whole.state_dict())
    batch = jagged(torch.Generator().manual_seed(3), 8)
    means_of_rows(whole, batch).backward()
    torch.optim.SGD(whole.parameters(), lr=0.05).step()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    result = memfit.Step(model, optimizer, means_of_rows, micro_batch=micro)(batch)
    assert result.micro_batches == -(-8 // micro)
    assert apart(flat(model), flat(whole)) < TOLERANCE


def test_a_mean_over_all_rows_of_jagged_tensors_is_refused() -> None:
    model = nn.Linear(6, 5).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = memfit.Step(model, optimizer, mean_of_all_rows, micro_batch=3)
    with pytest.raises(memfit.StepDoesNotFit, match="changes training results"):
        step(jagged(torch.Generator().manual_seed(3), 8))
