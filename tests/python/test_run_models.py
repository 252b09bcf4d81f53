"""Unmodified training scripts of many kinds run on a virtual card, and their reports hold together."""

from __future__ import annotations

import pytest
from runs import MIB, WORKLOADS, completed, parameter_bytes
from tiers import first

STEPS = 3

RESNET = "resnet.py --arch resnet18 --batch-size 16 --image-size 128 --classes 100"
SCRIPTS = {
    "resnet fp32": RESNET,
    "resnet bf16": f"{RESNET} --precision bf16",
    "resnet fp16 with a scaler": f"{RESNET} --precision fp16",
    "resnet channels_last": f"{RESNET} --channels-last",
    "resnet with cudnn.benchmark": f"{RESNET} --benchmark",
    "bert sdpa": "bert.py --layers 4 --sequence 256 --batch-size 8 --padding",
    "bert eager": "bert.py --layers 4 --sequence 256 --batch-size 8 --padding --attention eager",
    "gpt-2 sdpa": "gpt2.py --layers 4 --sequence 512 --batch-size 4",
    "gpt-2 eager": "gpt2.py --layers 4 --sequence 512 --batch-size 4 --attention eager",
    "t5": "t5.py --layers 2 --source 256 --target 64",
    "u-net": "unet.py --image-size 1024 --width 16",
    "3-d u-net": "unet3d.py --volume-size 64",
    "trainer": "trainer.py --layers 2 --sequence 128",
    "lstm": "lstm.py --width 256",
    "packed gru": "lstm.py --width 256 --cell gru --packed",
    "vit foreach": "vit.py --layers 4 --batch-size 16 --optimizer foreach",
    "vit fused": "vit.py --layers 4 --batch-size 16 --optimizer fused",
    "vit loop": "vit.py --layers 4 --batch-size 16 --optimizer loop",
    "gan": "gan.py --width 32 --critic-steps 2",
    "python -m package": "-m tagger --layers 2",
    "late import": "late_import.py",
}


@pytest.mark.parametrize(
    "name",
    first(
        SCRIPTS,
        besides=[
            "resnet with cudnn.benchmark",
            "bert eager",
            "resnet bf16",
            "resnet channels_last",
            "t5",
            "vit fused",
            "gpt-2 eager",
            "packed gru",
            "vit foreach",
            "vit loop",
        ],
    ),
)
def test_runs_unmodified(name):
    report = completed(SCRIPTS[name]).report
    assert report["steps"] == STEPS
    assert report["coverage"]["steps"] == STEPS
    assert report["device"]["kind"] == "virtual"
    assert report["oom"] is None
    assert report["at_peak"]["by_category"]["parameters"] > 0
    assert report["fidelity"]["unmodelled"] == []


def test_a_steady_loop_does_not_grow():
    assert completed(RESNET).report["coverage"]["growth_per_step"] == 0


def test_detection_says_that_its_sizes_are_bounds():
    answer = completed("detection.py")
    answered = {value["call"] for value in answer.report["fidelity"]["values"]}
    assert any("`nonzero`" in call and "upper bound" in call for call in answered)
    assert answer.categories["activations"] > 0


def test_a_script_without_an_optimizer_runs_to_its_end():
    report = completed("inference.py --arch resnet18 --batch-size 32 --batches 5").report
    assert report["steps"] == 5
    assert report["at_peak"]["by_category"]["gradients"] == 0
    assert report["at_peak"]["by_category"]["optimizer"] == 0


def test_parameters_are_the_models_own_bytes():
    from torchvision.models import resnet18

    model = resnet18(num_classes=100)
    categories = completed(RESNET).categories
    assert categories["parameters"] == parameter_bytes(model)
    assert categories["optimizer"] == parameter_bytes(model), "momentum has the shape of the parameters"
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    assert categories["buffers"] == buffers


def test_inputs_are_counted_as_such():
    images, labels = 16 * 3 * 128 * 128 * 4, 16 * 8
    assert completed(RESNET).categories["inputs"] == pytest.approx(images + labels, abs=4096)


def test_modules_are_named_as_in_the_model():
    modules = {module["name"]: module["bytes"] for module in completed(RESNET).report["at_peak"]["modules"]}
    first = 16 * 64 * 64 * 64 * 4
    assert modules["conv1"] >= first, "the first convolution keeps at least its output for the backward pass"
    assert any(name.startswith("layer1.0.") for name in modules)


def test_the_u_net_keeps_what_its_widest_layers_make():
    categories = completed(SCRIPTS["u-net"]).categories
    plane = 1024 * 1024 * 16 * 4
    assert categories["activations"] > 8 * plane
    assert categories["activations"] > 0.5 * sum(categories.values())


def test_the_example_runs():
    small = "--arch resnet18 --image-size 64 --batch-size 64 --workers 2"
    report = completed(f"{WORKLOADS.parent}/examples/classifier/train.py {small}").report
    assert report["steps"] == STEPS
    assert report["peak"]["allocated"] > 100 * MIB
    assert report["host"]["rss"] > 100 * MIB
    assert report["host"]["pinned"] > 0, "its loader pins memory"
