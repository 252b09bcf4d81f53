"""Random changes of pictures: each as torchvision's functional transform does it with the same parameters,
and the same whatever threads, worker processes, batches and resumed runs there are.
"""

from __future__ import annotations

import dataclasses
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from memfit.data import Augment, CutMix, ImageBatches, ImageLoader, MixUp
from memfit.data._augment import Drawn
from pictures import folder, picture, tensor
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as theirs

STILL = Drawn(
    mirrored=False,
    angle=0.0,
    translate=(0.0, 0.0),
    zoom=1.0,
    shear=(0.0, 0.0),
    factors=(1.0, 1.0, 1.0, 0.0),
    order=(0, 1, 2, 3),
    grey=False,
    erased=None,
)
ALL = {
    "vertical_flip": 0.5,
    "rotate": 40.0,
    "translate": (0.2, 0.3),
    "zoom": (0.6, 1.6),
    "shear": 20.0,
    "fill": (0.1, 0.2, 0.3),
    "brightness": 0.5,
    "contrast": 0.5,
    "saturation": 0.5,
    "hue": 0.3,
    "grayscale": 0.2,
    "erase": 0.7,
}


def batch(count: int = 8, size: tuple[int, int] = (48, 64)) -> torch.Tensor:
    height, width = size
    return torch.stack([tensor(picture(width, height, seed)) for seed in range(count)])


def as_torchvision(image: torch.Tensor, one: Drawn, fill: Any, interpolation: str) -> torch.Tensor:
    """The same by torchvision's own functions, one picture and one step at a time."""
    if one.mirrored:
        image = theirs.vertical_flip(image)
    if one.turns:
        image = theirs.affine(
            image,
            angle=one.angle,
            translate=list(one.translate),
            scale=one.zoom,
            shear=list(one.shear),
            interpolation=v2.InterpolationMode(interpolation),
            fill=list(fill),
        )
    changes = (theirs.adjust_brightness, theirs.adjust_contrast, theirs.adjust_saturation, theirs.adjust_hue)
    for number in one.order:
        image = changes[number](image, one.factors[number])
    if one.grey:
        image = theirs.rgb_to_grayscale(image, num_output_channels=3)
    if one.erased is not None:
        top, left, height, width = one.erased
        image = theirs.erase(image, top, left, height, width, torch.zeros(3, 1, 1))
    return image


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_every_change_is_torchvisions(interpolation: str) -> None:
    augment = Augment(**ALL, interpolation=interpolation)
    images = batch(24)
    drawn = [augment.draw(3, 1, sample, (48, 64)) for sample in range(24)]
    ours = augment(images, drawn)
    assert all(any(getattr(one, name) for one in drawn) for name in ("mirrored", "grey", "erased", "turns"))
    for image, mine, one in zip(images, ours, drawn, strict=True):
        other = as_torchvision(image / 255, one, ALL["fill"], interpolation)
        apart = (mine - other).abs().amax(dim=0)
        # Rounding is another one where a pixel comes from between two, or lies where hues meet.
        assert float((apart > 1e-3).float().mean()) < (0.002 if interpolation == "bilinear" else 0.01)
        assert float(apart.median()) < 1e-5


@pytest.mark.parametrize(
    "change",
    [
        {"mirrored": True},
        {"angle": 30.0},
        {"translate": (5.0, -3.0)},
        {"zoom": 1.7},
        {"shear": (12.0, 0.0)},
        {"factors": (1.4, 1.0, 1.0, 0.0)},
        {"factors": (1.0, 0.5, 1.0, 0.0)},
        {"factors": (1.0, 1.0, 1.8, 0.0)},
        {"factors": (1.0, 1.0, 1.0, -0.2)},
        {"grey": True},
        {"erased": (4, 5, 20, 11)},
    ],
    ids=str,
)
def test_each_change_alone_is_torchvisions(change: dict[str, Any]) -> None:
    augment = Augment(**ALL)
    one = dataclasses.replace(STILL, **change)
    [image] = batch(1)
    [ours] = augment(image[None], [one])
    other = as_torchvision(image / 255, one, ALL["fill"], "bilinear")
    assert float((ours - other).abs().quantile(0.999)) < 1e-4
    assert not torch.allclose(ours, image / 255, atol=0.01), "the change is not a change"


def test_targets_follow_augmentation_as_in_torchvision() -> None:
    augment = Augment(**ALL)
    size = (48, 64)
    boxes = torch.tensor([[10.0, 8.0, 40.0, 30.0], [30.0, 20.0, 50.0, 44.0]])
    mask = torch.zeros(48, 64, dtype=torch.uint8)
    mask[12:32, 16:48] = 3
    for sample in range(20):
        one = augment.draw(0, 0, sample, size)
        target = {"boxes": boxes, "labels": [1, 2], "mask": mask, "points": boxes[:, :2], "area": [660, 480]}
        moved = augment.follow(target, one, size)
        known: Any = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)  # type: ignore[call-overload]
        points: Any = tv_tensors.KeyPoints(boxes[:, :2], canvas_size=size)  # type: ignore[call-overload]
        shape: Any = tv_tensors.Mask(mask)
        if one.mirrored:
            known, shape = theirs.vertical_flip(known), theirs.vertical_flip(shape)
            # Its flip of points counts whole pixels; everything else, its affine too, counts from the edge.
            points = tv_tensors.wrap(theirs.vertical_flip(points) + torch.tensor([0.0, 1.0]), like=points)
        options = {"translate": list(one.translate), "scale": one.zoom, "shear": list(one.shear)}
        known = theirs.affine(known, angle=one.angle, **options)
        shape = theirs.affine(shape, angle=one.angle, **options)
        kept = ((known[:, 2:] - known[:, :2]) > 0).all(dim=1)
        assert torch.allclose(moved["boxes"], known.as_subclass(torch.Tensor)[kept], atol=1e-3)
        assert moved["labels"] == [label for label, keep in zip([1, 2], kept, strict=True) if keep]
        different = (moved["mask"] != shape.as_subclass(torch.Tensor)).float().mean()
        assert float(different) < 0.004
        assert moved["area"].tolist() == pytest.approx([660 * one.zoom**2, 480 * one.zoom**2], rel=1e-5)
        # Torchvision keeps points inside; what is inside is the same.
        inside = ((moved["points"] >= 0) & (moved["points"] <= torch.tensor([63.0, 47.0]))).all(dim=1)
        points = theirs.affine(points, angle=one.angle, **options).as_subclass(torch.Tensor)
        assert torch.allclose(moved["points"][inside], points[inside], atol=1e-3)


def test_points_go_where_their_pixels_go() -> None:
    """Compare moved points with the image itself."""
    augment = Augment(**{**ALL, "erase": 0.0, "zoom": (0.8, 1.2)})
    size = (65, 65)
    for sample in range(10):
        one = dataclasses.replace(augment.draw(1, 0, sample, size), grey=False, factors=STILL.factors)
        image = torch.zeros(1, 3, *size)
        image[..., 30:35, 36:41] = 1.0
        point = augment.follow({"points": [[38.5, 32.5]]}, one, size)["points"][0]
        shown = Augment()(image, [one])[0, 0]
        rows, columns = torch.meshgrid(torch.arange(65) + 0.5, torch.arange(65) + 0.5, indexing="ij")
        middle = torch.stack([(columns * shown).sum(), (rows * shown).sum()]) / shown.sum()
        assert torch.allclose(point, middle, atol=0.3), (point, middle)


OPTIONS: dict[str, Any] = {"size": 32, "batch_size": 4, "memory": "64 MiB", "threads": 2, "shuffle": True}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("photographs"))


def test_augmentation_depends_only_on_seed_epoch_and_sample(photographs: Path) -> None:
    options = {**OPTIONS, "augment": Augment(**ALL), "crop": "random"}
    first = list(ImageLoader(photographs, **options))
    whole = torch.cat([images for images, _ in first])

    assert torch.equal(
        whole, torch.cat([images for images, _ in ImageLoader(photographs, **{**options, "threads": 1})])
    )
    by_six = torch.cat([images for images, _ in ImageLoader(photographs, **{**options, "batch_size": 6})])
    assert torch.equal(whole, by_six)
    # Worker processes, each with a loader of its own.
    batches = ImageBatches(ImageLoader(photographs, **options))
    workers = DataLoader(batches, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert torch.equal(whole, torch.cat([images for images, _ in workers]))
    # Stopped after two batches, and gone on with elsewhere.
    stopped = ImageLoader(photographs, **options)
    passing = iter(stopped)
    next(passing), next(passing)
    resumed = pickle.loads(pickle.dumps(stopped))
    assert torch.equal(whole[8:], torch.cat([images for images, _ in resumed]))

    other = ImageLoader(photographs, **options)
    other.set_epoch(1)
    assert not torch.equal(whole, torch.cat([images for images, _ in other]))


def test_masks_of_a_loader_stay_on_their_pictures(tmp_path: Path) -> None:
    from PIL import Image

    mask = torch.zeros(80, 120, dtype=torch.uint8)
    mask[20:60, 30:90] = 1
    path = tmp_path / "drawn.png"
    Image.fromarray((mask * 255).numpy(), "L").convert("RGB").save(path)
    turning = Augment(vertical_flip=0.5, rotate=45, translate=(0.2, 0.2), zoom=(0.7, 1.3), shear=10)
    loader = ImageLoader(
        [str(path)] * 12, [mask] * 12, size=64, batch_size=4, memory="64 MiB", crop="random", scale=(0.5, 1.0),
        flip=0.5, filter="nearest", margin=None, follow=True, augment=turning,
    )  # fmt: skip
    for images, masks in loader:
        assert masks.shape == (4, 64, 64)
        apart = ((images[:, 0] > 0.5) != (masks == 1)).float().mean(dim=(1, 2))
        assert float(apart.max()) < 0.05, "beyond the edges, a pixel wide"


def test_batches_are_mixed_as_torchvision_mixes_them() -> None:
    images, labels = batch(6) / 255, torch.tensor([0, 1, 2, 3, 4, 0])
    mixed, shares = MixUp(5, alpha=0.4)(images, labels, random.Random(7))
    own = random.Random(7).betavariate(0.4, 0.4)
    mixing = v2.MixUp(num_classes=5)
    wanted = {"labels": labels, "lam": own, "batch_size": 6}
    assert torch.allclose(mixed, mixing.transform(images, wanted), atol=1e-6)
    assert torch.allclose(shares, mixing.transform(labels, wanted), atol=1e-6)

    for seed in range(20):
        mixed, shares = CutMix(5)(images, labels, random.Random(seed))
        cut = (mixed != images).any(dim=1)
        own = 1 - shares[1, 0]
        assert torch.allclose(mixed, torch.where(cut[:, None], images.roll(1, 0), images))
        assert torch.allclose(shares.sum(dim=1), torch.ones(6))
        # The label is shared as the pixels are; a few happen to be alike.
        assert abs(float(cut[1].float().mean()) - (1 - float(own))) < 0.02


def test_a_loader_mixes_the_same_again(photographs: Path) -> None:
    def run() -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(ImageLoader(photographs, **OPTIONS, augment=Augment(mix=[MixUp(3), CutMix(3)])))

    for (images, shares), (again, shares_again) in zip(run(), run(), strict=True):
        assert images.shape == (4, 3, 32, 32)
        assert shares.shape == (4, 3)
        assert torch.equal(images, again)
        assert torch.equal(shares, shares_again)


def test_normalised_last_and_other_types() -> None:
    images = batch(2)
    mean, deviation = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    ours = Augment(normalize=(mean, deviation))(images, [STILL] * 2)
    assert torch.allclose(ours, theirs.normalize(images / 255, list(mean), list(deviation)), atol=1e-5)
    deep = (images.to(torch.int32) * 257).to(torch.uint16)
    assert torch.allclose(Augment()(deep, [STILL] * 2), images / 255, atol=1e-6)
    one = Augment(brightness=0.5, hue=0.2)
    grey = one(images[:, :1], [one.draw(0, 0, at, (48, 64)) for at in range(2)])
    assert grey.shape == (2, 1, 48, 64)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"vertical_flip": 1.5}, "vertical_flip"),
        ({"zoom": (0.0, 1.0)}, "zoom"),
        ({"shear": 95}, "shear"),
        ({"hue": 0.6}, "hue"),
        ({"brightness": (2.0, 1.0)}, "brightness"),
        ({"interpolation": "cubic"}, "interpolation"),
        ({"erase_scale": (0.1, 2.0)}, "erase_scale"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_told_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Augment(**settings)


def test_a_mapping_that_would_be_wrong_is_refused(photographs: Path) -> None:
    with pytest.raises(ValueError, match="follow=True"):
        ImageLoader(photographs, **OPTIONS, with_mapping=True, augment=Augment(rotate=10))
    ImageLoader(photographs, **OPTIONS, with_mapping=True, augment=Augment(brightness=0.1))
