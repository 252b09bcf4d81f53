"""Trains ResNet on a folder of photographs, with one folder for each class.

    python examples/photographs/train.py photos/                      # with memfit.data
    python examples/photographs/train.py photos/ --loader torch       # the same with torch's DataLoader and PIL

Both see the same pictures in the same sizes, drawn at random by their own generators: losses are alike but for chance.
"""

import argparse
import os
import time

import memfit
import torch
from torch import nn
from torchvision import models
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("photographs")
parser.add_argument("--loader", choices=["memfit", "torch"], default="memfit")
parser.add_argument("--model", default="resnet50")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--memory", default="2 GiB")
parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--resume", help="a file with the state to go on from, written after each epoch")
args = parser.parse_args()

torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if args.loader == "memfit":
    loader = memfit.data.ImageLoader(
        args.photographs,
        size=args.size,
        batch_size=args.batch_size,
        memory=args.memory,
        threads=args.workers,
        shuffle=True,
        drop_last=True,
        seed=args.seed,
        crop="random",
        flip=0.5,
    )
    classes = len(loader.classes)
else:
    folder = ImageFolder(
        args.photographs,
        v2.Compose(
            [v2.RandomResizedCrop(args.size, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
        ),
    )
    loader = torch.utils.data.DataLoader(
        folder,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
    )
    classes = len(folder.classes)

model = models.get_model(args.model, num_classes=classes).to(device)
normalize = memfit.data.Normalize().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
criterion = nn.CrossEntropyLoss()
first = 0
if args.resume and os.path.exists(args.resume):
    state = torch.load(args.resume, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"]
    if args.loader == "memfit":
        loader.load_state_dict(state["loader"])

for epoch in range(first, args.epochs):
    if args.loader == "memfit":
        loader.set_epoch(epoch)
    model.train()
    begin, waited, total, batches = time.perf_counter(), 0.0, torch.zeros((), device=device), 0
    ask = time.perf_counter()
    for images, labels in loader:
        waited += time.perf_counter() - ask
        images = normalize(images.to(device, non_blocking=True))
        labels = labels.to(device, non_blocking=True)
        loss = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        batches += 1
        ask = time.perf_counter()
    took = time.perf_counter() - begin
    print(
        f"epoch {epoch}  loss {total.item() / max(batches, 1):.4f}  {batches} batches in {took:.1f} s, {waited:.1f} s of them waiting for data"
    )
    if args.resume:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        if args.loader == "memfit":
            state["loader"] = loader.state_dict()
        torch.save(state, args.resume)
