"""An evaluation records graphs and keeps every output on the card as well.

cause: evaluation-with-gradients|retained-graph
line: outputs.append|model(
remedy: no-grad
"""

import torch
from torch import nn


def evaluate(model, batches):
    model.eval()
    outputs, losses = [], []
    for _ in range(batches):
        x = torch.randn(2048, 512, device="cuda")
        y = model(x)
        outputs.append(y)
        losses.append(nn.functional.mse_loss(y, x[:, :64]))
    return torch.cat(outputs), torch.stack(losses).mean()


model = nn.Sequential(
    nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 64)
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    model.train()
    for _ in range(4):
        x = torch.randn(2048, 512, device="cuda")
        loss = nn.functional.mse_loss(model(x), x[:, :64])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    _, loss = evaluate(model, 60)
    print(epoch, loss.item())
