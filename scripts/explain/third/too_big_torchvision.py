"""torchvision's ResNet-50 with a batch out of a paper.

cause: too-big
line: model(images)
"""

import argparse

import torch
import torchvision


def train_one_epoch(model, criterion, optimizer, loader, device):
    model.train()
    for images, targets in loader:
        images, targets = images.to(device), targets.to(device)
        output = model(images)
        loss = criterion(output, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(arguments):
    device = torch.device(arguments.device)
    model = torchvision.models.resnet50(weights=None).to(device)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loader = (
        (torch.randn(arguments.batch_size, 3, 224, 224), torch.zeros(arguments.batch_size, dtype=torch.long))
        for _ in range(3)
    )
    train_one_epoch(model, criterion, optimizer, loader, device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int, default=48)
    main(parser.parse_args([]))
