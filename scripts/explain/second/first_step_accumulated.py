"""Four micro-batches run well; the optimizer's step behind them does not.

cause: first-step-surprise
line: .step()
"""

import torch
from torch import nn

model = nn.LSTM(2048, 2048, num_layers=5).cuda()
optimizer = torch.optim.NAdam(model.parameters())
for window in range(2):
    for micro in range(4):
        out, _ = model(torch.randn(12, 4, 2048, device="cuda"))
        (out.square().mean() / 4).backward()
        del out
    optimizer.step()
    optimizer.zero_grad()
