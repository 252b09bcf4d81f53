"""The pages of one document after the other are embedded, and each gets a longer index than the last.

cause: growing-cache|leaking
line: torch.cat|index = |self.index
remedy: preallocate|keep-on-cpu
snapshot: index.pickle
false: release-graph|no-grad|checkpointing|micro-batch|activation-offload|expandable-segments
"""

import torch
from torch import nn


class Index:
    def __init__(self, encoder, dim=2048):
        self.encoder = encoder
        self.index = torch.zeros(0, dim, dtype=torch.float16, device="cuda")

    @torch.no_grad()
    def add(self, pages):
        vectors = self.encoder(pages.cuda())
        self.index = torch.cat([self.index, vectors.half()])

    @torch.no_grad()
    def query(self, page):
        return (self.index @ self.encoder(page.cuda()).half()[0]).topk(5).indices


encoder = (
    nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 2048))
    .cuda()
    .eval()
)
index = Index(encoder)
torch.cuda.memory._record_memory_history(max_entries=1000)
try:
    for document in range(1000):
        index.add(torch.randn(2000, 512))
        if document % 10 == 0:
            index.query(torch.randn(1, 512))
except torch.OutOfMemoryError:
    torch.cuda.memory._dump_snapshot("index.pickle")
    print("out of memory with", len(index.index), "pages")
