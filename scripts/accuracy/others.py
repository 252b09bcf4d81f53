"""Figures of the pages that have scripts of their own, read from the results that those scripts wrote."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import ablation_table
import datacenter_speed
import throughput
import tomllib
from figures import HERE, ROOT, Figure, same_release

sys.path.insert(0, str(HERE.parent / "cards"))

MEASUREMENTS = ROOT / "measurements"
TIMM = "huggingface/pytorch-image-models"
# The release of torch that each source states.
NVIDIA = {
    "resnet50": "container 21.03",
    "resnext101-32x4d": "a container of 2020",
    "bert-large": "container 19.07",
}
DATACENTER = {
    "video": ("karpathy/build-nanogpt", "2.3", "a nightly of June 2024"),
    "blog": ("pytorch.org/blog", "2.0", "2.0"),
    "nanogpt": ("karpathy/nanoGPT", "", "a nightly before 2.0"),
    "bert": ("huggingface/transformers", "2.2", "2.2.0"),
    "compile": ("huggingface/transformers", "2.0", "2.0"),
    "gpt-fast": ("pytorch-labs/gpt-fast", "", "not stated, November 2023"),
    "torchao": ("pytorch/ao", "", "not stated, 2024"),
}
# Step times that the result files keep without the release that ran.
CONSUMER_TORCH = ""


def stored(name: str) -> Any:
    return json.loads((MEASUREMENTS / name).read_text())


def step(
    source: str, repository: str, case: str, published: float, found: list[float | None], **about: Any
) -> Figure:
    """Return a step time in milliseconds; `found` is its low end, its estimate and its high end."""
    low, estimate, high = found
    return Figure(
        source=source,
        repository=repository,
        case=case,
        name="step time",
        kind="time",
        published=published,
        found=estimate,
        low=low,
        high=high,
        code="rebuilt",
        problem="" if estimate is not None else "no estimate",
        **about,
    )


def of_throughput() -> Iterator[Figure]:
    results = stored("throughput.json")
    for row in throughput.ROWS:
        if row.name not in results:
            continue
        result, stated = results[row.name], NVIDIA[row.network]
        yield step(
            f"NVIDIA/DeepLearningExamples, README.md of {row.network}",
            "NVIDIA/DeepLearningExamples",
            row.name,
            1000 * row.batch / row.published,
            result["step_ms"],
            rounding=0.0,
            torch_stated=stated,
            torch_used=result["torch"],
            card_stated=row.gpu,
            card_used=row.gpu,
            same_release=False,
        )


def of_consumer() -> Iterator[Figure]:
    for key, row in stored("consumer-speed.json").items():
        found = row["runs"].get("after")
        if found is None:
            continue
        yield step(
            f"{TIMM}@aa4b5850, results: {row['gpu']}, {row['mode']}",
            TIMM,
            key,
            row["published"],
            [found["low"], found["estimate"], found["high"]],
            rounding=0.0,
            torch_stated=row["torch"],
            torch_used=CONSUMER_TORCH,
            card_stated=row["gpu"],
            card_used=row["gpu"],
            same_release=False,
        )


def of_datacenter() -> Iterator[Figure]:
    results = stored("datacenter-speed.json")
    for row in datacenter_speed.ROWS:
        found = results.get(row.name, {}).get("after")
        if found is None:
            continue
        repository, release, stated = DATACENTER[row.source]
        yield step(
            datacenter_speed.SOURCES[row.source].partition(":")[0],
            repository,
            row.name,
            row.published,
            [found["low"], found["estimate"], found["high"]],
            rounding=0.0,
            torch_stated=stated,
            torch_used=found["torch"],
            card_stated="A100",
            card_used=row.gpu,
            same_release=same_release(release, found["torch"]),
        )


def of_ablation() -> Iterator[Figure]:
    results = stored("ablation.json")
    for level, (gib, rate) in enumerate(ablation_table.PUBLISHED):
        result = results[str(level)]
        about: dict[str, Any] = {
            "torch_stated": "November 2024",
            "torch_used": result["torch"],
            "card_stated": "A100",
            "card_used": "a100-80gb",
            "same_release": False,
        }
        source, name = "pytorch/torchtune, README.md", ablation_table.LEVELS[level]
        yield step(
            source,
            "pytorch/torchtune",
            name,
            1000 * ablation_table.TOKENS / rate,
            result["step_ms"],
            rounding=0.0,
            **about,
        )
        yield Figure(
            source=source,
            repository="pytorch/torchtune",
            case=name,
            name="peak of active memory",
            kind="allocated",
            published=gib * 2**30,
            rounding=0.05 * 2**30,
            found=result["allocated"],
            low=None,
            high=None,
            code="rebuilt",
            **about,
        )


def of_cards() -> Iterator[Figure]:
    """Return the published labels; conclusions from a peak about other GPUs are not published figures."""
    results = stored("cards-published.json")
    labels = tomllib.loads((HERE.parent / "cards" / "published.toml").read_text())["label"]
    for case in labels:
        name = f"{case['model']}, batches {case['fits']} and {case['fails']}"
        for row in results.get(name, []):
            known = row["memfit"] in ("fits-as-is", "does-not-fit")
            yield Figure(
                source=f"{TIMM}, results: rtx-3090, largest batch",
                repository=TIMM,
                case=case["model"],
                name=f"batch {row['batch']}",
                kind="fits",
                published=float(row["published"] == "fits-as-is"),
                rounding=0.0,
                found=float(row["memfit"] == "fits-as-is") if known else None,
                low=None,
                high=None,
                code="rebuilt",
                torch_stated="1.12",
                torch_used="",
                card_stated="RTX 3090",
                card_used=row["gpu"],
                same_release=False,
                problem="" if known else row["memfit"],
            )


def figures() -> list[Figure]:
    return [*of_throughput(), *of_consumer(), *of_datacenter(), *of_ablation(), *of_cards()]
