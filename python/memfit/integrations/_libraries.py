"""Imports a library that memfit does not depend on."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

# The oldest supported releases: `make integrations` runs the tests with these and with the newest.
OLDEST = {
    "transformers": (4, 46),
    "accelerate": (1, 1),
    "lightning": (2, 2),
    "pytorch_lightning": (2, 2),
    "trl": (0, 15),
}


def require(library: str, module: str | None = None) -> ModuleType:
    """Return a library's module; without the library, or with a release that is too old, raise an error that
    says how to install it.
    """
    oldest = ".".join(map(str, OLDEST[library]))
    command = f"`{sys.executable} -m pip install '{library.replace('_', '-')}>={oldest}'`"
    integration = library.replace("pytorch_", "")
    try:
        imported = import_module(module or library)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in (library, "torch"):
            raise
        missing = "PyTorch" if error.name.split(".")[0] == "torch" else f"`{library}`"
        if missing == "PyTorch":
            command = f"`{sys.executable} -m pip install torch`"
        raise ImportError(
            f"`memfit.integrations.{integration}` needs {missing}, which is not installed here\nhint: {command}",
            name=error.name,
        ) from None
    try:
        found = version(library)
    except PackageNotFoundError:
        return imported
    numbers = tuple(int(each) for each in re.findall(r"\d+", found)[:2])
    if numbers < OLDEST[library]:
        raise ImportError(
            f"`memfit.integrations.{integration}` needs {library} {oldest} or newer; {found} is installed\n"
            f"hint: {command}",
            name=library,
        )
    return imported
