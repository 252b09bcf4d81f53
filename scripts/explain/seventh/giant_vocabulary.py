"""A language model with a large vocabulary: the logits of all positions are made at once, then as float32
again.

cause: giant-request
line: lm_head|self.head(|logits|cross_entropy
remedy: chunked-loss|micro-batch|checkpointing
"""

import torch
import torch.nn.functional as F
from torch import nn


class LM(nn.Module):
    def __init__(self, words=128_000, width=256):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.body = nn.GRU(width, width, batch_first=True)
        self.lm_head = nn.Linear(width, words, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, tokens, labels):
        hidden, _ = self.body(self.embed(tokens))
        logits = self.lm_head(hidden).float()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))


model = LM().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    tokens = torch.randint(0, 128_000, (4, 1024), device="cuda")
    loss = model(tokens, tokens.roll(-1, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
