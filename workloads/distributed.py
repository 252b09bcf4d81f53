"""Data-parallel training, one process for each GPU: torchrun --nproc-per-node N distributed.py"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--strategy", choices=["ddp", "fsdp", "hybrid"], default="ddp")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
    else:
        device = torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    layers = []
    for _ in range(args.layers):
        layers += [nn.Linear(args.width, args.width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(args.width, 10)).to(device)
    if args.strategy == "ddp":
        model = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
    else:
        mesh = None
        if args.strategy == "hybrid":
            # Sharded over four ranks, and the same on each four.
            mesh = init_device_mesh(
                device.type, (dist.get_world_size() // 4, 4), mesh_dim_names=("replicate", "shard")
            )
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()

    length = args.batch_size * args.steps * dist.get_world_size()
    data = TensorDataset(torch.randn(length, args.width), torch.randint(10, (length,)))
    loader = DataLoader(data, batch_size=args.batch_size, sampler=DistributedSampler(data))

    for step, (inputs, labels) in enumerate(loader):
        loss = loss_fn(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
