"""Training fits; the evaluation, with larger batches and without `no_grad`, does not."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(12))
        self.head = nn.Linear(1024, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


def evaluate(model: nn.Module, device: torch.device) -> float:
    model.eval()
    correct = 0.0
    for _ in range(2):
        inputs = torch.randn(32768, 1024, device=device)
        labels = torch.randint(0, 10, (32768,), device=device)
        outputs = model(inputs)
        correct += (outputs.argmax(dim=1) == labels).float().mean().item()
    return correct / 2


def main() -> None:
    device = torch.device("cuda")
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        inputs = torch.randn(2048, 1024, device=device)
        labels = torch.randint(0, 10, (2048,), device=device)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    print(evaluate(model, device))


if __name__ == "__main__":
    main()
