"""Image classification with a torchvision network."""

import argparse
from contextlib import nullcontext

import torch
from torch import nn
from torchvision import models


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--benchmark", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = args.benchmark
    layout = torch.channels_last if args.channels_last else torch.contiguous_format

    model = models.get_model(args.arch, num_classes=args.classes).to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loss_fn = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler(device, enabled=args.precision == "fp16")
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]

    model.train()
    for step in range(args.steps):
        images = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
        labels = torch.randint(args.classes, (args.batch_size,))
        images = images.to(device, memory_format=layout)
        labels = labels.to(device)
        with torch.autocast(device, dtype) if dtype else nullcontext():
            loss = loss_fn(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
