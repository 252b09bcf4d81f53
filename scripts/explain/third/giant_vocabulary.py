"""A small multilingual decoder with a large vocabulary: the logits are larger than everything else.

cause: giant-request
line: self.head(|cross_entropy|model(
"""

import torch
import torch.nn.functional as F
from torch import nn


class Decoder(nn.Module):
    def __init__(self, words=128_000, width=256):
        super().__init__()
        self.table = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 1024, batch_first=True, norm_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(self.body(self.table(tokens)))


model = Decoder().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    tokens = torch.randint(0, 128_000, (4, 513), device="cuda")
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.float().reshape(-1, 128_000), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
