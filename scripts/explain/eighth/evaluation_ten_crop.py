"""Ten crops of every test image go through the fine-tuned network as one batch, with a graph nobody needs.

cause: evaluation-with-gradients
line: net(crops|ten_crop(|predict(
remedy: no-grad
"""

import torch
from torch import nn


def ten_crop(images, size):
    h, w = images.shape[-2:]
    tops = [(0, 0), (0, w - size), (h - size, 0), (h - size, w - size), ((h - size) // 2, (w - size) // 2)]
    crops = [images[..., i : i + size, j : j + size] for i, j in tops]
    return torch.stack(crops + [c.flip(-1) for c in crops], 1)


def vgg(widths=(32, 64, 128, 256), classes=120):
    layers, cin = [], 3
    for width in widths:
        layers += [nn.Conv2d(cin, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        cin = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, classes))


def predict(net, images):
    net.eval()
    crops = ten_crop(images, 192)
    b, n = crops.shape[:2]
    scores = net(crops.flatten(0, 1)).softmax(-1)
    return scores.view(b, n, -1).mean(1).argmax(-1).tolist()


net = vgg().cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
for _ in range(4):
    images, breeds = torch.rand(16, 3, 192, 192).cuda(), torch.randint(120, (16,)).cuda()
    loss = nn.functional.cross_entropy(net(images), breeds, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()

submission = []
for start in range(0, 120, 12):
    submission += predict(net, torch.rand(12, 3, 224, 224).cuda())
print("id,breed")
for i, breed in enumerate(submission):
    print(f"{i},{breed}")
