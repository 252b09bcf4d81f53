"""Vectors of a corpus go to the host batch by batch, and each brings its autograd graph along.

cause: evaluation-with-gradients|retained-graph
line: vectors.append(|self.tower(|encode(
remedy: no-grad|release-graph
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tower(nn.Module):
    def __init__(self, vocab=20_000, width=640):
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, k, padding=k // 2) for k in (3, 5, 7))
        self.project = nn.Linear(3 * width, 256)

    def forward(self, tokens):
        x = self.words(tokens).transpose(1, 2)
        pooled = [torch.relu(conv(x)).amax(-1) for conv in self.convs]
        return nn.functional.normalize(self.project(torch.cat(pooled, -1)), dim=-1)


class SearchIndex:
    def __init__(self, tower):
        self.tower = tower.cuda().eval()
        self.vectors = None

    def build(self, documents):
        vectors = []
        for (tokens,) in DataLoader(documents, batch_size=128):
            vectors.append(self.tower(tokens.cuda()).cpu())
        self.vectors = torch.cat(vectors)

    def query(self, tokens, k=5):
        return (self.vectors @ self.tower(tokens.cuda()).cpu().T).topk(k, dim=0).indices


index = SearchIndex(Tower())
index.build(TensorDataset(torch.randint(20_000, (6_400, 128))))
print(index.query(torch.randint(20_000, (1, 128))))
