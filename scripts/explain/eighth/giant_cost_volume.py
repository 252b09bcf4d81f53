"""Stereo matching after PSMNet: the volume over all disparities is laid out at half resolution.

cause: giant-request
line: new_zeros(|cost_volume(
remedy: micro-batch|smaller-batch|by-parts
"""

import torch
import torch.nn as nn


def convbn(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class StereoNet(nn.Module):
    def __init__(self, maxdisp=192):
        super().__init__()
        self.levels = maxdisp // 2
        self.features = nn.Sequential(convbn(3, 16, 2), convbn(16, 16), convbn(16, 32))
        self.regularize = nn.Sequential(
            nn.Conv3d(64, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 1, 3, padding=1)
        )

    def cost_volume(self, left, right):
        b, c, h, w = left.shape
        cost = left.new_zeros(b, 2 * c, self.levels, h, w)
        for i in range(self.levels):
            cost[:, :c, i, :, i:] = left[..., i:]
            cost[:, c:, i, :, i:] = right[..., : w - i]
        return cost

    def forward(self, left, right):
        cost = self.cost_volume(self.features(left), self.features(right))
        prob = self.regularize(cost).squeeze(1).softmax(1)
        disparity = torch.arange(self.levels, device=prob.device).view(1, -1, 1, 1)
        return (prob * disparity).sum(1)


def train_step(net, optimizer, left, right, truth):
    optimizer.zero_grad()
    loss = nn.functional.smooth_l1_loss(net(left, right), truth)
    loss.backward()
    optimizer.step()
    return loss.item()


net = StereoNet().to("cuda")
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(3):
    pair = torch.rand(2, 4, 3, 256, 512, device="cuda")
    truth = 96 * torch.rand(4, 128, 256, device="cuda")
    print(step, train_step(net, optimizer, pair[0], pair[1], truth))
