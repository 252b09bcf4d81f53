"""The language model of `course_lm.py` on two cards, gradients reduced as each becomes ready, phase by phase.

Started once for each rank by `torchrun`; rank 0 reports.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from course_lm import build, cross_entropy
from measured import report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="xl")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=4, help="over all ranks")
    parser.add_argument("--vocabulary", type=int, default=10000)
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()

    model = build(args.size, args.vocabulary, args.length, "cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            dist.broadcast(parameter, src=0)
    handles = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: handles.append(dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, async_op=True))
        )

    phases = {}

    def end_of(phase: str) -> None:
        torch.cuda.synchronize()
        phases[phase] = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()

    end_of("after_model_init")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    shape = (args.batch_size // world, args.length)
    inputs = torch.randint(args.vocabulary, shape, device="cuda")
    targets = torch.randint(args.vocabulary, shape, device="cuda")
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=args.autocast):
        loss = cross_entropy(model(inputs), targets)
    loss.backward()
    for handle in handles:
        handle.wait()
    handles.clear()
    end_of("before_optimizer_step")
    optimizer.step()
    end_of("after_optimizer_step")
    if rank == 0:
        report(**phases)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
