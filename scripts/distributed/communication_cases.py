"""Communication as such: collectives, point to point, objects, groups, tensors between processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import agree, card, case, rank, say, world


@case
def collectives() -> None:
    mine = torch.tensor([rank(), 1], device=card())
    gathered = [torch.empty_like(mine) for _ in range(world())]
    dist.all_gather(gathered, mine)
    agree([each[0].item() for each in gathered] == list(range(world())), "gathered")
    whole = torch.empty(2 * world(), dtype=mine.dtype, device=card())
    dist.all_gather_into_tensor(whole, mine)
    agree(whole[::2].tolist() == list(range(world())), "gathered into one")
    total = mine.clone()
    dist.all_reduce(total)
    agree(total.tolist() == [sum(range(world())), world()], "reduced")
    part = torch.empty(1, dtype=mine.dtype, device=card())
    dist.reduce_scatter_tensor(part, torch.arange(world(), device=card()))
    agree(part.item() == rank() * world(), "reduced and scattered")
    sent = torch.tensor([10 * rank() + peer for peer in range(world())], device=card())
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    agree(received.tolist() == [10 * peer + rank() for peer in range(world())], "all to all")
    counts = torch.tensor([peer + 1 for peer in range(world())], device=card())
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    agree(theirs.tolist() == [rank() + 1] * world(), "counts")
    tokens = torch.empty(sum(theirs.tolist()), 8, device=card())
    rows = torch.randn(sum(counts.tolist()), 8, device=card())
    dist.all_to_all_single(tokens, rows, theirs.tolist(), counts.tolist())
    said = torch.tensor([rank()], device=card())
    dist.broadcast(said, src=world() - 1)
    agree(said.item() == world() - 1, "broadcast")
    scattered = torch.empty(1, device=card())
    parts = [torch.tensor([float(peer)], device=card()) for peer in range(world())] if rank() == 0 else None
    dist.scatter(scattered, parts, src=0)
    agree(scattered.item() == rank(), "scattered")
    dist.reduce(said, dst=0)
    dist.barrier()


@case
def point_to_point() -> None:
    peer = rank() ^ 1
    if rank() % 2 == 0:
        dist.send(torch.tensor([rank()], device=card()), peer)
        got = torch.empty(1, dtype=torch.long, device=card())
        dist.recv(got, peer)
    else:
        got = torch.empty(1, dtype=torch.long, device=card())
        dist.recv(got, peer)
        dist.send(torch.tensor([rank()], device=card()), peer)
    agree(got.item() == peer, "what the other sent")
    mine, theirs = torch.tensor([7 * rank()], device=card()), torch.empty(1, dtype=torch.long, device=card())
    ring = [
        dist.P2POp(dist.isend, mine, (rank() + 1) % world()),
        dist.P2POp(dist.irecv, theirs, (rank() - 1) % world()),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    agree(theirs.item() == 7 * ((rank() - 1) % world()), "around the ring")


@case
def objects() -> None:
    mine = {"rank": rank(), "text": "x" * (10 + 100 * rank())}
    everyone: list[Any] = [None] * world()
    dist.all_gather_object(everyone, mine)
    agree([each["rank"] for each in everyone] == list(range(world())), "gathered")
    agree(len(everyone[-1]["text"]) == 10 + 100 * (world() - 1), "of different lengths")
    listed: list[Any] = [mine if rank() == 0 else None, rank()]
    dist.broadcast_object_list(listed, src=0)
    agree(listed[0]["rank"] == 0 and listed[1] == 0, "broadcast")
    out: list[Any] = [None]
    dist.scatter_object_list(
        out, [f"for {peer}" for peer in range(world())] if rank() == 0 else [None], src=0
    )
    agree(out[0] == f"for {rank()}", "scattered")
    gathered = [None] * world() if rank() == 0 else None
    dist.gather_object(mine, gathered, dst=0)
    agree(gathered is None or gathered[-1]["rank"] == world() - 1, "gathered on one")


@case
def groups() -> None:
    halves = [dist.new_group(list(range(first, world(), 2))) for first in (0, 1)]
    mine = halves[rank() % 2]
    agree(dist.get_world_size(mine) == world() // 2, "half of them")
    total = torch.tensor([rank()], device=card())
    dist.all_reduce(total, group=mine)
    agree(total.item() == sum(range(rank() % 2, world(), 2)), "the sum of one half")
    control = dist.new_group(backend="gloo")
    flag = torch.tensor([rank()])
    dist.all_reduce(flag, group=control)
    agree(flag.item() == sum(range(world())), "over gloo")


@case
def symmetric_memory() -> None:
    """Checks that an unmodelled call is refused by name and does not crash."""
    from torch.distributed import _symmetric_memory as symmetric

    try:
        tensor = symmetric.empty(1024, device=card())
        symmetric.rendezvous(tensor, group=dist.group.WORLD)
    except (RuntimeError, NotImplementedError) as error:
        say(f"    refused: {str(error).splitlines()[0][:100]}")


# CUDA tensors between processes


def consumer(inbox: Any, outbox: Any) -> None:
    torch.cuda.set_device(0)
    tensor = inbox.get(timeout=60)
    outbox.put((tensor.tolist(), str(tensor.device)))
    tensor.add_(1)
    torch.cuda.synchronize()
    outbox.put("added")
    inbox.get(timeout=60)


@contextmanager
def spawned() -> Iterator[tuple[Any, Any]]:
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=consumer, args=(inbox, outbox))
    process.start()
    try:
        yield inbox, outbox
    finally:
        inbox.put(None)
        process.join(60)
        if process.is_alive():
            process.kill()


@case
def tensors_between_processes() -> None:
    if rank() != 0:
        return
    with spawned() as (inbox, outbox):
        tensor = torch.arange(5, device="cuda:0")
        inbox.put(tensor)
        values, device = outbox.get(timeout=60)
        agree(device == "cuda:0", "on the same card")
        agree(values == [0, 1, 2, 3, 4], f"the same values, and not {values}")
        agree(outbox.get(timeout=60) == "added", "changed there")
        agree(tensor.tolist() == [1, 2, 3, 4, 5], f"and seen here, and not {tensor.tolist()}")
