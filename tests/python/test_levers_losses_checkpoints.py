"""Chunked losses within checkpoints, in half precision, and with labels of another shape."""

from __future__ import annotations

import pytest
import torch
from lever_models import target_of
from memfit import _levers
from memfit._levers import Target
from test_levers_losses import BACKWARDS, CLASSES, LABELS, TOKENS, Net, Parts, chunked, entropy, near, outcome
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("loss_within", [False, True])
def test_checkpoints_of_the_script_may_be_around_the_layer(reentrant: bool, loss_within: bool) -> None:
    torch.manual_seed(0)
    model = Net()

    def gradients() -> Parts:
        model.zero_grad()
        hidden = torch.tanh(model.mix(model.embed(TOKENS)))
        if loss_within:
            loss = checkpoint(lambda given: entropy(model.head(given)), hidden, use_reentrant=reentrant)
        else:
            loss = entropy(checkpoint(model.head, hidden, use_reentrant=reentrant))
        (loss * 0.5).backward()
        return [weight.grad.clone() for weight in model.parameters()]

    expected = gradients()
    undo = chunked(model)
    assert near(gradients(), expected)
    undo()


def test_a_checkpoint_of_memfits_may_be_around_the_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Net())
    expected = outcome(model, entropy, BACKWARDS["weighted"], False)
    levers = [("chunked-loss", {"head": "0.head", "tokens": 5}), ("checkpointing", ["0"])]
    undo = _levers.apply(Target(model), levers).undo
    assert near(outcome(model, entropy, BACKWARDS["weighted"], False), expected)
    undo()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
def test_a_sum_of_losses_in_half_precision_does_not_run_over(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Net().to(kind)
    many = TOKENS.repeat(400, 8)
    expected = functional.cross_entropy(model(many).view(-1, CLASSES).float(), many.view(-1))
    assert expected * many.numel() > torch.finfo(torch.float16).max
    undo = _levers.apply(target_of(model), [("chunked-loss", {"head": "head", "tokens": 999})]).undo
    given = functional.cross_entropy(model(many).view(-1, CLASSES), many.view(-1))
    assert given.dtype == kind
    assert torch.allclose(given.float(), expected, rtol=0.02)
    undo()


def test_labels_in_another_shape_are_refused_as_torch_refuses_them() -> None:
    model = Net()
    undo = chunked(model)
    with pytest.raises(ValueError, match="batch_size"):
        functional.cross_entropy(model(TOKENS).view(-1, CLASSES), LABELS)
    with pytest.raises(ValueError, match="batch_size"):
        functional.cross_entropy(model(TOKENS).transpose(1, 2), LABELS.T)
    undo()
