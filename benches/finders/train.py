"""Trains a ResNet-50 with a given batch and one of the batch size finders; prints the result.

    memfit run --gpu t4 --steps 0 --show-output -- python train.py WAY [--batch 512] [--steps 4]

Finders: memfit (`memfit.Step`), accelerate (`find_executable_batch_size`), lightning
(`Tuner.scale_batch_size`, then `fit`), composer (`device_train_microbatch_size="auto"`). The time is
the virtual GPU's, from the start to the end of the first completed step.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Return synthetic images and labels."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._picture = torch.zeros(3, 224, 224)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._picture, index % 1000


class Watch:
    """Measures from the start to the end of the first completed step."""

    def __init__(self) -> None:
        self._began = torch.cuda.Event(enable_timing=True)
        self._began.record()
        self._wall = time.monotonic()
        self.first: dict[str, float] | None = None

    def kept(self, samples: int) -> None:
        """Note the end of a completed step."""
        if self.first is not None:
            return
        ended = torch.cuda.Event(enable_timing=True)
        ended.record()
        torch.cuda.synchronize()
        self.first = {
            "card_s": self._began.elapsed_time(ended) / 1000,
            "wall_s": time.monotonic() - self._wall,
            "ooms": torch.cuda.memory_stats()["num_ooms"],
            "batch": samples,
        }

    def forget(self) -> None:
        """Discard the first step, which was a trial."""
        self.first = None


def loader(batch: int, steps: int) -> DataLoader:
    return DataLoader(Pictures(batch * steps), batch_size=batch)


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def with_memfit(batch: int, steps: int, watch: Watch) -> None:
    import memfit

    model = torchvision.models.resnet50().cuda()
    step = memfit.Step(
        model, optimizer_of(model), lambda model, pair: functional.cross_entropy(model(pair[0]), pair[1])
    )
    for pair in loader(batch, steps):
        step(pair)
        watch.kept(batch)


def with_accelerate(batch: int, steps: int, watch: Watch) -> None:
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size

    accelerator = Accelerator()

    @find_executable_batch_size(starting_batch_size=batch)
    def train(size: int) -> None:
        watch.forget()
        accelerator.free_memory()
        model = torchvision.models.resnet50()
        model, optimizer, data = accelerator.prepare(model, optimizer_of(model), loader(size, steps))
        for images, labels in data:
            optimizer.zero_grad()
            accelerator.backward(functional.cross_entropy(model(images), labels))
            optimizer.step()
            watch.kept(size)

    train()


def with_lightning(batch: int, steps: int, watch: Watch) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torchvision.models.resnet50()
            self.batch_size = 2

        def training_step(self, pair: Any, _index: int) -> torch.Tensor:
            return functional.cross_entropy(self.net(pair[0]), pair[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self)

        def train_dataloader(self) -> DataLoader:
            return loader(self.batch_size, max(steps, batch * steps // self.batch_size))

        def on_train_batch_end(self, *_: Any) -> None:
            watch.kept(self.batch_size)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    module = Module()
    trainer = lightning.Trainer(accelerator="gpu", devices=1, max_steps=steps, **quiet)
    lightning.pytorch.tuner.Tuner(trainer).scale_batch_size(module, mode="binsearch")
    watch.forget()
    trainer.fit(module)


def with_composer(batch: int, steps: int, watch: Watch) -> None:
    from composer import Callback, Trainer
    from composer.models import ComposerModel

    class Model(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.net = torchvision.models.resnet50()

        def forward(self, pair: Any) -> torch.Tensor:
            return self.net(pair[0])

        def loss(self, outputs: torch.Tensor, pair: Any) -> torch.Tensor:
            return functional.cross_entropy(outputs, pair[1])

    class Ends(Callback):
        def batch_end(self, *_: Any) -> None:
            watch.kept(batch)

    model = Model()
    Trainer(
        model=model,
        train_dataloader=loader(batch, steps),
        optimizers=optimizer_of(model),
        max_duration=f"{steps}ba",
        device="gpu",
        precision="fp32",
        device_train_microbatch_size="auto",
        callbacks=[Ends()],
        progress_bar=False,
    ).fit()


WAYS: dict[str, Callable[[int, int, Watch], None]] = {
    "memfit": with_memfit,
    "accelerate": with_accelerate,
    "lightning": with_lightning,
    "composer": with_composer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    torch.cuda.init()
    watch = Watch()
    WAYS[options.way](options.batch, options.steps, watch)
    torch.cuda.synchronize()
    said = {"first": watch.first, "ooms": torch.cuda.memory_stats()["num_ooms"], "torch": torch.__version__}
    print(f"finder: {json.dumps(said)}")


if __name__ == "__main__":
    main()
