"""memfit: make PyTorch training fit in GPU memory.

Importing this does not import torch.
"""

from memfit._core import __version__

__all__ = ["__version__"]
