"""Batch-all triplet loss: a cube with one entry per anchor, positive and negative of a batch of 1152.

cause: giant-request
line: dist.unsqueeze(2)|batch_all_triplet_loss(|valid
remedy: chunked-loss|micro-batch|by-parts|smaller-batch
"""

import torch
import torch.nn.functional as F
from torch import nn


def pairwise_distances(embeddings):
    dot = embeddings @ embeddings.t()
    sq = dot.diagonal()
    return (sq.unsqueeze(0) - 2 * dot + sq.unsqueeze(1)).clamp(min=0)


def batch_all_triplet_loss(labels, embeddings, margin=0.3):
    dist = pairwise_distances(embeddings)
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    valid = same.unsqueeze(2) & ~same.unsqueeze(1)
    triplet = dist.unsqueeze(2) - dist.unsqueeze(1) + margin
    triplet = F.relu(triplet * valid)
    return triplet.sum() / valid.sum().clamp(min=1)


encoder = nn.Sequential(
    nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 64)
).cuda()
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for epoch in range(3):
    for _ in range(4):
        digits = torch.rand(1152, 1, 28, 28)
        labels = torch.randint(0, 10, (1152,))
        digits, labels = digits.cuda(), labels.cuda()
        z = F.normalize(encoder(digits))
        loss = batch_all_triplet_loss(labels, z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
