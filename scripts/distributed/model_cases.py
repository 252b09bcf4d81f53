"""The model is cut: tensor, sequence, context and pipeline parallelism."""

from __future__ import annotations

import torch
from common import WIDTH, agree, batch, card, case, model, rank, train, world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


@case
def tensor_parallel() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    module, mesh = model(), init_device_mesh("cuda", (world(),))
    plan = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel()}
    plan |= {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in module:
        parallelize_module(block, mesh, plan)
    # The norms are plain tensors, and PyTorch's foreach kernels take no mixture.
    train(module, optimizer=torch.optim.AdamW(module.parameters(), foreach=False))
    weight = module[0].up.weight.to_local()
    agree(weight.shape[0] == 4 * WIDTH // world(), "columns are shared out")


@case
def sequence_parallel() -> None:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )
    from torch.distributed.tensor.placement_types import Replicate

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = (
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, 4 * WIDTH),
                nn.Linear(4 * WIDTH, WIDTH),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(nn.functional.gelu(self.up(self.norm(x))))

    module, mesh = Mlp().to(card()), init_device_mesh("cuda", (world(),))
    plan = {
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(module, mesh, plan)
    parallelize_module(
        module, mesh, PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate())
    )
    train(module)


@case
def loss_parallel() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = init_device_mesh("cuda", (world(),))
    logits = distribute_tensor(
        torch.randn(8, 64 * world(), device=card(), requires_grad=True), mesh, [Shard(1)]
    )
    labels = distribute_tensor(torch.randint(64, (8,), device=card()), mesh, [Replicate()])
    with loss_parallel():
        nn.functional.cross_entropy(logits, labels).backward()


@case
def two_dimensions() -> None:
    """Tensor parallelism within, FSDP2 across."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (world() // 2, 2), mesh_dim_names=("dp", "tp"))
    module = model()
    for block in module:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    train(fully_shard(module, mesh=mesh["dp"]))


@case
def context_parallel() -> None:
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = init_device_mesh("cuda", (world(),))
    shape = (2, 8, 64 * world(), 32)
    q, k, v = (torch.randn(shape, device=card(), dtype=torch.bfloat16) for _ in range(3))
    with (
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        context_parallel(mesh, buffers=(q, k, v), buffer_seq_dims=(2, 2, 2)),
    ):
        agree(q.shape[2] == 64, "the sequence is shared out")
        leaves = [each.detach().requires_grad_() for each in (q, k, v)]
        nn.functional.scaled_dot_product_attention(*leaves, is_causal=True).sum().backward()


def pipeline(schedule: str, chunks: int) -> None:
    from torch.distributed import pipelining

    kind = getattr(pipelining, f"Schedule{schedule}")
    each = (
        2 if schedule.startswith("Interleaved") or schedule in ("LoopedBFS", "InterleavedZeroBubble") else 1
    )
    stages = []
    for local in range(each):
        index = rank() + local * world()
        stages.append(pipelining.PipelineStage(model(1), index, each * world(), card()))
    loss = lambda output, target: (output - target).square().mean()  # noqa: E731
    runner = kind(stages if each > 1 else stages[0], chunks, loss_fn=loss)
    optimizer = torch.optim.AdamW([parameter for stage in stages for parameter in stage.submod.parameters()])
    for _ in range(2):
        inputs = (batch(size=2 * chunks),) if rank() == 0 else ()
        if rank() == world() - 1:
            runner.step(*inputs, target=batch(size=2 * chunks), losses=[])
        else:
            runner.step(*inputs)
        optimizer.step()
        optimizer.zero_grad()


@case
def pipeline_gpipe() -> None:
    pipeline("GPipe", 2)


@case
def pipeline_1f1b() -> None:
    pipeline("1F1B", world())


@case
def pipeline_interleaved() -> None:
    pipeline("Interleaved1F1B", world())
