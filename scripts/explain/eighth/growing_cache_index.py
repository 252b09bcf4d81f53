"""A retrieval index grows on the card by one concatenation per chunk of documents.

cause: growing-cache
line: self.vectors = torch.cat(|index.add(
remedy: keep-on-cpu|preallocate
"""

import torch
import torch.nn.functional as F
from torch import nn


class FlatIndex:
    def __init__(self, dim, device="cuda"):
        self.vectors = torch.empty(0, dim, device=device)

    def add(self, vectors):
        self.vectors = torch.cat([self.vectors, F.normalize(vectors, dim=-1)])

    def search(self, queries, k=10):
        return (F.normalize(queries, dim=-1) @ self.vectors.T).topk(k, dim=-1)


class BagEncoder(nn.Module):
    def __init__(self, vocab=30_000, dim=1024):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, 256, mode="mean")
        self.proj = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, dim))

    def forward(self, tokens):
        return self.proj(self.bag(tokens))


def documents(chunks, chunk_size=4096, length=64):
    for _ in range(chunks):
        yield torch.randint(30_000, (chunk_size, length))


encoder = BagEncoder().cuda().eval()
index = FlatIndex(1024)
with torch.inference_mode():
    for n, chunk in enumerate(documents(110)):
        index.add(encoder(chunk.cuda()))
        if n % 20 == 0:
            print(f"{len(index.vectors)} documents")
    scores, ids = index.search(encoder(torch.randint(30_000, (8, 12), device="cuda")))
print(ids.tolist())
