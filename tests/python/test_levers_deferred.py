"""Levers that put something off until it is known what becomes of it: logits, and scores of attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lever_models import CLASSES, TOKENS, Language, language_loss, target_of
from memfit import _levers
from memfit._levers import Target
from torch import nn
from torch.nn import functional


def test_logits_that_are_asked_for_are_the_real_ones() -> None:
    torch.manual_seed(0)
    model = Language(0.0)
    expected = model(TOKENS)
    target = target_of(model)
    undo = _levers.apply(target, [("chunked-loss", 8)]).undo
    logits = model(TOKENS)
    assert (logits.shape, logits.dtype, logits.ndim) == (expected.shape, expected.dtype, 3)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
    assert torch.equal(logits * 2, expected * 2)
    assert torch.equal(torch.stack([logits[0], logits[1]]), expected[:2])
    labels = torch.where(TOKENS < 1000, TOKENS, -100)
    weight = torch.rand(CLASSES)
    for settings in (
        {},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"label_smoothing": 0.1},
        {"weight": weight},
        {"weight": weight, "label_smoothing": 0.1},
        {"ignore_index": int(TOKENS[0, 0])},
    ):
        for form in ("flat", "second"):
            taken = logits.flatten(0, 1) if form == "flat" else logits.transpose(1, 2)
            real = expected.flatten(0, 1) if form == "flat" else expected.transpose(1, 2)
            ignored = settings.get("ignore_index", -100)
            wanted = torch.where(labels == -100, ignored, labels)
            wanted = wanted.flatten() if form == "flat" else wanted
            ours = functional.cross_entropy(taken, wanted, **settings)
            theirs = functional.cross_entropy(real, wanted, **settings)
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), (settings, form)
    undo()
    assert type(model(TOKENS)) is torch.Tensor


def test_logits_are_made_whole_only_where_they_are_asked_for() -> None:
    class Doubled(torch.autograd.Function):
        """A custom loss that needs plain tensors."""

        @staticmethod
        def forward(_ctx: Any, logits: torch.Tensor) -> torch.Tensor:
            return logits.new_zeros(())

        @staticmethod
        def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.expand(*TOKENS.shape, CLASSES)

    torch.manual_seed(0)
    model = Language(0.0)
    (model(TOKENS) * 2).square().mean().backward()
    expected = model.head.weight.grad.clone()
    model.zero_grad()
    made: list[int] = []
    inner = model.head.forward

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        made.append(hidden.shape[:-1].numel())
        return inner(hidden)

    model.head.forward = forward  # type: ignore[method-assign]
    applied = _levers.apply(target_of(model), [("chunked-loss", 8)])
    loss = language_loss(model, TOKENS)
    rows = TOKENS.shape[0] * (TOKENS.shape[1] - 1)
    assert made == [8] * (rows // 8) + [rows % 8] * (rows % 8 > 0)
    loss.backward()
    assert max(made) == 8, "in the backward as well"
    model.zero_grad()
    # Other uses compute the real tensor, with gradients.
    (model(TOKENS) * 2).square().mean().backward()
    assert torch.allclose(model.head.weight.grad, expected, atol=1e-7)
    assert made[-1] == TOKENS.numel()
    model.zero_grad()
    with pytest.raises(RuntimeError, match="chunked-loss"):
        Doubled.apply(model(TOKENS)).backward()
    applied.undo()


@pytest.mark.parametrize(
    ("form", "product", "weighted", "used"),
    [
        ("heads first", "bhqd,bhkd->bhqk", "bhqk,bhkd->bhqd", True),
        ("heads inside", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", True),
        ("keys named first", "bkhd, bqhd -> bhqk", "bkhd,bhqk->bqhd", True),
        ("queries last", "bqhd,bkhd->bhkq", "bhqk,bkhd->bqhd", False),
        ("over the heads", "bqhd,bkhd->dbqk", "dbqk,bkhd->bqhd", True),
        ("keys that are shared", "bqhd,bkd->bhqk", "bhqk,bkd->bqhd", False),
        ("a sum beside it", "bqhd,bkhd->bhqk", "bhqk,bkhe->bqhe", True),
    ],
)
def test_attention_written_with_einsum_is_recognised(
    form: str, product: str, weighted: str, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lettered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # No two dimensions are equally long, so none is mistaken for another.
            q, k, v = (each(x).unflatten(-1, (2, 4)) for each in (self.q, self.k, self.v))
            if form == "heads first":
                q, k, v = (each.transpose(1, 2) for each in (q, k, v))
            if form == "keys that are shared":
                k, v = k[:, :, 0], v[:, :, 0]
            first, second = (k, q) if form == "keys named first" else (q, k)
            scores = torch.einsum(product, first, second) * 0.5
            keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            weights = scores.masked_fill(~keep, float("-inf")).softmax(-1)
            if form == "queries last":
                weights = weights.transpose(-2, -1)
            operands = (v, weights) if form == "keys named first" else (weights, v)
            return torch.einsum(weighted, *operands)

    torch.manual_seed(0)
    model, x = Lettered(), torch.randn(3, 6, 8)
    calls = []
    attention = functional.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        return attention(*args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    expected = model(x)
    expected.pow(2).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    applied = _levers.apply(Target(model), [("sdpa", True)])
    answer = model(x)
    answer.pow(2).sum().backward()
    assert bool(calls) == used
    assert torch.allclose(answer, expected, atol=1e-6)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-5)
    applied.undo()


def test_scores_that_are_something_else_are_computed_as_written() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.q(x) @ self.k(x).transpose(-2, -1)
            weights = (scores / 3.0).softmax(-1)
            # An entropy is not attention, and neither is a softmax over the queries.
            return -(weights * weights.log()).sum() + scores.softmax(-2).max() + scores.mean()

    torch.manual_seed(0)
    model, x = Other(), torch.randn(2, 6, 8)
    expected = model(x)
    expected.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    applied = _levers.apply(Target(model), [("sdpa", True)])
    value = model(x)
    value.backward()
    assert torch.equal(value, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=1e-5, atol=1e-6)
    applied.undo()


class Wrapped(nn.Linear):
    """A subclass, which could compute more than one matrix product."""


class Head(nn.Module):
    def __init__(self, kind: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 16)
        self.mix = nn.Linear(16, 16)
        self.head = kind(16, CLASSES)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(torch.tanh(self.mix(self.embedding(tokens))))


@pytest.mark.parametrize("kind", [nn.Linear, Wrapped])
@pytest.mark.parametrize("frozen", [(), ("head.bias",), ("mix.weight", "mix.bias", "embedding.weight")])
@pytest.mark.parametrize("settings", [{}, {"reduction": "sum", "label_smoothing": 0.1}, {"ignore_index": 3}])
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_of_a_loss_in_pieces_are_those_of_the_whole(
    kind: type[nn.Linear], frozen: tuple[str, ...], settings: dict[str, Any], autocast: bool
) -> None:
    torch.manual_seed(1)
    model = Head(kind)
    for name, weight in model.named_parameters():
        weight.requires_grad_(name not in frozen)
    labels = torch.where(TOKENS % 3 == 0, 3, TOKENS)

    def gradients() -> list[torch.Tensor | None]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = functional.cross_entropy(model(TOKENS).flatten(0, 1), labels.flatten(), **settings)
        # Operations between the loss and the backward pass are known only in the latter.
        (loss * 0.25).backward()
        return [weight.grad for weight in model.parameters()]

    expected = gradients()
    undo = _levers.apply(target_of(model), [("chunked-loss", 5)]).undo
    for own, whole in zip(gradients(), expected, strict=True):
        assert (own is None) == (whole is None)
        if own is not None and whole is not None:
            far = (own - whole).norm() / whole.norm()
            assert own.dtype == whole.dtype
            assert far < (0.01 if autocast else 1e-5), far
    undo()


def test_weights_that_share_a_gradient_get_theirs() -> None:
    class Sum(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, CLASSES)
            self.more = nn.Parameter(torch.randn(CLASSES, 8))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return functional.linear(hidden, self.weight + self.more, self.bias)

    torch.manual_seed(2)
    model = nn.Sequential(nn.Embedding(CLASSES, 8), Sum())

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten()).backward()
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    expected = gradients()
    undo = _levers.apply(target_of(model), [("chunked-loss", {"head": "1", "tokens": 5})]).undo
    for own, whole in zip(gradients(), expected, strict=True):
        assert torch.allclose(own, whole, rtol=1e-4, atol=1e-7)
    undo()


def test_logits_are_not_made_twice_but_in_fp16() -> None:
    for kind, times in ((torch.bfloat16, 1), (torch.float16, 2)):
        model = Head().to(kind)
        made = []
        plain = model.head.forward
        model.head.forward = lambda hidden, plain=plain, made=made: made.append(len(hidden)) or plain(hidden)
        undo = _levers.apply(target_of(model), [("chunked-loss", 5)]).undo
        loss = functional.cross_entropy(model(TOKENS).flatten(0, 1).float(), TOKENS.flatten())
        assert loss.dtype == torch.float32
        loss.backward()
        assert sum(made) == times * TOKENS.numel(), kind
        undo()


def test_gradients_that_are_asked_for_twice_are_refused() -> None:
    model = Head()
    undo = _levers.apply(target_of(model), [("chunked-loss", 5)]).undo
    loss = functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass was run"):
        loss.backward()
    undo()
