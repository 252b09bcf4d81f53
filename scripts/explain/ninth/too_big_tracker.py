"""A Siamese tracker runs ResNet-50 over template and search crops of a batch that is too large for the card.

cause: too-big
line: self.backbone(
remedy: checkpointing|micro-batch|smaller-batch|autocast-fp16|activation-offload
"""

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda"


class SiamTracker(nn.Module):
    def __init__(self):
        super().__init__()
        resnet = torchvision.models.resnet50(weights=None)
        self.backbone = nn.Sequential(*list(resnet.children())[:-3])
        self.neck = nn.Conv2d(1024, 256, 1)

    def forward(self, template, search):
        z = self.neck(self.backbone(template))
        x = self.neck(self.backbone(search))
        b, c, h, w = x.shape
        response = F.conv2d(x.reshape(1, b * c, h, w), z.reshape(b, c, *z.shape[2:]), groups=b)
        return response.view(b, 1, *response.shape[2:])


def logistic(response, radius=2):
    h, w = response.shape[2:]
    ys, xs = torch.meshgrid(torch.arange(h, device=DEVICE), torch.arange(w, device=DEVICE), indexing="ij")
    near = (ys - h // 2).abs().maximum((xs - w // 2).abs()) <= radius
    target = near.float().expand_as(response)
    return F.binary_cross_entropy_with_logits(response, target)


net = SiamTracker().to(DEVICE)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
for it in range(100):
    template = torch.randn(48, 3, 128, 128, device=DEVICE)
    search = torch.randn(48, 3, 256, 256, device=DEVICE)
    loss = logistic(net(template, search))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if it % 10 == 0:
        print(it, float(loss))
