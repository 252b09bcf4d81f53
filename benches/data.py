"""Compares `memfit.data` with other loaders on real photographs, in one run.

    python benches/data.py                        # fetches the photographs with apt-get, about 27 MB
    python benches/data.py --photographs FOLDER   # uses existing ones
    python benches/data.py -o measurements/data   # writes measurements/data.json and .md

The photographs are those of Debian's lomiri-wallpapers packages (CC-BY and CC-BY-SA; they are never part of
this project). Large: at most 4000x3000 pixels of each, as baseline JPEG of quality 90. Small: tiles of
400x350. Every loader delivers 224x224: DataLoader and DALI as normalised float32; memfit as uint8 and, in a
row of its own, as normalised float32; SPDL and datago as uint8. A loader that is not installed is left out.
Each runs in a process of its own, and all of them run once per round. The best of all rounds is reported:
the minimum of CPU time and the maximum of images per second, since other load can only make them worse.

The ceiling is decoding and resizing alone, in Rust, from files in memory: `cargo build --release -p
memfit-loader --features turbo --example ceiling`, given with `--ceiling target/release/examples/ceiling`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("lomiri-wallpapers-16.04", "lomiri-wallpapers-20.04")
SIDE = 224


def fetch(root: Path) -> Path:
    """Return the photographs from Debian's packages."""
    for package in PACKAGES:
        subprocess.run(
            ["apt-get", "download", "-q", package], cwd=root, check=True, stdout=subprocess.DEVNULL
        )
    for archive in root.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(archive), str(root / "out")], check=True)
    return root / "out"


def prepare(photographs: Path, root: Path) -> None:
    """Return the two measured sets."""
    from PIL import Image

    for name in ("large/a", "small/a"):
        (root / name).mkdir(parents=True, exist_ok=True)
    found = [Image.open(path) for path in sorted(photographs.rglob("*.jpg")) if not path.is_symlink()]
    found.sort(key=lambda image: image.width * image.height, reverse=True)
    for number, image in enumerate(found[:6]):
        part = image.convert("RGB").crop((0, 0, min(image.width, 4000), min(image.height, 3000)))
        part.save(root / f"large/a/{number}.jpg", quality=90, subsampling="4:2:0")
        for tile in range(33):
            left, top = tile % 6 * 420, tile // 6 * 370
            if left + 400 <= part.width and top + 350 <= part.height:
                part.crop((left, top, left + 400, top + 350)).save(
                    root / f"small/a/{number}-{tile}.jpg", quality=92
                )


def repeat(folder: Path, count: int) -> Path:
    """Create a folder with copies of the files under other names."""
    files = sorted(folder.rglob("*.jpg"))
    place = folder / f"{count}"
    (place / "a").mkdir(parents=True)
    for number in range(count):
        os.link(files[number % len(files)], place / "a" / f"{number:05}.jpg")
    return place


def files_of(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*.jpg"))


def memfit_rows(files: list[str], batch: int, threads: int, normal: bool = False) -> Iterator[int]:
    from memfit.data import ImageLoader, Normalize

    turn = Normalize() if normal else None
    for images, _ in ImageLoader(
        files, size=SIDE, batch_size=batch, threads=threads, memory="512 MiB", margin=1.0
    ):
        yield len(turn(images) if turn else images)


def torch_rows(files: list[str], batch: int, workers: int, way: str) -> Iterator[int]:
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(1)

    class Photographs(Dataset[Any]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> Any:
            if way == "torchcodec":
                from torchcodec.decoders import decode_image

                image = decode_image(files[index])
            else:
                picture = Image.open(files[index])
                if way == "draft":
                    picture.draft("RGB", (SIDE, SIDE))
                image = picture.convert("RGB")
            image = functional.center_crop(functional.resize(image, [SIDE], antialias=True), [SIDE])
            image = functional.to_dtype(functional.to_image(image), torch.float32, scale=True)
            return functional.normalize(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    for images in DataLoader(Photographs(), batch, num_workers=workers):
        yield len(images)


def spdl_rows(files: list[str], batch: int, threads: int) -> Iterator[int]:
    import cv2
    import numpy
    import simplejpeg
    import torch
    from spdl.pipeline import PipelineBuilder

    cv2.setNumThreads(1)

    def decode(path: str) -> Any:
        image = simplejpeg.decode_jpeg(Path(path).read_bytes(), "RGB", min_height=SIDE, min_width=SIDE)
        height, width = image.shape[:2]
        by = SIDE / min(height, width)
        size = (max(SIDE, round(width * by)), max(SIDE, round(height * by)))
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        top, left = (size[1] - SIDE) // 2, (size[0] - SIDE) // 2
        return image[top : top + SIDE, left : left + SIDE]

    def collate(images: list[Any]) -> Any:
        return torch.from_numpy(numpy.stack(images))

    builder = PipelineBuilder().add_source(files).pipe(decode, concurrency=threads)
    pipeline = builder.aggregate(batch).pipe(collate).add_sink(2).build(num_threads=threads)
    with pipeline.auto_stop():
        for images in pipeline:
            yield len(images)


def datago_rows(files: list[str], batch: int, tasks: int) -> Iterator[int]:
    os.environ["DATAGO_MAX_TASKS"] = str(tasks)
    import numpy
    import torch
    from datago import DatagoClient

    config = {
        "source_type": "file",
        "source_config": {
            "root_path": str(Path(files[0]).parent),
            "random_sampling": False,
            "rank": 0,
            "world_size": 1,
        },
        "image_config": {
            "crop_and_resize": True,
            "default_image_size": SIDE,
            "downsampling_ratio": 16,
            "min_aspect_ratio": 1.0,
            "max_aspect_ratio": 1.0,
            "pre_encode_images": False,
        },
        "limit": len(files),
        "samples_buffer_size": 2 * batch,
    }
    client = DatagoClient(json.dumps(config))
    images: list[Any] = []
    try:
        for _ in files:
            sample = client.get_sample()
            if sample is None:
                break
            payload = sample.image
            images.append(
                numpy.array(payload)
                if not hasattr(payload, "data")
                else numpy.frombuffer(payload.data, numpy.uint8)
            )
            if len(images) == batch:
                yield len(torch.from_numpy(numpy.stack(images)))
                images = []
        if images:
            yield len(images)
    finally:
        client.stop()


def dali_rows(files: list[str], batch: int, threads: int) -> Iterator[int]:
    import torch
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=None, prefetch_queue_depth=2)
    def pipeline() -> Any:
        data, labels = fn.readers.file(files=files, labels=[0] * len(files), name="files")
        images = fn.decoders.image(data, device="cpu", output_type=types.RGB)
        images = fn.resize(images, resize_shorter=SIDE)
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            crop=(SIDE, SIDE),
            mean=[0.485 * 255, 0.456 * 255, 0.406 * 255],
            std=[0.229 * 255, 0.224 * 255, 0.225 * 255],
        )
        return images, labels

    made = pipeline()
    made.build()
    for _ in range(-(-len(files) // batch)):
        images, _labels = made.run()
        yield len(torch.from_numpy(images.as_array()))


LOADERS: dict[str, tuple[str, Callable[..., Iterator[int]]]] = {
    "memfit.data": ("memfit", lambda files, batch, n: memfit_rows(files, batch, n)),
    "memfit.data, normalised": ("memfit", lambda files, batch, n: memfit_rows(files, batch, n, True)),
    "DataLoader + PIL": ("PIL", lambda files, batch, n: torch_rows(files, batch, n, "plain")),
    "DataLoader + PIL, draft": ("PIL", lambda files, batch, n: torch_rows(files, batch, n, "draft")),
    "DataLoader + torchcodec": (
        "torchcodec",
        lambda files, batch, n: torch_rows(files, batch, n, "torchcodec"),
    ),
    "SPDL + simplejpeg, scaled": ("spdl.pipeline, simplejpeg, cv2", spdl_rows),
    "datago": ("datago", datago_rows),
    "DALI, CPU": ("nvidia.dali", dali_rows),
}
PLAIN = "DataLoader + PIL"
OURS = "memfit.data"
CEILING = "the Rust ceiling"


def resident(process: int) -> int:
    """Return the memory of a process and its children, with shared pages counted proportionally."""
    total = 0
    for pid in [process, *children(process)]:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        found = re.search(r"Pss:\s+(\d+) kB", text)
        total += int(found[1]) * 1024 if found else 0
    return total


def children(process: int) -> list[int]:
    try:
        tasks = [task.read_text() for task in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        # One that ended while it was looked at.
        return []
    return [int(child) for task in tasks for child in task.split()]


def one(name: str, folder: str, batch: int, parallel: int) -> None:
    """Measure one loader in this process; print the result as JSON."""
    import threading

    import torch
    import torchvision.transforms.v2  # noqa: F401

    _, make = LOADERS[name]
    before, peak, stop = resident(os.getpid()), [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            peak[0] = max(peak[0], resident(os.getpid()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin, busy, first, done = time.perf_counter(), os.times(), None, 0
    for images in make(files_of(Path(folder)), batch, parallel):
        first = first or time.perf_counter() - begin
        done += images
    wall = time.perf_counter() - begin
    stop.set()
    watcher.join()
    now = os.times()
    cpu = sum(now[:4]) - sum(busy[:4])
    found = {
        "rate": done / wall,
        "cpu_ms": 1000 * cpu / done,
        "extra": max(0, peak[0] - before),
        "first": first,
        "images": done,
    }
    print(json.dumps(found))
    del torch


def ceiling(program: Path, folder: Path, count: int, parallel: int) -> dict[str, float]:
    """Decoding and resizing alone."""
    busy = os.times()
    command = [str(program), str(folder), str(count), str(parallel), str(SIDE), "1"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    now = os.times()
    cpu = now.children_user + now.children_system - busy.children_user - busy.children_system
    return {"rate": json.loads(finished.stdout)["rate"], "cpu_ms": 1000 * cpu / count, "images": count}


def installed(modules: str) -> bool:
    code = "; ".join(f"import {module.strip()}" for module in modules.split(","))
    return not subprocess.run([sys.executable, "-c", code], capture_output=True).returncode


def merge(best: dict[str, float] | None, found: dict[str, float]) -> dict[str, float]:
    """Return the better of two rounds for each figure, since other load can only make it worse."""
    if best is None:
        return found
    least = {name: min(best[name], found[name]) for name in ("cpu_ms", "first", "extra") if name in found}
    return {**found, **least, "rate": max(best["rate"], found["rate"])}


def measure(given: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Measure every loader on both sets, alternating."""
    names = [name for name, (modules, _) in LOADERS.items() if installed(modules)]
    found: dict[str, Any] = {}
    for kind, count, batch in (("large", given.large, 8), ("small", given.small, 32)):
        folder = repeat(root / kind, count)
        results: dict[str, dict[str, float]] = {}
        for _ in range(given.turns):
            if given.ceiling:
                results[CEILING] = merge(
                    results.get(CEILING), ceiling(given.ceiling, root / kind / "a", count, given.parallel)
                )
            for name in names:
                command = [sys.executable, __file__, "--parallel", str(given.parallel), "--one", name]
                command += [str(folder), str(batch)]
                finished = subprocess.run(command, capture_output=True, text=True)
                if finished.returncode:
                    print(f"{name} failed: {finished.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                    continue
                results[name] = merge(results.get(name), json.loads(finished.stdout.splitlines()[-1]))
                print(kind, name, results[name], file=sys.stderr, flush=True)
        files = sorted((root / kind / "a").iterdir())
        mean = sum(file.stat().st_size for file in files) / len(files)
        found[kind] = {"batch": batch, "count": count, "mean_bytes": mean, "loaders": results}
    return found


def table(kind: str, part: dict[str, Any]) -> list[str]:
    """Format the results of one set as Markdown."""
    loaders = part["loaders"]
    base = loaders.get(PLAIN)
    lines = [
        f"## {kind}: {part['count']} images of {part['mean_bytes'] / 1e6:.2f} MB on average, batches of {part['batch']}",
        "",
        "| loader | images/s | speed-up over DataLoader + PIL | CPU ms/image | CPU time of DataLoader + PIL / this | added memory, MiB | first batch |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in loaders.items():
        times = f"{found['rate'] / base['rate']:.2f}" if base else ""
        cpu = f"{base['cpu_ms'] / found['cpu_ms']:.2f}" if base else ""
        extra = f"{found['extra'] / 2**20:.0f}" if "extra" in found else ""
        first = f"{found['first']:.2f} s" if "first" in found else ""
        lines.append(
            f"| {name} | {found['rate']:.1f} | {times} | {found['cpu_ms']:.2f} | {cpu} | {extra} | {first} |"
        )
    return [*lines, ""]


def written(found: dict[str, Any]) -> str:
    """Format the page as Markdown."""
    lines = [
        "# `memfit.data` compared with other image loaders",
        "",
        "Written by `benches/data.py`. Every loader reads the same JPEG photographs and delivers batches of 224x224: DataLoader and "
        "DALI as normalised float32, SPDL and datago as uint8, `memfit.data` both ways. *The Rust ceiling* is decoding and resizing "
        f"alone, in Rust, from files in memory. {found['parallel']} threads or workers on {found['processors']} cores, {found['turns']} "
        f"rounds; the decoder of `memfit.data` is {found['decoder']}.",
        "",
        f"Other work ran on the machine: the load average was {found['load'][0]:.1f} at the start and {found['load'][1]:.1f} at the end "
        "(about 2 of it is this benchmark). So CPU time is more meaningful than images per second. Each figure is the best of all rounds.",
        "",
        "Each folder contains six photographs, or tiles of them, under many names (hard links), so all reads except the first come "
        "from the page cache. `memfit.data` decodes with `margin=1.0` (default for a centre crop: 2.0).",
        "",
    ]
    for kind in ("large", "small"):
        lines += table(kind, found[kind])
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--large", type=int, default=96)
    parser.add_argument("--small", type=int, default=3000)
    parser.add_argument("--parallel", type=int, default=2, help="threads, or worker processes")
    parser.add_argument("--ceiling", type=Path, help="the program that decodes and resizes alone")
    parser.add_argument("-o", "--output", type=Path, help="write .json and .md of this name")
    parser.add_argument("--one", nargs=3, metavar=("NAME", "FOLDER", "BATCH"))
    given = parser.parse_args()
    if given.one:
        name, folder, batch = given.one
        one(name, folder, int(batch), given.parallel)
        return 0
    from memfit.data import jpeg_decoder

    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        prepare(given.photographs or fetch(root), root)
        found = measure(given, root)
    load.append(os.getloadavg()[0])
    found |= {
        "load": load,
        "turns": given.turns,
        "parallel": given.parallel,
        "processors": len(os.sched_getaffinity(0)),
        "decoder": jpeg_decoder,
    }
    text = written(found)
    print(text)
    if given.output:
        given.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        given.output.with_suffix(".md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
