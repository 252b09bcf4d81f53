"""Train a ResNet to tell apart kinds of generated images.

Each class is a grating with its own direction and colour, under noise, so the data needs no download and
the network has something to learn. A short run on the CPU:

    python train.py --arch resnet18 --image-size 32 --train-images 512 --test-images 128 \\
        --batch-size 32 --epochs 2
"""

import argparse
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import models


class Gratings(Dataset):
    """Striped images, made when they are asked for."""

    def __init__(self, length, classes, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(classes, (length,), generator=generator)
        self.offsets = torch.randint(size, (length,), generator=generator)
        self.patterns = torch.stack([self.pattern(k, classes, size) for k in range(classes)])
        self.noise = torch.randn(3, size, 2 * size, generator=generator) * 0.7
        self.size = size

    @staticmethod
    def pattern(label, classes, size):
        angle = math.pi * label / classes
        axis = torch.linspace(-1, 1, size)
        stripes = torch.sin(12 * (axis[None, :] * math.cos(angle) + axis[:, None] * math.sin(angle)))
        tint = torch.tensor([math.cos(2 * angle), math.sin(2 * angle), math.cos(angle)])
        return stripes[None] * tint[:, None, None]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = self.labels[index]
        offset = int(self.offsets[index])
        return self.patterns[label] + self.noise[:, :, offset : offset + self.size], label


def train_one_epoch(model, loader, loss_fn, optimizer, scheduler, device):
    model.train()
    total_loss, correct, seen = 0.0, 0, 0
    for step, (images, labels) in enumerate(loader):
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)

        outputs = model(images)
        loss = loss_fn(outputs, labels)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()

        total_loss += loss.item() * len(labels)
        correct += (outputs.argmax(1) == labels).sum().item()
        seen += len(labels)
        if step % 10 == 0:
            print(f"  step {step:4d}  loss {loss.item():.4f}", flush=True)
    return total_loss / seen, correct / seen


@torch.no_grad()
def evaluate(model, loader, loss_fn, device):
    model.eval()
    total_loss, correct, seen = 0.0, 0, 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        outputs = model(images)
        total_loss += loss_fn(outputs, labels).item() * len(labels)
        correct += (outputs.argmax(1) == labels).sum().item()
        seen += len(labels)
    return total_loss / seen, correct / seen


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="resnet50", help="any classification model of torchvision")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--train-images", type=int, default=12800)
    parser.add_argument("--test-images", type=int, default=2560)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default="classifier.pt", help="where to save the trained model")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"training {args.arch} on {device}")

    train_set = Gratings(args.train_images, args.classes, args.image_size, seed=1)
    test_set = Gratings(args.test_images, args.classes, args.image_size, seed=2)
    options = {
        "batch_size": args.batch_size,
        "num_workers": args.workers,
        "pin_memory": device.type == "cuda",
    }
    train_loader = DataLoader(train_set, shuffle=True, drop_last=True, **options)
    test_loader = DataLoader(test_set, **options)

    model = models.get_model(args.arch, num_classes=args.classes).to(device)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.epochs * len(train_loader)
    )

    for epoch in range(args.epochs):
        start = time.perf_counter()
        train_loss, train_accuracy = train_one_epoch(
            model, train_loader, loss_fn, optimizer, scheduler, device
        )
        test_loss, test_accuracy = evaluate(model, test_loader, loss_fn, device)
        print(
            f"epoch {epoch + 1}/{args.epochs}  train loss {train_loss:.4f} accuracy {train_accuracy:.1%}  "
            f"test loss {test_loss:.4f} accuracy {test_accuracy:.1%}  {time.perf_counter() - start:.1f} s"
        )

    torch.save({"model": model.state_dict(), "args": vars(args)}, args.checkpoint)
    print(f"saved {args.checkpoint}")


if __name__ == "__main__":
    main()
