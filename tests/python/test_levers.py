"""Each lever: what it does to training, what its label promises, and that nothing is left of it when it is
undone.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lever_models import (
    CLASSES,
    TOKENS,
    WIDTH,
    Language,
    Pictures,
    adam,
    beside_a_plain_one,
    language_loss,
    sgd,
    target_of,
    traces,
    train,
)
from memfit import _levers
from memfit._levers import CannotApply, Target
from memfit._levers.blocks import blocks
from memfit._levers.codes import decode, encode
from torch import nn
from training import flat

# Each lever with a value, a model, and how near its training has to come to the plain one: the greatest
# difference of a parameter after two steps of gradient descent with momentum. None where the training is
# another.
EXACT, ROUNDING = 0.0, 1e-6
CASES: list[tuple[str, Any, Callable[[], nn.Module], float | None]] = [
    ("checkpointing", "blocks", Language, EXACT),
    ("checkpointing", ["blocks.1", "blocks.2.mlp"], Language, EXACT),
    ("checkpointing", ["stem", "body.0"], Pictures, EXACT),
    ("chunked-loss", 7, Language, ROUNDING),
    ("chunked-loss", {"head": "head", "tokens": 1000}, Language, ROUNDING),
    ("sdpa", True, lambda: Language(0.0), ROUNDING),
    ("channels-last", True, Pictures, 1e-5),
    ("foreach-off", True, Language, EXACT),
    ("fused-optimizer", True, Language, ROUNDING),
    ("optimizer-in-backward", True, Language, EXACT),
    ("8-bit-optimizer", True, Language, 5e-2),
    ("bf16-optimizer-state", True, Language, 5e-3),
    ("autocast-bf16", True, Language, 5e-2),
    ("autocast-fp16", True, Language, 5e-2),
    ("tf32", True, Language, EXACT),
    ("micro-batch", 2, Language, EXACT),
    ("pure-bf16", True, Language, None),
    ("adafactor", True, Language, None),
    ("lora", {"rank": 2, "alpha": 4}, Language, None),
    ("train-only", "head", Language, None),
    ("train-only", "biases", Pictures, None),
    ("prune-masks", 30, Pictures, None),
    ("fewer-blocks", 50, Language, None),
]


@pytest.mark.parametrize(
    ("name", "value", "build", "near"), CASES, ids=[f"{case[0]}-{index}" for index, case in enumerate(CASES)]
)
@pytest.mark.filterwarnings("ignore:memfit")
def test_a_lever_does_what_its_label_promises_and_leaves_nothing(
    name: str, value: Any, build: Callable[[], nn.Module], near: float | None
) -> None:
    torch.manual_seed(0)
    model = build()
    plain = target_of(copy.deepcopy(model), sgd)
    expected = train(plain)

    target = target_of(model, sgd)
    before, marks = flat(model), traces(model, target.optimizers[0])
    applied = _levers.apply(target, [(name, value)])
    assert applied.names == [name]
    applied.undo()
    assert torch.equal(flat(model), before), "undone at once, the model is what it was, bit for bit"
    assert traces(model, target.optimizers[0]) == marks

    applied = _levers.apply(target, [(name, value)])
    losses = train(target)
    assert all(loss == loss for loss in losses)
    applied.undo()
    assert traces(model, target.optimizers[0]) == marks
    assert target.contexts + target.preparations + target.arrivals + target.reloads == []
    difference = float((flat(model) - flat(plain.model)).abs().max())
    if near is None:
        assert not torch.equal(flat(model), before), "it was trained all the same"
    else:
        assert difference <= near, (difference, losses, expected)
        assert losses[0] == pytest.approx(expected[0], abs=max(near, 1e-6))
    train(target, 1)


def test_blocks_are_found_by_repetition() -> None:
    assert blocks(Language()) == ["blocks.0", "blocks.1", "blocks.2"]
    assert blocks(Pictures()) == ["body.0", "body.1"]
    assert blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


def test_levers_are_applied_in_their_order_and_undone_together() -> None:
    target, plain, marks = beside_a_plain_one()
    model, before = target.model, flat(target.model)
    chosen = [
        ("optimizer-in-backward", True),
        ("sdpa", True),
        ("checkpointing", "blocks"),
        ("chunked-loss", 9),
        ("foreach-off", True),
    ]
    applied = _levers.apply(target, chosen)
    assert applied.names == ["sdpa", "chunked-loss", "checkpointing", "foreach-off", "optimizer-in-backward"]
    train(target)
    assert float((flat(model) - flat(plain.model)).abs().max()) < ROUNDING
    applied.undo()
    assert traces(model, target.optimizers[0]) == marks
    # If one lever cannot be applied, none is.
    target = target_of(Language(0.0), sgd)
    before, marks = flat(target.model), traces(target.model, target.optimizers[0])
    with pytest.raises(CannotApply, match=r"no module `blocks\.9`"):
        _levers.apply(target, [("sdpa", True), ("checkpointing", ["blocks.9"]), ("foreach-off", True)])
    with pytest.raises(CannotApply, match="change the script by hand"):
        _levers.apply(target, [("larger-gpu", True)])
    assert torch.equal(flat(target.model), before)
    assert traces(target.model, target.optimizers[0]) == marks


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("channels-last", True, "no convolution filters"),
        ("chunked-loss", {"head": "nowhere"}, "no module `nowhere`"),
        ("gradient-as-bucket-view", True, "not wrapped in DistributedDataParallel"),
        ("shard", True, "one process"),
        ("micro-batch", 0, "at least 1"),
        ("quantized-base", "3-bit", "8-bit"),
        ("quantized-weights", "3-bit", "8-bit"),
        ("kv-cache-window", 1, "number of tokens"),
        ("loader-workers", -1, "number of processes"),
        ("resize-before-upload", "big", "a length"),
        ("allocator-settings", 3, "a text"),
        ("lora", 0, "at least 1"),
    ],
)
def test_a_lever_that_cannot_be_applied_is_refused_with_the_reason(name: str, value: Any, text: str) -> None:
    with pytest.raises(CannotApply, match=text):
        _levers.apply(target_of(Language()), [(name, value)])


def test_packed_moments_are_saved_in_full_and_schedulers_go_on() -> None:
    for name in ("8-bit-optimizer", "bf16-optimizer-state", "adafactor"):
        torch.manual_seed(0)
        target = target_of(Language(0.0))
        optimizer = target.optimizers[0]
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        applied = _levers.apply(target, [(name, True)])
        with warnings.catch_warnings():
            # A scheduler that did not notice the step would warn.
            warnings.simplefilter("error")
            train(target, 1)
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
        if name == "adafactor":
            assert isinstance(optimizer, torch.optim.Adafactor)
            applied.undo()
            assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
            continue
        saved = optimizer.state_dict()
        entries = [value for state in saved["state"].values() for value in state.values()]
        assert all(type(value) is torch.Tensor and value.dtype == torch.float32 for value in entries)
        applied.undo()
        fresh = target_of(Language(0.0)).optimizers[0]
        fresh.load_state_dict(saved)
        parameter = optimizer.param_groups[0]["params"][0]
        assert torch.equal(
            optimizer.state[parameter]["exp_avg"], fresh.state[fresh.param_groups[0]["params"][0]]["exp_avg"]
        )


def test_a_parameter_that_is_updated_in_pieces_moves_as_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from memfit._levers import pieces

    monkeypatch.setattr(pieces, "MAX_ELEMENTS", 4096)
    torch.manual_seed(0)
    model = Language(0.0)
    plain = target_of(copy.deepcopy(model))
    train(plain, 3)
    target = target_of(model)
    train(target, 1)
    applied = _levers.apply(target, [("bf16-optimizer-state", True)])
    held = target.optimizers[0].state[model.embed.weight]["exp_avg"]
    assert len(held.parts) == -(-CLASSES * WIDTH // 4096)
    train(target, 2)
    applied.undo()
    for (name, one), other in zip(plain.model.named_parameters(), model.parameters(), strict=True):
        apart = (one - other).abs()
        if name.endswith("qkv.bias"):
            # A bias of the keys moves all scores of a query alike, and no softmax: its gradient is rounding
            # and nothing else, which Adam makes as large as any other.
            apart = torch.cat([apart[:WIDTH], apart[2 * WIDTH :]])
        assert float(apart.detach().max()) < 5e-3, name
    assert all(int(state["step"]) == 3 for state in target.optimizers[0].state.values())


@pytest.mark.parametrize("name", ["8-bit-optimizer", "bf16-optimizer-state", "host-optimizer-state"])
def test_moments_of_bf16_parameters_are_packed_whole_and_in_pieces(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from memfit._levers import pieces

    monkeypatch.setattr(pieces, "MAX_ELEMENTS", 10_000)
    torch.manual_seed(0)
    # One that is updated whole, and one in pieces.
    model = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 256)).to(torch.bfloat16)
    plain = copy.deepcopy(model)
    batch = torch.randn(8, 64, dtype=torch.bfloat16)

    def trained(each: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            each(batch).float().square().mean().backward()
            optimizer.step()

    trained(plain, adam(plain))
    target = Target(model, [adam(model)])
    applied = _levers.apply(target, [(name, True)])
    trained(model, target.optimizers[0])
    large = [target.optimizers[0].state[layer.weight]["exp_avg_sq"] for layer in model]
    if name == "8-bit-optimizer":
        assert [len(moment.parts) for moment in large] == [1, 3]
        taken = sum(part.nbytes for moment in large for part in moment.parts.values())
        assert taken < 0.52 * sum(layer.weight.nbytes for layer in model)
    applied.undo()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert float((one - other).abs().detach().max()) < (3e-3 if name == "8-bit-optimizer" else 1e-6)
    assert all(int(state["step"]) == 3 for state in target.optimizers[0].state.values())
    for layer in model:
        assert target.optimizers[0].state[layer.weight]["exp_avg_sq"].dtype == torch.bfloat16


def test_updates_too_small_for_bf16_add_up_all_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.5)
    applied = _levers.apply(Target(model, [optimizer]), [("pure-bf16", True)])
    for _ in range(60):
        model(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    # Each is a twentieth of what separates two numbers there: rounded to the nearest, none would leave a
    # trace.
    moved = 1.0 - float(model.weight.detach().double().mean())
    assert moved == pytest.approx(60 * 2e-4, rel=0.15)
    momentum = optimizer.state_dict()["state"][0]["momentum_buffer"]
    assert momentum.dtype == torch.float32
    assert float(momentum.mean()) == pytest.approx(2.0, rel=0.05)
    applied.undo()
    assert model.weight.dtype == torch.float32


@pytest.mark.parametrize(("table", "most"), [("signed8", 0.02), ("unsigned8", 0.01), ("normal4", 0.15)])
def test_quantized_values_are_close_to_the_originals(table: str, most: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in [(1,), (257,), (64, 100), (3, 5, 7)]:
        values = torch.randn(shape, generator=generator)
        values = values.abs() if table == "unsigned8" else values
        coded = encode(values, table)
        back = decode(coded)
        assert (back.shape, back.dtype) == (values.shape, values.dtype)
        assert float((back - values).abs().max()) <= most * float(values.abs().max())
    assert torch.equal(decode(encode(torch.zeros(300), table)), torch.zeros(300))
    large = encode(torch.randn(1 << 16), table)
    assert large.nbytes < (1 << 16) * (0.6 if table == "normal4" else 1.1)


def test_lora_adapters_on_quantized_weights_are_trained_and_merged() -> None:
    torch.manual_seed(0)
    model = Language(0.0)
    before = copy.deepcopy(model.state_dict())
    target = target_of(model)
    applied = _levers.apply(target, [("lora", 2), ("quantized-base", "8-bit")])
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained
    assert all("memfit_lora" in name for name in trained)
    losses = train(target, 20)
    assert losses[-1] < losses[0]
    closed = model(TOKENS)
    applied.undo()
    after = model.state_dict()
    assert after.keys() == before.keys()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {
        name for name in after if name.endswith(("qkv.weight", "out.weight", "mlp.0.weight", "mlp.2.weight"))
    }
    assert float((model(TOKENS) - closed).abs().max()) < 0.1


def test_quantized_weights_for_inference_are_close_to_the_originals() -> None:
    torch.manual_seed(0)
    model = Language(0.0).eval()
    before, held = flat(model), sum(parameter.nbytes for parameter in model.parameters())
    with torch.no_grad():
        said = model(TOKENS)
        for bits, most in (("8-bit", 0.01), ("4-bit", 0.3)):
            applied = _levers.apply(target_of(model), [("quantized-weights", bits)])
            left = sum(parameter.nbytes for parameter in model.parameters())
            # In each block, eight matrices of this width.
            assert held - left == 3 * 8 * WIDTH * WIDTH * 4
            error = float((model(TOKENS) - said).abs().max() / said.abs().max())
            assert 0 < error < most, (bits, error)
            applied.undo()
            assert torch.equal(flat(model), before)


def test_a_cache_in_8_bits_or_of_the_last_tokens_serves_generation() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers import cache_utils

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.randint(0, 50, (3, 20))

    def generated(**settings: Any) -> tuple[Any, torch.Tensor]:
        cache = cache_utils.DynamicCache()
        with torch.no_grad():
            told = model.generate(
                prompt, past_key_values=cache, max_new_tokens=12, do_sample=False, **settings
            )
            following = model(told[:, -1:], past_key_values=cache).logits
        return cache, following

    def held(cache: Any) -> int:
        fields = [each for layer in cache.layers for each in vars(layer).values()]
        flattened = [each for field in fields for each in (field if isinstance(field, list) else [field])]
        return sum(each.nbytes for each in flattened if isinstance(each, torch.Tensor) and each.dim() == 4)

    update = cache_utils.DynamicLayer.update
    plain, expected = generated()
    applied = _levers.apply(target_of(model), [("kv-cache-8-bit", True)])
    small, near = generated()
    assert small.get_seq_length() == plain.get_seq_length()
    # A byte a number, and four for each scale of sixteen.
    assert held(small) == held(plain) * 20 // 64
    assert float((near - expected).abs().max()) < 0.05 * float(expected.abs().max())
    with torch.no_grad():
        assert model.generate(prompt, max_new_tokens=4, num_beams=2, do_sample=False).shape == (3, 24)
    small.batch_select_indices(torch.tensor([0, 2]))
    small.crop(-2)
    assert small.layers[0].keys.shape == (2, 2, plain.get_seq_length() - 2, 16)
    applied.undo()
    applied = _levers.apply(target_of(model), [("kv-cache-window", 8)])
    last, _ = generated()
    assert all(layer.keys.shape[-2] < 8 for layer in last.layers)
    assert last.get_seq_length() == plain.get_seq_length()
    applied.undo()
    assert cache_utils.DynamicLayer.update is update


def test_loaders_give_the_same_samples() -> None:
    lengths = [3, 9, 4, 8, 1, 7, 2, 6, 5, 10]
    data = [torch.full((length,), index) for index, length in enumerate(lengths)]
    loader = torch.utils.data.DataLoader(
        data, batch_size=3, shuffle=True, collate_fn=lambda items: nn.utils.rnn.pad_sequence(items, True, -1)
    )
    target = Target(nn.Linear(1, 1))
    applied = _levers.apply(target, [("length-buckets", True), ("loader-workers", "workers=0,pin=false")])
    torch.manual_seed(0)
    batches = list(target.load(loader))
    seen = sorted(int(row.max()) for batch in batches for row in batch)
    assert seen == list(range(10))
    padding = sum(int((batch == -1).sum()) for batch in batches)
    torch.manual_seed(0)
    assert padding < sum(int((batch == -1).sum()) for batch in loader)
    applied.undo()
    assert target.load(loader) is loader


def test_images_are_resized_on_the_host_before_the_upload() -> None:
    target = Target(nn.Linear(1, 1))
    applied = _levers.apply(target, [("resize-before-upload", 16)])
    pictures = torch.randint(0, 255, (2, 3, 32, 64), dtype=torch.uint8)
    masks, labels = torch.randint(0, 5, (2, 32, 64)), torch.tensor([1, 2])
    small = target.arrive({"pictures": pictures, "masks": masks, "labels": labels})
    assert small["pictures"].shape == (2, 3, 16, 32)
    assert small["pictures"].dtype == torch.uint8
    assert (small["masks"].shape, small["masks"].dtype) == ((2, 16, 32), torch.int64)
    assert set(small["masks"].unique().tolist()) <= set(range(5))
    assert small["labels"] is labels
    applied.undo()


def test_the_allocators_settings_go_into_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64,roundup_power2_divisions:[256:1,>:4]")
    wanted = _levers.environment([("expandable-segments", True), ("sdpa", True)])
    expected = "max_split_size_mb:64,roundup_power2_divisions:[256:1,>:4],expandable_segments:True"
    assert wanted["PYTORCH_ALLOC_CONF"] == expected
    wanted = _levers.environment([("allocator-settings", "max_split_size_mb:128")])
    assert "max_split_size_mb:128" in wanted["PYTORCH_ALLOC_CONF"]
    assert "max_split_size_mb:64" not in wanted["PYTORCH_ALLOC_CONF"]


def test_shards_are_gathered_when_the_lever_is_undone(tmp_path: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        target, plain, marks = beside_a_plain_one()
        model, before = target.model, flat(target.model)
        chosen = [("checkpointing", "blocks"), ("shard", True)]
        _levers.apply(target, chosen).undo()
        assert torch.equal(flat(model), before)
        assert traces(model, target.optimizers[0]) == marks
        # FSDP2 takes a module once in its life.
        torch.manual_seed(0)
        model = Language(0.0)
        target = target_of(model, sgd)
        marks = traces(model, target.optimizers[0])
        applied = _levers.apply(target, chosen)
        train(target)
        applied.undo()
        assert traces(model, target.optimizers[0]) == marks
        assert float((flat(model) - flat(plain.model)).abs().max()) < ROUNDING
        # The module's own training goes on.
        train(target, 1)

        wrapped = nn.parallel.DistributedDataParallel(Language(0.0))
        views = Target(wrapped, [sgd(wrapped)], language_loss)
        applied = _levers.apply(
            views, [("gradient-as-bucket-view", True), ("checkpointing", ["module.blocks.0"])]
        )
        assert wrapped.gradient_as_bucket_view
        train(views)
        applied.undo()
        assert not wrapped.gradient_as_bucket_view
        train(views, 1)
    finally:
        dist.destroy_process_group()
