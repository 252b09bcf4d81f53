"""Features of a whole gallery are collected for a nearest-neighbour search, each with the graph that made
it.

cause: evaluation-with-gradients
line: gallery.append|backbone(|self.blocks|encode(
remedy: no-grad
"""

import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self, width=384, depth=6):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, images):
        tokens = self.patch(images).flatten(2).transpose(1, 2)
        return self.blocks(tokens).mean(1)


def encode(backbone, count):
    gallery = []
    for _ in range(count):
        images = torch.rand(32, 3, 224, 224, device="cuda")
        gallery.append(backbone(images))
    return torch.cat(gallery)


backbone = Backbone().cuda().eval()
gallery = encode(backbone, 20)
queries = encode(backbone, 1)
distance, nearest = torch.cdist(queries, gallery).topk(5, largest=False)
print(nearest.shape)
