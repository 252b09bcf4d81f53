"""Attention whose scores cannot be left out: refused, or written out as the script has it."""

from __future__ import annotations

import pytest
import torch
from memfit import _levers
from memfit._levers import Target
from test_levers_attention import BATCH, HEADS, LENGTH, WIDTH, Body, Model, Seen, outcome, product, scripted
from torch.nn import functional


def edited_query(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    scores = product(q.detach(), k)
    with torch.no_grad():
        q.mul_(2.0)
    return scores.softmax(-1) @ v


def dropped_twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    weights = functional.dropout(product(q, k).softmax(-1), 0.5)
    return weights @ v + weights @ q


def dropped_and_seen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    weights = functional.dropout(product(q, k).softmax(-1), 0.5)
    seen.append(weights)
    return weights @ v


def hooked_late(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    scores = product(q, k)
    answer = scores.softmax(-1) @ v
    scores.retain_grad()
    return answer


REFUSED: dict[str, Body] = {
    "queries that are changed in between": edited_query,
    "one dropout for two products": dropped_twice,
    "dropped weights that leave": dropped_and_seen,
    "a gradient that is asked for late": hooked_late,
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_attention_that_needs_the_missing_scores_is_refused(body: Body) -> None:
    model, x = Model(body), torch.randn(BATCH, LENGTH, HEADS * WIDTH)
    outcome(model, x, False)
    applied = _levers.apply(Target(model), [("sdpa", True)])
    with pytest.raises(RuntimeError, match="`sdpa`"):
        outcome(model, x, False)
    applied.undo()


def test_a_scripted_function_is_no_place_for_scores_that_are_not_there() -> None:
    model = Model(lambda q, k, v, _seen: scripted(product(q, k), v))
    x = torch.randn(BATCH, LENGTH, HEADS * WIDTH)
    model(x)
    applied = _levers.apply(Target(model), [("sdpa", True)])
    with pytest.warns(UserWarning, match="`sdpa`"), pytest.raises(RuntimeError, match="TorchScript"):
        model(x)
    applied.undo()


def masked_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    weights = functional.dropout(product(q, k).softmax(-1), 0.5)
    seen.append(weights)
    return (weights * torch.tensor([0.0, 1.0]).view(1, 2, 1, 1)) @ v


def narrow_values(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        weights = functional.dropout(product(q.float(), k.float()).softmax(-1), 0.5)
    seen.append(weights)
    return weights @ v.to(torch.bfloat16)


def spread(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    weights = functional.dropout(product(q, k).softmax(-1), 0.5)
    seen.append(weights)
    return weights @ v[:1]


@pytest.mark.parametrize(
    ("body", "autocast"), [(masked_heads, False), (narrow_values, True), (spread, False)]
)
def test_weights_are_dropped_out_once_for_all_who_use_them(body: Body, autocast: bool) -> None:
    torch.manual_seed(0)
    model, x = Model(body), torch.randn(BATCH, LENGTH, HEADS * WIDTH)
    expected = outcome(model, x, autocast)
    applied = _levers.apply(Target(model), [("sdpa", True)])
    given = outcome(model, x, autocast)
    applied.undo()
    assert (given[1] == 0.0).any()
    for own, plain in zip(given, expected, strict=True):
        assert torch.allclose(own, plain, atol=1e-5)
