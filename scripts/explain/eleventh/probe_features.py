"""Linear probing: the features of all layers are collected under inference_mode on the GPU.

cause: leaking
line: features.append|store.append|bank[
remedy: keep-on-cpu
false: release-graph|no-grad|checkpointing|micro-batch|drop-variables|expandable-segments
"""

import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self, dim=768, depth=12):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 16, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 12, 4 * dim, batch_first=True) for _ in range(depth)
        )

    def intermediate(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        return outputs


def extract(backbone, loader):
    features, labels = [], []
    with torch.inference_mode():
        for images, target in loader:
            features.append(backbone.intermediate(images.to("cuda")))
            labels.append(target)
    return [torch.cat([batch[i] for batch in features]) for i in range(12)], torch.cat(labels)


backbone = Backbone().cuda().eval()
loader = [(torch.zeros(16, 3, 224, 224), torch.randint(0, 10, (16,))) for _ in range(40)]
layers, labels = extract(backbone, loader)
probe = nn.Linear(768, 10).cuda()
print(probe(layers[-1].mean(1)).shape, labels.shape)
