"""Compute the same published peaks with other tools: measurements/accuracy-peers.json.

    python scripts/accuracy/peers.py

The cases are the course's language model in single precision, as published snapshots have it
(cases/peaks.toml). The interpreter needs torch, accelerate and torchinfo; tools that are not installed are
named and left out. Nothing needs a GPU:

- torch's MemTracker counts the tensors of three steps on fake tensors;
- accelerate's rule is its own function on the model: weights for inference, the step it states for Adam
  otherwise;
- torchinfo adds parameters and the outputs of each layer, for inference and training alike.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from typing import Any

import course_lm
import torch
from figures import HERE, MIB, ROOT, rows_of, sources

RESULTS = ROOT / "measurements" / "accuracy-peers.json"
BATCH, VOCABULARY = 4, 10000


def cases() -> list[dict[str, Any]]:
    """Return the published allocated peaks in single precision, with their settings."""
    found = []
    for source in sources():
        if not source["name"].startswith("Wedsonlin"):
            continue
        for case in source["run"]:
            words = case.get("arguments", "").split()
            if case["script"] != "course_lm.py" or "--autocast" in words:
                continue
            published = next(row["published"] for row in rows_of(case) if row["name"] == "allocated")
            found.append(
                {
                    "name": case["name"],
                    "published": published * MIB,
                    "size": words[words.index("--size") + 1],
                    "length": int(words[words.index("--length") + 1]),
                    "inference": "--inference" in words,
                }
            )
    return found


def step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, inference: bool
) -> None:
    if inference:
        with torch.no_grad():
            model(inputs)
        return
    course_lm.cross_entropy(model(inputs), inputs).backward()
    optimizer.step()
    optimizer.zero_grad()


def mem_tracker(case: dict[str, Any]) -> int:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        # Fake tensors have sizes only; on a host without a driver, those of the GPU cannot be indexed.
        device = "cpu"
        model = course_lm.build(case["size"], VOCABULARY, case["length"], device)
        optimizer = course_lm.WrittenOutAdamW(model.parameters())
        inputs = torch.randint(0, VOCABULARY, (BATCH, case["length"]), device=device)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, inputs)
        with tracker:
            for index in range(3):
                step(model, optimizer, inputs, case["inference"])
                if index == 0:
                    tracker.reset_mod_stats()
        peak = tracker.get_tracker_snapshot("peak")
    return int(max(sum(v for k, v in kinds.items() if k != "Total") for kinds in peak.values()))


def accelerate_rule(case: dict[str, Any]) -> int:
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    model = course_lm.build(case["size"], VOCABULARY, case["length"], "meta")
    total, _ = calculate_maximum_sizes(model)
    if case["inference"]:
        return int(total)
    return int(max(estimate_training_usage(total, "float32").values()))


def torchinfo_total(case: dict[str, Any]) -> int:
    import torchinfo

    model = course_lm.build(case["size"], VOCABULARY, case["length"], "meta")
    inputs = torch.zeros(BATCH, case["length"], dtype=torch.long, device="meta")
    found = torchinfo.summary(model, input_data=inputs, device="meta", verbose=0)
    return int(found.total_input + found.total_output_bytes + found.total_param_bytes)


PEERS: dict[str, tuple[str, Callable[[dict[str, Any]], int]]] = {
    "accelerate's estimate": ("accelerate", accelerate_rule),
    "torchinfo": ("torchinfo", torchinfo_total),
    "torch FakeTensorMode and MemTracker": ("torch", mem_tracker),
}


def main() -> None:
    found: dict[str, Any] = {"script": HERE.joinpath("peers.py").name, "peers": {}}
    for name, (package, measure) in PEERS.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(f"{package} is not installed: left out")
            continue
        results = {}
        for case in cases():
            results[case["name"]] = {"published": case["published"], "found": measure(case)}
            print(
                name,
                case["name"],
                f"{results[case['name']]['found'] / case['published'] - 1:+.1%}",
                flush=True,
            )
        found["peers"][name] = {"version": version, "cases": results}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
