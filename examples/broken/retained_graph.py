"""The running loss is added up with its graph, which `retain_graph=True` keeps whole."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(6))
        self.head = nn.Linear(1024, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.head(x)


def main() -> None:
    device = torch.device("cuda")
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = torch.zeros((), device=device)
    for _ in range(60):
        inputs = torch.randn(2048, 1024, device=device)
        labels = torch.randint(0, 10, (2048,), device=device)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        total += loss
    print(total.item())


if __name__ == "__main__":
    main()
