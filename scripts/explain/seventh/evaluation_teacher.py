"""Distillation: the teacher is never trained, and its forward keeps everything all the same.

cause: evaluation-with-gradients|too-big
line: teacher(
remedy: no-grad
"""

import torch
import torch.nn.functional as F
from torchvision.models import resnet18, resnet50

teacher = resnet50(weights=None, num_classes=100).cuda().eval()
student = resnet18(weights=None, num_classes=100).cuda()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
for step in range(4):
    images = torch.randn(40, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 100, (40,), device="cuda")
    wanted = teacher(images)
    given = student(images)
    soft = F.kl_div(F.log_softmax(given / 4, 1), F.softmax(wanted.detach() / 4, 1), reduction="batchmean")
    loss = 16 * soft + F.cross_entropy(given, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
