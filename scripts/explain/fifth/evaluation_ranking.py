"""A retrieval model whose ranking of the gallery runs as in training, one large batch.

cause: evaluation-with-gradients
line: tower(gallery
"""

import torch
from torch import nn
from torch.nn import functional as F


def make_tower():
    layers = [
        nn.Sequential(nn.Linear(768, 768), nn.LayerNorm(768), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)
    ]
    return nn.Sequential(*layers, nn.Linear(768, 128)).cuda()


tower = make_tower()
optimizer = torch.optim.AdamW(tower.parameters(), lr=1e-4)
for _ in range(4):
    first, second = (torch.randn(1024, 768, device="cuda") for _ in range(2))
    scores = F.normalize(tower(first), dim=1) @ F.normalize(tower(second), dim=1).T
    loss = F.cross_entropy(scores * 20, torch.arange(1024, device="cuda"))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
tower.eval()
gallery = torch.randn(36000, 768, device="cuda")
vectors = F.normalize(tower(gallery), dim=1)
queries = vectors[:100]
print((queries @ vectors.T).topk(5).indices[:3])
