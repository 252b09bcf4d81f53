"""`memfit data`: what is in a folder of images."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy
from pictures import encoded, folder, picture
from PIL import Image
from runs import memfit


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([memfit(), "data", *arguments], capture_output=True, text=True)


def test_the_report_describes_the_folder(tmp_path: Path) -> None:
    folder(tmp_path, 12, 2)
    big = encoded(picture(1200, 900), "JPEG", progressive=True, exif=turned())
    (tmp_path / "class0" / "big.jpg").write_bytes(big)
    deep = Image.fromarray(numpy.zeros((30, 40), numpy.uint16))
    (tmp_path / "class1" / "deep.png").write_bytes(encoded(deep, "PNG"))
    (tmp_path / "class1" / "page.jpg").write_bytes(b"<html>not found</html>")
    whole = encoded(picture(100, 100), "JPEG")
    (tmp_path / "class1" / "cut.jpg").write_bytes(whole[: len(whole) // 2])

    done = run(str(tmp_path), "--size", "64", "--measure", "1s", "--format", "json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["schema"] == "memfit.data/1"
    assert report["images"] == 16
    assert [(part["name"], part["count"]) for part in report["formats"]] == [("JPEG", 14), ("PNG", 1)]
    assert report["largest"] == [1200, 900]
    assert (report["progressive"], report["turned"]) == (1, 1)
    assert report["classes"] == [{"name": "class0", "count": 7}, {"name": "class1", "count": 9}]
    assert {kind["name"]: kind["count"] for kind in report["types"]} == {"uint8": 14, "uint16": 1}
    # A truncated file has a valid header: only decoding shows the fault.
    assert [Path(file["name"]).name for file in report["broken"]["files"]] == ["page.jpg"]
    assert report["loader"]["images_per_second"] > 0
    batch = 64 * 3 * 64 * 64 * 4
    there = report["dataloader"]
    assert (there["batch"], there["shared_memory"]) == (batch, 8 * batch)
    assert there["pinned"] == 9 * (4 << 20)
    assert there["largest_decode"] >= 1200 * 900 * 3

    done = run(str(tmp_path), "--verify", "--measure", "0", "--format", "json")
    files = json.loads(done.stdout)["broken"]["files"]
    assert [Path(file["name"]).name for file in files] == ["cut.jpg", "page.jpg"]

    done = run(str(tmp_path), "--measure", "0")
    assert "16 images in" in done.stdout
    # Lines are broken where the terminal ends.
    assert "page.jpg: it is not an image" in " ".join(done.stdout.split())
    assert "What to change" in done.stdout


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def test_a_folder_without_images_is_reported(tmp_path: Path) -> None:
    done = run(str(tmp_path))
    assert done.returncode == 2
    assert "there are no images in it or in its folders" in done.stderr
    done = run(str(tmp_path / "missing"))
    assert done.returncode == 2
    assert "cannot be listed" in done.stderr
