"""Each epoch's validation runs with gradients, and its losses are collected as tensors.

cause: retained-graph|evaluation-with-gradients
line: val_losses.append|val_loss = |criterion(model(
remedy: no-grad|release-graph
false: keep-on-cpu|checkpointing|activation-offload|micro-batch|drop-variables|fused-optimizer
false: expandable-segments
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Forecaster(nn.Module):
    def __init__(self, series=64, hidden=512, horizon=24):
        super().__init__()
        self.conv = nn.Conv1d(series, hidden, 5, padding=2)
        self.attend = nn.TransformerEncoderLayer(hidden, 8, 2 * hidden, dropout=0.1, batch_first=True)
        self.head = nn.Linear(hidden, horizon)

    def forward(self, x):
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.head(self.attend(x).mean(1))


def fit(model, train_loader, val_loader, criterion, optimizer, epochs):
    for epoch in range(epochs):
        model.train()
        train_loss = 0.0
        for x, y in train_loader:
            x, y = x.cuda(), y.cuda()
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            train_loss += loss.item() * len(x)
        model.eval()
        val_losses = []
        for x, y in val_loader:
            x, y = x.cuda(), y.cuda()
            val_loss = criterion(model(x), y)
            val_losses.append(val_loss)
        mean = torch.stack(val_losses).mean()
        print(f"epoch {epoch} train {train_loss / 640:.4f} val {mean.item():.4f}")


def loader(count, batch, shuffle):
    data = TensorDataset(torch.randn(count, 168, 64), torch.randn(count, 24))
    return DataLoader(data, batch_size=batch, shuffle=shuffle)


model = Forecaster().cuda()
fit(
    model,
    loader(640, 32, True),
    loader(2048, 32, False),
    nn.L1Loss(),
    torch.optim.AdamW(model.parameters()),
    epochs=3,
)
