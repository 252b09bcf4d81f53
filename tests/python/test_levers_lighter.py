"""Levers that put lighter layers, another network or shorter samples in the place of what a script has."""

from __future__ import annotations

import copy

import pytest
import torch
from lever_models import adam
from memfit import _levers, shrink
from memfit._levers import CannotApply, Target
from torch import nn
from training import flat

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Network(nn.Module):
    """Convolutions with a large kernel, a stride, and dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, stride=2, padding=3)
        self.body = nn.Sequential(
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(32, 32, 5, dilation=2, padding=4),
        )
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


STEM, HEAD = 3 * 16 * 49 + 16, 32 * 5 + 5


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        # A filter for each channel, and a matrix with the bias that the layer had.
        ("depthwise", STEM + (16 * 9 + 16 * 32) + (32 * 25 + 32 * 32 + 32) + HEAD),
        ("grouped", STEM + (16 * 32 * 9 // 4) + (32 * 32 * 25 // 4 + 32) + HEAD),
        ("small-kernels", (3 * 16 * 9 + 16) + 16 * 32 * 9 + (32 * 32 * 9 + 32) + HEAD),
    ],
)
def test_lighter_convolutions_return_the_same_shapes(kind: str, parameters: int) -> None:
    model = Network()
    before, names, optimizer = flat(model), list(model.state_dict()), adam(model)
    shapes: dict[str, list[torch.Size]] = {}
    numbers = torch.get_rng_state()

    def watched() -> None:
        # The model's own modules, which stay, see what comes out of the layers.
        shapes.setdefault("stem", []).append(model.stem(IMAGES).shape)
        shapes.setdefault("body", []).append(model.body(model.stem(IMAGES)).shape)

    watched()
    applied = shrink.lighter_convolutions(model, kind, optimizer)  # type: ignore[arg-type]
    watched()
    assert all(one == two for one, two in shapes.values())
    assert torch.equal(numbers, torch.get_rng_state()), "the script's random numbers were used"
    assert sum(each.numel() for each in model.parameters()) == parameters
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert held == {id(each) for each in model.parameters()}
    applied.undo()
    assert torch.equal(flat(model), before)
    assert list(model.state_dict()) == names
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert held == {id(each) for each in model.parameters()}


def test_convolutions_that_cannot_be_lighter_are_refused() -> None:
    for value in ("depthwise", "grouped", "small-kernels"):
        with pytest.raises(CannotApply, match="no convolutions"):
            _levers.apply(Target(nn.Sequential(nn.Conv2d(3, 8, 3))), [("lighter-convolutions", value)])
    with pytest.raises(CannotApply, match="depthwise, grouped"):
        _levers.apply(Target(Network()), [("lighter-convolutions", "tiny")])


def test_another_network_answers_in_the_model_s_place() -> None:
    networks = pytest.importorskip("torchvision", reason="torchvision is not installed").models
    model = Network()
    before, names, optimizer = flat(model), list(model.state_dict()), adam(model)
    applied = shrink.drop_in_network(model, IMAGES, "mobilenet_v3_small", optimizer)
    assert applied.names == ["drop-in-network"]
    expected = networks.mobilenet_v3_small(num_classes=5)
    assert [each.shape for each in model.parameters()] == [each.shape for each in expected.parameters()]
    assert model(IMAGES).shape == (2, 5)
    model(IMAGES).sum().backward()
    optimizer.step()
    saved = {name.removeprefix("memfit_network."): each for name, each in model.state_dict().items()}
    expected.load_state_dict(saved)
    torch.testing.assert_close(expected.eval()(IMAGES), model.eval()(IMAGES))
    applied.undo()
    assert torch.equal(flat(model), before)
    assert list(model.state_dict()) == names


@pytest.mark.parametrize(
    ("name", "images", "text"),
    [
        ("nothing_at_all", IMAGES, "no classifier of the name"),
        # It would download weights of a backbone.
        ("fasterrcnn_resnet50_fpn", IMAGES, "no classifier of the name"),
        ("resnet18", IMAGES[:, :1], "images with 3 channels"),
    ],
)
def test_networks_that_do_not_fit_are_refused(name: str, images: torch.Tensor, text: str) -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    model = Network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CannotApply, match=text):
        shrink.drop_in_network(model, images, name)
    assert all(torch.equal(each, before[key]) for key, each in model.state_dict().items())


def test_published_accuracies_are_torchvision_s() -> None:
    """The table of techniques states them, and torchvision brings them."""
    networks = pytest.importorskip("torchvision", reason="torchvision is not installed").models
    from runs import ROOT

    text = (ROOT / "crates" / "memfit-shrink" / "src" / "technique.rs").read_text()

    def published(name: str, weights: str) -> str:
        meta = networks.get_model_weights(name)[weights].meta
        return f"{meta['_metrics']['ImageNet-1K']['acc@1']:.2f} %"

    reference = published("resnet50", "IMAGENET1K_V2")
    for name, weights in (
        ("mobilenet_v3_large", "IMAGENET1K_V2"),
        ("efficientnet_b0", "IMAGENET1K_V1"),
        ("regnet_y_800mf", "IMAGENET1K_V2"),
    ):
        (entry,) = [part for part in text.split("Technique {") if f'Given::Word("{name}")' in part]
        assert f"{published(name, weights)} top-1 on ImageNet for its {weights} weights" in entry
        assert f"(ResNet-50: {reference})" in entry


def test_sequences_and_their_masks_are_cut_and_labels_of_samples_stay() -> None:
    target = Target(nn.Identity())
    applied = _levers.apply(target, [("shorter-sequences", 4)])
    ids = torch.arange(20).reshape(2, 10)
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones(2, 10),
        "pairs": torch.ones(2, 1, 10, 10),
        "class": torch.tensor([1, 0]),
        "name": "text",
    }
    cut = target.arrive(batch)
    assert torch.equal(cut["input_ids"], ids[:, :4])
    assert cut["input_ids"].untyped_storage().nbytes() == 2 * 4 * 8
    assert cut["attention_mask"].shape == (2, 4)
    assert cut["pairs"].shape == (2, 1, 4, 4)
    assert cut["class"].shape == (2,)
    assert cut["name"] == "text"
    # Shorter ones stay, and images have no tokens.
    short, images = [ids[:, :3], ids[:, :3]], (IMAGES, torch.tensor([1, 2]))
    assert target.arrive(short) is short
    assert target.arrive(images) is images
    applied.undo()
    assert target.arrive(batch) is batch
    with pytest.raises(CannotApply, match="number of tokens"):
        _levers.apply(Target(nn.Identity()), [("shorter-sequences", 0)])
