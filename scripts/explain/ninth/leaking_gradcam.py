"""A Grad-CAM hook that was meant for one picture stays registered while the classifier trains.

cause: leaking
line: self.gradients.append(|self.activations.append(
remedy: keep-on-cpu|drop-variables
"""

import torch
import torch.nn.functional as F
from torch import nn


def block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(block(3, 32), block(32, 64), block(64, 128))
        self.classifier = nn.Linear(128, 20)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class GradCAM:
    def __init__(self, layer):
        self.gradients, self.activations = [], []
        layer.register_forward_hook(self.forward_hook)
        layer.register_full_backward_hook(self.backward_hook)

    def forward_hook(self, module, args, output):
        self.activations.append(output.detach())

    def backward_hook(self, module, grad_input, grad_output):
        self.gradients.append(grad_output[0].detach())

    def heatmap(self):
        weights = self.gradients[-1].mean((2, 3), keepdim=True)
        return F.relu((weights * self.activations[-1]).sum(1))


model = Net().cuda()
cam = GradCAM(model.features[1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(3):
    for it in range(100):
        x, y = torch.randn(16, 3, 224, 224).cuda(), torch.randint(20, (16,)).cuda()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, cam.heatmap()[0].shape)
