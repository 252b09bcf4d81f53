"""Train one of the atlas's models for a few steps, with random weights and made-up data.

    python scripts/atlas/train.py --model resnet50 --batch 64 --precision bf16

The model is built from its configuration in models.toml; nothing is downloaded. The optimizer is AdamW.
`bf16` is autocast, with weights, gradients and optimizer state in fp32. The script does not know memfit.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import tomllib
import torch
from torch import Tensor, nn
from torch.nn import functional

MODELS = Path(__file__).with_name("models.toml")


def entries() -> dict[str, dict[str, Any]]:
    """Return the models of the list by name, in its order."""
    return {each["name"]: each for each in tomllib.loads(MODELS.read_text())["model"]}


def build(entry: dict[str, Any]) -> nn.Module:
    """Build a model from its configuration, with random weights."""
    options = entry.get("options", {})
    if entry["library"] == "torchvision":
        import torchvision

        if entry["task"] in ("detection", "segmentation"):
            options = {**options, "weights_backbone": None}
        return torchvision.models.get_model(entry["make"], weights=None, **options)
    if entry["library"] == "timm":
        import timm

        return timm.create_model(entry["make"], pretrained=False, **options)
    if entry["library"] == "diffusers":
        import diffusers

        return getattr(diffusers, entry["make"])(**options)
    import transformers

    config = getattr(transformers, entry["config"])(**options)
    return getattr(transformers, entry["make"])(config)


def image(model: nn.Module, entry: dict[str, Any], batch: int) -> Tensor:
    """Classify images into 1000 classes."""
    images = torch.randn(batch, 3, entry["size"], entry["size"], device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    return functional.cross_entropy(model(images), labels)


def video(model: nn.Module, entry: dict[str, Any], batch: int) -> Tensor:
    """Classify clips of 16 frames into 400 classes."""
    clips = torch.randn(batch, 3, 16, entry["size"], entry["size"], device="cuda")
    labels = torch.randint(0, 400, (batch,), device="cuda")
    return functional.cross_entropy(model(clips), labels)


def segmentation(model: nn.Module, entry: dict[str, Any], batch: int) -> Tensor:
    """Classify each pixel into 21 classes."""
    images = torch.randn(batch, 3, entry["size"], entry["size"], device="cuda")
    labels = torch.randint(0, 21, (batch, entry["size"], entry["size"]), device="cuda")
    return functional.cross_entropy(model(images)["out"], labels)


def detection(model: nn.Module, entry: dict[str, Any], batch: int) -> Tensor:
    """Find two objects in each image."""
    size = entry["size"]
    images = [torch.randn(3, size, size, device="cuda") for _ in range(batch)]
    boxes = torch.tensor([[0.1, 0.1, 0.5, 0.5], [0.3, 0.4, 0.9, 0.8]], device="cuda") * size
    labels = torch.tensor([1, 2], device="cuda")
    losses = model(images, [{"boxes": boxes, "labels": labels} for _ in images])
    return torch.stack(list(losses.values())).sum()


def text(model: nn.Module, entry: dict[str, Any], batch: int) -> Tensor:
    """Predict tokens: the next ones or masked ones, as the model does."""
    tokens = torch.randint(0, 1000, (batch, entry["length"]), device="cuda")
    return model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss


def speech(model: nn.Module, entry: dict[str, Any], batch: int) -> Tensor:
    """Write down 30 seconds of speech, given as a log-mel spectrogram."""
    features = torch.randn(batch, 80, 3000, device="cuda")
    labels = torch.randint(0, 1000, (batch, entry["length"]), device="cuda")
    return model(input_features=features, labels=labels).loss


def wave(model: nn.Module, entry: dict[str, Any], batch: int) -> Tensor:
    """Write down speech, given as a waveform, with the CTC loss."""
    samples = torch.randn(batch, entry["length"], device="cuda")
    labels = torch.randint(1, 32, (batch, 64), device="cuda")
    return model(input_values=samples, labels=labels).loss


def contrastive(model: nn.Module, entry: dict[str, Any], batch: int) -> Tensor:
    """Match images with their captions."""
    tokens = torch.randint(0, 1000, (batch, entry["length"]), device="cuda")
    images = torch.randn(batch, 3, entry["size"], entry["size"], device="cuda")
    return model(input_ids=tokens, pixel_values=images, return_loss=True).loss


def pixels(model: nn.Module, entry: dict[str, Any], batch: int) -> Tensor:
    """Classify each pixel into 150 classes."""
    images = torch.randn(batch, 3, entry["size"], entry["size"], device="cuda")
    labels = torch.randint(0, 150, (batch, entry["size"], entry["size"]), device="cuda")
    return model(pixel_values=images, labels=labels).loss


def denoising(model: nn.Module, entry: dict[str, Any], batch: int) -> Tensor:
    """Predict the noise in images or latents; `context` is the shape of a prompt's embedding."""
    noisy = torch.randn(batch, *entry["shape"], device="cuda")
    given: dict[str, Any] = {"timestep": torch.randint(0, 1000, (batch,), device="cuda")}
    if "context" in entry:
        given["encoder_hidden_states"] = torch.randn(batch, *entry["context"], device="cuda")
    if entry.get("labelled"):
        given["class_labels"] = torch.randint(0, 1000, (batch,), device="cuda")
    predicted = model(noisy, **given).sample[:, : entry["shape"][0]]
    return functional.mse_loss(predicted.float(), torch.randn_like(noisy))


TASKS = {
    each.__name__: each
    for each in (
        image,
        video,
        segmentation,
        detection,
        text,
        speech,
        wave,
        contrastive,
        pixels,
        denoising,
    )
}


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, choices=entries(), metavar="NAME")
    parser.add_argument("--batch", required=True, type=int)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args(words)


def main() -> None:
    given = arguments()
    entry = entries()[given.model]
    model = build(entry).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(given.steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=given.precision == "bf16"):
            loss = TASKS[entry["task"]](model, entry, given.batch)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
