"""Imports modules that a try imported after its fork once in the parent, before the next fork.

Libraries import much of their code late: the first optimizer imports PyTorch's compiler, a trainer its
integrations. A try reports the modules that it imported after its fork, and the parent process catches up.
Only libraries that do not use the GPU on import qualify, because the parent must not have used it.
"""

import contextlib
import gc
import importlib
import os
import sys

from . import inputs, kinds

# PyTorch and its dependencies.
PLAIN = frozenset(
    ("torch", "torchgen", "functorch", "numpy", "sympy", "mpmath", "networkx", "jinja2", "packaging")
)
# Other libraries that only ask for the kind of GPU on import, provided that they import nothing else.
QUIET = frozenset(
    (
        "transformers",
        "tokenizers",
        "accelerate",
        "huggingface_hub",
        "safetensors",
        "lightning",
        "lightning_fabric",
        "lightning_utilities",
        "pytorch_lightning",
        "torchmetrics",
        "torchvision",
        "timm",
        "peft",
        "torchao",
        "bitsandbytes",
        "triton",
        "diffusers",
        "sentencepiece",
        "memfit_levers",
        "PIL",
        "tqdm",
        "yaml",
        "regex",
        "requests",
        "urllib3",
        "psutil",
        "filelock",
        "fsspec",
        "scipy",
        "pandas",
        "sklearn",
    )
)


class Ahead:
    """The modules imported by tries, relative to those of the parent process."""

    def __init__(self, session, folder):
        self.session = session
        self.file = os.path.join(folder, "imported")
        self.known = frozenset()

    def forked(self):
        """Record the modules at the fork; later ones are new."""
        self.known = frozenset(sys.modules)

    def write_new_modules(self):
        """Report the new modules at the end of a try."""
        new = [name for name in list(sys.modules) if name not in self.known]
        if not new:
            return
        # Tries may run at the same time.
        own = f"{self.file}.{os.getpid()}"
        with open(own, "w", encoding="utf-8") as file:
            file.write("\n".join(new))
        os.rename(own, self.file)

    def catch_up(self):
        """Import the modules that the last try reported."""
        try:
            with open(self.file, encoding="utf-8") as file:
                names = file.read().split("\n")
            os.remove(self.file)
        except OSError:
            return
        torch, cards = self.session.torch, self.session.setup["cards"]
        core = torch._C
        count = core._cuda_getDeviceCount
        core._cuda_getDeviceCount = lambda: len(cards)
        try:
            with inputs.without_gpu(torch), kinds.answered_from_catalogue(torch, cards):
                for name in wanted(names):
                    if name not in sys.modules:
                        with contextlib.suppress(Exception):
                            importlib.import_module(name)
        finally:
            core._cuda_getDeviceCount = count
        # The garbage collector of a try need not visit these either.
        gc.freeze()


def wanted(names):
    """Select the modules that the parent may import, in order."""
    plain = PLAIN | sys.stdlib_module_names
    packages = {name.partition(".")[0] for name in names}
    may_be = plain | QUIET if packages <= plain | QUIET else plain
    return [name for name in names if name.partition(".")[0] in may_be]
