"""A training script for the tests of the Python interface: small, with a batch size of its own."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=1024)
parser.add_argument("--width", type=int, default=1024)
given = parser.parse_args()

model = torch.nn.Sequential(*[torch.nn.Linear(given.width, given.width) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    batch = torch.randn(given.batch_size, given.width, device="cuda")
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
