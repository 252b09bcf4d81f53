"""Block masks of flex attention: how many blocks are left is computed on the host, and uploaded.

How long attention takes follows from it, and the virtual card computes nothing. What a mask looks up in
tensors of the card's is not known here: such a mask stays as the card has it.
"""

import functools
import inspect
import math

from . import imports

# A mask of more entries would take the host too long.
MOST = 1 << 26
COUNTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


def arm():
    """Whenever the script makes a mask."""
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
    if entries > MOST or torch.cuda.is_current_stream_capturing():
        return
    try:
        computed = create(**{**arguments, "device": "cpu", "_compile": False})
    except Exception:
        # It looks something up on the card.
        return
    with torch.no_grad():
        for name in COUNTS:
            there, known = getattr(mask, name), getattr(computed, name)
            if there is not None and known is not None:
                there.copy_(known)
