"""Decodes AVIF and HEIC with Pillow (HEIC with pillow-heif), and passes them on as PNG."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

_ENDINGS = {".avif": "AVIF", ".avifs": "AVIF", ".heic": "HEIC", ".heif": "HEIC"}
# Brands of such files, after `ftyp`.
_BRANDS = {
    b"avif": "AVIF",
    b"avis": "AVIF",
    b"heic": "HEIC",
    b"heix": "HEIC",
    b"hevc": "HEIC",
    b"mif1": "HEIC",
}


def kind_of(image: Any) -> str | None:
    """Return "AVIF" or "HEIC" for such an image, given as a path or as bytes, else None."""
    if isinstance(image, (str, os.PathLike)):
        return _ENDINGS.get(os.path.splitext(os.fspath(image))[1].lower())
    begins = bytes(image[:12])
    return _BRANDS.get(begins[8:12]) if begins[4:8] == b"ftyp" else None


def ready(kind: str) -> None:
    """Raise an error with installation advice if images of this kind cannot be read."""
    try:
        from PIL import features
    except ImportError:
        raise ImportError(f"{kind} needs Pillow: pip install pillow") from None
    if kind == "AVIF":
        if not features.check("avif"):
            raise ImportError("AVIF needs Pillow 11.3 or later: pip install -U pillow")
        return
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise ImportError("HEIC needs pillow-heif: pip install pillow-heif") from None
    register_heif_opener()


def readable(image: Any) -> Any:
    """Convert an image to a format that the decoder supports; return others unchanged."""
    kind = kind_of(image)
    if kind is None:
        return image
    ready(kind)
    from PIL import Image

    source = image if isinstance(image, (str, os.PathLike)) else io.BytesIO(image)
    out = io.BytesIO()
    with Image.open(source) as picture:
        # It is decoded right away, so strong compression is useless.
        picture.save(out, "PNG", compress_level=1, exif=picture.getexif())
    return out.getvalue()


class Opener:
    """Reads files by number, with their targets."""

    def __init__(self, paths: Sequence[str], targets: Sequence[Any]) -> None:
        self.paths, self.targets = list(paths), targets
        for kind in sorted({kind for path in paths if (kind := kind_of(path))}):
            # Report unreadable formats now rather than in the first epoch.
            ready(kind)

    def __call__(self, index: int) -> tuple[Any, Any]:
        return readable(self.paths[index]), self.targets[index]
