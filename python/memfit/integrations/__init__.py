"""memfit inside other trainers: `memfit.integrations.transformers`, `.lightning` and `.accelerate`.

Each module imports its library on first use; importing this package imports none of them.
"""

from __future__ import annotations

from types import ModuleType

__all__ = ["accelerate", "lightning", "transformers"]


def __getattr__(name: str) -> ModuleType:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'memfit.integrations' has no attribute {name!r}")
    return import_module(f"memfit.integrations.{name}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
