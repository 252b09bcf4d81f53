"""Compares `memfit.data.decode` with Pillow and torchvision, pixel by pixel."""

from __future__ import annotations

import io
from typing import Any

import memfit.data
import numpy
import pytest
import torch
from memfit.data import decode
from pictures import encoded, picture
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

# Scaled decoding and the same pixels as Pillow's are libjpeg-turbo's.
TURBO = memfit.data.jpeg_decoder.startswith("libjpeg-turbo")


def pillow(data: bytes, mode: str = "RGB") -> Image.Image:
    return Image.open(io.BytesIO(data)).convert(mode)


def tensor(image: Image.Image) -> torch.Tensor:
    array = numpy.array(image)
    array = array[..., None] if array.ndim == 2 else array
    return torch.from_numpy(array).permute(2, 0, 1)


def apart(one: torch.Tensor, other: torch.Tensor) -> tuple[float, int]:
    """The mean and the greatest difference."""
    assert one.shape == other.shape
    difference = (one.to(torch.float64) - other.to(torch.float64)).abs()
    return float(difference.mean()), int(difference.max())


FILES = {
    "jpeg-420": lambda image: encoded(image, "JPEG", quality=90, subsampling="4:2:0"),
    "jpeg-422": lambda image: encoded(image, "JPEG", quality=90, subsampling="4:2:2"),
    "jpeg-444": lambda image: encoded(image, "JPEG", quality=95, subsampling="4:4:4"),
    "jpeg-progressive": lambda image: encoded(image, "JPEG", quality=85, progressive=True),
    "jpeg-grey": lambda image: encoded(image.convert("L"), "JPEG", quality=90),
    "jpeg-cmyk": lambda image: encoded(image.convert("CMYK"), "JPEG", quality=90),
    "png": lambda image: encoded(image, "PNG"),
    "png-palette": lambda image: encoded(image.convert("P", palette=Image.Palette.ADAPTIVE), "PNG"),
    "png-grey-alpha": lambda image: encoded(image.convert("LA"), "PNG"),
    "png-1-bit": lambda image: encoded(image.convert("1"), "PNG"),
    "webp": lambda image: encoded(image, "WEBP", lossless=True),
    "tiff-lzw": lambda image: encoded(image, "TIFF", compression="tiff_lzw"),
    "tiff-deflate": lambda image: encoded(image, "TIFF", compression="tiff_adobe_deflate"),
    "tiff-cmyk": lambda image: encoded(image.convert("CMYK"), "TIFF"),
}


@pytest.mark.parametrize("size", [(321, 207), (64, 64), (1, 1), (17, 3)])
@pytest.mark.parametrize("kind", FILES)
def test_whole_images_are_those_of_pillow(kind: str, size: tuple[int, int]) -> None:
    data = FILES[kind](picture(*size))
    mean, most = apart(decode(data), tensor(pillow(data)))
    # The decoder in Rust rounds its cosines and its colours otherwise; the mean tells what is wrong from what
    # is rounded.
    allowed = (0, 0) if TURBO or "jpeg" not in kind else (1.5, 40)
    assert mean <= allowed[0]
    assert most <= allowed[1]


@pytest.mark.parametrize("filter_", ["bilinear", "bicubic", "lanczos", "box"])
@pytest.mark.parametrize("size", [(97, 53), (224, 224), (33, 500), (640, 480)])
def test_resizing_is_that_of_pillow(filter_: str, size: tuple[int, int]) -> None:
    image = picture(401, 299)
    wanted = tensor(image.resize(size, getattr(Image.Resampling, filter_.upper())))
    found = decode(encoded(image, "PNG"), (size[1], size[0]), filter=filter_)
    mean, most = apart(found, wanted)
    # The mean's edge may fall on a pixel's middle, which either side may have. Curves that swing are rounded
    # twice.
    allowed = {"bilinear": (0.02, 1), "box": (0.2, 12)}.get(filter_, (0.02, 2))
    assert mean < allowed[0]
    assert most <= allowed[1]


@pytest.mark.parametrize("shape", [(500, 375), (375, 500), (256, 256), (1000, 224), (231, 230)])
@pytest.mark.parametrize("resize", [232, 256])
def test_a_center_crop_equals_torchvisions(shape: tuple[int, int], resize: int) -> None:
    image = picture(*shape)
    middle = functional.center_crop(functional.resize(image, [resize]), [224])
    found = decode(encoded(image, "PNG"), 224, "center", resize=resize)
    mean, most = apart(found, tensor(middle))
    assert mean < 0.1
    assert most <= 2


@pytest.mark.parametrize("shape", [(500, 375), (375, 500)])
def test_resizing_the_short_side_equals_torchvisions(shape: tuple[int, int]) -> None:
    image = picture(*shape)
    mean, most = apart(decode(encoded(image, "PNG"), 200), tensor(functional.resize(image, [200])))
    assert mean < 0.02
    assert most <= 1


@pytest.mark.parametrize("part", [(0, 0, 50, 60), (311, 200, 90, 99), (13, 7, 384, 257), (100, 50, 1, 1)])
def test_a_crop_equals_torchvisions(part: tuple[int, int, int, int]) -> None:
    image = picture(401, 299)
    left, top, width, height = part
    wanted = functional.resized_crop(
        image, top, left, height, width, [64, 48], interpolation=InterpolationMode.BILINEAR
    )
    mean, most = apart(decode(encoded(image, "PNG"), (64, 48), part), tensor(wanted))
    assert mean < 0.02
    assert most <= 1
    exact = decode(encoded(image, "JPEG", quality=95), None, part)
    assert exact.shape == (3, height, width)


@pytest.mark.skipif(not TURBO, reason="the decoder in Rust decodes whole images")
@pytest.mark.parametrize("sampling", ["4:2:0", "4:2:2", "4:4:4"])
def test_a_part_of_a_jpeg_is_the_part_of_the_whole(sampling: str) -> None:
    data = encoded(picture(403, 301), "JPEG", quality=90, subsampling=sampling)
    whole = decode(data)
    for left, top, width, height in [(0, 0, 40, 40), (100, 90, 77, 55), (350, 250, 53, 51), (16, 16, 16, 16)]:
        part = decode(data, None, (left, top, width, height))
        mean, most = apart(part, whole[:, top : top + height, left : left + width])
        # With skipped rows, chroma at the upper edge is interpolated from one row less.
        assert mean < 0.2
        assert most <= 16


@pytest.mark.skipif(not TURBO, reason="the decoder in Rust knows one scale")
@pytest.mark.parametrize(("margin", "limit"), [(1.0, 3.0), (2.0, 1.0), (4.0, 0.6)])
def test_decoding_small_is_close_to_decoding_in_full(margin: float, limit: float) -> None:
    data = encoded(picture(1600, 1200), "JPEG", quality=90)
    small = decode(data, 96, "center", margin=margin)
    full = decode(data, 96, "center", margin=None)
    mean, _ = apart(small, full)
    assert 0 < mean < limit


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = picture(120, 80)
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        options: dict[str, Any] = {"quality": 95} if kind == "JPEG" else {}
        if kind == "WEBP":
            options["lossless"] = True
        data = encoded(image, kind, exif=exif, **options)
        from PIL import ImageOps

        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        mean, _ = apart(decode(data), tensor(upright.convert("RGB")))
        assert mean < (0.01 if TURBO or kind != "JPEG" else 1.5), kind
        assert decode(data, upright=False).shape == (3, 80, 120)
        part = decode(data, None, (3, 5, 40, 30), margin=None)
        mean, _ = apart(part, tensor(upright.convert("RGB").crop((3, 5, 43, 35))))
        assert mean < (0.3 if TURBO or kind != "JPEG" else 1.5), kind


def test_values_keep_their_type() -> None:
    deep = numpy.arange(64 * 48, dtype=numpy.uint16).reshape(48, 64) * 21
    for kind in ("PNG", "TIFF"):
        data = encoded(Image.fromarray(deep), kind)
        found = decode(data, mode="keep")
        assert found.dtype == torch.uint16
        assert numpy.array_equal(found[0].numpy(), deep)
        eight = decode(data, mode="l", dtype="uint8")
        assert numpy.array_equal(eight[0].numpy(), numpy.round(deep / 257).astype(numpy.uint8))
    floats = numpy.linspace(-3, 1e6, 64 * 48, dtype=numpy.float32).reshape(48, 64)
    data = encoded(Image.fromarray(floats), "TIFF")
    found = decode(data, mode="keep")
    assert numpy.array_equal(found[0].numpy(), floats)
    with pytest.raises(memfit.data.ImageError, match="values are float32"):
        decode(data, mode="keep", dtype="uint8")
    whole = numpy.linspace(-30000, 30000, 64 * 48).astype(numpy.int32).reshape(48, 64)
    found = decode(encoded(Image.fromarray(whole), "TIFF"), mode="keep")
    assert numpy.array_equal(found[0].numpy(), whole.astype(numpy.float32))


def test_modes_are_those_of_pillow() -> None:
    image = picture(90, 70)
    image.putalpha(picture(90, 70, 1).convert("L"))
    data = encoded(image, "PNG")
    for mode, name in [("rgb", "RGB"), ("l", "L"), ("rgba", "RGBA")]:
        assert (
            apart(
                decode(data, mode=mode), tensor(image.convert("RGB" if name == "L" else name).convert(name))
            )[1]
            == 0
        )
    mean, _ = apart(
        decode(data, (35, 45), mode="rgba"), tensor(image.resize((45, 35), Image.Resampling.BILINEAR))
    )
    assert mean < 0.6


def test_boxes_and_points_move_with_the_picture() -> None:
    # A bright block, which has to be at the position that its moved box states.
    array = numpy.zeros((300, 400, 3), numpy.uint8)
    array[120:160, 200:260] = 255
    data = encoded(Image.fromarray(array), "PNG")
    for options in [
        {"size": (150, 200)},
        {"size": 128, "crop": "center"},
        {"size": 64, "crop": (150, 100, 200, 150)},
        {"size": 96, "crop": "random", "scale": (0.6, 1.0), "flip": 1.0, "seed": (3,)},
    ]:
        found = decode(data, with_mapping=True, **options)
        height, width = found.image.shape[1:]
        box = memfit.data.move_boxes([[200, 120, 260, 160]], found.mapping, (height, width))[0]
        rows, columns = torch.where(found.image[0] > 127)
        seen = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        assert (box - seen).abs().max() <= 1, options
        mask = memfit.data.move_mask(decode(data)[0], found.mapping, (height, width))
        assert set(mask.unique().tolist()) == {0, 255}
        # They differ only at edges, where the image's pixels are blended.
        assert ((mask > 127) != (found.image[0] > 127)).float().mean() < 0.02, options


def test_random_parts_have_the_shares_that_were_asked_for() -> None:
    data = encoded(picture(400, 300), "JPEG", quality=80)
    shares = []
    for seed in range(200):
        found = decode(
            data, 32, "random", scale=(0.2, 0.5), ratio=(0.8, 1.25), seed=(seed,), with_mapping=True
        )
        a, _, c, _ = found.mapping
        width, height = 32 / abs(a), 32 / abs(c)
        shares.append(width * height / (400 * 300))
        assert 0.78 < width / height < 1.28
    assert 0.19 < min(shares) < 0.23
    assert 0.47 < max(shares) < 0.51
    again = decode(data, 32, "random", seed=(7,))
    assert torch.equal(again, decode(data, 32, "random", seed=(7,)))
    assert not torch.equal(again, decode(data, 32, "random", seed=(8,)))


def test_normalising_is_that_of_torchvision() -> None:
    images = torch.randint(0, 256, (4, 3, 32, 40), dtype=torch.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    wanted = functional.normalize(images.to(torch.float32) / 255, list(mean), list(std))
    assert torch.allclose(memfit.data.Normalize(mean, std)(images), wanted, atol=1e-5)
    last = images.contiguous(memory_format=torch.channels_last)
    assert torch.allclose(memfit.data.Normalize(mean, std)(last), wanted, atol=1e-5)
    half = memfit.data.Normalize(mean, std, torch.bfloat16)(images)
    assert half.dtype == torch.bfloat16
    deep = torch.arange(3 * 4, dtype=torch.int32).reshape(3, 2, 2).to(torch.uint16)
    assert torch.allclose(
        memfit.data.Normalize(mean, std)(deep),
        functional.normalize(deep.to(torch.float32) / 65535, list(mean), list(std)),
        atol=1e-5,
    )


def test_colours_are_jittered_as_by_torchvision() -> None:
    # From the middle of the range, so that nothing is clipped in between.
    images = torch.randint(90, 150, (3, 3, 40, 50), dtype=torch.uint8)
    jitter = memfit.data.ColorJitter((0.8, 1.3), 0.4, (0.2, 1.6), generator=torch.Generator().manual_seed(5))
    found = jitter(images)
    light, contrast, colour = torch.rand(3, 3, generator=torch.Generator().manual_seed(5))
    for number, image in enumerate(images.to(torch.float32) / 255):
        wanted = functional.adjust_brightness(image, float(0.8 + 0.5 * light[number]))
        wanted = functional.adjust_contrast(wanted, float(0.6 + 0.8 * contrast[number]))
        wanted = functional.adjust_saturation(wanted, float(0.2 + 1.4 * colour[number]))
        assert torch.allclose(found[number], wanted, atol=2e-3)
    assert torch.allclose(memfit.data.ColorJitter()(images), images / 255, atol=1e-6)
    with pytest.raises(ValueError, match="has to be a range"):
        memfit.data.ColorJitter((1.5, 1.0))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "nothing, it is empty"),
        (b"<html>not found</html>", "3c 68 74 6d"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "ends within its header"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "does not begin with its header"),
    ],
)
def test_a_file_that_is_no_image_is_an_error(data: bytes, said: str) -> None:
    with pytest.raises(memfit.data.ImageError, match=said):
        decode(data)


@pytest.mark.parametrize("kind", ["jpeg-420", "jpeg-progressive", "png", "webp", "tiff-lzw"])
def test_a_truncated_image_is_an_error(kind: str) -> None:
    data = FILES[kind](picture(300, 200))
    for part in (0.4, 0.9):
        with pytest.raises(memfit.data.ImageError, match=r"damaged|ends"):
            decode(data[: int(len(data) * part)])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"crop": "middle"}, "crop="),
        ({"size": 64, "crop": (300, 0, 200, 100)}, "not inside"),
        ({"size": 64, "crop": "center", "resize": 32}, "leaves less"),
        ({"size": 0, "crop": "center"}, "at least 1"),
        ({"filter": "cubic"}, "filter="),
        ({"mode": "hsv"}, "mode="),
        ({"margin": 0.5}, "margin="),
        ({"page": 3}, "have pages to choose from"),
    ],
)
def test_invalid_settings_are_errors(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode(encoded(picture(400, 300), "JPEG"), **options)


@pytest.mark.skipif(not TURBO, reason="the decoder in Rust alone knows no scales")
@pytest.mark.parametrize("by", [4, 8])
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0", "grey"])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"restart_marker_blocks": 3}], ids=str)
def test_small_scales_are_libjpegs(by: int, sampling: str, options: dict[str, Any]) -> None:
    """Whichever decoder takes it, as Pillow's own libjpeg-turbo decodes at that scale."""
    image = picture(333, 251).convert("L" if sampling == "grey" else "RGB")
    if sampling != "grey":
        options = {**options, "subsampling": sampling}
    data = encoded(image, "JPEG", quality=88, **options)
    drafted = Image.open(io.BytesIO(data))
    drafted.draft(None, (333 // by, 251 // by))
    theirs = tensor(drafted)
    assert theirs.shape[1:] == (-(-251 // by), -(-333 // by))
    # A part that begins and ends with pixels of that scale is not resized.
    left, top, wide, high = (by * number for number in (3, 5, 21, 17))
    ours = decode(data, (17, 21), (left, top, wide, high), margin=1.0, mode="keep")
    assert torch.equal(ours, theirs[:, 5:22, 3:24])
