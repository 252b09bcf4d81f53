"""Refuses extensions that are statically linked with a CUDA runtime by name when they are loaded, because
they would crash the process.

The virtual device cannot intercept the calls of a statically linked runtime.
"""

import ctypes
import functools
import importlib.machinery
import os

# Libraries that the virtual device replaces completely, so they are never called.
SHADOWED = (f"{os.sep}nvidia{os.sep}", f"{os.sep}torch{os.sep}lib{os.sep}")


def arm(session):
    """Check each library that Python loads from now on."""
    brings = ctypes.CDLL(None).memfit_vgpu_brings_runtime
    brings.argtypes, brings.restype = (ctypes.c_char_p,), ctypes.c_int

    def refuse(path):
        path = os.fspath(path)
        if os.path.isabs(path) and not any(part in path for part in SHADOWED) and brings(os.fsencode(path)):
            session.remark("static-runtime", library=os.path.basename(path))
            return (
                f"memfit: `{os.path.basename(path)}` is statically linked with a CUDA runtime (-cudart "
                "static), whose calls the virtual device cannot intercept; build it with `-cudart shared`, "
                "like PyTorch's own extensions"
            )
        return None

    loader = importlib.machinery.ExtensionFileLoader
    create = loader.create_module

    @functools.wraps(create)
    def create_module(self, spec):
        why = refuse(spec.origin) if spec.origin else None
        if why:
            raise ImportError(why, name=spec.name, path=spec.origin)
        return create(self, spec)

    loader.create_module = create_module
    opened = ctypes.CDLL.__init__

    @functools.wraps(opened)
    def init(self, name, *args, **kwargs):
        why = refuse(name) if isinstance(name, (str, os.PathLike)) else None
        if why:
            raise OSError(why)
        opened(self, name, *args, **kwargs)

    ctypes.CDLL.__init__ = init
