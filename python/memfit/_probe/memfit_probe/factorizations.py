"""Factorizations of PyTorch's that fail for some matrices, where a further run lets one fail.

The test whether one failed is a condition on the GPU, so that a run which inverts it sees an error. PyTorch
chooses the error by a code that is then missing: here, it is the one for a matrix that has no factorization.
"""

import functools

# In `torch.linalg`.
NAMES = ["cholesky", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "solve", "svd", "svdvals"]
# Other names of these.
OLDER = ("cholesky", "inverse")


def watch(torch, known):
    """Replace the functions; return where they were, and the originals."""
    places = [(torch.linalg, name, f"aten::linalg_{name}") for name in NAMES]
    for holder in (torch, torch.Tensor):
        places += [(holder, name, f"aten::{name}") for name in OLDER if hasattr(holder, name)]
    originals = []
    for holder, name, builtin in places:
        original = getattr(holder, name)
        originals.append((holder, name, original))
        made = _failing(original, torch.linalg.LinAlgError, known)
        setattr(holder, name, made)
        if holder is not torch.Tensor:
            # TorchScript knows functions by their identity.
            torch.jit._builtins._register_builtin(made, builtin)
    return originals


def _failing(original, error, known):
    @functools.wraps(original)
    def factorize(*args, **kwargs):
        flips = known.flips()
        try:
            return original(*args, **kwargs)
        except error:
            raise
        except RuntimeError as failure:
            if known.flips() == flips:
                raise
            raise error(str(failure)) from None

    return factorize
