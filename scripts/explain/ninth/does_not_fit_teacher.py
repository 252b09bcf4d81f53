"""Self-distillation copies the student for its teacher, and two copies of the weights do not fit.

cause: does-not-fit
line: copy.deepcopy(
remedy: keep-on-cpu|pure-bf16|shard|quantized-weights|torchao-weights
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F


def vit(dim=1408, depth=17, heads=16):
    layer = nn.TransformerEncoderLayer(
        dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, device="cuda"
    )
    layers = [layer] + [
        nn.TransformerEncoderLayer(
            dim,
            heads,
            4 * dim,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
            device="cuda",
        )
        for _ in range(depth - 1)
    ]
    return nn.Sequential(nn.Linear(14 * 14 * 3, dim, device="cuda"), *layers)


class SelfDistillation:
    def __init__(self, momentum=0.996):
        self.momentum = momentum
        self.student = vit()
        self.teacher = copy.deepcopy(self.student)
        for p in self.teacher.parameters():
            p.requires_grad = False
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=1e-3)

    @torch.no_grad()
    def update_teacher(self):
        for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            t.lerp_(s, 1 - self.momentum)

    def step(self, patches):
        with torch.no_grad():
            target = self.teacher(patches).mean(1).softmax(-1)
        loss = F.cross_entropy(self.student(patches.flip(1)).mean(1), target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.update_teacher()
        return loss


trainer = SelfDistillation()
for i in range(100):
    loss = trainer.step(torch.randn(2, 256, 588, device="cuda"))
    print(i, loss.item())
