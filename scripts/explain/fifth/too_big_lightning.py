"""A segmentation network under Lightning with a batch that the card has no room for.

cause: too-big
line: self.down(|self.up(|self.mid(|self.net(
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def block(inward, outward):
    return nn.Sequential(nn.Conv2d(inward, outward, 3, padding=1), nn.BatchNorm2d(outward), nn.GELU())


class Segmenter(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(block(3, 32), *(block(32, 32) for _ in range(6)), nn.Conv2d(32, 2, 1))

    def training_step(self, batch, _):
        images, masks = batch
        return F.cross_entropy(self.net(images), masks)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


data = TensorDataset(torch.rand(96, 3, 160, 160), torch.randint(0, 2, (96, 160, 160)))
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Segmenter(), DataLoader(data, batch_size=48))
