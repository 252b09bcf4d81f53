"""Finds uses of unknown numbers that ask no method of theirs: conversions in C read the number itself.

The user's files are searched for what may do so (`"%.2f" % v`, `json.dumps`, `struct`, packages that are not
known) where the result is not only shown. It may concern other numbers, or none: a further run tells.
"""

import ast
import re
import sys

from . import flows, imports, shown_texts
from .oom import is_library

# Conversions of `%` that read a floating-point number.
CONVERSION = re.compile(r"%[^a-zA-Z%]*[eEfFgG]")
# Modes of files of text.
MODE = re.compile(r"[rwaxt+]+")
# Modules of Python that read numbers.
READING = frozenset(("array", "ctypes", "decimal", "marshal", "sqlite3", "struct"))
# Installed packages that show numbers, ask their methods, or turn them into tensors.
KNOWN_NAMES = """
    PIL absl accelerate aim albumentations apex bitsandbytes clearml click colorama comet_ml cv2 datasets
    deepspeed diffusers einops evaluate fire flash_attn fvcore huggingface_hub hydra imageio iopath lightning
    lightning_fabric lightning_utilities loguru matplotlib memfit mlflow monai neptune networkx numpy omegaconf
    packaging peft pkg_resources psutil pytorch_lightning regex requests rich safetensors scipy seaborn
    sentencepiece setproctitle setuptools six skimage sklearn swanlab tabulate tensorboard tensorboardX termcolor
    tiktoken timm tokenizers torch torchaudio torchdata torchinfo torchmetrics torchsummary torchvision tqdm
    transformers triton trl typing_extensions tyro wandb xformers yaml
"""
KNOWN = frozenset(KNOWN_NAMES.split())
# Names of what a script writes texts to and reads from at once.
BUFFERS = frozenset(
    (
        "NamedTemporaryFile",
        "SpooledTemporaryFile",
        "StringIO",
        "TemporaryFile",
        "redirect_stderr",
        "redirect_stdout",
    )
)
# Methods of the script's own to which libraries give texts: of a handler of logging, and of a file.
RECEIVERS = ("emit", "write")
# Functions that write values to a file which `load` reads.
WRITERS = (("json", "dump"), ("yaml", "dump"), ("yaml", "safe_dump"), ("pickle", "dump"))
# Constructors that read numbers.
TENSORS = frozenset(f"{kind}Tensor" for kind in ("BFloat16", "Double", "Float", "Half", "Int", "Long"))


class Unseen:
    """A search through the user's files, each once."""

    def __init__(self):
        self.modules = 0
        self.searched = set()
        self.found = False

    def any(self):
        """Return `True` if a file that is loaded by now may have such a use."""
        if not self.found and len(sys.modules) != self.modules:
            self.modules = len(sys.modules)
            for _, namespace in imports.loaded():
                path = namespace.get("__file__")
                if isinstance(path, str) and path.endswith(".py") and path not in self.searched:
                    self.searched.add(path)
                    self.found = self.found or (not _is_others(path) and _may_use(path))
        return self.found


def _is_others(path):
    return path.startswith(flows.PROBE) or is_library(path)


def _may_use(path):
    source = shown_texts.source_of(path)
    used = set()
    for node in source.parents:
        if isinstance(node, ast.Import):
            used.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            used.add(node.module)
    return (
        any(_is_unseen(node, source) for node in source.parents)
        or _reads_back(source)
        or any(_reads_numbers(name.partition(".")[0]) for name in used)
    )


def _is_unseen(node, source):
    """Return `True` if an expression may read a number unseen, and is not only shown."""
    if isinstance(node, ast.Attribute):
        return node.attr in TENSORS or node.attr in BUFFERS
    if isinstance(node, ast.Name):
        return node.id in BUFFERS
    if isinstance(node, ast.FunctionDef):
        return node.name in RECEIVERS and isinstance(source.parents[node], ast.ClassDef)
    if isinstance(node, ast.Constant):
        if _opens_to_update(node, source):
            return True
        reads = isinstance(node.value, str) and CONVERSION.search(node.value) is not None
    else:
        reads = isinstance(node, ast.Call) and flows.called(node.func) == "dumps"
    return reads and source.use(node) is not shown_texts.SHOWN


def _opens_to_update(mode, source):
    """Return `True` if a constant is the mode of a file that is both written and read, as text."""
    if not isinstance(mode.value, str) or "+" not in mode.value or not MODE.fullmatch(mode.value):
        return False
    call = source.parents[mode]
    call = source.parents[call] if isinstance(call, ast.keyword) else call
    return isinstance(call, ast.Call) and flows.called(call.func) == "open"


def _reads_back(source):
    """Return `True` if the file writes values as JSON or YAML, and reads such files."""
    names = {ast.unparse(node.func) for node in source.parents if isinstance(node, ast.Call)}
    return any({f"{module}.{write}", f"{module}.load"} <= names for module, write in WRITERS)


def _reads_numbers(package):
    if package in READING:
        return True
    if package in sys.stdlib_module_names or package in KNOWN:
        return False
    path = getattr(sys.modules.get(package), "__file__", None)
    return path is None or _is_others(path)
