"""accelerate's loop, plain or sharded by its FSDP plugin; started by `torchrun` or `accelerate launch` for several GPUs."""

import argparse

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from arithmetic import say, stored
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=["no", "bf16", "fp16"], default="bf16")
    parser.add_argument("--fsdp", type=int, choices=[1, 2], default=None)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    plugin = None
    if args.fsdp:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=args.fsdp,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Block"],
        )
    accelerator = Accelerator(
        mixed_precision=args.precision, gradient_accumulation_steps=args.accumulate, fsdp_plugin=plugin
    )
    model = nn.Sequential(*[Block(args.width) for _ in range(args.layers)], nn.Linear(args.width, 10))
    # Sharded over the ranks, as near as the rows of each parameter divide.
    share = stored(model.parameters()) // (accelerator.num_processes if args.fsdp else 1)
    states = 2 * share
    inputs = torch.randn(
        args.batch_size * args.steps * args.accumulate * accelerator.num_processes, args.width
    )
    loader = DataLoader(TensorDataset(inputs, torch.randint(10, (len(inputs),))), batch_size=args.batch_size)
    if args.fsdp == 1:
        # It replaces the parameters, so the optimizer is made of the prepared model's.
        model = accelerator.prepare(model)
        optimizer, loader = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=1e-3), loader)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if args.fsdp == 2:
        # Beside the shards, whole in the precision of the computation: a block at a time, and what lies in no block.
        whole = 8 * args.width**2 + 5 * args.width + 10 * args.width + 10
        share += whole * (4 if args.precision == "no" else 2)
    if accelerator.is_main_process:
        # FSDP1 gathers whole parameters in addition to the shards.
        held = {} if args.fsdp == 1 else {"parameters": share}
        say(optimizer=states, **held)
    for features, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(features), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"loss {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
