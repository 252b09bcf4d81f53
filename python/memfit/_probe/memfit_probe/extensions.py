"""Extensions with a CUDA runtime of their own: refused when they are loaded, by name, before they end the
process.

The device in front of this process cannot stand in front of what a library has linked into itself.
"""

import ctypes
import functools
import importlib.machinery
import os

# Libraries whose every call the device answers itself, so that they are never asked.
SHADOWED = (f"{os.sep}nvidia{os.sep}", f"{os.sep}torch{os.sep}lib{os.sep}")


def arm(session):
    """Looks at each library that Python loads from now on."""
    brings = ctypes.CDLL(None).memfit_vgpu_brings_runtime
    brings.argtypes, brings.restype = (ctypes.c_char_p,), ctypes.c_int

    def refuse(path):
        path = os.fspath(path)
        if os.path.isabs(path) and not any(part in path for part in SHADOWED) and brings(os.fsencode(path)):
            session.remark("static-runtime", library=os.path.basename(path))
            return (
                f"memfit: `{os.path.basename(path)}` is linked with a CUDA runtime of its own (-cudart static), which "
                "the virtual device cannot stand in front of; build it with `-cudart shared`, as PyTorch's own "
                "extensions are"
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
