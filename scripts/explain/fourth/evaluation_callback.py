"""A small trainer with callbacks; one of them looks at the validation set after the epoch, with gradients.

cause: evaluation-with-gradients
line: trainer.model(|model(
"""

import torch
from torch import nn


class Callback:
    def on_epoch_end(self, trainer):
        pass


class Validate(Callback):
    def __init__(self, batches):
        self.batches = batches

    def on_epoch_end(self, trainer):
        outputs = []
        for batch in self.batches():
            outputs.append(trainer.model(batch))
        print("spread", torch.cat(outputs).std().item())


class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.callbacks = model.cuda(), callbacks
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def fit(self, epochs):
        for _ in range(epochs):
            for _ in range(4):
                x = torch.randn(256, 1024, device="cuda")
                loss = (self.model(x) - x).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            for callback in self.callbacks:
                callback.on_epoch_end(self)


def validation():
    for _ in range(20):
        yield torch.randn(4096, 1024, device="cuda")


def network():
    return nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(1024, 1024), nn.GELU())))


Trainer(network(), [Validate(validation)]).fit(2)
