"""After training, all documents are embedded for a search index, with the graph of each batch.

cause: evaluation-with-gradients
line: encoder(|self.encoder(|self.layers
"""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5000, 320)
        layer = nn.TransformerEncoderLayer(320, 4, 1280, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def forward(self, tokens):
        return self.layers(self.table(tokens)).mean(1)


def build_index(encoder, documents):
    return [encoder(chunk).cpu() for chunk in documents.split(160)]


encoder = Encoder().cuda()
optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-4)
for _ in range(3):
    anchor = encoder(torch.randint(0, 5000, (8, 128), device="cuda"))
    loss = -(anchor @ anchor.T).diagonal().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
del anchor, loss
index = build_index(encoder, torch.randint(0, 5000, (640, 256), device="cuda"))
