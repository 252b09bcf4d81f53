"""Gradient accumulation: one optimizer step for several small batches."""

import argparse

import torch
from torch import nn
from torchvision import models


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = models.get_model(args.arch, num_classes=100).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()

    model.train()
    optimizer.zero_grad()
    for index in range(args.steps * args.accumulate):
        images = torch.randn(args.batch_size, 3, args.image_size, args.image_size).to(device)
        labels = torch.randint(100, (args.batch_size,)).to(device)
        loss = loss_fn(model(images), labels) / args.accumulate
        loss.backward()
        if (index + 1) % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {index // args.accumulate} loss {loss.item() * args.accumulate:.4f}")


if __name__ == "__main__":
    main()
