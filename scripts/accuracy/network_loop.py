"""A network of a public repository or package in a plain loop, with the settings that its author states.

python network_loop.py --model EXPRESSION --inputs EXPRESSION [--loss EXPRESSION] [OPTION…] [--then …]

Expressions are of Python, and see torch, torchvision, the names of the modules that `--use` gives (a dotted
name, or a file of the repository), and `model` and `batch` once they are made. Each `--size` makes its own
`inputs`, in which it is called `size`. Without `--optimizer` there is no optimizer step; `--infer` runs the
network without gradients; `--on-device` makes its weights on the GPU, which spares the host their making.

Reported, in bytes: `loaded`, `allocated`, `reserved`, and `allocated_in_loop` of the loop's end, the latter
three with `.SIZE` where there are sizes. `--then` begins a further loop in the same process; metrics begin
with the loop's number, `1.` and so on, where there are several.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import sys
from typing import Any
from unittest.mock import MagicMock

import torch
import torchvision
from authors import imported
from measured import report

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--use", action="append", default=[])
    parser.add_argument("--without", action="append", default=[], help="a module that does nothing here")
    parser.add_argument("--before", default="None", help="evaluated first")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prepare", default="None", help="evaluated once the network is made")
    parser.add_argument("--inputs", help="without them, making the network is all")
    parser.add_argument("--size", action="append", default=[])
    parser.add_argument("--loss", default="model(*batch)")
    parser.add_argument("--optimizer", default="")
    parser.add_argument("--after", default="None", help="evaluated after each optimizer step")
    parser.add_argument("--autocast", choices=TYPES)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--late-zero", action="store_true", help="gradients are freed after the forward pass")
    parser.add_argument("--infer", action="store_true")
    parser.add_argument("--on-device", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args(words)


def train(args: argparse.Namespace, names: dict[str, Any], optimizer: Any, scaler: Any) -> None:
    """Run the steps, each with a batch of its own, as a loader gives it."""
    for _ in range(args.steps):
        for part in range(args.accumulate):
            names["batch"] = eval(args.inputs, names)
            if not args.late_zero and part == 0:
                names["model"].zero_grad()
            with precision(args):
                loss = eval(args.loss, names)
            if args.late_zero and part == 0:
                names["model"].zero_grad()
            # Some networks take the step themselves.
            if torch.is_tensor(loss):
                scaler.scale(loss).backward()
        if optimizer is not None:
            scaler.step(optimizer)
            scaler.update()
            eval(args.after, names)


def infer(args: argparse.Namespace, names: dict[str, Any]) -> None:
    names["model"].eval()
    names["batch"] = eval(args.inputs, names)
    with torch.inference_mode():
        for _ in range(args.steps):
            with precision(args):
                eval(args.loss, names)
            torch.cuda.synchronize()


def precision(args: argparse.Namespace) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cuda", TYPES[args.autocast]) if args.autocast else contextlib.nullcontext()


def loop(args: argparse.Namespace, prefix: str) -> None:
    sys.modules.update({name: MagicMock(name=name) for name in args.without})
    names: dict[str, Any] = {"torch": torch, "torchvision": torchvision, "F": torch.nn.functional}
    for name in args.use:
        module = imported(name) if name.endswith(".py") else importlib.import_module(name)
        names |= {key: value for key, value in vars(module).items() if not key.startswith("__")}
    eval(args.before, names)
    with torch.device("cuda") if args.on_device else contextlib.nullcontext():
        names["model"] = eval(args.model, names)
    eval(args.prepare, names)
    report(**{f"{prefix}loaded": torch.cuda.memory_allocated()})
    if args.inputs is None:
        return
    for size in args.size or [""]:
        torch.cuda.reset_peak_memory_stats()
        names["size"] = int(size or 0)
        if args.infer:
            infer(args, names)
        else:
            optimizer = eval(args.optimizer, names) if args.optimizer else None
            scaler = torch.amp.GradScaler("cuda", enabled=args.autocast == "fp16")
            train(args, names, optimizer, scaler)
        in_loop = torch.cuda.memory_allocated()
        optimizer = None
        end = f".{size}" if size else ""
        found = {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "allocated_in_loop": in_loop,
        }
        report(**{f"{prefix}{name}{end}": value for name, value in found.items()})
        torch.cuda.empty_cache()


def main() -> None:
    sys.path.insert(0, ".")
    loops: list[list[str]] = [[]]
    for word in sys.argv[1:]:
        if word == "--then":
            loops.append([])
        else:
            loops[-1].append(word)
    for number, words in enumerate(loops, 1):
        loop(arguments(words), f"{number}." if len(loops) > 1 else "")
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
