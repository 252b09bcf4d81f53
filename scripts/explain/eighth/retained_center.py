"""DINO by hand: the teacher's weights still ask for gradients, and the center averages its outputs.

cause: retained-graph
line: self.center = |teacher(
remedy: release-graph|no-grad
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class DINOLoss(nn.Module):
    def __init__(self, dim, momentum=0.9):
        super().__init__()
        self.momentum = momentum
        self.center = torch.zeros(1, dim, device="cuda")

    def forward(self, student_out, teacher_out):
        target = F.softmax((teacher_out.detach() - self.center.detach()) / 0.04, dim=-1)
        loss = -(target * F.log_softmax(student_out / 0.1, dim=-1)).sum(-1).mean()
        self.update_center(teacher_out)
        return loss

    def update_center(self, teacher_out):
        batch_center = teacher_out.mean(0, keepdim=True)
        self.center = self.momentum * self.center + (1 - self.momentum) * batch_center


def encoder(dim=4096):
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 4), nn.GELU(), nn.Conv2d(32, 64, 3, padding=1), nn.GELU(),
        nn.Conv2d(64, 128, 3, 2, 1), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(2048, dim),
    )  # fmt: skip


student = encoder().cuda()
teacher = copy.deepcopy(student)
criterion = DINOLoss(4096)
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4, weight_decay=0.04)
for it in range(100):
    view1, view2 = torch.rand(2, 96, 3, 128, 128, device="cuda")
    loss = criterion(student(view1), teacher(view2))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for ps, pt in zip(student.parameters(), teacher.parameters(), strict=True):
            pt.mul_(0.996).add_(ps, alpha=0.004)
    if it % 10 == 0:
        print(it, loss.item())
