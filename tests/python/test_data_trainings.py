"""Trainings moved from torch's `DataLoader` to `memfit.data`: classification, regression, detection and
segmentation, with equal targets and equal losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from memfit.data import ImageLoader
from pictures import picture, tensor
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

WIDTH, HEIGHT, COUNT, BATCH = 64, 48, 12, 4
# The part that is cut out, as memfit and as torchvision have it.
PART = (8, 4, 40, 32)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Create images in folders of three classes, losslessly, so that pixels are equal for every decoder."""
    root = tmp_path_factory.mktemp("photographs")
    names = []
    for number in range(COUNT):
        place = root / f"class{number % 3}"
        place.mkdir(exist_ok=True)
        path = place / f"{number:02}.png"
        picture(WIDTH, HEIGHT, number).save(path)
        names.append(str(path))
    return names


class Pictures(Dataset[Any]):
    """As people write it: a file, a target, and what is done to both."""

    def __init__(
        self, names: list[str], targets: list[Any], transform: Callable[..., Any] | None = None
    ) -> None:
        self.names, self.targets, self.transform = names, targets, transform

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        image = tv_tensors.Image(tensor(Image.open(self.names[index]).convert("RGB")))
        target = self.targets[index]
        return self.transform(image, target) if self.transform else (image, target)


def losses(
    batches: Iterable[Any], outputs: int, loss: Callable[[torch.Tensor, Any], torch.Tensor]
) -> list[float]:
    """A few epochs of a small model; the same one each time."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, outputs, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for _ in range(2):
        for images, targets in batches:
            optimizer.zero_grad()
            value = loss(model(images.as_subclass(torch.Tensor) / 255), targets)
            value.backward()
            optimizer.step()
            found.append(value.item())
    assert len(set(found)) > 3, "it trains"
    return found


def pooled(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.mean(dim=(2, 3))


def ours(source: Any, labels: Any = None, **options: Any) -> ImageLoader:
    options = {"size": (HEIGHT, WIDTH), "crop": None, **options}
    return ImageLoader(source, labels, batch_size=BATCH, memory="64 MiB", **options)


def test_classification(photographs: list[str]) -> None:
    root = Path(photographs[0]).parents[1]
    theirs = DataLoader(ImageFolder(str(root), v2.PILToTensor()), batch_size=BATCH)
    mine = ours(root)
    for (images, labels), (same, classes) in zip(mine, theirs, strict=True):
        assert torch.equal(images, same)
        assert torch.equal(labels, classes)
        assert labels.dtype == classes.dtype

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(pooled(outputs), labels)

    assert losses(mine, 3, loss) == losses(theirs, 3, loss)


@pytest.mark.parametrize("several", [False, True])
def test_regression(photographs: list[str], several: bool) -> None:
    targets: list[Any] = [[number / 7, -number / 3] if several else number / 7 for number in range(COUNT)]
    theirs = DataLoader(
        Pictures(photographs, [torch.tensor(target, dtype=torch.float64) for target in targets]), BATCH
    )
    mine = ours(photographs, targets)
    for (images, values), (same, wanted) in zip(mine, theirs, strict=True):
        assert torch.equal(images, same.as_subclass(torch.Tensor))
        assert torch.equal(values, wanted)

    def loss(outputs: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        found = pooled(outputs) if several else pooled(outputs)[:, 0]
        return torch.nn.functional.mse_loss(found, values.float())

    outputs = 2 if several else 1
    assert losses(mine, outputs, loss) == losses(theirs, outputs, loss)


def boxes_of(number: int) -> dict[str, Any]:
    # The second box lies outside of the part that is cut out, the third across its edge.
    boxes = [[12.0 + number, 8.0, 30.0 + number, 30.0], [0.0, 0.0, 7.0, 47.0], [40.0, 20.0, 60.0, 46.0]]
    return {"boxes": torch.tensor(boxes), "labels": torch.tensor([1, 2, number % 3])}


def test_detection(photographs: list[str]) -> None:
    left, top, width, height = PART

    def cut(image: torch.Tensor, target: dict[str, Any]) -> Any:
        boxes = tv_tensors.BoundingBoxes(target["boxes"], format="XYXY", canvas_size=(HEIGHT, WIDTH))  # type: ignore[call-overload]
        image, boxes = (v2.functional.crop(each, top, left, height, width) for each in (image, boxes))
        kept = v2.SanitizeBoundingBoxes()({"boxes": boxes, "labels": target["labels"]})
        return image, {"boxes": kept["boxes"].as_subclass(torch.Tensor), "labels": kept["labels"]}

    targets = [boxes_of(number) for number in range(COUNT)]
    theirs = DataLoader(
        Pictures(photographs, targets, cut),
        BATCH,
        collate_fn=lambda items: (
            torch.stack([image for image, _ in items]),
            [target for _, target in items],
        ),
    )
    mine = ours(photographs, targets, crop=PART, size=(height, width), follow=True)
    for (images, found), (same, wanted) in zip(mine, theirs, strict=True):
        assert torch.equal(images, same.as_subclass(torch.Tensor))
        for one, other in zip(found, wanted, strict=True):
            assert torch.allclose(one["boxes"], other["boxes"])
            assert torch.equal(one["labels"], other["labels"])
            assert len(one["labels"]) == 2

    def loss(outputs: torch.Tensor, targets: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        found = pooled(outputs)
        parts = [
            ((found[at, :4] * 10 - target["boxes"]) ** 2).mean()
            + torch.nn.functional.cross_entropy(
                found[at, 4:].expand(len(target["labels"]), -1), target["labels"]
            )
            for at, target in enumerate(targets)
        ]
        return torch.stack(parts).mean() / 100

    assert losses(mine, 7, loss) == pytest.approx(losses(theirs, 7, loss), rel=1e-6)


def test_segmentation(photographs: list[str], tmp_path: Path) -> None:
    left, top, width, height = PART
    names = []
    for number in range(COUNT):
        mask = (torch.arange(HEIGHT)[:, None] // 9 + torch.arange(WIDTH) // (7 + number)) % 3
        path = tmp_path / f"{number:02}.png"
        Image.fromarray(mask.to(torch.uint8).numpy(), "L").save(path)
        names.append(str(path))

    def cut(image: torch.Tensor, name: str) -> Any:
        mask = tv_tensors.Mask(tensor(Image.open(name))[0].long())
        image, mask = (v2.functional.crop(each, top, left, height, width) for each in (image, mask))
        return image, mask.as_subclass(torch.Tensor)

    theirs = DataLoader(Pictures(photographs, names, cut), BATCH)
    # The masks' files are the targets.
    mine = ours(photographs, names, crop=PART, size=(height, width), follow=True)
    for (images, masks), (same, wanted) in zip(mine, theirs, strict=True):
        assert torch.equal(images, same.as_subclass(torch.Tensor))
        assert torch.equal(masks, wanted)

    def loss(outputs: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        found = torch.nn.functional.interpolate(outputs, scale_factor=2)
        return torch.nn.functional.cross_entropy(found, masks)

    assert losses(mine, 3, loss) == losses(theirs, 3, loss)
