"""A network of transformers, as its documentation timed it: forward and backward, or only forward.

python hub_network.py bert train|infer eager|sdpa BATCH LENGTH
python hub_network.py vit|resnet infer plain|compiled BATCH 224

BERT is in half precision throughout and has no optimizer; the image networks are in single precision.
"""

from __future__ import annotations

import sys

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)


def bert(mode: str, attention: str, batch: int, length: int) -> None:
    model = BertForMaskedLM._from_config(
        BertConfig(), attn_implementation=attention, dtype=torch.float16
    ).cuda()
    ids = torch.zeros(batch, length, dtype=torch.long, device="cuda")
    mask = torch.ones_like(ids)
    if mode == "infer":
        model.eval()
        with torch.inference_mode():
            for _ in range(5):
                model(input_ids=ids, attention_mask=mask)
                torch.cuda.synchronize()
        return
    for _ in range(5):
        model.zero_grad()
        model(input_ids=ids, attention_mask=mask).logits.sum().backward()


def images(name: str, way: str, batch: int, size: int) -> None:
    if name == "vit":
        model = ViTForImageClassification(ViTConfig())
    else:
        model = ResNetForImageClassification(ResNetConfig())
    model = model.cuda().eval()
    forward = torch.compile(model) if way == "compiled" else model
    pixels = torch.randn(batch, 3, size, size, device="cuda")
    with torch.no_grad():
        for _ in range(5):
            forward(pixels)
            torch.cuda.synchronize()


def main() -> None:
    name, mode, way, batch, size = sys.argv[1:]
    if name == "bert":
        bert(mode, way, int(batch), int(size))
    else:
        images(name, way, int(batch), int(size))


if __name__ == "__main__":
    main()
