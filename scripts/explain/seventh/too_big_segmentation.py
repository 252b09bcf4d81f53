"""A ResNet with a decoder cuts street scenes into classes; the batch was taken over from a larger card.

cause: too-big
line: model(images)|x = block(x)|self.body(|x + |self.stages
remedy: checkpointing|activation-offload|autocast-bf16|autocast-fp16|micro-batch|activation-budget
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet34


class Segmenter(nn.Module):
    def __init__(self, classes):
        super().__init__()
        net = resnet34(weights=None)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        self.stages = nn.ModuleList([net.layer1, net.layer2, net.layer3, net.layer4])
        self.head = nn.Conv2d(512, classes, 1)

    def forward(self, images):
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return F.interpolate(self.head(x), size=images.shape[-2:], mode="bilinear", align_corners=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    model = Segmenter(classes=8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for step in range(4):
        images = torch.randn(args.batch_size, 3, 512, 512).cuda()
        masks = torch.zeros(args.batch_size, 512, 512, dtype=torch.long).cuda()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), masks)
        loss.backward()
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()
