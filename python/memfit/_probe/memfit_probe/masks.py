"""Computes block masks of flex attention on the host, and uploads their numbers of blocks.

They decide how long attention takes, and the virtual GPU computes nothing. A mask that reads tensors on the
GPU cannot be computed and stays as it is.
"""

import functools
import inspect
import math

from . import imports

# Maximum number of mask entries; larger ones take too long on the host.
MAX_ENTRIES = 1 << 26
COUNTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


def arm():
    """Activate it for each mask that the script creates."""
    imports.after("torch.nn.attention.flex_attention", _listen)


def _listen(module):
    import torch

    original = module.create_block_mask
    signature = inspect.signature(original)

    @functools.wraps(original)
    def create(*args, **kwargs):
        mask = original(*args, **kwargs)
        if not torch.compiler.is_compiling() and mask.kv_num_blocks.is_cuda:
            _fill(torch, mask, original, signature.bind(*args, **kwargs).arguments)
        return mask

    module.create_block_mask = create


def _fill(torch, mask, create, arguments):
    entries = math.prod(arguments[name] or 1 for name in ("B", "H", "Q_LEN", "KV_LEN"))
    if entries > MAX_ENTRIES or torch.cuda.is_current_stream_capturing():
        return
    try:
        computed = create(**{**arguments, "device": "cpu", "_compile": False})
    except Exception:
        # It reads a tensor on the GPU.
        return
    with torch.no_grad():
        for name in COUNTS:
            there, known = getattr(mask, name), getattr(computed, name)
            if there is not None and known is not None:
                there.copy_(known)
