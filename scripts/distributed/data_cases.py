"""The batch is cut: data parallelism, with the model whole or sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import WIDTH, Block, agree, batch, card, case, model, rank, train, world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DataParallel, DistributedDataParallel

# Data parallelism


@case
def data_parallel() -> None:
    """One process, all its cards: scatter, replicate, gather."""
    if rank() != 0 or torch.cuda.device_count() < 2:
        return
    ids = list(range(torch.cuda.device_count()))
    module = DataParallel(model(), device_ids=ids)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        out = module(batch(size=2 * len(ids)))
        agree(out.shape[0] == 2 * len(ids), "gathered")
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    agree(all(torch.cuda.max_memory_allocated(each) > 0 for each in ids), "every card was used")


@case
def ddp() -> None:
    train(DistributedDataParallel(model(), device_ids=[card().index]))


@case
def ddp_no_sync() -> None:
    module = DistributedDataParallel(model(), device_ids=[card().index])
    with module.no_sync():
        module(batch()).sum().backward()
    train(module)


@case
def ddp_bucket_view_static_graph() -> None:
    module = DistributedDataParallel(
        model(), device_ids=[card().index], gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=1
    )
    train(module, steps=3)


@case
def ddp_unused_parameters_and_join() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    module = DistributedDataParallel(
        Half().to(card()), device_ids=[card().index], find_unused_parameters=True
    )
    # Uneven inputs: one rank has a batch more. Apart from unused parameters: PyTorch 2.15 hands the map of
    # these on as several tensors where a rank has joined, and ends with "Only single tensor supported".
    module = DistributedDataParallel(model(), device_ids=[card().index])
    with module.join():
        train(module, steps=2 + (rank() == 0))


@case
def zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    module = DistributedDataParallel(model(), device_ids=[card().index])
    train(module, optimizer=ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=1e-3))


@case
def ddp_synchronized_batch_norm() -> None:
    module = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))).to(
        card()
    )
    module = DistributedDataParallel(module, device_ids=[card().index])
    for _ in range(2):
        module(torch.randn(4, 3, 16, 16, device=card())).sum().backward()


# Sharding


@case
def fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    module = FullyShardedDataParallel(
        model(), auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=half, use_orig_params=True
    )
    with module.no_sync():
        module(batch()).float().sum().backward()
    optimizer = torch.optim.AdamW(module.parameters())
    module(batch()).float().sum().backward()
    module.clip_grad_norm_(1.0)
    optimizer.step()


@case
def fsdp1_offload() -> None:
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel

    module = FullyShardedDataParallel(model(), cpu_offload=CPUOffload(offload_params=True))
    train(module)


def fully_sharded(**options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    module = model(4)
    for block in module:
        fully_shard(block, **options)
    return fully_shard(module, **options)


@case
def fsdp2() -> None:
    module = fully_sharded()
    train(module)
    total = sum(parameter.numel() for parameter in module.parameters())
    local = sum(parameter.to_local().numel() for parameter in module.parameters())
    agree(local <= total // world() + total // 100, "sharded")


@case
def fsdp2_is_the_sum_of_its_parts() -> None:
    """Check the memory after each phase to the byte, and the composition of its peak."""

    def held(peak: bool = False) -> int:
        stats = torch.cuda.memory_stats()
        return stats["requested_bytes.all.peak" if peak else "requested_bytes.all.current"]

    def exactly(parts: int, what: str) -> None:
        agree(held() - before == parts, f"{what}: {held() - before:,} bytes and not {parts:,}")

    before = held()
    module = fully_sharded()
    # A rank's part of each tensor: its rows, rounded up to whole ones for all ranks alike.
    parameters = list(module.parameters())
    shards = sum(-(-each.shape[0] // world()) * each[0].numel() * 4 for each in parameters)
    exactly(shards, "sharded parameters")
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
    for step in range(2):
        torch.cuda.reset_peak_memory_stats()
        state = 2 * shards if step else 0
        module(batch()).square().mean().backward()
        exactly(2 * shards + state, f"step {step}: parameters and gradients")
        peak = held(peak=True) - before
        whole = [sum(each.numel() * 4 for each in block.parameters()) for block in module]
        # Beyond what stays: the block that is computed and the one that is fetched meanwhile, each whole and
        # as it was gathered; the gradients of one, whole, and the part of them that is being reduced; and
        # activations.
        least, most = (
            shards + state + max(whole),
            2 * shards + state + 6 * max(whole) + 64 * batch().nbytes * len(whole),
        )
        agree(least < peak < most, f"step {step}: a peak of {peak:,} between {least:,} and {most:,}")
        optimizer.step()
        exactly(4 * shards, f"step {step}: two states for each element")
        optimizer.zero_grad()
        exactly(3 * shards, f"step {step}: without gradients")


@case
def fsdp2_keeps_parameters() -> None:
    train(fully_sharded(reshard_after_forward=False))


@case
def fsdp2_reshards_to_a_part() -> None:
    train(fully_sharded(reshard_after_forward=world() // 2 if world() > 2 else True))


@case
def fsdp2_mixed_precision() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    module = fully_sharded(mp_policy=half)
    train(module)
    norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    agree(norm is not None, "a norm")


@case
def fsdp2_offload() -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy

    module = fully_sharded(offload_policy=CPUOffloadPolicy())
    train(module)
    agree(all(parameter.to_local().device.type == "cpu" for parameter in module.parameters()), "on the host")


@case
def fsdp2_accumulates_without_communication() -> None:
    module = fully_sharded()
    for last in (False, True):
        module.set_requires_gradient_sync(last)
        module.set_reshard_after_backward(last)
        module(batch()).sum().backward()
    torch.optim.AdamW(module.parameters()).step()


@case
def fsdp2_hybrid() -> None:
    mesh = init_device_mesh("cuda", (2, world() // 2), mesh_dim_names=("replicate", "shard"))
    train(fully_sharded(mesh=mesh))


@case
def state_dict_and_checkpoint() -> None:
    import tempfile

    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    module = fully_sharded()
    full = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    agree(bool(full) == (rank() == 0), "on one rank")
    folder = [tempfile.mkdtemp() if rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    dcp.save(get_model_state_dict(module), checkpoint_id=folder[0])
    dist.barrier()
    agree(any(Path(folder[0]).iterdir()), "written")
    dcp.load(get_model_state_dict(module), checkpoint_id=folder[0])
    dist.barrier()
    if rank() == 0:
        import shutil

        shutil.rmtree(folder[0])
