"""Memory-saving measures have the effect that they have on a real GPU, in sign and in size."""

from __future__ import annotations

import pytest
from runs import MIB, completed, parameter_bytes
from tiers import exhaustive

RESNET = "resnet.py --arch resnet50 --batch-size 32 --image-size 160"
VIT = "vit.py --layers 6 --batch-size 1 --image-size 64"


def activations(command: str) -> int:
    return completed(command).categories["activations"]


def test_half_precision_halves_what_autocast_keeps():
    full, bf16 = activations(RESNET), activations(f"{RESNET} --precision bf16")
    assert 0.45 < bf16 / full < 0.62, "batch norm's statistics and the loss stay in fp32"
    assert activations(f"{RESNET} --precision fp16") == pytest.approx(bf16, rel=0.01)


def test_channels_last_changes_only_workspaces():
    plain, last = completed(RESNET), completed(f"{RESNET} --channels-last")
    assert last.categories["activations"] == pytest.approx(plain.categories["activations"], rel=0.01)


def test_activations_grow_with_the_batch():
    once, twice = activations(RESNET), activations(RESNET.replace("32", "64", 1))
    assert twice / once == pytest.approx(2, rel=0.02)


def test_adam_keeps_two_tensors_for_each_parameter():
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=64, patch_size=16, num_layers=6, num_heads=12, hidden_dim=768, mlp_dim=3072
    )
    categories = completed(f"{VIT} --keep-gradients").categories
    weights = parameter_bytes(model)
    assert categories["parameters"] == weights
    assert categories["gradients"] == pytest.approx(weights, rel=0.001)
    assert categories["optimizer"] == pytest.approx(2 * weights, rel=0.001)


@exhaustive
def test_foreach_needs_temporaries_that_fused_does_not():
    foreach = completed(f"{VIT} --keep-gradients --optimizer foreach")
    fused = completed(f"{VIT} --keep-gradients --optimizer fused")
    loop = completed(f"{VIT} --keep-gradients --optimizer loop")
    weights = foreach.categories["parameters"]
    more = foreach.peak["allocated"] - fused.peak["allocated"]
    assert 0.5 * weights < more <= 1.2 * weights, (
        "one list of square roots, less what the backward pass needs"
    )
    assert fused.peak["allocated"] == pytest.approx(loop.peak["allocated"], rel=0.01)
    assert foreach.categories["temporary"] >= weights
    assert foreach.report["at_peak"]["phase"] == "optimizer"


@exhaustive
def test_eager_attention_keeps_its_scores():
    sizes = "--layers 4 --sequence 512 --batch-size 4"
    eager, sdpa = activations(f"gpt2.py {sizes} --attention eager"), activations(f"gpt2.py {sizes}")
    scores = 4 * 4 * 12 * 512 * 512 * 4
    assert eager - sdpa > 1.9 * scores, "the softmax and the dropout of each layer, each of the scores' size"
    assert eager - sdpa < 4 * scores


def test_checkpointing_trades_activations_for_time():
    sizes = "checkpointed.py --layers 8 --sequence 512 --batch-size 8"
    plain, checkpointed = completed(sizes), completed(f"{sizes} --checkpoint")
    assert checkpointed.categories["activations"] < 0.4 * plain.categories["activations"]
    assert checkpointed.peak["allocated"] < 0.7 * plain.peak["allocated"]
    times = [answer.report["time"]["step_ms_estimate"] for answer in (plain, checkpointed)]
    if None not in times:
        assert 1.1 < times[1] / times[0] < 1.6, (
            "about a third more: one forward pass besides a forward and a backward"
        )


def test_checkpointing_of_transformers_trades_activations_for_time():
    sizes = "gpt2.py --layers 4 --sequence 512 --batch-size 4"
    assert activations(f"{sizes} --gradient-checkpointing") < 0.75 * activations(sizes)


@exhaustive
def test_accumulation_costs_what_one_micro_batch_costs():
    sizes = "accumulate.py --batch-size 32"
    alone, two, eight = (completed(f"{sizes} --accumulate {n}") for n in (1, 2, 8))
    assert eight.peak["allocated"] == two.peak["allocated"]
    weights = alone.categories["parameters"]
    held = two.peak["allocated"] - alone.peak["allocated"]
    assert 0 < held <= 1.05 * weights, "the gradients of the micro-batch before stay"
    whole = completed("accumulate.py --batch-size 256 --accumulate 1")
    assert eight.peak["allocated"] < 0.35 * whole.peak["allocated"]
    assert eight.report["steps"] == 3, "optimizer steps are counted, not micro-batches"


def test_an_evaluation_without_no_grad_needs_more():
    sizes = "evaluate.py --train-images 64 --test-images 256 --eval-batch-size 256"
    seen = {flag: completed(f"{sizes} {flag}", options="--cover full") for flag in ("", "--no-grad")}
    for answer in seen.values():
        assert answer.report["coverage"]["evaluation"] is True
    assert seen[""].peak["allocated"] > 1.5 * seen["--no-grad"].peak["allocated"]


def test_without_full_cover_the_report_says_that_nothing_was_evaluated():
    coverage = completed("evaluate.py --train-images 512 --batch-size 32").report["coverage"]
    assert coverage["evaluation"] is False
    assert coverage["epoch_end"] is False


def test_inference_keeps_no_activations():
    sizes = "inference.py --arch resnet50 --batch-size 32 --image-size 160 --batches 3"
    full, half = completed(sizes), completed(f"{sizes} --half")
    assert full.categories["activations"] < 0.2 * activations(RESNET)
    weights = full.categories["parameters"]
    assert half.categories["parameters"] == pytest.approx(weights / 2, rel=0.01)
    assert half.peak["allocated"] < 0.6 * full.peak["allocated"] + 16 * MIB
