"""`memfit.data.ImageLoader`: what it delivers, in which order, and from where it goes on."""

from __future__ import annotations

import io
import os
import pickle
import random
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import memfit.data
import pytest
import torch
from memfit.data import ImageBatches, ImageLoader, decode
from pictures import encoded, folder, picture
from runs import ROOT
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import ImageFolder


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("photographs"))


def images_of(loader: Any) -> list[torch.Tensor]:
    return [image for images, _ in loader for image in images]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_folder_is_that_of_torchvision(photographs: Path) -> None:
    theirs = ImageFolder(str(photographs))
    loader = ImageLoader(photographs, size=32, batch_size=5, memory="64 MiB")
    assert loader.classes == theirs.classes
    batches = list(loader)
    assert len(batches) == len(loader) == 5
    assert [len(images) for images, _ in batches] == [5, 5, 5, 5, 4]
    images, labels = batches[0]
    assert images.shape == (5, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert images.is_contiguous()
    assert labels.dtype == torch.int64
    assert torch.cat([labels for _, labels in batches]).tolist() == [label for _, label in theirs.samples]
    # Batches that the user keeps are the user's: they stay as they are.
    for image, (path, _) in zip(images_of(batches), theirs.samples, strict=True):
        assert torch.equal(image, decode(path, 32, "center"))


def test_folders_inside_classes_are_walked_as_torchvision_walks_them(tmp_path: Path) -> None:
    names = [
        "b/2.jpg",
        "b/1.JPG",
        "a/x/3.jpg",
        "a/x-y/4.jpg",
        "a/x.z/5.png",
        "a/6.jpeg",
        "a/notes.txt",
        "a/x/y/7.jpg",
    ]
    data = encoded(picture(20, 20), "JPEG")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    theirs = ImageFolder(str(tmp_path))
    loader = ImageLoader(tmp_path, size=8, batch_size=1, memory="64 MiB")
    ours = [loader._samples.name(index) for index in range(len(loader))]
    assert ours == [path for path, _ in theirs.samples]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_order_and_the_pixels_are_the_same_with_any_number_of_threads(
    photographs: Path, threads: int
) -> None:
    options: dict[str, Any] = {
        "size": 24,
        "batch_size": 4,
        "memory": "64 MiB",
        "shuffle": True,
        "seed": 11,
        "crop": "random",
        "flip": 0.5,
    }
    one = images_of(ImageLoader(photographs, threads=2, **options))
    assert same(one, images_of(ImageLoader(photographs, threads=threads, **options)))
    assert not same(one, images_of(ImageLoader(photographs, threads=threads, **{**options, "seed": 12})))


def test_each_pass_has_an_order_of_its_own(photographs: Path) -> None:
    loader = ImageLoader(photographs, size=8, batch_size=24, memory="64 MiB", shuffle=True)
    first, second = images_of(loader), images_of(loader)
    assert not same(first, second)
    loader.set_epoch(0)
    assert same(images_of(loader), first)
    # One that was left early is not gone on with.
    loader.set_epoch(1)
    next(iter(loader))
    loader.set_epoch(1)
    assert same(images_of(loader), second)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_pass_goes_on_after_every_batch(photographs: Path, world: int) -> None:
    options: dict[str, Any] = {"size": 16, "memory": "64 MiB", "shuffle": True, "seed": 3, "crop": "random"}
    whole = images_of(ImageLoader(photographs, batch_size=1, **options))
    for after in range(24 // (4 * world) + 1):
        ranks = [
            ImageLoader(photographs, batch_size=4, rank=rank, world_size=world, threads=2, **options)
            for rank in range(world)
        ]
        parts: list[list[torch.Tensor]] = []
        for loader in ranks:
            batches = iter(loader)
            parts.append([image for _ in range(after) for image in next(batches)[0]])
        states = [loader.state_dict() for loader in ranks]
        assert all(state == states[0] for state in states)
        state = pickle.loads(pickle.dumps(states[0]))
        had = [image for row in zip(*parts, strict=True) for image in row]
        # Another number of ranks, threads and samples in a batch.
        for ranks_then, size in [(1, 5), (2, 3)]:
            rest = []
            for rank in range(ranks_then):
                loader = ImageLoader(
                    photographs, batch_size=size, rank=rank, world_size=ranks_then, threads=1, **options
                )
                loader.load_state_dict(state)
                rest.append(images_of(loader))
            together = [image for row in zip(*rest, strict=True) for image in row]
            assert same((had + together)[:24], whole), (after, ranks_then)


def test_the_state_at_the_end_is_the_next_pass(photographs: Path) -> None:
    loader = ImageLoader(photographs, size=8, batch_size=5, memory="64 MiB", shuffle=True)
    list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    other = ImageLoader(photographs, size=8, batch_size=5, memory="64 MiB", shuffle=True)
    other.load_state_dict(state)
    # As training scripts do it after loading.
    other.set_epoch(1)
    assert same(images_of(other), images_of(loader))


def test_ranks_get_what_a_distributed_sampler_gives(photographs: Path) -> None:
    theirs = ImageFolder(str(photographs))
    for world, drop_last in [(5, False), (5, True), (7, False)]:
        for rank in range(world):
            sampler = DistributedSampler(theirs, world, rank, shuffle=False, drop_last=drop_last)
            loader = ImageLoader(
                photographs,
                size=8,
                batch_size=1,
                memory="64 MiB",
                rank=rank,
                world_size=world,
                drop_last=drop_last,
            )
            found = [int(labels[0]) for _, labels in loader]
            assert found == [theirs.samples[index][1] for index in sampler]


def test_broken_files_are_raised_skipped_or_replaced(tmp_path: Path) -> None:
    folder(tmp_path, 12, 2)
    files = sorted(tmp_path.rglob("*.jpg"))
    files[2].write_bytes(files[2].read_bytes()[:300])
    files[7].write_bytes(b"no picture at all")
    (tmp_path / "class1" / "9999.png").write_bytes(b"")
    options: dict[str, Any] = {"size": 16, "batch_size": 3, "memory": "64 MiB"}
    loader = ImageLoader(tmp_path, **options)
    with pytest.raises(memfit.data.ImageError, match=rf"{files[2].name}: the JPEG is damaged"):
        list(loader)
    # It failed in its own place, and not before.
    assert loader.state_dict()["position"] == 0
    loader = ImageLoader(tmp_path, on_error="skip", **options)
    kept = images_of(loader)
    assert len(kept) == 10
    assert sorted(Path(name).name for name, _ in loader.skipped) == sorted(
        [files[2].name, files[7].name, "9999.png"]
    )
    good = [file for number, file in enumerate(files) if number not in (2, 7)]
    assert same(kept, [decode(file, 16, "center") for file in good])
    loader = ImageLoader(tmp_path, on_error="replace", **options)
    replaced = images_of(loader)
    assert len(replaced) == 13
    assert same(replaced, images_of(ImageLoader(tmp_path, on_error="replace", threads=1, **options)))


def test_a_file_that_goes_while_it_runs_is_named(tmp_path: Path) -> None:
    folder(tmp_path, 6, 1)
    loader = ImageLoader(tmp_path, size=16, memory="64 MiB")
    gone = sorted(tmp_path.rglob("*.jpg"))[3]
    gone.unlink()
    with pytest.raises(memfit.data.ImageError, match=rf"{gone.name}: it cannot be read"):
        list(loader)


def test_other_types_are_not_converted_without_dtype(tmp_path: Path) -> None:
    folder(tmp_path, 2, 1)
    import numpy
    from PIL import Image

    deep = Image.fromarray(numpy.full((40, 40), 25700, numpy.uint16))
    (tmp_path / "class0" / "deep.png").write_bytes(encoded(deep, "PNG"))
    with pytest.raises(memfit.data.ImageError, match="uint16, but the batch has uint8"):
        list(ImageLoader(tmp_path, size=16, memory="64 MiB"))
    *_, (images, _) = ImageLoader(tmp_path, size=16, memory="64 MiB", dtype=torch.uint8)
    assert torch.equal(images, torch.full((1, 3, 16, 16), 100, dtype=torch.uint8))


def test_an_image_beyond_the_budget_is_named(tmp_path: Path) -> None:
    folder(tmp_path, 3, 1)
    huge = encoded(picture(4000, 3000), "JPEG", quality=50, progressive=True, subsampling="4:4:4")
    (tmp_path / "class0" / "huge.jpg").write_bytes(huge)
    with pytest.raises(memfit.data.ImageError, match=r"huge.jpg: decoding 4000x3000 JPEG takes .* MiB"):
        list(ImageLoader(tmp_path, size=32, memory="24 MiB", threads=1))
    loader = ImageLoader(tmp_path, size=32, memory="24 MiB", threads=1, oversize="skip")
    assert len(images_of(loader)) == 3
    assert [Path(name).name for name, _ in loader.skipped] == ["huge.jpg"]
    with pytest.raises(ValueError, match="memory= has to be at least"):
        ImageLoader(tmp_path, size=512, batch_size=64, memory="24 MiB")


class Bytes:
    """A data set as people write it."""

    def __init__(self, files: list[Path], form: str) -> None:
        self.files, self.form = files, form

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        data = self.files[index].read_bytes()
        return {
            "bytes": data,
            "path": self.files[index],
            "pair": (data, index),
            "boxes": (data, {"boxes": [[1, 2, 3, 4]], "number": index}),
            "hugging-face": {"image": {"bytes": data, "path": None}, "label": index},
            "hugging-face-path": {"image": {"bytes": None, "path": str(self.files[index])}, "label": index},
        }[self.form]


def test_a_data_set_of_bytes_or_paths_is_a_source(photographs: Path) -> None:
    files = sorted(photographs.rglob("*.jpg"))
    wanted = images_of(ImageLoader([str(file) for file in files], size=16, batch_size=7, memory="64 MiB"))
    for form in ("bytes", "path", "pair", "boxes", "hugging-face", "hugging-face-path"):
        loader = ImageLoader(Bytes(files, form), size=16, batch_size=7, memory="64 MiB")
        batches = list(loader)
        assert same([image for images, _ in batches for image in images], wanted), form
        targets = [target for _, targets in batches for target in targets]
        if form == "boxes":
            assert [target["number"] for target in targets] == list(range(24))
        elif form not in ("bytes", "path"):
            assert [int(target) for target in targets] == list(range(24))

    class Pictures(Bytes):
        def __getitem__(self, index: int) -> Any:
            return picture(10, 10)

    with pytest.raises(memfit.data.ImageError, match="not bytes or a path"):
        ImageLoader(Pictures(files, ""), size=16, memory="64 MiB")


def test_shards_of_webdataset_are_read(photographs: Path, tmp_path: Path) -> None:
    files = sorted(photographs.rglob("*.jpg"))
    for shard in range(2):
        with tarfile.open(tmp_path / f"shard-{shard}.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            for number, file in enumerate(files[shard * 12 : shard * 12 + 12]):
                key = f"{'long/' * 30 if number == 5 else ''}{shard}{number:03}"
                members = [
                    ("jpg", file.read_bytes()),
                    ("cls", str(shard * 12 + number).encode()),
                    ("json", b"{}"),
                ]
                random.Random(number).shuffle(members)
                for ending, data in members:
                    entry = tarfile.TarInfo(f"{key}.{ending}")
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
    loader = ImageLoader(str(tmp_path / "shard-*.tar"), size=16, batch_size=5, memory="64 MiB")
    batches = list(loader)
    assert [int(label) for _, labels in batches for label in labels] == list(range(24))
    wanted = images_of(ImageLoader([str(file) for file in files], size=16, memory="64 MiB"))
    assert same([image for images, _ in batches for image in images], wanted)
    (tmp_path / "broken.tar").write_bytes(b"no archive" * 200)
    with pytest.raises(OSError, match="not a tar archive"):
        ImageLoader(str(tmp_path / "broken.tar"), size=16, memory="64 MiB")


def test_channels_can_come_last(photographs: Path) -> None:
    options: dict[str, Any] = {"size": (20, 30), "batch_size": 6, "memory": "64 MiB"}
    first = next(iter(ImageLoader(photographs, **options)))[0]
    last = next(iter(ImageLoader(photographs, channels_last=True, **options)))[0]
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(first, last)


@pytest.mark.parametrize("workers", [0, 2])
def test_it_serves_as_an_iterable_data_set(photographs: Path, workers: int) -> None:
    loader = ImageLoader(photographs, size=16, batch_size=5, memory="64 MiB", shuffle=True, threads=1)
    plain = images_of(loader)
    loader.set_epoch(0)
    batches = DataLoader(ImageBatches(loader), batch_size=None, num_workers=workers)
    assert same(images_of(batches), plain)


def test_a_fork_while_threads_run_does_no_harm(photographs: Path) -> None:
    loader = ImageLoader(photographs, size=16, batch_size=2, memory="64 MiB", threads=2)
    running = iter(loader)
    next(running)
    child = os.fork()
    if child == 0:
        # The child's copy of the running pass has no threads; a pass of its own has.
        try:
            del running
            os._exit(0 if len(images_of(loader)) == 24 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sum(len(images) for images, _ in running) == 22


def test_many_passes_left_early_leave_nothing_behind(photographs: Path) -> None:
    loader = ImageLoader(photographs, size=16, batch_size=2, memory="64 MiB", threads=2)
    for _ in range(50):
        for _images, _labels in loader:
            break
    assert len(os.listdir("/proc/self/task")) < 20 + len(os.sched_getaffinity(0)) * 4
    assert len(os.listdir("/proc/self/fd")) < 100


def test_the_budget_holds_by_the_process_s_own_peak() -> None:
    # Progressive ones of 12 megapixels take 36 MiB each, whole they are as many again.
    command = [sys.executable, str(ROOT / "benches" / "data_memory.py"), "--megapixels", "12"]
    command += ["--images", "200", "--memory", "160MiB", "--batch-size", "8", "--threads", "4"]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "200 of 200, 0 skipped" in finished.stdout
