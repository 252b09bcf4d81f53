"""Remote sources: `https://`, `s3://`, `gs://`, `hf://`, read through fsspec, file by file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from memfit.data import _pillow

# A scheme and `://`; a single letter would be a Windows drive.
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_IMAGES = re.compile(r"\.(jpe?g|png|webp|tiff?|gif|bmp|p[bgnp]m|jp2|j2k|jpx|avif|hei[cf])$", re.IGNORECASE)
# Number of attempts to read a file when the connection fails.
_MAX_ATTEMPTS = 3


def is_address(path: Any) -> bool:
    """Return `True` if a path is a remote address."""
    return isinstance(path, str) and _ADDRESS.match(path) is not None


def listed(address: str) -> list[str]:
    """Return the addresses that match a pattern or are below a folder, or the address itself."""
    system, path = _system(address)
    if re.search(r"[*?\[]", path):
        found = [name for name in sorted(system.glob(path)) if not system.isdir(name)]
    elif _IMAGES.search(path) is None and system.isdir(path):
        found = [name for name in sorted(system.find(path)) if _IMAGES.search(name)]
    else:
        return [address]
    if not found:
        raise ValueError(f"there are no images at {address}")
    return [system.unstrip_protocol(name) for name in found]


def folders(address: str, found: Sequence[str]) -> list[str] | None:
    """Return the subfolder of each file below an address, or None if some are in no subfolder."""
    system, path = _system(address)
    root = system.unstrip_protocol(path).rstrip("/") + "/"
    below = [name.removeprefix(root).split("/") for name in found]
    return [parts[0] for parts in below] if all(len(parts) > 1 for parts in below) else None


class Fetcher:
    """Reads remote files by number, with their targets."""

    def __init__(self, addresses: Sequence[str], targets: Sequence[Any]) -> None:
        self.addresses, self.targets = list(addresses), targets
        for address in {_ADDRESS.match(name)[0]: name for name in addresses}.values():  # type: ignore[index]
            # Report unsupported addresses now rather than in the first epoch.
            _system(address)

    def __call__(self, index: int) -> tuple[bytes, Any]:
        address = self.addresses[index]
        for attempt in range(_MAX_ATTEMPTS):
            system, path = _system(address)
            try:
                return _pillow.readable(system.cat_file(path)), self.targets[index]
            except FileNotFoundError:
                raise FileNotFoundError(f"{address}: there is no such file") from None
            except (OSError, TimeoutError) as error:
                if attempt + 1 == _MAX_ATTEMPTS:
                    raise OSError(f"{address}: {error or type(error).__name__}") from error
        raise AssertionError


def _system(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ImportError(f"{address} needs fsspec: pip install fsspec") from None
    try:
        system, path = url_to_fs(address)
    except ImportError as error:
        raise ImportError(f"{address}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{address}: {error}") from None
    return system, path
