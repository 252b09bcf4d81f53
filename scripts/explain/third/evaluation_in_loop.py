"""Every few steps the training loop looks at validation data itself; model.eval() is there, no_grad is not.

cause: evaluation-with-gradients
line: val_loss|model(val
"""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(64, 512, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(512, 64)

    def forward(self, x):
        hidden, _ = self.encoder(x)
        return self.decoder(F.gelu(hidden))


model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(12):
    model.train()
    x = torch.randn(16, 128, 64, device="cuda")
    loss = F.mse_loss(model(x[:, :-1]), x[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        model.eval()
        val_loss = 0
        for _ in range(16):
            val = torch.randn(320, 128, 64, device="cuda")
            val_loss += F.mse_loss(model(val[:, :-1]), val[:, 1:])
        print(step, float(val_loss))
