"""Lightning's Trainer, or its Fabric, with mixed precision, accumulation and clipping."""

import argparse

import lightning as L
import torch
from arithmetic import adam_moments, say, stored
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def network():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(8),
        nn.Flatten(),
        nn.Linear(8192, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, batch, index):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("validation", nn.functional.cross_entropy(self.network(images), labels))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


def batches(args, count):
    images = torch.randn(args.batch_size * count, 3, 64, 64)
    return DataLoader(TensorDataset(images, torch.randint(10, (len(images),))), batch_size=args.batch_size)


def with_trainer(args):
    model = Classifier()
    say(parameters=stored(model.parameters()), optimizer=adam_moments(model.parameters()))
    trainer = L.Trainer(
        accelerator="gpu",
        devices=args.devices,
        strategy=args.strategy,
        precision=args.precision,
        max_steps=args.steps,
        accumulate_grad_batches=args.accumulate,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, batches(args, args.steps * args.accumulate), batches(args, 2))


def with_fabric(args):
    fabric = L.Fabric(
        accelerator="gpu", devices=args.devices, strategy=args.strategy, precision=args.precision
    )
    fabric.launch()
    model = network()
    say(parameters=stored(model.parameters()), optimizer=adam_moments(model.parameters()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(batches(args, args.steps * args.accumulate))
    for index, (images, labels) in enumerate(loader):
        accumulating = (index + 1) % args.accumulate != 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            loss = nn.functional.cross_entropy(model(images), labels)
            fabric.backward(loss / args.accumulate)
        if not accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
        fabric.print(f"batch {index} loss {loss.item():.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=["trainer", "fabric"], default="trainer")
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    (with_trainer if args.loop == "trainer" else with_fabric)(args)


if __name__ == "__main__":
    main()
