"""Documents of every length: freed blocks never quite fit the next batch, until there is only crumbs."""

import torch
from torch import nn
from torch.nn import functional as F


class Tagger(nn.Module):
    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(5000, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Tagger().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Most documents are short; now and then there is a longer one than ever before.
    for step in range(40):
        length = 900 + 137 * step
        tokens = torch.zeros(16, length, dtype=torch.long, device=device)
        labels = torch.zeros(16, length, dtype=torch.long, device=device)
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
