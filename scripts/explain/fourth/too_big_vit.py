"""torchvision's ViT-B/16, fine-tuned with a batch that is too large.

cause: too-big
line: self.model(
"""

import torch
import torchvision
from torch import nn


class Classifier:
    def __init__(self, classes):
        self.model = torchvision.models.vit_b_16(weights=None).cuda()
        self.model.heads = nn.Linear(768, classes).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loss = nn.CrossEntropyLoss()

    def train_step(self, images, labels):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


classifier = Classifier(37)
for _ in range(3):
    classifier.train_step(
        torch.randn(40, 3, 224, 224, device="cuda"), torch.randint(0, 37, (40,), device="cuda")
    )
