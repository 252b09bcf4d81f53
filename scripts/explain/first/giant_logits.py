"""A small language model with a large vocabulary: the logits of all positions are the step.

cause: giant-request
line: self.out(|cross_entropy
"""

import torch
from torch import nn
from torch.nn import functional as F


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50257, 128)
        self.mix = nn.GRU(128, 128, batch_first=True)
        self.out = nn.Linear(128, 50257, bias=False)

    def forward(self, tokens):
        return self.out(self.mix(self.embed(tokens))[0])


model = LM().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    tokens = torch.randint(0, 50257, (16, 385), device="cuda")
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 50257), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
