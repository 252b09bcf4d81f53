"""A teacher labels the pictures of an epoch in a MemPool of its own, which keeps what it has afterwards.

cause: private-pools
line: use_mem_pool(|MemPool()|label(|teacher(
remedy: pool-on-oom
"""

import torch
import torch.nn.functional as F
from torch import nn


def stage(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1), nn.BatchNorm2d(cout), nn.ReLU())


teacher = nn.Sequential(
    stage(3, 64, 1), stage(64, 64, 1), stage(64, 128, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
)
student = nn.Sequential(
    stage(3, 32, 1),
    stage(32, 32, 1),
    stage(32, 64, 2),
    stage(64, 64, 1),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
)
teacher.cuda().eval().requires_grad_(False)
student.cuda()
expand = nn.Linear(64, 128).cuda()
optimizer = torch.optim.Adam([*student.parameters(), *expand.parameters()], lr=1e-3)
pool = torch.cuda.MemPool()


@torch.no_grad()
def label(images):
    with torch.cuda.use_mem_pool(pool):
        return teacher(images).cpu()


def epoch(images, targets):
    for x, y in zip(images.split(96), targets.split(96), strict=True):
        loss = F.mse_loss(expand(student(x.cuda())), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


pictures = torch.zeros(288, 3, 128, 128)
for number in range(4):
    targets = torch.cat([label(part.cuda()) for part in pictures.split(144)])
    print(number, epoch(pictures, targets))
