"""A pool of workers that embeds texts stays alive with its models while the training runs.

cause: other-processes
remedy: end-other-process
false: checkpointing|micro-batch|no-grad|fused-optimizer|activation-offload|expandable-segments
"""

import multiprocessing as mp

import torch
import torch.nn.functional as F
from torch import nn

encoder = None


def start(dim=1024):
    global encoder
    encoder = nn.Sequential(nn.EmbeddingBag(150_000, dim), nn.Linear(dim, dim), nn.Tanh()).cuda().eval()


def embed(ids):
    with torch.no_grad():
        return encoder(ids.cuda()).cpu()


class Ranker(nn.Module):
    def __init__(self, dim=1024):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * dim, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 1)
        )

    def forward(self, query, document):
        return self.net(torch.cat([query, document], dim=-1))[..., 0]


def train(queries, documents):
    model = Ranker().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(50):
        q = queries[torch.randint(0, len(queries), (16_384,))].cuda()
        d = documents[torch.randint(0, len(documents), (16_384,))].cuda()
        loss = F.softplus(-model(q, d)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    pool = context.Pool(2, initializer=start)
    texts = [torch.randint(0, 150_000, (64, 32)) for _ in range(8)]
    vectors = torch.cat(pool.map(embed, texts))
    train(vectors, vectors.flip(0))
    pool.close()
    pool.join()
