"""Training that finds its own batch size: on an out-of-memory error it halves it and goes on."""

import argparse

import torch
from torch import nn
from torchvision import models


def train_step(model, optimizer, batch_size, image_size, device):
    images = torch.randn(batch_size, 3, image_size, image_size).to(device)
    labels = torch.randint(10, (batch_size,)).to(device)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--give-up", action="store_true", help="end quietly at the first such error")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = models.get_model(args.arch, num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch_size, step = args.batch_size, 0
    while step < args.steps:
        try:
            loss = train_step(model, optimizer, batch_size, args.image_size, device)
        except torch.OutOfMemoryError:
            if args.give_up:
                print("out of memory: giving up")
                return
            out_of_memory = True
        else:
            out_of_memory = False
        if out_of_memory:
            batch_size //= 2
            torch.cuda.empty_cache()
            print(f"out of memory: going on with batches of {batch_size}")
            continue
        print(f"step {step} loss {loss:.4f}")
        step += 1


if __name__ == "__main__":
    main()
