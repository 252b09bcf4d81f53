"""Levers together with `torch.compile`."""

from __future__ import annotations

import copy
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from lever_models import CLASSES, TOKENS, Language, beside_a_plain_one, traces, train
from memfit import _levers
from memfit._levers import CannotApply, Target
from memfit._levers.activation_budget import _draws
from runs import ROOT, invoke
from tiers import exhaustive
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
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
        # Before and after the graph break, in the forward and again in the backward pass.
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


def attend(dropout: float) -> Any:
    attention = torch.ops.aten._scaled_dot_product_flash_attention
    return lambda x: attention(x, x, x, dropout)[0]


@pytest.mark.parametrize(
    ("computes", "draws"),
    [
        (lambda x: (x @ x).relu().softmax(-1), False),
        (attend(0.0), False),
        (attend(0.1), True),
        (lambda x: functional.dropout(x, 0.5), True),
        (lambda x: functional.dropout(x, 0.5, training=False), False),
        (lambda x: x + torch.randn_like(x), True),
        (torch.bernoulli, True),
    ],
)
def test_graphs_that_draw_random_numbers_are_told_from_others(computes: Any, draws: bool) -> None:
    graph = make_fx(computes)(torch.rand(1, 2, 8, 8, device="meta")).graph
    assert any(map(_draws, graph.nodes)) == draws


def test_a_share_is_of_what_is_compiled_and_in_percent() -> None:
    for model, value, why in [
        (nn.Linear(2, 2), 50, "no part of the model is compiled"),
        (torch.compile(nn.Linear(2, 2)), 101, "percentage"),
        (torch.compile(nn.Linear(2, 2)), True, "percentage"),
    ]:
        with pytest.raises(CannotApply, match=why):
            _levers.apply(Target(model), [("activation-budget", value)])
    inside = nn.Sequential(nn.Linear(2, 2))
    inside[0].compile()
    before = torch._inductor.config.joint_custom_pre_pass
    applied = _levers.apply(Target(inside), [("activation-budget", 50)])
    assert torch._inductor.config.joint_custom_pre_pass is not before
    applied.undo()
    assert torch._inductor.config.joint_custom_pre_pass is before


class Watched:
    """A session whose card has as many bytes and nanoseconds as it was asked."""

    torch = torch

    def __init__(self) -> None:
        self.asked = 0
        self.watch = self

    def clock(self) -> dict[str, list[int]]:
        return {"busy": [10 * self.asked]}

    def stats(self, _device: int) -> types.SimpleNamespace:
        self.asked += 1
        return types.SimpleNamespace(allocated=self.asked)


@pytest.mark.parametrize(
    ("compiles", "levers", "measured", "graphs"),
    [
        ("blocks", ("compile",), ["0", "1", "2"], 1),
        ("whole", ("compile",), [], 1),
        ("whole", ("activation-budget",), [], 1),
        ("nothing", (), ["0", "1", "2"], 0),
    ],
)
def test_compiled_blocks_are_measured_from_outside(
    monkeypatch: pytest.MonkeyPatch, compiles: str, levers: tuple[str, ...], measured: list[str], graphs: int
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "python" / "memfit" / "_probe"))
    seen: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)])
    for module in {"blocks": list(model), "whole": [model]}.get(compiles, []):
        module.compile(backend=backend)
    blocks = importlib.import_module("memfit_probe.measured").Blocks(Watched())
    blocks.measure(model, ["0", "1", "2"], dict.fromkeys(levers, True))
    try:
        model(torch.randn(2, 4, requires_grad=True))
    finally:
        torch._dynamo.reset()
    assert [block["name"] for block in blocks.as_fields()] == measured
    assert all(block["kept"] > 0 and block["busy_ns"] > 0 for block in blocks.as_fields())
    assert len(seen) == graphs


BLOCKS = """
import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(256), nn.Linear(256, 1024), nn.Linear(1024, 256)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


model = nn.Sequential(*[Block(float(sys.argv[1])) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8192, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

ATTENTION = BLOCKS.replace(
    "self.up(self.norm(x))",
    "self.attended(self.up(self.norm(x)))",
).replace(
    "    def forward(self, x):",
    """    def attended(self, wide):
        query, key, value, rest = (each.view(16, 512, 4, 64).transpose(1, 2) for each in wide.split(256, -1))
        made = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True) + rest
        return torch.cat([made.transpose(1, 2).reshape(8192, 256)] * 4, -1)

    def forward(self, x):""",
)


def allocated(folder: Path, dropout: float, *, script: str = BLOCKS, **levers: str) -> tuple[int, str]:
    """The peak with these levers, and what was said."""
    (folder / "plan.toml").write_text(
        "".join(
            f'[[lever]]\nname = "{name.replace("_", "-")}"\nvalue = {value}\nlabel = "rounding"\n'
            for name, value in levers.items()
        )
    )
    (folder / "train.py").write_text(script)
    arguments = [
        "run",
        "--gpu",
        "t4",
        "--format",
        "json",
        "--show-output",
        "--steps",
        "0",
        "--plan",
        "plan.toml",
    ]
    done = invoke([*arguments, "--", sys.executable, "train.py", str(dropout)], cwd=folder)
    assert done.status == 0, done.stderr
    return done.report["peak"]["allocated"], done.stderr


def test_a_share_makes_activations_smaller(tmp_path: Path) -> None:
    (all_kept, _), (little_kept, _) = (
        allocated(tmp_path, 0.0, compile="true"),
        allocated(tmp_path, 0.0, compile="true", activation_budget="20"),
    )
    # Four blocks with a hidden layer of 32 MiB each, once before and once after what bends it.
    assert all_kept - little_kept > 4 * 8192 * 1024 * 4


@exhaustive
def test_graphs_with_dropout_keep_what_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A cached graph ignores the setting.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    (all_kept, _), (as_before, said) = (
        allocated(tmp_path, 0.1, compile='"blocks"'),
        allocated(tmp_path, 0.1, compile='"blocks"', activation_budget="20"),
    )
    assert as_before > 0.95 * all_kept
    assert "draws random numbers" in said


def test_tensors_saved_by_compiled_blocks_return_from_the_host_unchanged(tmp_path: Path) -> None:
    # Queries, keys and values are pieces of one tensor, gaps between them, as the compiled backward expects
    # them.
    (kept, _), (away, _) = (
        allocated(tmp_path, 0.0, script=ATTENTION, compile='"blocks"'),
        allocated(tmp_path, 0.0, script=ATTENTION, compile='"blocks"', activation_offload='"blocks"'),
    )
    assert kept - away > 2 * 8192 * 1024 * 4


class Written(nn.Module):
    """Attention that is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        each = self.layer(self.norm(x))
        return x + (each @ each.transpose(-2, -1)).softmax(-1) @ each


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_models_stay_compiled_with_sdpa(fullgraph: bool) -> None:
    model = nn.Sequential(*(Written() for _ in range(3)), nn.Linear(8, 8))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    settings = {"backend": "eager", "modules": ["0", "1", "2"], "fullgraph": fullgraph}
    applied = _levers.apply(Target(model), [("compile", settings), ("sdpa", True)])
    for _ in range(2):
        model(torch.randn(2, 4, 8)).sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert not torch._dynamo.utils.counters["graph_break"]
    applied.undo()
