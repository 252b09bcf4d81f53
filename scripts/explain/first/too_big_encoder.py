"""PyTorch's own transformer encoder with twice the batch that the card has room for.

cause: too-big
line: self.encoder(
"""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8000, 384)
        layer = nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 8)
        self.head = nn.Linear(384, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens))[:, 0])


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    criterion = nn.CrossEntropyLoss()
    for _ in range(3):
        tokens = torch.randint(0, 8000, (64, 256)).cuda()
        labels = torch.randint(0, 4, (64,)).cuda()
        optimizer.zero_grad()
        criterion(model(tokens), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    net = Classifier().cuda()
    train_epoch(net, torch.optim.AdamW(net.parameters()))
