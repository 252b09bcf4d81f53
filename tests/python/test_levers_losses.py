"""Losses in the many ways in which scripts compute them: with `chunked-loss` they are what plain torch makes
of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lever_models import target_of
from memfit import _levers
from memfit._levers import CannotApply
from torch import nn
from torch.nn import functional

CLASSES, WIDTH = 40, 8
TOKENS = torch.randint(0, CLASSES, (3, 7), generator=torch.Generator().manual_seed(5))
LABELS = torch.where(TOKENS % 5 == 0, -100, TOKENS)
WEIGHT = torch.rand(CLASSES, generator=torch.Generator().manual_seed(6))
UNUSED = torch.arange(CLASSES) >= 37
Parts = list[torch.Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.embed(tokens))))


def entropy(logits: torch.Tensor, **settings: Any) -> torch.Tensor:
    return functional.cross_entropy(logits.reshape(-1, CLASSES), LABELS.reshape(-1), **settings)


def edited(edit: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    def loss(logits: torch.Tensor) -> torch.Tensor:
        edit(logits)
        return entropy(logits)

    return loss


def item(logits: torch.Tensor) -> None:
    logits[..., 37:] = -1e9


def times(logits: torch.Tensor) -> None:
    logits *= 0.5


@torch.no_grad()
def unlearned(logits: torch.Tensor) -> None:
    logits.mul_(0.5)


@torch.no_grad()
def out(logits: torch.Tensor) -> None:
    torch.mul(logits, 0.5, out=logits)


def view_before(logits: torch.Tensor) -> torch.Tensor:
    flat = logits.view(-1, CLASSES)
    logits.div_(2.0)
    return functional.cross_entropy(flat, LABELS.reshape(-1))


def edited_slice(logits: torch.Tensor) -> torch.Tensor:
    logits[:, 1:].mul_(3.0)
    return entropy(logits)


def edited_copy(logits: torch.Tensor) -> torch.Tensor:
    shifted = logits[:, :-1].contiguous()
    shifted.div_(2.0)
    wide = logits.double()
    wide.div_(2.0)
    return entropy(logits) + shifted.logsumexp(-1).sum() + wide.mean()


def same_tensor(logits: torch.Tensor) -> torch.Tensor:
    logits.float().contiguous().to(logits.device).div_(2.0)
    return entropy(logits)


def edited_alias(logits: torch.Tensor) -> torch.Tensor:
    logits.detach()[..., 37:] = -1e9
    return entropy(logits)


def edited_data(logits: torch.Tensor) -> torch.Tensor:
    logits.data.masked_fill_(UNUSED, -1e9)
    return entropy(logits)


def edited_through_no_grad(logits: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        flat = logits.view(-1, CLASSES)
        flat.mul_(0.5)
    return entropy(logits)


def after_reading(logits: torch.Tensor) -> torch.Tensor:
    first = logits.mean() + logits.view(-1, CLASSES).sum()
    logits.masked_fill_(UNUSED, -1e9)
    return first + entropy(logits)


def copy_before(logits: torch.Tensor) -> torch.Tensor:
    shifted = logits[:, :-1].reshape(-1, CLASSES)
    first = functional.cross_entropy(shifted, LABELS[:, 1:].reshape(-1))
    logits.clamp_(-0.1, 0.1)
    return first + entropy(logits) + functional.cross_entropy(shifted, LABELS[:, 1:].reshape(-1))


def several(logits: torch.Tensor) -> torch.Tensor:
    flat, swapped = logits.view(-1, CLASSES), logits.transpose(1, 2)
    penalty = 1e-2 * flat.logsumexp(-1).square().mean()
    return (
        entropy(logits, label_smoothing=0.1)
        + penalty
        + functional.cross_entropy(swapped, LABELS, weight=WEIGHT)
        + functional.cross_entropy(swapped, LABELS, reduction="none").square().mean()
        + 0.1 * flat.softmax(-1).square().sum()
    )


def measured(logits: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        right = (logits[:, :-1].argmax(-1) == LABELS[:, 1:]).float().mean()
        confident = functional.cross_entropy(logits.view(-1, CLASSES), LABELS.view(-1))
    calm = logits.detach().float().softmax(-1).amax()
    return entropy(logits) + right + confident + calm


def gradient_of_logits(logits: torch.Tensor) -> torch.Tensor:
    flat = logits.view(-1, CLASSES)
    logits.register_hook(lambda gradient: gradient * 2)
    return functional.cross_entropy(flat, LABELS.view(-1)) + flat.mean()


def nothing_counts(logits: torch.Tensor) -> torch.Tensor:
    nothing = torch.full((21,), -100)
    loss = functional.cross_entropy(logits.view(-1, CLASSES), nothing, reduction="mean")
    more = functional.cross_entropy(logits.view(-1, CLASSES), nothing, weight=WEIGHT)
    return loss + more + entropy(logits)


def features(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, :, 3:9, ...].square().sum() + entropy(logits)


def picked(logits: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits[LABELS != -100], LABELS[LABELS != -100])


def bits(logits: torch.Tensor) -> torch.Tensor:
    return entropy(logits) + logits.view(torch.int32).float().abs().clamp(max=1.0).mean()


def reshaped_in_place(logits: torch.Tensor) -> torch.Tensor:
    logits.unsqueeze_(0)
    assert logits.shape == (1, 3, 7, CLASSES)
    return functional.cross_entropy(logits.view(-1, logits.size(dim=-1)), LABELS.view(-1))


def probabilities(logits: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.view(-1, CLASSES), WEIGHT.expand(21, -1) / WEIGHT.sum())


def twice(logits: torch.Tensor) -> torch.Tensor:
    loss = entropy(logits)
    return loss * 0.5 + loss.square() + loss.detach() * logits.mean()


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": entropy,
    "an item set": edited(item),
    "scaled in place": edited(times),
    "divided in place": edited(lambda logits: logits.div_(2.0)),
    "masked in place": edited(lambda logits: logits.masked_fill_(UNUSED, -1e9)),
    "scaled unlearned": edited(unlearned),
    "written to": edited(out),
    "a view from before the edit": view_before,
    "an edit of a view": edited_slice,
    "an edit of a copy": edited_copy,
    "casts that are none": same_tensor,
    "an edit of what is detached": edited_alias,
    "an edit of the data": edited_data,
    "an edit of a view without gradient": edited_through_no_grad,
    "an edit after a reading": after_reading,
    "a copy from before the edit": copy_before,
    "several losses": several,
    "metrics": measured,
    "a hook on the logits": gradient_of_logits,
    "nothing counts": nothing_counts,
    "a slice of the classes": features,
    "labels that count": picked,
    "other types of the same bits": bits,
    "reshaped in place": reshaped_in_place,
    "labels that are probabilities": probabilities,
    "a loss that is used twice": twice,
}
BACKWARDS: dict[str, Callable[[torch.Tensor, nn.Module], None]] = {
    "plain": lambda loss, _: loss.backward(),
    "weighted": lambda loss, _: (loss * 0.5 / 3).backward(),
    "with a gradient": lambda loss, _: loss.backward(gradient=torch.tensor(0.25)),
    "with others": lambda loss, model: (loss * 2 + model.mix.weight.square().sum()).backward(),
    "asked for": lambda loss, model: assigned(loss, model),
}


def assigned(loss: torch.Tensor, model: nn.Module) -> None:
    weights = list(model.parameters())
    for weight, gradient in zip(weights, torch.autograd.grad(loss * 3, weights), strict=True):
        weight.grad = gradient


def outcome(
    model: nn.Module, loss: Callable[[torch.Tensor], torch.Tensor], backward: Any, autocast: bool
) -> Parts:
    """The loss, and what is learned from it."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        value = loss(model(TOKENS))
    backward(value, model)
    return [
        value.detach(),
        *(weight.grad.clone() for weight in model.parameters() if weight.grad is not None),
    ]


def near(given: Parts, expected: Parts, far: float = 1e-4) -> bool:
    pairs = list(zip(given, expected, strict=True))
    assert all(own.dtype == plain.dtype for own, plain in pairs)
    return all(
        torch.allclose(own, plain, equal_nan=True) or (own - plain).norm() <= far * plain.norm()
        for own, plain in pairs
    )


def chunked(model: nn.Module) -> Callable[[], None]:
    return _levers.apply(target_of(model), [("chunked-loss", {"head": "head", "tokens": 5})]).undo


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_chunked_losses_equal_plain_torchs(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = Net()
    for autocast in (False, True):
        if autocast and loss in (bits, several, probabilities):
            continue
        expected = [outcome(model, loss, backward, autocast) for backward in BACKWARDS.values()]
        undo = chunked(model)
        for backward, plain in zip(BACKWARDS.values(), expected, strict=True):
            given = outcome(model, loss, backward, autocast)
            assert near(given, plain, 0.05 if autocast else 1e-4), backward
        undo()


def test_logits_may_be_asked_for_after_the_backward_and_after_the_step_are_others() -> None:
    torch.manual_seed(0)
    model = Net()
    expected = model(TOKENS)
    target = target_of(model)
    undo = _levers.apply(target, [("chunked-loss", {"head": "head", "tokens": 5})]).undo
    early, late, changed = model(TOKENS), model(TOKENS), model(TOKENS)
    (entropy(early) + entropy(late)).backward()
    assert torch.equal(early.argmax(-1), expected.argmax(-1))
    assert torch.allclose(early.detach() + 0, expected)
    kept = early.view(-1, CLASSES)
    target.optimizers[0].step()
    # Logits computed before the step remain; others would use the updated weights.
    assert torch.allclose(kept.sum(), expected.sum(), rtol=1e-4)
    with pytest.warns(UserWarning, match="computed with the updated weights"):
        assert late.argmax(-1).shape == expected.shape[:-1]
    for ask in (lambda: entropy(late), lambda: changed.div_(2.0)):
        with pytest.raises(RuntimeError, match="`chunked-loss`"):
            ask()
    undo()


def second_order(model: nn.Module, logits: torch.Tensor) -> None:
    gradients = torch.autograd.grad(entropy(logits), list(model.parameters()), create_graph=True)
    sum(gradient.square().sum() for gradient in gradients).backward()  # type: ignore[union-attr]


def late_gradient(_model: nn.Module, logits: torch.Tensor) -> None:
    loss = entropy(logits)
    logits.retain_grad()
    loss.backward()


def late_hook(_model: nn.Module, logits: torch.Tensor) -> None:
    flat = logits.view(-1, CLASSES)
    loss = functional.cross_entropy(flat, LABELS.view(-1))
    flat.register_hook(print)
    loss.backward()


def gradient_of_the_logits(_model: nn.Module, logits: torch.Tensor) -> None:
    torch.autograd.grad(entropy(logits), [logits], allow_unused=True)


@pytest.mark.parametrize("ask", [second_order, late_gradient, late_hook, gradient_of_the_logits])
def test_gradients_that_bypass_the_chunked_loss_are_refused(
    ask: Callable[[nn.Module, torch.Tensor], None],
) -> None:
    torch.manual_seed(0)
    model = Net()
    undo = chunked(model)
    with pytest.raises(RuntimeError, match="`chunked-loss`"):
        ask(model, model(TOKENS))
    undo()


class Shared(nn.Linear):
    """A layer that computes with what is not its own."""

    other: list[nn.Parameter]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(hidden, self.weight * self.other[0], self.bias)


def test_a_layer_that_computes_with_what_is_not_its_own_is_refused() -> None:
    model = Net()
    model.scale = nn.Parameter(torch.ones(WIDTH))
    model.head = Shared(WIDTH, CLASSES)
    model.head.other = [model.scale]
    undo = chunked(model)
    with pytest.raises(RuntimeError, match="more than its own parameters"):
        entropy(model(TOKENS)).backward()
    undo()


def test_a_weight_that_a_hook_computes_is_refused() -> None:
    model = Net()
    torch.nn.utils.weight_norm(model.head)
    model(TOKENS)
    with pytest.raises(CannotApply, match="parametrizations"):
        chunked(model)
    torch.nn.utils.remove_weight_norm(model.head)
    undo = chunked(model)
    torch.nn.utils.weight_norm(model.head)
    assert type(model(TOKENS)) is torch.Tensor
    undo()


@pytest.mark.parametrize("change", ["parametrized", "dropped out", "transformed", "drawn"])
def test_other_layers_before_the_loss_are_unaffected(change: str) -> None:
    class Drawn(nn.Linear):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return super().forward(functional.dropout(hidden, 0.5))

    class Dropped(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, CLASSES)
            self.drop = nn.Dropout(0.5)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return super().forward(self.drop(hidden))

    torch.manual_seed(0)
    model = Net()
    if change == "parametrized":
        torch.nn.utils.parametrizations.weight_norm(model.head)
    elif change == "dropped out":
        model.head = Dropped()
    elif change == "drawn":
        model.head = Drawn(WIDTH, CLASSES)

    def gradients() -> Parts:
        torch.manual_seed(1)
        model.zero_grad()
        if change == "transformed":
            weights = dict(model.named_parameters())
            found = torch.func.grad(
                lambda given: entropy(torch.func.functional_call(model, given, (TOKENS,)))
            )(weights)
            return list(found.values())
        (entropy(model(TOKENS), reduction="none").mean() * 2).backward()
        return [weight.grad.clone() for weight in model.parameters()]

    plain = copy.deepcopy(model)
    expected = gradients()
    undo = chunked(model)
    given = gradients()
    if change == "drawn":
        # Other numbers than without pieces; the same in both passes.
        for part, weight in zip(given, model.parameters(), strict=True):
            assert part.shape == weight.shape
        torch.manual_seed(1)
        entropies = entropy(model(TOKENS), reduction="none").mean() * 2
        step = 1e-3
        with torch.no_grad():
            model.head.bias += step * given[-1]
        torch.manual_seed(1)
        moved = entropy(model(TOKENS), reduction="none").mean() * 2
        rise = float((moved - entropies).detach()) / step
        assert abs(rise / float(given[-1].square().sum()) - 1) < 0.02
    else:
        assert near(given, expected)
    undo()
    del plain
