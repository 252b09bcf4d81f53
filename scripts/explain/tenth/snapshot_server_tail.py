"""A server records only its last events; the growth is older than the history.

cause: growing-cache|leaking
line: torch.cat([self.memory|self.memory =
remedy: preallocate|keep-on-cpu|kv-cache-window
snapshot: server.pickle
false: release-graph|checkpointing|micro-batch|no-grad|activation-offload
"""

import torch
import torch.nn.functional as F
from torch import nn


class Retriever(nn.Module):
    """Nearest neighbours among all documents seen so far."""

    def __init__(self, vocab=30_000, dim=4096):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, 256)
        self.proj = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, dim))
        self.memory = torch.empty(0, dim, device="cuda")

    def encode(self, ids):
        return F.normalize(self.proj(self.embed(ids)), dim=-1)

    def add(self, ids):
        self.memory = torch.cat([self.memory, self.encode(ids)])

    def search(self, ids, k=10):
        return (self.encode(ids) @ self.memory.t()).topk(min(k, len(self.memory)))


def serve(retriever, requests):
    with torch.inference_mode():
        for number in range(requests):
            ids = torch.randint(0, 30_000, (512, 64)).cuda()
            retriever.add(ids)
            for _ in range(5):
                retriever.search(torch.randint(0, 30_000, (8, 64)).cuda())


torch.cuda.memory._record_memory_history(max_entries=400)
try:
    serve(Retriever().cuda().eval(), 1000)
except torch.cuda.OutOfMemoryError:
    torch.cuda.memory._dump_snapshot("server.pickle")
