"""Training that prints PyTorch's own count of its peak at the end, as many scripts do."""

import argparse

import torch
from torch import nn
from torchvision import models


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = models.get_model(args.arch, num_classes=10).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(args.steps):
        images = torch.randn(args.batch_size, 3, args.image_size, args.image_size).to(device)
        labels = torch.randint(10, (args.batch_size,)).to(device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if device == "cuda":
        print("peak by torch", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
    else:
        print("peak by torch: no GPU")


if __name__ == "__main__":
    main()
