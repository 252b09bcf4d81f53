"""The peak of a network of transformers, as its documentation measured it: the most allocated in a warm step.

python hub_peak.py CLASS train|infer|generate eager,sdpa DTYPE BATCHxLENGTH[,BATCHxLENGTH…] [KEY=VALUE…]

The keys are of the network's configuration; what they leave out has the library's default. `train` is a
forward and a backward pass from the sum of the logits, without an optimizer; `infer` a forward pass;
`generate` makes 100 tokens. A video network takes BATCHx0. The metrics are `eager.BATCHxLENGTH` and so on.
"""

from __future__ import annotations

import gc
import json
import sys

import torch
import transformers
from measured import report

STEPS = 3


def network(name: str, attention: str, dtype: torch.dtype, settings: list[str]) -> torch.nn.Module:
    kind = getattr(transformers, name)
    pairs = dict(pair.split("=", 1) for pair in settings)
    config = kind.config_class(**{key: json.loads(value) for key, value in pairs.items()})
    with torch.device("cuda"):
        return kind._from_config(config, attn_implementation=attention, torch_dtype=dtype)


def inputs(model: torch.nn.Module, batch: int, length: int) -> dict[str, torch.Tensor]:
    if not length:
        config = model.config
        shape = (batch, config.num_frames, 3, config.image_size, config.image_size)
        return {"pixel_values": torch.randn(shape, dtype=model.dtype, device="cuda")}
    ids = torch.ones(batch, length, dtype=torch.long, device="cuda")
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def train(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> None:
    for number in range(1 + STEPS):
        if number == 1:
            start()
        model.zero_grad()
        # The outputs of a step live through the forward pass of the next, as in the original.
        outputs = model(**given)
        loss = outputs.logits.sum()
        loss.backward()


def infer(model: torch.nn.Module, given: dict[str, torch.Tensor], generate: bool) -> None:
    with torch.inference_mode():
        for number in range(2):
            if number == 1:
                start()
            if generate:
                model.generation_config.eos_token_id = None
                outputs = model.generate(
                    **given, max_new_tokens=100, min_new_tokens=100, do_sample=False, pad_token_id=1
                )
            else:
                outputs = model(**given)
        del outputs


def start() -> None:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()


def main() -> None:
    name, mode, attentions, dtype, sizes, *settings = sys.argv[1:]
    for attention in attentions.split(","):
        model = network(name, attention, getattr(torch, dtype), settings)
        model.train(mode == "train")
        for size in sizes.split(","):
            batch, length = map(int, size.split("x"))
            given = inputs(model, batch, length)
            if mode == "train":
                train(model, given)
            else:
                infer(model, given, mode == "generate")
            report(**{f"{attention}.{size}": torch.cuda.max_memory_allocated()})
        del model, given
        gc.collect()


if __name__ == "__main__":
    main()
