"""Proposals of an instance segmenter: masks of each image are made together, every other set is thrown
away.

cause: fragmented
line:
remedy: expandable-segments|max-split-size|garbage-collection
"""

import torch


def masks_of(image):
    return torch.rand(40, 420, 512, device="cuda") > image


kept = []
previous = None
for image in range(900):
    masks = masks_of(image / 900).float()
    if image % 2:
        kept.append(masks[:7].clone())
    previous = masks
    if len(kept) == 400:
        break
kept = kept[::2]
stacked = torch.cat(kept)
print(stacked.shape)
