"""A helper from a shared workstation leaves this process two fifths of the card.

cause: setting-that-hurts
line: torch.cuda.set_per_process_memory_fraction(
remedy: drop-setting
"""

import random

import torch
import torchvision
from torch import nn


def setup(seed=0, share=0.4):
    """Seed everything, and stay within the group's share of the card."""
    random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.set_per_process_memory_fraction(share)
    torch.backends.cudnn.benchmark = False
    return torch.device("cuda")


def main():
    device = setup()
    model = torchvision.models.resnet18(num_classes=200).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(30):
        images = torch.randn(112, 3, 192, 192).to(device)
        labels = torch.randint(200, (112,)).to(device)
        loss = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(step, loss.item())


main()
