"""Each lever does something: an observable that is not there without it.

Beside the tests that a lever breaks nothing, these fail for a lever that does nothing. What only a card
shows is measured by the test that the table names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memfit
import pytest
import torch
from lever_models import (
    CLASSES,
    LENGTH,
    PICTURES,
    TOKENS,
    Language,
    Pictures,
    adam,
    language_loss,
    saved_bytes,
    target_of,
    train,
)
from memfit import _levers
from memfit._levers import Target
from memfit._levers.rounding import Rounding
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

HERE = Path(__file__).parent


class Operations(TorchDispatchMode):
    """Names of the operations that run, and the most elements that one of them returned."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        # Shapes are worked out on the meta device and with empty tensors, where nothing is computed.
        tensors = [each for each in values if isinstance(each, torch.Tensor)]
        real = [each.numel() for each in tensors if not each.is_meta and each.numel()]
        if real or not tensors:
            self.names.add(func._schema.name.removeprefix("aten::"))
        self.largest = max([self.largest, *real])
        return returned


@contextlib.contextmanager
def applied(target: Target, name: str, value: Any = True) -> Iterator[None]:
    """A lever on a target, and off it again."""
    lever = _levers.apply(target, [(name, value)])
    try:
        yield
    finally:
        lever.undo()


def pair(build: Callable[[], nn.Module] = Language) -> tuple[Target, Target]:
    """The same training twice."""
    torch.manual_seed(0)
    plain = target_of(build())
    torch.manual_seed(0)
    return plain, target_of(build())


def operations(target: Target) -> Operations:
    with Operations() as seen:
        train(target, 1)
    return seen


def checkpointing() -> None:
    plain, target = pair()
    within = saved_bytes(lambda: nn.Sequential(*plain.model.blocks)(plain.model.embed(TOKENS)))
    before = saved_bytes(lambda: plain.model(TOKENS))
    with applied(target, "checkpointing", "blocks"):
        assert before - saved_bytes(lambda: target.model(TOKENS)) > 0.8 * within


def chunked_loss() -> None:
    plain, target = pair()
    logits = TOKENS.numel() * CLASSES
    assert operations(plain).largest >= logits * (LENGTH - 1) // LENGTH
    with applied(target, "chunked-loss", 8):
        assert operations(target).largest < logits / 2


def sdpa() -> None:
    plain, target = pair(lambda: Language(0.0))
    assert "_softmax" in operations(plain).names
    with applied(target, "sdpa"):
        names = operations(target).names
    assert "_softmax" not in names, "the attention matrix is not computed"
    assert any("scaled_dot_product" in name for name in names)


def channels_last() -> None:
    _, target = pair(Pictures)
    with applied(target, "channels-last"):
        stem = target.model.get_submodule("stem")
        assert stem.weight.is_contiguous(memory_format=torch.channels_last)
        images = target.prepare(PICTURES)[0]
        assert stem(images).is_contiguous(memory_format=torch.channels_last)


def foreach_off() -> None:
    for foreach, expected in ((True, True), (None, False)):
        model = Language(0.0)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        target = Target(model, [optimizer], language_loss)
        with contextlib.nullcontext() if foreach else applied(target, "foreach-off"):
            assert any(name.startswith("_foreach") for name in operations(target).names) is expected
            assert optimizer.param_groups[0]["foreach"] is bool(foreach)


def fused_optimizer() -> None:
    plain, target = pair()
    assert not any(name.startswith("_fused") for name in operations(plain).names)
    with applied(target, "fused-optimizer"):
        assert any(name.startswith("_fused_adamw") for name in operations(target).names)


def optimizer_in_backward() -> None:
    _, target = pair()
    before = [parameter.detach().clone() for parameter in target.model.parameters()]
    with applied(target, "optimizer-in-backward"):
        language_loss(target.model, TOKENS).backward()
        after = list(target.model.parameters())
        assert all(parameter.grad is None for parameter in after), "gradients are freed"
        assert any(not torch.equal(one, two) for one, two in zip(before, after, strict=True))


def state_bytes(target: Target) -> int:
    """Bytes of the tensors that an optimizer keeps between steps, packed or not."""
    seen: dict[int, int] = {}

    def look(value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            seen[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif depth and isinstance(value, dict):
            for each in value.values():
                look(each, depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            for each in value:
                look(each, depth - 1)
        elif depth and hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)):
            look(vars(value), depth - 1)

    for state in target.optimizers[0].state.values():
        look(dict(state), 5)
    return sum(seen.values())


def adafactor() -> None:
    plain, target = pair()
    train(plain, 1)
    with applied(target, "adafactor"):
        train(target, 1)
        assert 0 < state_bytes(target) < 0.5 * state_bytes(plain)


def autocast(name: str, dtype: torch.dtype) -> Callable[[], None]:
    def check() -> None:
        plain, target = pair()
        seen: list[torch.dtype] = []
        for each in (plain, target):
            each.model.get_submodule("head").register_forward_hook(lambda *call: seen.append(call[2].dtype))
        train(plain, 1)
        with applied(target, name):
            train(target, 1)
        assert seen == [torch.float32, dtype]

    return check


def tf32() -> None:
    _, target = pair()
    before = torch.backends.cuda.matmul.allow_tf32
    with applied(target, "tf32"):
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 is before


def micro_batch() -> None:
    model = Language(0.0)
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    step = memfit.Step(model, adam(model), language_loss, levers={"micro-batch": 1}, allow="changes-training")
    # The first divided batches are compared with the whole batch, which runs further passes.
    _, _ = [step(TOKENS) for _ in range(8)], sizes.clear()
    step(TOKENS)
    assert sizes == [1] * len(TOKENS)


def pure_bf16() -> None:
    _, target = pair()
    with applied(target, "pure-bf16"):
        train(target, 1)
        kinds = {parameter.dtype for parameter in target.model.parameters()}
        assert kinds == {torch.bfloat16}
    # Stochastic rounding goes up as often as the cut-off part asks for: 5 % more or less would show.
    spacing = 2.0**-7
    for share in (0.1, 0.5, 0.8):
        rounded = Rounding()(torch.full((200_000,), 1 + share * spacing)).float()
        assert float((rounded > 1).float().mean()) == pytest.approx(share, abs=0.006)
        assert set(rounded.unique().tolist()) == {1.0, 1 + spacing}


def lora() -> None:
    plain, target = pair()
    trained = sum(each.numel() for each in plain.model.parameters())
    with applied(target, "lora", 2):
        now = [each for each in target.model.parameters() if each.requires_grad]
        assert (
            0 < sum(each.numel() for each in now if each.dim() == 2 and min(each.shape) == 2) < trained / 10
        )
        weight = target.model.get_submodule("blocks.0.mlp.0").weight
        assert not weight.requires_grad


def weight_bytes(model: nn.Module) -> int:
    return sum(each.nbytes for each in (*model.parameters(), *model.buffers()))


def quantized(name: str, value: str, share: float) -> Callable[[], None]:
    def check() -> None:
        model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
        before = weight_bytes(model)
        inference = name == "quantized-weights"
        if inference:
            model.requires_grad_(False)
        target = Target(model, [] if inference else [torch.optim.SGD(model.parameters(), 0.1)])
        levers = [(name, value)] if inference else [("lora", 1), (name, value)]
        done = _levers.apply(target, levers)
        kept = sum(each.nbytes for each in model.parameters() if not each.requires_grad)
        kept += sum(each.nbytes for each in model.buffers())
        done.undo()
        assert kept < share * before

    return check


class Sequences(torch.utils.data.Dataset[torch.Tensor]):
    """Samples of two lengths, one after the other."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(10 if index % 2 else 100)


def length_buckets() -> None:
    def padding(loader: Any) -> int:
        return sum(int((batch == 0).sum()) for batch in loader)

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        return nn.utils.rnn.pad_sequence(samples, batch_first=True)

    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(Sequences(), 4, shuffle=True, collate_fn=collate)
    _, target = pair()
    with applied(target, "length-buckets", 8):
        assert padding(target.load(loader)) < 0.5 * padding(loader)


def loader_workers() -> None:
    loader = torch.utils.data.DataLoader(Sequences(), 4)
    _, target = pair()
    with applied(target, "loader-workers", "workers=2,prefetch=3"):
        changed = target.load(loader)
        assert (changed.num_workers, changed.prefetch_factor) == (2, 3)


def resize_before_upload() -> None:
    images = torch.rand(2, 3, 32, 64, generator=torch.Generator().manual_seed(1)) + 1
    _, target = pair(Pictures)
    with applied(target, "resize-before-upload", 16):
        small, labels = target.arrive((images, torch.tensor([0, 1])))
    assert small.shape == (2, 3, 16, 32)
    assert torch.allclose(small, functional.interpolate(images, (16, 32), mode="bilinear", antialias=True))
    assert labels.tolist() == [0, 1]


def environment(name: str, value: Any, text: str) -> Callable[[], None]:
    def check() -> None:
        kept = {key: os.environ.get(key) for key in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
        _, target = pair()
        try:
            with applied(target, name, value):
                assert any(text in (os.environ.get(key) or "") for key in kept)
        finally:
            for key, before in kept.items():
                os.environ.pop(key, None)
                if before is not None:
                    os.environ[key] = before

    return check


def compiled() -> None:
    calls: list[int] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    target = Target(model, [adam(model)])
    with applied(target, "compile", {"backend": backend}):
        model(torch.randn(2, 4))
    assert calls, "the compiler saw the model"
    torch._dynamo.reset()


# What each lever does: a check that runs here, or the test on a virtual card that measures it.
EFFECTS: dict[str, Callable[[], None] | str] = {
    "allocator-settings": environment("allocator-settings", "max_split_size_mb:128", "max_split_size_mb:128"),
    "expandable-segments": environment("expandable-segments", True, "expandable_segments:True"),
    "length-buckets": length_buckets,
    "loader-workers": loader_workers,
    "resize-before-upload": resize_before_upload,
    "quantized-base": quantized("quantized-base", "4-bit", 0.2),
    "quantized-weights": quantized("quantized-weights", "8-bit", 0.35),
    "kv-cache-8-bit": "test_plan_inference.py",
    "kv-cache-window": "test_plan_inference.py",
    "lora": lora,
    "pure-bf16": pure_bf16,
    "channels-last": channels_last,
    "sdpa": sdpa,
    "chunked-loss": chunked_loss,
    "checkpointing": checkpointing,
    "gradient-as-bucket-view": "test_levers.py",
    "compile": compiled,
    "activation-budget": "test_levers_compiled.py",
    "activation-offload": "test_step_plan.py",
    "shard": "test_step_ranks.py",
    "adafactor": adafactor,
    "foreach-off": foreach_off,
    "fused-optimizer": fused_optimizer,
    "8-bit-optimizer": "test_step_plan.py",
    "bf16-optimizer-state": "test_step_plan.py",
    "host-optimizer-state": "test_step_plan.py",
    "optimizer-in-backward": optimizer_in_backward,
    "autocast-bf16": autocast("autocast-bf16", torch.bfloat16),
    "autocast-fp16": autocast("autocast-fp16", torch.float16),
    "tf32": tf32,
    "micro-batch": micro_batch,
    **dict.fromkeys(
        ("train-only", "dora", "prune-masks", "prune-channels", "fewer-blocks", "torchao-weights"),
        "test_levers_smaller.py",
    ),
    **dict.fromkeys(
        ("lighter-convolutions", "drop-in-network", "shorter-sequences"), "test_levers_lighter.py"
    ),
    **dict.fromkeys(
        ("qat", "float8-training", "semi-structured", "peft-qlora", "torchao-qlora", "low-rank-gradients"),
        "test_shrink_libraries.py",
    ),
}


def test_every_lever_is_in_the_table() -> None:
    assert set(EFFECTS) == {lever.name for lever in _levers.levers()}
    for name, effect in EFFECTS.items():
        if isinstance(effect, str):
            assert f'"{name}"' in (HERE / effect).read_text(), name


@pytest.mark.parametrize("name", [name for name, effect in EFFECTS.items() if not isinstance(effect, str)])
@pytest.mark.filterwarnings("ignore:memfit")
def test_each_lever_has_its_documented_effect(name: str) -> None:
    effect = EFFECTS[name]
    assert callable(effect)
    effect()


def test_the_widest_layer_that_makes_the_logits_is_the_one_in_chunks() -> None:
    """A wider layer in the middle of the model stays whole."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(CLASSES, 8)
            self.up, self.down = nn.Linear(8, 3 * CLASSES), nn.Linear(3 * CLASSES, 8)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.down(self.up(self.embed(tokens)).relu()))

    torch.manual_seed(0)
    model = Wide()
    target = Target(model, [adam(model)], language_loss)
    called: list[str] = []
    for name in ("up", "head"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: called.append(name))
    with applied(target, "chunked-loss", {"head": "head", "tokens": 8}), Operations() as seen:
        loss = language_loss(model, TOKENS)
        loss.backward()
    assert torch.isfinite(loss)
    sizes = {CLASSES * TOKENS.numel(), CLASSES * TOKENS.shape[0] * (LENGTH - 1)}
    assert seen.largest not in sizes, "the logits were there in full"
    assert called.count("up") == 1


def test_a_cosine_blend_counts_the_middle_of_a_window_more_than_its_border() -> None:
    from memfit._train.inference import _weight

    line = _weight((9,), "cosine", torch.float64, torch.device("cpu"))
    assert int(line.argmax()) == 4
    assert bool((line[:4].diff() > 0).all())
    assert bool((line[4:].diff() < 0).all())
    assert 0 < float(line[0]) < 0.3 * float(line[4])


def test_releasing_forgets_what_a_notebook_keeps_of_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types
    import weakref

    class Kept:
        """A value of a cell."""

    value = Kept()
    seen = weakref.ref(value)
    space: dict[str, Any] = {"_": value, "__": 1, "_3": value, "Out": {3: value, 2: 7}, "mine": 5}
    shell = types.SimpleNamespace(user_ns=space, displayhook=types.SimpleNamespace(_=value))
    monkeypatch.setitem(
        sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell, core=types.SimpleNamespace())
    )
    del value
    shell.displayhook = types.SimpleNamespace()
    memfit.release()
    assert seen() is None
    assert space["mine"] == 5
