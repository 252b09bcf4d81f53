"""Kinds of TIFF that Pillow reads, AVIF, and archives that are compressed as a whole."""

from __future__ import annotations

import gzip
import io
import itertools
import struct
import sys
import tarfile
from pathlib import Path

import numpy
import pytest
import torch
from memfit.data import ImageError, ImageLoader, decode
from pictures import encoded, of_pillow, picture, tensor
from PIL import Image, ImageOps, features


def packed(values: numpy.ndarray, bits: int, order: str) -> bytes:
    """Rows of values, each beginning with a byte of its own."""
    if bits == 16:
        return values.astype(f"{order}u2").tobytes()
    places = (values[..., None] >> numpy.arange(bits - 1, -1, -1)) & 1
    return numpy.packbits(places.reshape(len(values), -1).astype(numpy.uint8), axis=1).tobytes()


def tiff(values: numpy.ndarray, bits: int, interpretation: int, order: str = "<", big: bool = False) -> bytes:
    """Build a TIFF of one strip with values of this many bits; with a palette if the interpretation needs
    one.
    """
    height, width = values.shape
    data = packed(values, bits, order)
    colours = numpy.random.default_rng(5).integers(0, 65536, 3 << bits)
    fields = [
        (256, 4, [width]),
        (257, 4, [height]),
        (258, 3, [bits]),
        (259, 3, [1]),
        (262, 3, [interpretation]),
        (273, 4, [16]),
        (277, 3, [1]),
        (278, 4, [height]),
        (279, 4, [len(data)]),
    ]
    if interpretation == 3:
        fields.append((320, 3, [int(value) for value in colours]))
    start = 16 + len(data) + len(data) % 2
    room, place = (8, "Q") if big else (4, "I")
    head = struct.pack(order + ("HHHQ" if big else "HI"), *((43, 8, 0, start) if big else (42, start)))
    after = start + (8 if big else 2) + len(fields) * (20 if big else 12) + room
    body, extra = b"", b""
    for tag, kind, numbers in fields:
        raw = struct.pack(order + {3: "H", 4: "I"}[kind] * len(numbers), *numbers)
        body += struct.pack(order + "HH" + place, tag, kind, len(numbers))
        if len(raw) > room:
            body += struct.pack(order + place, after + len(extra))
            extra += raw
        else:
            body += raw.ljust(room, b"\0")
    count = struct.pack(order + ("Q" if big else "H"), len(fields))
    begins = ((b"II" if order == "<" else b"MM") + head).ljust(16, b"\0")
    return begins + data.ljust(start - 16, b"\0") + count + body + b"\0" * room + extra


@pytest.mark.parametrize(("order", "big"), list(itertools.product("<>", [False, True])))
@pytest.mark.parametrize(
    ("bits", "interpretation"), [(1, 3), (2, 3), (4, 3), (8, 3), (1, 0), (1, 1), (2, 1), (4, 0), (4, 1)]
)
def test_packed_and_indexed_tiffs_are_those_of_pillow(
    bits: int, interpretation: int, order: str, big: bool
) -> None:
    values = numpy.random.default_rng(bits).integers(0, 1 << bits, (37, 53))
    data = tiff(values, bits, interpretation, order, big)
    whole = decode(data, margin=None)
    # Pillow does not know a BigTIFF whose numbers begin with the greatest byte.
    known = tiff(values, bits, interpretation, "<", big) if big else data
    assert torch.equal(whole, of_pillow(known))
    part = decode(data, crop=(11, 7, 20, 13), margin=None)
    assert torch.equal(part, whole[:, 7:20, 11:31])


def test_pixels_of_a_16_bit_palette_image_become_colours() -> None:
    values = numpy.random.default_rng(0).integers(0, 1 << 16, (9, 11))
    colours = numpy.random.default_rng(5).integers(0, 65536, 3 << 16).reshape(3, -1)
    found = decode(tiff(values, 16, 3), margin=None)
    assert torch.equal(found, torch.from_numpy(colours[:, values] >> 8).to(torch.uint8))


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_deflate", "packbits"])
def test_palettes_that_pillow_writes(compression: str | None, tmp_path: Path) -> None:
    first, second = picture(90, 61).convert("P"), picture(40, 50, 1).quantize(32)
    path = tmp_path / "pages.tif"
    second.info.clear()
    first.save(path, "TIFF", save_all=True, append_images=[second], compression=compression)
    data = path.read_bytes()
    for page in (0, 1):
        assert torch.equal(decode(path, page=page, margin=None), of_pillow(data, page=page))
    # And small, as a loader gives it.
    [(images, _)] = ImageLoader([str(path)], size=32, memory="64 MiB")
    assert images.shape == (1, 3, 32, 32)


def test_a_truncated_palette_is_an_error() -> None:
    values = numpy.zeros((4, 4), numpy.int64)
    data = bytearray(tiff(values, 8, 3))
    # The palette has fewer numbers than its bits can name.
    place = data.index(struct.pack("<HHI", 320, 3, 768))
    data[place + 4 : place + 8] = struct.pack("<I", 30)
    with pytest.raises(ImageError, match="its palette has 10 of 256 colours"):
        decode(bytes(data))


def archive(count: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(count):
            parts = {
                "cls": str(number % 3).encode(),
                "jpg": encoded(picture(40 + number, 30, number), "JPEG"),
            }
            for ending, data in parts.items():
                entry = tarfile.TarInfo(f"{number:04}.{ending}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("ending", ["tar.gz", "tgz", "tar.zst"])
def test_compressed_shards_give_the_same_samples_as_plain_ones(ending: str, tmp_path: Path) -> None:
    plain = archive(12)
    (tmp_path / "a.tar").write_bytes(plain)
    if ending == "tar.zst":
        zstandard = pytest.importorskip("pyarrow")
        compressed = bytes(zstandard.compress(plain, "zstd", asbytes=True))
    else:
        # In two members, as `cat a.gz b.gz` makes one.
        half = len(plain) // 2
        compressed = gzip.compress(plain[:half]) + gzip.compress(plain[half:])
    (tmp_path / f"b.{ending}").write_bytes(compressed)
    options = {"size": 24, "batch_size": 5, "memory": "64 MiB", "shuffle": True}
    ours = list(ImageLoader(str(tmp_path / f"b.{ending}"), **options))
    theirs = list(ImageLoader(str(tmp_path / "a.tar"), **options))
    assert len(ours) == len(theirs) == 3
    for (images, labels), (same, same_labels) in zip(ours, theirs, strict=True):
        assert torch.equal(images, same)
        assert torch.equal(labels, same_labels)


def test_a_damaged_archive_is_named_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    cut = gzip.compress(archive(3))
    (tmp_path / "cut.tar.gz").write_bytes(cut[: len(cut) // 2])
    with pytest.raises(OSError, match="cannot be unpacked"):
        ImageLoader(str(tmp_path / "cut.tar.gz"), size=16, memory="64 MiB")
    (tmp_path / "whole.tar.gz").write_bytes(cut)
    loader = ImageLoader(str(tmp_path / "whole.tar.gz"), size=16, memory="64 MiB")
    assert sum(len(images) for images, _ in loader) == 3
    assert list(place.iterdir()) == []


def test_images_of_all_kinds_equal_pillows() -> None:
    """The TIFFs that are written here are ones that Pillow reads, or nothing above says anything."""
    values = numpy.arange(12).reshape(3, 4)
    assert Image.open(io.BytesIO(tiff(values, 4, 3))).mode == "P"
    assert Image.open(io.BytesIO(tiff(values % 2, 1, 1, ">"))).mode == "1"


AVIF = features.check("avif")


@pytest.mark.skipif(not AVIF, reason="this Pillow reads no AVIF")
def test_avif_images_equal_pillows(tmp_path: Path) -> None:
    image = picture(90, 61)
    exif = Image.Exif()
    exif[0x0112] = 6
    plain, turned = encoded(image, "AVIF", quality=90), encoded(image, "AVIF", exif=exif)
    assert torch.equal(decode(plain), of_pillow(plain))
    assert decode(turned).shape == (3, 90, 61)
    assert torch.equal(decode(turned), tensor(ImageOps.exif_transpose(Image.open(io.BytesIO(turned)))))
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    see_through = encoded(image, "AVIF")
    assert torch.equal(decode(see_through, mode="keep"), of_pillow(see_through, "RGBA"))
    image = image.convert("RGB")

    names = []
    for number, data in enumerate([plain, encoded(image, "JPEG"), turned]):
        path = tmp_path / f"{number}.{'jpg' if number == 1 else 'avif'}"
        path.write_bytes(data)
        names.append(str(path))
    [(images, labels)] = ImageLoader(
        names, [4, 5, 6], size=(40, 50), crop=None, batch_size=3, memory="64 MiB"
    )
    assert images.shape == (3, 3, 40, 50)
    assert labels.tolist() == [4, 5, 6]
    # As bytes of any data set.
    [(same, _)] = ImageLoader([(plain, 4)] * 2, size=(40, 50), crop=None, batch_size=2, memory="64 MiB")
    assert torch.equal(same[0], images[0])


def test_a_library_that_a_format_needs_is_named_if_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "check", lambda _: False)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImportError, match=r"Pillow 11\.3 or later"):
        ImageLoader([str(tmp_path / "a.avif")], size=16, memory="64 MiB")
    with pytest.raises(ImportError, match="pillow-heif"):
        ImageLoader([str(tmp_path / "a.heic")], size=16, memory="64 MiB")
