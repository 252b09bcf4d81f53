"""Levers together with `torch.compile`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from lever_models import CLASSES, TOKENS, Language, beside_a_plain_one, traces, train
from memfit import _levers
from memfit._levers import Target
from torch import nn
from torch.nn import functional
from training import flat


def test_compiled_blocks_may_be_checkpointed() -> None:
    target, plain, marks = beside_a_plain_one()
    model = target.model
    chosen = [("compile", {"backend": "aot_eager"}), ("checkpointing", "blocks"), ("chunked-loss", 16)]
    applied = _levers.apply(target, chosen)
    train(target)
    assert float((flat(model) - flat(plain.model)).abs().max()) < 1e-5
    applied.undo()
    assert traces(model, target.optimizers[0]) == marks
    torch._dynamo.reset()


def test_a_compiled_model_with_its_own_loss_may_have_it_in_chunks() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.language = Language(0.0)

        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            logits = self.language(tokens)[:, :-1].float()
            return functional.cross_entropy(logits.reshape(-1, CLASSES), labels[:, 1:].reshape(-1))

    torch.manual_seed(0)
    model = WithLoss()
    plain = copy.deepcopy(model)
    try:
        applied = _levers.apply(Target(model), [("compile", {"backend": "eager"}), ("chunked-loss", 16)])
        losses = [each(TOKENS, TOKENS) for each in (plain, model, plain, model)]
        for loss in losses:
            loss.backward()
        assert torch.allclose(losses[0], losses[1], atol=1e-5)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(one.grad, other.grad, atol=1e-5)
        applied.undo()
    finally:
        torch._dynamo.reset()


def test_checkpointed_blocks_that_cannot_be_one_graph_are_compiled_in_pieces() -> None:
    graphs: list[int] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    @torch.compiler.disable
    def left_alone(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + left_alone(self.norm(self.inner(x)).relu()).cos()

    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(3)])
    plain, batch = copy.deepcopy(model), torch.randn(4, 8)
    compiling = ("compile", {"backend": backend, "modules": "blocks"})
    try:
        applied = _levers.apply(Target(model), [compiling, ("checkpointing", "blocks")])
        model(batch).square().sum().backward()
        plain(batch).square().sum().backward()
        # Before and behind what is left alone, in the forward and again in the backward.
        assert len(graphs) >= 2
        assert sum(graphs) > 8
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(one.grad, other.grad, atol=1e-6)
        # The second pass leaves running statistics as the first left them.
        for one, other in zip(model.buffers(), plain.buffers(), strict=True):
            assert torch.allclose(one, other)
        applied.undo()
        assert all(block._compiled_call_impl is None for block in model)
    finally:
        torch._dynamo.reset()
