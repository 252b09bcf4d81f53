"""A Lightning module that logs how its scores change without some tokens, and keeps that measure with its
graph to the epoch's end.

cause: retained-graph
line: self.changes.append(change)|self.body(self.embed(without))
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Tagger(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(2000, 512)
        layer = nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(512, 16)
        self.changes = []

    def training_step(self, batch, _):
        tokens, tags = batch
        scores = self.head(self.body(self.embed(tokens)))
        without = tokens.masked_fill(torch.rand_like(tokens, dtype=torch.float) < 0.1, 0)
        change = F.mse_loss(self.head(self.body(self.embed(without))), scores.detach())
        self.changes.append(change)
        return F.cross_entropy(scores.flatten(0, 1), tags.flatten())

    def on_train_epoch_end(self) -> None:
        self.log("change", torch.stack(self.changes).mean())
        self.changes.clear()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = TensorDataset(torch.randint(0, 2000, (960, 128)), torch.randint(0, 16, (960, 128)))
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Tagger(), DataLoader(data, batch_size=16))
