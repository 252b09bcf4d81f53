"""`memfit.data` and what is less common than JPEG: other formats, pages, overviews, tiles, volumes, and the
cache.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import memfit.data
import numpy
import pytest
import torch
from memfit.data import ImageLoader, Tiles, decode
from pictures import apart, encoded, of_pillow, picture, tensor
from PIL import Image

KINDS = {
    "gif": lambda image: encoded(image.convert("P", palette=Image.Palette.ADAPTIVE), "GIF"),
    "gif-interlaced": lambda image: encoded(image.convert("L"), "GIF", interlace=1),
    "bmp": lambda image: encoded(image, "BMP"),
    "bmp-palette": lambda image: encoded(image.convert("P", palette=Image.Palette.ADAPTIVE), "BMP"),
    "bmp-1-bit": lambda image: encoded(image.convert("1"), "BMP"),
    "bmp-grey": lambda image: encoded(image.convert("L"), "BMP"),
    "ppm": lambda image: encoded(image, "PPM"),
    "pgm": lambda image: encoded(image.convert("L"), "PPM"),
    "pbm": lambda image: encoded(image.convert("1"), "PPM"),
    "jp2": lambda image: encoded(image, "JPEG2000", irreversible=False),
    "jp2-grey": lambda image: encoded(image.convert("L"), "JPEG2000"),
}


@pytest.mark.parametrize("size", [(121, 77), (64, 64), (1, 1), (17, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_images_are_those_of_pillow(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    data = KINDS[kind](picture(*size))
    assert torch.equal(decode(data), of_pillow(data))
    # From a file, and only a part of it, it is the same.
    path = tmp_path / "image"
    path.write_bytes(data)
    width, height = size
    part = (width // 3, height // 3, width - width // 3, height - height // 3)
    assert torch.equal(decode(path, None, part), of_pillow(data)[:, part[1] :, part[0] :])
    with pytest.raises(memfit.data.ImageError):
        decode(data[: len(data) // 2])


def test_values_of_16_bits_and_opacity_are_kept() -> None:
    values = numpy.random.default_rng(0).integers(0, 65536, (31, 47), dtype=numpy.uint16)
    for kind in ("PPM", "JPEG2000"):
        found = decode(encoded(Image.fromarray(values), kind), mode="keep")
        assert found.dtype == torch.uint16
        assert torch.equal(found[0].int(), torch.from_numpy(values.astype(numpy.int32)))
    clear = picture(40, 30).convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize((40, 30)))
    data = encoded(clear, "JPEG2000", irreversible=False)
    assert torch.equal(decode(data, mode="rgba"), tensor(clear))
    # BMP's masks.
    data = encoded(clear, "BMP")
    assert torch.equal(decode(data, mode="rgba"), of_pillow(data, "RGBA"))


def test_jpeg_2000_is_decoded_at_the_resolution_that_is_wanted() -> None:
    data = encoded(picture(1024, 768), "JPEG2000", irreversible=False)
    full = decode(data, 96, "center", margin=None).float()
    twice, four_times = (
        float((decode(data, 96, "center", margin=margin).float() - full).abs().mean())
        for margin in (2.0, 4.0)
    )
    # A level's pixels are offset by half a pixel from averaged ones. With this offset in the mapping, they
    # are twice as close as without it.
    assert 0 < four_times < twice < 3


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_any_picture_of_an_animation_is_that_of_pillow(kind: str) -> None:
    base = picture(60, 44)
    frames = [base.copy() for _ in range(4)]
    for number, frame in enumerate(frames):
        frame.paste((250 - 60 * number, 40 * number, 90), (5 + 9 * number, 8, 25 + 9 * number, 30))
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {"disposal": 1}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=40, **options)
    # Blended WebP frames are rounded differently.
    for page in range(4):
        most = 1 if kind == "WEBP" and page else 0
        assert apart(decode(data, page=page), of_pillow(data, page=page)) <= most, page
    with pytest.raises(memfit.data.ImageError, match="4 images"):
        decode(data, page=4)
    with pytest.raises(memfit.data.ImageError, match="pages"):
        decode(encoded(base, "JPEG"), page=1)


@pytest.mark.parametrize("blend", [0, 1])
@pytest.mark.parametrize("disposal", [0, 1, 2])
@pytest.mark.parametrize("separate", [False, True])
def test_any_picture_of_an_animated_png_is_that_of_pillow(disposal: int, blend: int, separate: bool) -> None:
    # No partial transparency: Pillow does not blend such images according to the standard.
    frames = [Image.new("RGBA", (30, 20), (0, 0, 0, 0)) for _ in range(4)]
    for number, frame in enumerate(frames):
        frame.paste((200, 50 * number, 30, 255), (6 * number, 4, 6 * number + 9, 15))
    for mode in ("RGBA", "RGB"):
        first, *rest = [frame.convert(mode) for frame in frames]
        how: dict[str, Any] = {"save_all": True, "disposal": disposal, "blend": blend}
        data = encoded(first, "PNG", append_images=rest, default_image=separate, **how)
        # Images outside of the animation must not show through, as they do with Pillow.
        animation = encoded(rest[0], "PNG", append_images=rest[1:], **how)
        for page in range(4):
            of_animation = separate and page > 0
            wanted = of_pillow(animation if of_animation else data, mode, page - of_animation)
            found = decode(data, mode=mode.lower(), page=page)
            shown = wanted[3] > 0 if mode == "RGBA" else torch.ones(20, 30, dtype=torch.bool)
            assert torch.equal(found[3:], wanted[3:]), (mode, page)
            assert torch.equal(found[:3, shown], wanted[:3, shown]), (mode, page)
        with pytest.raises(memfit.data.ImageError, match="4 images"):
            decode(data, page=4)
    with pytest.raises(memfit.data.ImageError, match="1 image"):
        decode(encoded(frames[0], "PNG"), page=1)


def test_gifs_that_take_pictures_away_are_composed() -> None:
    frames = [Image.new("RGBA", (30, 20), (0, 0, 0, 0)) for _ in range(3)]
    for number, frame in enumerate(frames):
        frame.paste((200, 50 * number, 30, 255), (8 * number, 4, 8 * number + 9, 15))
    for disposal in (2, 3):
        data = encoded(
            frames[0], "GIF", save_all=True, append_images=frames[1:], disposal=disposal, transparency=0
        )
        for page in range(3):
            wanted, found = of_pillow(data, "RGBA", page), decode(data, mode="rgba", page=page)
            assert torch.equal(found[3], wanted[3]), (disposal, page)
            opaque = wanted[3] > 0
            assert torch.equal(found[:3, opaque], wanted[:3, opaque]), (disposal, page)


def pyramid(path: Path, full: Image.Image, marks: list[int]) -> None:
    """A tiled TIFF with overviews as GDAL writes them, each of one grey, so that it is seen which was
    read.
    """
    pages = [full]
    for level, mark in enumerate(marks, 1):
        pages.append(Image.new("L", (full.width >> level, full.height >> level), mark))
    out = bytearray(b"II*\0\0\0\0\0")
    place = 4
    for number, page in enumerate(pages):
        side = 16
        across, down = -(-page.width // side), -(-page.height // side)
        padded = Image.new("L", (across * side, down * side))
        padded.paste(page)
        offsets = []
        for y in range(down):
            for x in range(across):
                offsets.append(len(out))
                out += padded.crop((x * side, y * side, x * side + side, y * side + side)).tobytes()
        counts = [side * side] * len(offsets)
        at = [len(out), len(out) + 4 * len(offsets)]
        out += struct.pack(f"<{len(offsets)}I", *offsets) + struct.pack(f"<{len(counts)}I", *counts)
        entries = [
            (254, 4, 1, int(number > 0)),
            (256, 4, 1, page.width),
            (257, 4, 1, page.height),
            (258, 3, 1, 8),
            (259, 3, 1, 1),
            (262, 3, 1, 1),
            (277, 3, 1, 1),
            (322, 4, 1, side),
            (323, 4, 1, side),
            (324, 4, len(offsets), at[0] if len(offsets) > 1 else offsets[0]),
            (325, 4, len(counts), at[1] if len(counts) > 1 else counts[0]),
        ]
        struct.pack_into("<I", out, place, len(out))
        out += struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
        place = len(out)
        out += b"\0\0\0\0"
    path.write_bytes(out)


def test_the_overview_of_a_geotiff_is_read_where_it_is_large_enough(tmp_path: Path) -> None:
    path = tmp_path / "map.tif"
    full = picture(512, 384).convert("L")
    pyramid(path, full, [50, 100, 150])
    assert torch.equal(decode(path, mode="l"), tensor(full))

    def mean(**options: Any) -> float:
        return float(decode(path, mode="l", **options).float().mean())

    # 512, 256, 128 and 64 wide: the smallest that leaves twice what is wanted.
    assert mean(size=(96, 128)) == 50
    assert mean(size=(48, 64)) == 100
    assert mean(size=(24, 32)) == 150
    assert mean(size=(24, 32), margin=4.0) == 100
    # A window asks for its own resolution, and masks are never averaged by someone else.
    assert mean(size=(48, 64), crop=(128, 96, 128, 96)) not in (50, 100, 150)
    assert mean(size=(24, 32), crop=(0, 0, 256, 192)) == 100
    assert mean(size=(24, 32), filter="nearest") not in (50, 100, 150)
    found = decode(path, (24, 32), mode="l", with_mapping=True)
    assert found.source_size == (512, 384)
    assert found.mapping == pytest.approx((1 / 16, 0, 1 / 16, 0))


def test_tiles_cover_images_and_are_their_own_pixels(tmp_path: Path) -> None:
    images = [picture(200, 130, 1), picture(90, 100, 2)]
    paths = []
    for number, image in enumerate(images):
        paths.append(tmp_path / f"{number}.png")
        image.save(paths[-1])
    tiles = Tiles(paths, [7, 8], size=(48, 64), overlap=16)
    loader = ImageLoader(tiles, size=tiles.size, batch_size=4, memory="64 MiB", with_mapping=True)
    delivered = [
        (image, int(label), mapping)
        for images_, labels, mappings in loader
        for image, label, mapping in zip(images_, labels, mappings, strict=True)
    ]
    assert len(delivered) == len(tiles)
    covered = [numpy.zeros((image.height, image.width), bool) for image in images]
    for number, (found, label, mapping) in enumerate(delivered):
        tile = tiles[number]
        left, top, width, height = tile.part
        wanted = tensor(images[tile.image])[:, top : top + height, left : left + width]
        assert torch.equal(found, wanted)
        assert label == 7 + tile.image
        assert tile.name == str(paths[tile.image])
        assert mapping.tolist() == [1, -left, 1, -top]
        covered[tile.image][top : top + height, left : left + width] = True
    assert all(part.all() for part in covered)
    with pytest.raises(IndexError):
        tiles[len(tiles)]
    with pytest.raises(ValueError, match="less than a tile"):
        Tiles(paths, size=32, overlap=32)
    # One that is smaller than a tile is named, or left out.
    large = Tiles(paths, size=95)
    with pytest.raises(memfit.data.ImageError, match="smaller than a tile"):
        list(ImageLoader(large, size=95, memory="64 MiB"))
    loader = ImageLoader(large, size=95, memory="64 MiB", on_error="skip")
    assert sum(len(images) for images, _ in loader) == len(large) - 1


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("large")
    paths = [root / f"{number}.jpg" for number in range(6)]
    for number, path in enumerate(paths):
        picture(700 + 20 * number, 900 - 30 * number, number).save(path, quality=92, exif=turned(number))
    return paths


def turned(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 1 + number
    return exif


def passes(paths: list[Path], cache: Path | None, count: int = 2, **options: Any) -> list[torch.Tensor]:
    options = {"size": 64, "crop": "random", "scale": (0.5, 1.0), "flip": 0.5, **options}
    loader = ImageLoader(paths, batch_size=3, memory="64 MiB", cache=cache, **options)
    return [images.clone() for _ in range(count) for images, _ in loader]


def test_cached_samples_equal_the_originals(large: list[Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = passes(large, cache)
    entries = [path for path in cache.rglob("*") if path.is_file() and path.name != "bytes"]
    assert len(entries) == len(large)
    assert all(entry.stat().st_size < path.stat().st_size for entry in entries for path in large)
    counted = int((cache / "bytes").read_text())
    assert counted == sum(entry.stat().st_size for entry in entries)
    again = passes(large, cache)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    # Full from the beginning: the same pixels, and nothing is stored.
    empty = tmp_path / "empty"
    assert all(torch.equal(a, b) for a, b in zip(first, passes(large, empty, cache_size=0), strict=True))
    assert [path.name for path in empty.rglob("*") if path.is_file()] == ["bytes"]
    # Damaged entries are made again.
    entries[0].write_bytes(entries[0].read_bytes()[:100])
    entries[1].write_bytes(b"")
    assert all(torch.equal(a, b) for a, b in zip(first, passes(large, cache), strict=True))
    # Close to what comes without it, cropped at the same places.
    for cached, plain in zip(first, passes(large, None), strict=True):
        assert float((cached.float() - plain.float()).abs().mean()) < 3


def test_the_cache_leaves_alone_what_it_would_blur_and_what_has_changed(
    large: list[Path], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    # A small part of an image needs more pixels than a copy has.
    part = {"crop": (10, 10, 80, 80), "flip": 0.0}
    cached = passes(large, cache, 1, **part)
    assert all(torch.equal(a, b) for a, b in zip(cached, passes(large, None, 1, **part), strict=True))
    assert not [path for path in cache.rglob("*") if path.is_file() and path.name != "bytes"]
    # Entries are named by content: another picture under an old name is another picture.
    path = tmp_path / "one.jpg"
    shown = {"crop": "center", "flip": 0.0}
    path.write_bytes(large[0].read_bytes())
    before = passes([path], cache, 1, **shown)[0]
    path.write_bytes(large[5].read_bytes())
    after = passes([path], cache, 1, **shown)[0]
    assert not torch.equal(before, after)
    assert torch.equal(after, passes([large[5]], cache, 1, **shown)[0])
