import os
from collections.abc import Sequence

__all__ = ["__version__", "main"]

__version__: str

def main(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    python: str | os.PathLike[str] | None = None,
    libraries: str | os.PathLike[str] | None = None,
) -> int: ...
