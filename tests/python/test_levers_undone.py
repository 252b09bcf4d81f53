"""Undoing a lever restores the script's own objects, or the lever says why it leaves them alone."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lever_models import WIDTH, Language, language_loss, sgd, target_of, traces, train
from memfit import _levers
from memfit._levers import CannotApply, Target
from memfit._levers.offload import is_plain, places_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


@pytest.fixture
def alone(tmp_path: Any) -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def tied() -> Language:
    torch.manual_seed(0)
    model = Language(0.0)
    model.head.weight = model.embed.weight
    return model


@pytest.mark.usefixtures("alone")
def test_tied_weights_and_moments_are_put_together_again() -> None:
    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)

    plain = target_of(tied(), adam)
    train(plain, 4)
    target = target_of(tied(), adam)
    model, optimizer = target.model, target.optimizers[0]
    marks = traces(model, optimizer)
    applied = _levers.apply(target, [("shard", True)])
    train(target, 2)
    applied.undo()
    assert traces(model, optimizer) == marks
    assert model.head.weight is model.embed.weight
    assert all(type(each) is nn.Parameter for _, each in model.named_parameters(remove_duplicate=False))
    assert optimizer.state.keys() == set(model.parameters())
    assert all(type(value) is torch.Tensor for state in optimizer.state.values() for value in state.values())
    # Later steps are the same as without the lever.
    train(target, 2)
    for one, other in zip(model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def average(state: list[int], bucket: Any) -> Any:
    """Exchanges gradients, and counts how often."""
    state.append(bucket.index())
    made = torch.futures.Future()
    made.set_result(bucket.buffer())
    return made


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("error:.*deprecated:FutureWarning")
def test_hooks_of_a_replica_stay() -> None:
    taken = inspect.signature(DistributedDataParallel.__init__).parameters
    settings: dict[str, Any] = {
        "forward_sync_buffers" if "forward_sync_buffers" in taken else "broadcast_buffers": False
    }
    wrapped = DistributedDataParallel(Language(0.0), **settings)
    calls: list[str] = []
    exchanged: list[int] = []
    # Annotations would be looked at.
    wrapped.register_comm_hook(exchanged, lambda state, bucket: average(state, bucket))
    forward = wrapped.register_forward_hook(lambda *_: calls.append("forward"))
    before = wrapped.register_forward_pre_hook(
        lambda _module, args, kwargs: calls.append("before") or (args, kwargs), with_kwargs=True
    )
    wrapped.module.blocks[0].eval()
    target = Target(wrapped, [sgd(wrapped)], language_loss)
    applied = _levers.apply(target, [("gradient-as-bucket-view", True)])
    assert wrapped.gradient_as_bucket_view
    assert not wrapped.broadcast_buffers
    for undo in (applied.undo, forward.remove):
        assert not wrapped.module.blocks[0].training
        assert wrapped.module.blocks[1].training
        del exchanged[:]
        calls.clear()
        train(target, 1)
        assert calls == ["before", "forward"]
        assert exchanged
        undo()
    before.remove()
    calls.clear()
    train(target, 1)
    assert not wrapped.gradient_as_bucket_view
    assert calls == []


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda wrapped: setattr(wrapped, "mixed_precision", object()), "mixed_precision"),
        (lambda wrapped: wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS), "FP16"),
        (lambda wrapped: setattr(wrapped, "_delay_all_reduce_params", [1]), "delay_all_reduce"),
    ],
)
def test_a_replica_that_cannot_be_made_again_is_left_alone(change: Any, text: str) -> None:
    wrapped = DistributedDataParallel(Language(0.0))
    change(wrapped)
    reducer = wrapped.reducer
    with pytest.raises(CannotApply, match=f"{text}.*gradient_as_bucket_view=True"):
        _levers.apply(Target(wrapped, [sgd(wrapped)]), [("gradient-as-bucket-view", True)])
    assert wrapped.reducer is reducer


class Own(DataLoader):
    """A loader that is made otherwise than torch's."""

    def __init__(self, data: list[torch.Tensor]) -> None:
        super().__init__(data, batch_size=2)


SETTINGS = ("num_workers", "prefetch_factor", "pin_memory", "batch_sampler", "timeout")


@pytest.mark.parametrize(
    ("lever", "value", "changed"),
    [
        ("loader-workers", "workers=2", {"num_workers": 2, "prefetch_factor": 2}),
        ("loader-workers", "workers=1,prefetch=3", {"num_workers": 1, "prefetch_factor": 3}),
        ("loader-workers", "workers=0", {}),
        ("length-buckets", True, {"batch_sampler": None}),
    ],
)
def test_a_custom_loader_is_restored_unchanged(lever: str, value: Any, changed: dict[str, Any]) -> None:
    loader = Own([torch.full((3,), float(number)) for number in range(6)])
    before = {key: getattr(loader, key) for key in SETTINGS}
    target = Target(nn.Linear(1, 1))
    applied = _levers.apply(target, [(lever, value)])
    for _ in range(2):
        loaded = target.load(loader)
        assert loaded is loader
        assert sorted(float(row[0]) for batch in loaded for row in batch) == list(range(6))
        now = {key: getattr(loader, key) for key in SETTINGS}
        assert {key for key in SETTINGS if now[key] is not before[key]} == set(changed)
        assert all(now[key] == wanted for key, wanted in changed.items() if wanted is not None)
    assert target.notes == []
    applied.undo()
    assert {key: getattr(loader, key) for key in SETTINGS} == before
    assert len(list(loader)) == 3


class Codes(torch.Tensor):
    """A tensor of a class of its own."""


@pytest.mark.parametrize(
    ("tensor", "plain"),
    [
        (torch.ones(4, 4), True),
        (nn.Parameter(torch.ones(4, 4)), True),
        (torch.eye(4).to_sparse(), False),
        (torch.ones(4, 4).as_subclass(Codes), False),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), False),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_only_plain_tensors_are_offloaded(tensor: torch.Tensor, plain: bool) -> None:
    assert is_plain(tensor) == plain
    module = nn.Linear(WIDTH, WIDTH)
    module.register_buffer("held", tensor.detach())
    places = places_of(module)
    assert module.weight.data_ptr() in places
    assert (len(places) == 3) == plain
    assert places_of(copy.deepcopy(nn.Linear(WIDTH, WIDTH))).isdisjoint(places)
