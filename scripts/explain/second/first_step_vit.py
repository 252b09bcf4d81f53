"""A vision transformer that was fine until AdamW's first step.

cause: first-step-surprise
line: .step()
"""

import torch
from torch import nn


class ViT(nn.Module):
    def __init__(self, width=1024, depth=16):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 32, stride=32)
        layer = nn.TransformerEncoderLayer(width, 16, 2 * width, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        return self.head(self.body(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


def train():
    model = ViT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
    for _ in range(3):
        images = torch.randn(2, 3, 224, 224, device="cuda")
        loss = nn.functional.cross_entropy(model(images), torch.zeros(2, dtype=torch.long, device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


train()
