"""Label smoothing by hand: one-hot targets over all words, which `one_hot` makes as int64.

cause: giant-request
line: one_hot|smooth
remedy: micro-batch|smaller-batch|by-parts
"""

import torch
import torch.nn.functional as F
from torch import nn

WORDS = 50_000


def smoothed(logits, labels, epsilon=0.1):
    target = F.one_hot(labels, WORDS)
    target = target * (1 - epsilon) + epsilon / WORDS
    return -(target * logits.log_softmax(-1)).sum(-1).mean()


model = nn.Sequential(nn.Embedding(WORDS, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, WORDS)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(3):
    words = torch.randint(0, WORDS, (3000,), device="cuda")
    loss = smoothed(model(words), words)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
