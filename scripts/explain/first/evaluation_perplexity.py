"""Perplexity over long windows, after training on short ones.

cause: evaluation-with-gradients
line: model(window)|self.rnn(|model(
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class LM(nn.Module):
    def __init__(self, vocabulary=4000, width=512):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, num_layers=3, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


def perplexity(model, text, length):
    total, count = 0.0, 0
    for start in range(0, text.shape[1] - length - 1, length):
        window, target = text[:, start : start + length], text[:, start + 1 : start + length + 1]
        total += F.cross_entropy(model(window).flatten(0, 1), target.flatten(), reduction="sum").item()
        count += target.numel()
    return math.exp(min(total / count, 20))


model = LM().cuda()
optimizer = torch.optim.AdamW(model.parameters())
text = torch.randint(0, 4000, (32, 2900), device="cuda")
for step in range(4):
    tokens, target = text[:, step * 64 : step * 64 + 64], text[:, step * 64 + 1 : step * 64 + 65]
    loss = F.cross_entropy(model(tokens).flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
del loss
print(perplexity(model, text, 1400))
