"""The teacher works in a memory pool of its own, whose free blocks the student may not use.

cause: private-pools
line: with torch.cuda.use_mem_pool(|torch.cuda.MemPool()
remedy: pool-on-oom|share-pool|drop-variables
"""

import torch
import torch.nn.functional as F
from torch import nn


def network(width, depth):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(nn.Linear(128, width), *layers, nn.Linear(width, 100))


class Distiller:
    def __init__(self):
        self.teacher = network(5120, 3).cuda().eval()
        self.student = network(1536, 7).cuda()
        self.pool = torch.cuda.MemPool()
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.05)

    @torch.no_grad()
    def targets(self, x):
        with torch.cuda.use_mem_pool(self.pool):
            return self.teacher(x).softmax(-1)

    def step(self, x):
        soft = self.targets(x)
        loss = F.kl_div(self.student(x).log_softmax(-1), soft, reduction="batchmean")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


distiller = Distiller()
for i in range(20):
    loss = distiller.step(torch.randn(20_000, 128, device="cuda"))
print(loss.item())
