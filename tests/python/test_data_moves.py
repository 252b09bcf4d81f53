"""Sources and settings of users: targets that move with the image, remote sources, paths that are not valid
text, loaders in other processes, and settings out of range.
"""

from __future__ import annotations

import functools
import http.server
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from memfit.data import ImageBatches, ImageLoader, Tiles
from pictures import folder
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.transforms import v2

OPTIONS: dict[str, Any] = {"size": 32, "batch_size": 4, "memory": "64 MiB", "threads": 2}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("photographs"))


def files(photographs: Path, count: int = 6) -> list[str]:
    return [str(path) for path in sorted(photographs.rglob("*.jpg"))[:count]]


def drawn(folder: Path) -> tuple[str, torch.Tensor]:
    """A picture of 120x80 with one light rectangle, and the mask of it."""
    mask = torch.zeros(80, 120, dtype=torch.uint8)
    mask[20:60, 30:90] = 1
    picture = Image.fromarray((mask * 200).numpy(), "L").convert("RGB")
    path = folder / "drawn.png"
    picture.save(path)
    return str(path), mask


def test_targets_go_with_the_picture_as_in_torchvision(tmp_path: Path) -> None:
    path, mask = drawn(tmp_path)
    target = {
        "boxes": torch.tensor([[30.0, 20.0, 90.0, 60.0], [0.0, 0.0, 10.0, 8.0]]),
        "labels": torch.tensor([5, 7]),
        "names": ["light", "corner"],
        "keypoints": torch.tensor([[[60.0, 40.0, 2.0]], [[2.0, 2.0, 2.0]]]),
        "masks": torch.stack([mask, torch.zeros_like(mask)]),
        "image_id": 3,
    }
    loader = ImageLoader(
        [path], [target], size=(40, 40), crop=None, memory="64 MiB", follow=True, filter="nearest"
    )
    [(_, [moved])] = list(loader)
    theirs = v2.Resize((40, 40), interpolation=v2.InterpolationMode.NEAREST)(
        {"boxes": tv_tensors.BoundingBoxes(target["boxes"], format="XYXY", canvas_size=(80, 120))}  # type: ignore[call-overload]
    )
    assert torch.allclose(moved["boxes"], theirs["boxes"].as_subclass(torch.Tensor))
    assert moved["labels"].tolist() == [5, 7]
    assert torch.allclose(moved["keypoints"][:, 0], torch.tensor([[20.0, 20.0, 2.0], [2.0 / 3, 1.0, 2.0]]))
    assert moved["masks"].shape == (2, 40, 40)
    assert moved["image_id"] == 3
    # The remaining part of the mask is the contents of the box.
    left, top, right, bottom = (int(side) for side in moved["boxes"][0])
    assert moved["masks"][0, top:bottom, left:right].all()
    assert int(moved["masks"][0].sum()) == (right - left) * (bottom - top)


def test_boxes_outside_the_crop_are_dropped_with_their_rows(tmp_path: Path) -> None:
    path, _ = drawn(tmp_path)
    target = {
        "boxes": [[30, 20, 90, 60], [0, 0, 10, 8]],
        "labels": [5, 7],
        "keypoints": [[[60, 40, 2], [0, 0, 2]], [[2, 2, 2], [3, 3, 2]]],
        "area": [2400.0, 80.0],
    }
    loader = ImageLoader([path], [target], size=40, crop="center", memory="64 MiB", follow=True)
    [(_, [moved])] = list(loader)
    # 120x80 becomes 60x40, of which the middle 40 columns are left.
    assert moved["boxes"].tolist() == [[5.0, 10.0, 35.0, 30.0]]
    assert moved["labels"] == [5]
    assert moved["area"].tolist() == [600.0]
    assert moved["keypoints"].tolist() == [[[20.0, 20.0, 2.0], [-10.0, 0.0, 0.0]]]


@pytest.mark.parametrize("given", ["path", "tensor"])
def test_masks_alone_are_cropped_and_flipped_alike(tmp_path: Path, given: str) -> None:
    path, mask = drawn(tmp_path)
    masks = tmp_path / "mask.png"
    Image.fromarray(mask.numpy(), "L").save(masks)
    label: Any = str(masks) if given == "path" else mask
    loader = ImageLoader(
        [path] * 4,
        [label] * 4,
        size=32,
        batch_size=4,
        crop="random",
        scale=(0.3, 0.9),
        flip=0.5,
        filter="nearest",
        margin=None,
        memory="64 MiB",
        follow=True,
    )
    for _ in range(3):
        [(images, moved)] = list(loader)
        assert moved.shape == (4, 32, 32)
        # The picture is light where the mask is, but for the edge that two roundings may move by a pixel.
        assert ((images[:, 0] > 100) != (moved > 0)).float().mean() < 0.07


def test_a_target_that_cannot_follow_is_told(tmp_path: Path) -> None:
    path, _ = drawn(tmp_path)
    colours = tmp_path / "colours.png"
    Image.new("RGB", (120, 80)).save(colours)
    with pytest.raises(ValueError, match="3 channels, but a mask has one"):
        list(ImageLoader([path], [str(colours)], size=32, memory="64 MiB", follow=True))
    with pytest.raises(TypeError, match="got 5"):
        list(ImageLoader([path], [5], size=32, memory="64 MiB", follow=True))


@pytest.fixture
def served(photographs: Path) -> Iterator[tuple[str, list[str]]]:
    """The photographs behind a server on this machine, and what was asked of it."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.path)
            # A connection that is cut is tried again.
            if len(asked) == 1:
                self.connection.close()
                return
            super().do_GET()

    handler = functools.partial(Handler, directory=str(photographs))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def test_remote_files_give_the_same_batches_and_resume(
    photographs: Path, served: tuple[str, list[str]]
) -> None:
    address, asked = served
    paths = files(photographs)
    addresses = [f"{address}/{Path(path).relative_to(photographs)}" for path in paths]
    labels = [2, 0, 1, 2, 0, 1]
    wanted = list(ImageLoader(paths, labels, **OPTIONS, shuffle=True))
    loader = ImageLoader(addresses, labels, **OPTIONS, shuffle=True)
    found = list(loader)
    assert all(
        torch.equal(a, b)
        for one, two in zip(found, wanted, strict=True)
        for a, b in zip(one, two, strict=True)
    )
    # It continues from its position, and reads only the remaining files.
    begun = iter(ImageLoader(addresses, labels, **OPTIONS, shuffle=True, prefetch=0))
    next(begun)
    state = {"version": 1, "seed": 0, "epoch": 0, "position": 4, "samples": 6}
    again = ImageLoader(addresses, labels, **OPTIONS, shuffle=True)
    again.load_state_dict(state)
    asked.clear()
    asked.append("")
    [(images, targets)] = list(again)
    assert torch.equal(images, wanted[1][0])
    assert torch.equal(targets, wanted[1][1])
    assert len(asked) == 3


def test_an_address_without_a_file_is_named(photographs: Path, served: tuple[str, list[str]]) -> None:
    address, _ = served
    names = [f"{address}/{Path(path).relative_to(photographs)}" for path in files(photographs, 2)]
    with pytest.raises(Exception, match=r"none\.jpg: there is no such file"):
        list(ImageLoader([*names, f"{address}/none.jpg"], [0, 0, 0], **OPTIONS))
    loader = ImageLoader([*names, f"{address}/none.jpg"], [0, 0, 0], **OPTIONS, on_error="skip")
    assert sum(len(images) for images, _ in loader) == 2
    assert len(loader.skipped) == 1


def test_a_folder_elsewhere_has_its_folders_as_classes(photographs: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    wanted = ImageLoader(photographs, **OPTIONS)
    for path in photographs.rglob("*.jpg"):
        memory.pipe_file(f"/shop/{path.relative_to(photographs)}", path.read_bytes())
    found = ImageLoader("memory://shop", **OPTIONS)
    assert found.classes == wanted.classes
    for one, two in zip(found, wanted, strict=True):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])
    with pytest.raises(ValueError, match="there are no images"):
        ImageLoader("memory://shop/*.gif", **OPTIONS)
    with pytest.raises(ValueError, match="addresses and local paths"):
        ImageLoader(["memory://shop/a.jpg", "b.jpg"], **OPTIONS)


def test_a_name_that_is_no_text_is_a_name(photographs: Path, tmp_path: Path) -> None:
    data = Path(files(photographs, 1)[0]).read_bytes()
    (tmp_path / "a").mkdir()
    strange = os.fsencode(tmp_path / "a") + b"/\xff.jpg"
    with open(strange, "wb") as file:
        file.write(data)
    (tmp_path / "a" / "plain.jpg").write_bytes(data)
    [(images, _)] = list(ImageLoader(tmp_path, **OPTIONS))
    assert torch.equal(images[0], images[1])
    [(images, _)] = list(ImageLoader([os.fsdecode(strange)], **OPTIONS))
    assert len(images) == 1


def count_in_child(pickled: bytes, queue: Any) -> None:
    queue.put([targets.tolist() for _, targets in pickle.loads(pickled)])


def test_a_loader_goes_to_a_process_that_is_spawned(photographs: Path) -> None:
    loader = ImageLoader(files(photographs), [0, 1, 2, 3, 4, 5], **OPTIONS, shuffle=True)
    wanted = [targets.tolist() for _, targets in loader]
    loader.set_epoch(0)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=count_in_child, args=(pickle.dumps(loader), queue))
    child.start()
    assert queue.get() == wanted
    child.join()
    # The state carries the position and the ranks.
    loader.load_state_dict({"version": 1, "seed": 0, "epoch": 3, "position": 4, "samples": 6})
    again = pickle.loads(pickle.dumps(loader))
    assert again.state_dict() == loader.state_dict()
    tiles = pickle.loads(pickle.dumps(Tiles(files(photographs, 1), size=16)))
    assert len(tiles) == len(Tiles(files(photographs, 1), size=16))


def test_workers_that_are_spawned_share_the_batches(photographs: Path) -> None:
    batches = ImageBatches(
        ImageLoader(files(photographs), [0, 1, 2, 3, 4, 5], **{**OPTIONS, "batch_size": 2})
    )
    there = DataLoader(batches, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    assert [targets.tolist() for _, targets in there] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 has to be at least 1"),
        ({"batch_size": 2.5}, "batch_size=2.5 has to be an integer"),
        ({"prefetch": -1}, "prefetch=-1 has to be at least 0"),
        ({"threads": -1}, "threads=-1 has to be at least 1"),
        ({"memory": -5}, "memory=-5 has to be at least 0"),
        ({"seed": -1}, "seed=-1 has to be at least 0"),
        ({"seed": 1 << 70}, "seed=1180591620717411303424 has to be at most"),
        ({"rank": -1, "world_size": 2}, "rank=-1 has to be at least 0"),
        ({"rank": 0, "world_size": 0}, "world_size=0 has to be at least 1"),
        ({"page": -1}, "page=-1 has to be at least 0"),
        ({"size": -3}, "size=-3 has to be at least 1"),
        ({"size": (3,)}, r"size=\(3,\) has to be a single number or \(height, width\)"),
        ({"size": 32.5}, "size=32.5 has to be an integer"),
        ({"resize": -1}, "resize=-1 has to be at least 1"),
        ({"cache": "x", "cache_side": -1}, "cache_side=-1 has to be at least 1"),
        ({"cache": "x", "cache_size": -1}, "cache_size=-1 has to be at least 0"),
    ],
)
def test_a_setting_out_of_range_is_told_by_name(
    photographs: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ImageLoader(photographs, **{**OPTIONS, **settings})


def test_an_epoch_before_the_first_is_told(photographs: Path) -> None:
    with pytest.raises(ValueError, match="epoch=-1 has to be at least 0"):
        ImageLoader(photographs, **OPTIONS).set_epoch(-1)
