"""AVIF and HEIC: Pillow decodes them, HEIC with pillow-heif, and they go on as PNG."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

_ENDINGS = {".avif": "AVIF", ".avifs": "AVIF", ".heic": "HEIC", ".heif": "HEIC"}
# What such a file calls itself, behind `ftyp`.
_BRANDS = {
    b"avif": "AVIF",
    b"avis": "AVIF",
    b"heic": "HEIC",
    b"heix": "HEIC",
    b"hevc": "HEIC",
    b"mif1": "HEIC",
}


def kind_of(image: Any) -> str | None:
    """What an image is, given as a path or as bytes, if it is one of these."""
    if isinstance(image, (str, os.PathLike)):
        return _ENDINGS.get(os.path.splitext(os.fspath(image))[1].lower())
    begins = bytes(image[:12])
    return _BRANDS.get(begins[8:12]) if begins[4:8] == b"ftyp" else None


def ready(kind: str) -> None:
    """An error that says what to install, where images of this kind cannot be read."""
    try:
        from PIL import features
    except ImportError:
        raise ImportError(f"{kind} is read with Pillow: pip install pillow") from None
    if kind == "AVIF":
        if not features.check("avif"):
            raise ImportError("AVIF is read with Pillow from 11.3 on: pip install -U pillow")
        return
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise ImportError("HEIC is read with pillow-heif: pip install pillow-heif") from None
    register_heif_opener()


def readable(image: Any) -> Any:
    """The same image, as what is read here."""
    kind = kind_of(image)
    if kind is None:
        return image
    ready(kind)
    from PIL import Image

    source = image if isinstance(image, (str, os.PathLike)) else io.BytesIO(image)
    out = io.BytesIO()
    with Image.open(source) as picture:
        # It is unpacked at once, so that nothing is gained by packing it well.
        picture.save(out, "PNG", compress_level=1, exif=picture.getexif())
    return out.getvalue()


class Opener:
    """Gives files by their numbers, with their targets."""

    def __init__(self, paths: Sequence[str], targets: Sequence[Any]) -> None:
        self.paths, self.targets = list(paths), targets
        for kind in sorted({kind for path in paths if (kind := kind_of(path))}):
            # What cannot be read at all is told now, and not in the first pass.
            ready(kind)

    def __call__(self, index: int) -> tuple[Any, Any]:
        return readable(self.paths[index]), self.targets[index]
