"""Passes Triton's intermediate code to the device, which reads from it which operands a kernel writes.

Inductor's programs are loaded from files, and the device finds the code next to them by itself.
"""

import ctypes
import functools

from . import imports


def arm(session):
    """Report each kernel that Triton loads directly to the device."""
    tell = getattr(ctypes.CDLL(None), "memfit_vgpu_kernel_text", None)
    if tell is None:
        return
    tell.argtypes = [ctypes.c_size_t, ctypes.c_char_p]

    def listen(module):
        kernel = module.CompiledKernel
        original = kernel._init_handles

        @functools.wraps(original)
        def load(self, *args, **kwargs):
            fresh = self.module is None
            result = original(self, *args, **kwargs)
            text = self.asm.get("ttir") if fresh else None
            if isinstance(self.function, int) and isinstance(text, str):
                tell(self.function, text.encode())
            return result

        kernel._init_handles = load

    imports.after("triton.compiler.compiler", listen)
