"""Attention in the many ways in which scripts write it: with `sdpa` it is what plain torch makes of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from attention_turned import TURNED
from memfit import _levers
from memfit._levers import Target
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

BATCH, HEADS, LENGTH, WIDTH = 2, 2, 6, 4
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
# The second sample's last tokens are padding, as queries and as keys.
PADDED = torch.arange(LENGTH) >= torch.tensor([LENGTH, 4]).view(2, 1)
PAIRS = (PADDED[:, :, None] | PADDED[:, None, :])[:, None]
SLOPES = -torch.arange(LENGTH).float().view(1, 1, 1, LENGTH) / 3
Seen = list[torch.Tensor]
Body = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Seen], torch.Tensor]


class Model(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(HEADS * WIDTH, HEADS * WIDTH) for _ in range(3))
        self.body = body

    def forward(self, x: torch.Tensor) -> Any:
        q, k, v = (each(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for each in (self.q, self.k, self.v))
        seen: Seen = []
        return self.body(q, k, v, seen), seen


def product(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-2, -1)


def edited(edit: Callable[[torch.Tensor], Any]) -> Body:
    """Attention whose scores are changed in place."""

    def body(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
        scores = product(q, k)
        edit(scores)
        return scores.softmax(-1) @ v

    return body


def formed(form: Callable[[torch.Tensor], torch.Tensor]) -> Body:
    """Attention whose scores become others."""
    return lambda q, k, v, _seen: form(product(q, k)).softmax(-1) @ v


def weighted(form: Callable[[torch.Tensor], torch.Tensor]) -> Body:
    """Attention whose weights become others."""
    return lambda q, k, v, _seen: form(product(q, k).softmax(-1)) @ v


def item(scores: torch.Tensor) -> None:
    scores[:, :, CAUSAL] = float("-inf")


@torch.no_grad()
def out(scores: torch.Tensor) -> None:
    torch.add(scores, SLOPES, out=scores)


def times(scores: torch.Tensor) -> None:
    scores *= 0.5


def over(scores: torch.Tensor) -> None:
    scores /= 2


def minus(scores: torch.Tensor) -> None:
    scores -= SLOPES


def plus(scores: torch.Tensor) -> None:
    scores += SLOPES


def view_before(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    scores = product(q, k)
    flat = scores.view(-1, LENGTH, LENGTH)
    scores.masked_fill_(CAUSAL, float("-inf"))
    return (flat.softmax(-1) @ v.flatten(0, 1)).view(v.shape)


def edited_view(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    scores = product(q, k)
    scores[:, 0].masked_fill_(CAUSAL, float("-inf"))
    return scores.softmax(-1) @ v


def same_tensor(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    scores = product(q, k)
    wide = scores.float()
    wide.masked_fill_(CAUSAL, float("-inf"))
    return scores.softmax(-1) @ v


def weights_before(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    scores = product(q, k)
    weights = scores.softmax(-1)
    scores.masked_fill_(CAUSAL, float("-inf"))
    return weights @ v + scores.softmax(-1) @ v


def also_seen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    scores = product(q, k)
    weights = scores.softmax(-1)
    answer = weights @ v
    seen += [weights, scores.logsumexp(-1), scores]
    return answer


def metered(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    scores = product(q, k)
    with torch.no_grad():
        seen.append(scores.abs().max())
        fixed = scores.softmax(-1)
    return scores.softmax(-1) @ v + fixed @ v


def frozen_edit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    scores = product(q, k)
    with torch.no_grad():
        scores.mul_(0.5)
    return scores.softmax(-1) @ v


def residual(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    first = product(q, k)
    answer = first.softmax(-1) @ v
    return (product(k, q) + first).softmax(-1) @ answer


def several_values(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    weights = product(q, k).softmax(-1)
    return weights @ v - weights @ q + weights @ v[:1]


def hooked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    weights = product(q, k).softmax(-1)
    weights.register_hook(lambda gradient: gradient * 2)
    return weights @ v


def within(reentrant: bool, body: Body) -> Body:
    return lambda q, k, v, seen: checkpoint(body, q, k, v, seen, use_reentrant=reentrant)


def product_outside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    scores = product(q, k)

    def rest(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (scores + SLOPES).tanh().softmax(-1) @ v

    return checkpoint(rest, scores, v, use_reentrant=False)


def mapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    return torch.vmap(lambda q, k, v: masked(q, k, v, seen))(q, k, v)


def in_a_gradient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    return torch.func.grad(lambda q: masked(q, k, v, seen).sin().sum())(q)


def forward_gradient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    return torch.func.jvp(lambda q: masked(q, k, v, seen), (q,), (torch.ones_like(q),))[1]


def gradient_within(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    scores = product(q, k)
    answer = formed(torch.tanh)(q, k, v, []) + scores.tanh().softmax(-1) @ v
    return answer + torch.autograd.grad(answer.sum(), scores, create_graph=True)[0] @ v


def compiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    rest = torch.compile(lambda scores, v: scores.softmax(-1) @ v, backend="eager")
    return rest(product(q, k), v)


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    return (product(q, k) / 2).masked_fill(CAUSAL, float("-inf")).softmax(-1) @ v


@torch.jit.script
def scripted(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores * 2.0, -1) @ v


@dataclass(frozen=True)
class Case:
    name: str
    body: Body
    # Set if the attention kernels are used.
    used: bool = False
    # Autocast around it.
    autocast: bool = False


CASES = [
    Case("masked", masked, used=True),
    Case("masked in place", edited(lambda s: s.masked_fill_(CAUSAL, float("-inf"))), used=True),
    Case(
        "masked in place, twice",
        edited(lambda s: s.masked_fill_(CAUSAL, -1e9).masked_fill_(PADDED[:, None, None], -1e9)),
        used=True,
    ),
    Case("scaled in place", edited(times), used=True),
    Case("scaled by a method", edited(lambda s: s.mul_(0.5)), used=True),
    Case("divided in place", edited(over), used=True),
    Case("divided by a method", edited(lambda s: s.div_(2.0)), used=True),
    Case("added to in place", edited(plus), used=True),
    Case("added to by a method", edited(lambda s: s.add_(SLOPES)), used=True),
    Case("subtracted from in place", edited(minus)),
    Case("added to with a factor", edited(lambda s: s.add_(SLOPES, alpha=2.0))),
    Case("an item set", edited(item)),
    Case("written to by another function", edited(out)),
    Case("clamped in place", edited(lambda s: s.clamp_(-0.1, 0.1))),
    Case("filled with little", edited(lambda s: s.masked_fill_(CAUSAL, -2.0))),
    Case("scaled by a tensor", edited(lambda s: s.mul_(SLOPES))),
    Case("a view from before the edit", view_before),
    Case("an edit of a view", edited_view),
    Case("a cast that is none", same_tensor, used=True),
    Case("weights from before the edit", weights_before, used=True),
    Case("an edit that is not learned", frozen_edit),
    Case("weights and scores that leave", also_seen, used=True),
    Case("scores that are looked at", metered),
    Case("scores of two products", residual, used=True),
    Case("weights of several products", several_values, used=True),
    Case("weights with a hook", hooked),
    Case("weights times a mask of heads", weighted(lambda w: w * torch.tensor([0.0, 1.0]).view(1, 2, 1, 1))),
    Case(
        "scores of more samples",
        lambda q, k, v, _: (product(q[:1], k[:1]) + PADDED[:, None, None] * -1e9).softmax(-1) @ v,
    ),
    Case(
        "scores of more samples, masked",
        lambda q, k, v, _: product(q[:1], k[:1]).masked_fill(PADDED[:, None, None], -1e9).softmax(-1) @ v,
    ),
    Case("a softmax over the queries", lambda q, k, v, _: product(q, k).softmax(-2) @ v),
    Case("divided by nothing much", formed(lambda s: s / math.inf)),
    Case("a negative scale", formed(lambda s: s * -0.5)),
    Case("rows that are masked", formed(lambda s: s.masked_fill(PAIRS, -1e9)), used=True),
    Case(
        "rows that are masked, with a least number",
        formed(lambda s: s.masked_fill(PAIRS, torch.finfo(s.dtype).min)),
        used=True,
    ),
    Case("rows that are masked by a sum", formed(lambda s: s + PAIRS * torch.finfo(torch.float32).min)),
    Case("rows that are masked by a float", formed(lambda s: s + PAIRS.float() * -1e9)),
    Case(
        "keys that are masked by a sum",
        formed(lambda s: s + PADDED[:, None, None] * torch.finfo(torch.float32).min),
        used=True,
    ),
    Case(
        "keys that are masked by a sum and by a mask",
        formed(lambda s: (s + PADDED[:, None, None] * -1e9).masked_fill(CAUSAL, float("-inf"))),
        used=True,
    ),
    Case(
        "rows that are masked by a sum and by a mask",
        formed(lambda s: (s + CAUSAL.T * -1e9).masked_fill(PAIRS, float("-inf")).clamp(min=-1e30)),
    ),
    Case("two least numbers", formed(lambda s: s.masked_fill(CAUSAL, -1e9).masked_fill(PAIRS, -2e9))),
    Case("a bias and a mask", formed(lambda s: (s + SLOPES).masked_fill(CAUSAL, float("-inf"))), used=True),
    Case("a bias and a least number", formed(lambda s: (s + SLOPES).masked_fill(PAIRS, -1e9))),
    Case("a softmax in fp64", lambda q, k, v, _: product(q, k).softmax(-1, dtype=torch.float64).float() @ v),
    Case("weights in half", lambda q, k, v, _: product(q, k).softmax(-1).to(torch.bfloat16).float() @ v),
    Case("dropout that is off", weighted(lambda w: functional.dropout(w, 0.5, training=False)), used=True),
    Case("dropout of torch's that is off", weighted(lambda w: torch.dropout(w, 0.5, train=False))),
    Case("everything dropped", weighted(lambda w: functional.dropout(w, 1.0))),
    Case("a checkpoint of the script's", within(False, masked)),
    Case("a checkpoint that enters twice", within(True, masked)),
    Case("checkpoints within each other", within(False, within(False, masked))),
    Case("a checkpoint behind the product", product_outside),
    Case("vmap", mapped),
    Case("grad", in_a_gradient),
    Case("jvp", forward_gradient),
    Case("a gradient within", gradient_within),
    Case("a compiled softmax", compiled, used=True),
    Case("autocast", masked, used=True, autocast=True),
    Case(
        "autocast, rows that are masked by a float",
        formed(lambda s: s + PAIRS.float() * torch.finfo(torch.float32).min),
        autocast=True,
    ),
    Case("autocast, weights that leave", also_seen, used=True, autocast=True),
    *(Case(name, body, used, autocast) for name, body, used, autocast in TURNED),
]


def outcome(model: nn.Module, x: torch.Tensor, autocast: bool) -> list[torch.Tensor]:
    """Return a model's outputs, part by part, and the gradients."""
    model.zero_grad()
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        answer, seen = model(x)
    parts = [answer, *seen]
    loss = sum(((part.float() + 0.1) ** 2).sum() for part in parts)
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    return [part.detach() for part in parts] + [
        torch.zeros(()) if weight.grad is None else weight.grad for weight in model.parameters()
    ]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each call of the kernels."""
    calls: list[int] = []
    attention = functional.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        return attention(*args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    return calls


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention_under_sdpa_equals_plain_torchs(case: Case, kernels: list[int]) -> None:
    torch.manual_seed(0)
    model, x = Model(case.body), torch.randn(BATCH, LENGTH, HEADS * WIDTH)
    expected = outcome(model, x, case.autocast)
    assert not kernels
    applied = _levers.apply(Target(model), [("sdpa", True)])
    given = outcome(model, x, case.autocast)
    applied.undo()
    torch._dynamo.reset()
    assert bool(kernels) == case.used
    for own, plain in zip(given, expected, strict=True):
        assert own.dtype == plain.dtype
        near = {"rtol": 0.05, "atol": 0.05} if case.autocast else {"rtol": 1e-4, "atol": 1e-5}
        assert torch.allclose(own, plain, **near), (own - plain).abs().max()


def test_scores_that_are_kept_are_there_after_the_forward() -> None:
    kept: list[torch.Tensor] = []

    def body(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
        kept.append(masks := product(q, k).softmax(-1))
        return masks @ v

    model, x = Model(body), torch.randn(BATCH, LENGTH, HEADS * WIDTH)
    model(x)
    applied = _levers.apply(Target(model), [("sdpa", True)])
    model(x)
    assert torch.equal(kept[1].detach(), kept[0].detach())
    assert torch.equal(kept[1] * 2, kept[0] * 2)
    applied.undo()


def test_a_traced_model_is_traced_as_it_is_written(kernels: list[int]) -> None:
    class Answer(Model):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x)[0]

    model, x = Answer(masked), torch.randn(BATCH, LENGTH, HEADS * WIDTH)
    expected = model(x)
    applied = _levers.apply(Target(model), [("sdpa", True)])
    traced = torch.jit.trace(model, (x,), check_trace=False)
    for mode in (contextlib.nullcontext, torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.allclose(traced(x), expected, atol=1e-6)
            assert torch.allclose(model(x), expected, atol=1e-6)
    assert len(kernels) == 1
    applied.undo()


def test_checkpointed_blocks_may_be_gone_through_backwards_twice() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Model(masked)), torch.randn(BATCH, LENGTH, HEADS * WIDTH)
    expected = model(x)[0].square().sum()
    expected.backward()
    gradient = model[0].q.weight.grad.clone()
    model.zero_grad()
    applied = _levers.apply(Target(model), [("sdpa", True), ("checkpointing", ["0"])])
    loss = model(x)[0].square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.allclose(model[0].q.weight.grad, 2 * gradient, atol=1e-5)
    applied.undo()


def test_scores_may_go_from_one_checkpointed_block_to_another() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, before: Any, all_scores: list[torch.Tensor]) -> Any:
            scores = product(self.q(x), self.k(x))
            all_scores.append(scores)
            together = scores if before is None else scores + before
            return together.softmax(-1) @ x, scores

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before, kept = None, []
            for block in self.blocks:
                x, before = block(x, before, kept)
            assert len(kept) == 3
            return x

    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 6, 8)
    model(x).square().sum().backward()
    expected = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    applied = _levers.apply(Target(model), [("sdpa", True), ("checkpointing", "blocks")])
    model(x).square().sum().backward()
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(weight.grad, gradient, atol=1e-5)
    applied.undo()
