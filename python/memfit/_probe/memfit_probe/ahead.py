"""What a try imports after it was forked is imported once, before the next one is.

Libraries import much of themselves late: the first optimizer brings PyTorch's compiler along, a trainer its
integrations. A try tells which modules came after its fork, and the process that is forked catches up with
it. Only libraries whose import asks nothing of the card are taken: the process that is forked must not have
used it.
"""

import contextlib
import gc
import importlib
import os
import sys

from . import inputs, kinds

# PyTorch and what it is made of.
PLAIN = frozenset(
    ("torch", "torchgen", "functorch", "numpy", "sympy", "mpmath", "networkx", "jinja2", "packaging")
)
# Others whose import asks nothing of a card but what kind it is, as long as nothing else comes with them.
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
    """The modules that tries import, as the process knows them that they are forked from."""

    def __init__(self, session, folder):
        self.session = session
        self.file = os.path.join(folder, "imported")
        self.known = frozenset()

    def forked(self):
        """This is a try now: what is imported from here on is new."""
        self.known = frozenset(sys.modules)

    def tell(self):
        """A try is over."""
        new = [name for name in list(sys.modules) if name not in self.known]
        if not new:
            return
        with open(self.file + ".new", "w", encoding="utf-8") as file:
            file.write("\n".join(new))
        os.rename(self.file + ".new", self.file)

    def catch_up(self):
        """Imports what the last try had to."""
        try:
            with open(self.file, encoding="utf-8") as file:
                names = file.read().split("\n")
            os.remove(self.file)
        except OSError:
            return
        torch, cards = self.session.torch, self.session.setup["cards"]
        core = torch._C
        count, init = core._cuda_getDeviceCount, core._cuda_init
        core._cuda_getDeviceCount = lambda: len(cards)
        core._cuda_init = inputs.no_card_yet
        try:
            with kinds.told(torch, cards):
                for name in wanted(names):
                    if name not in sys.modules:
                        with contextlib.suppress(Exception):
                            importlib.import_module(name)
        finally:
            core._cuda_getDeviceCount, core._cuda_init = count, init
        # No try goes over these either.
        gc.freeze()


def wanted(names):
    """Of modules that a try imported, those that may be there before it, in their order."""
    plain = PLAIN | sys.stdlib_module_names
    packages = {name.partition(".")[0] for name in names}
    may_be = plain | QUIET if packages <= plain | QUIET else plain
    return [name for name in names if name.partition(".")[0] in may_be]
