"""Replacements for missing weights, data and programs, and for libraries that cannot be intercepted, and
their remarks in the report.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
from runs import GIB, MIB
from support import Answer, on_device, through_memfit


def ask(code: str, folder: Path, *options: str) -> Answer:
    return on_device(code, folder, start=lambda *asked: through_memfit(*asked, options=options))


def noted(answer: Answer, *words: str) -> bool:
    return any(all(word in note for word in words) for note in answer.report["fidelity"]["notes"])


WEIGHTS = """
    import transformers
    config = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True, dtype="bfloat16",
    )
    folder = os.path.join(os.path.dirname(__file__), "model")
    os.makedirs(folder, exist_ok=True)
    config.save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device)
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    state = torch.load("/nowhere/checkpoint.pt", map_location="cpu")
    head = torch.nn.Linear(8, 8)
    head.load_state_dict(state["head"])
    first_step = int(state["step"]) + 1
    ids = torch.randint(0, 1000, (1, 64), device=device)
    model(ids, labels=ids).loss.backward()
    try:
        transformers.AutoModelForCausalLM.from_pretrained("nobody/has-this")
        refused = None
    except OSError as error:
        refused = str(error)
    answer(
        bytes=sum(each.numel() * each.element_size() for each in model.parameters()),
        dtypes=sorted({str(each.dtype) for each in model.parameters()}), tied=tied, first_step=first_step,
        refused=refused, named=sorted({model.name_or_path, model.config._name_or_path}), folder=folder,
    )
"""


def test_weights_that_are_not_here_take_no_room_on_the_host(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    answer = ask(WEIGHTS, tmp_path, "--synthetic-weights")
    assert answer.status == 0, answer.output
    assert answer.said["bytes"] > 2.2 * GIB
    assert (answer.said["dtypes"], answer.said["tied"]) == (["torch.bfloat16"], True)
    # A library looks for the tokenizer where the model says that it came from.
    assert answer.said["named"] == [answer.said["folder"]]
    assert answer.said["first_step"] == 1
    for words in ("`--synthetic-weights`", "nobody/has-this", "config.json", "LlamaConfig()"):
        assert words in answer.said["refused"]
    # Importing torch and transformers alone is about 0.8 GiB.
    assert answer.report["host"]["rss"] < 1.5 * GIB
    parameters = answer.report["at_peak"]["by_category"]["parameters"]
    assert abs(parameters - answer.said["bytes"]) < 8 * MIB
    assert noted(answer, "synthetic weights", "model", "configuration")
    assert noted(answer, "synthetic weights", "/nowhere/checkpoint.pt")


DATA = """
    import torchvision
    import urllib.error
    from torch.utils.data import DataLoader, Dataset

    class Own(Dataset):
        def __init__(self, root):
            self.files = sorted(os.listdir(root))

        def __len__(self):
            return len(self.files)

        def __getitem__(self, index):
            return torch.load(self.files[index]), 0

    class Remote(Dataset):
        def __init__(self):
            raise urllib.error.URLError("no network")

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return index

    class Graphs(Remote):
        __module__ = "torch_geometric.datasets"

        def __init__(self):
            raise urllib.error.URLError("no network")

    class Broken(Dataset):
        def __init__(self):
            raise RuntimeError("a mistake of its own")

    cut = torchvision.transforms.Compose(
        [torchvision.transforms.RandomCrop(24), torchvision.transforms.ToTensor()]
    )
    seen = {}
    for name, make in {
        "CIFAR10": lambda: torchvision.datasets.CIFAR10("/nowhere", transform=cut),
        "MNIST": lambda: torchvision.datasets.MNIST("/nowhere", transform=cut),
        "ImageFolder": lambda: torchvision.datasets.ImageFolder("/nowhere/train", cut),
        "Own": lambda: Own("/nowhere"),
        "Remote": Remote,
        "Graphs": Graphs,
        "Broken": Broken,
    }.items():
        try:
            data = make()
            images, labels = next(iter(DataLoader(data, batch_size=4, num_workers=1 if name == "Own" else 0)))
            seen[name] = [len(data), list(images.shape), str(images.dtype), labels.tolist()]
        except Exception as error:
            seen[name] = type(error).__name__
    torch.zeros(3, device=device)
    answer(**seen)
"""


def test_data_that_is_not_here_is_as_its_class_has_it(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    answer = ask(DATA, tmp_path, "--synthetic-data")
    assert answer.status == 0, answer.output
    assert answer.said["CIFAR10"] == [50_000, [4, 3, 24, 24], "torch.float32", [0, 1, 2, 3]]
    assert answer.said["ImageFolder"] == [1_281_167, [4, 3, 24, 24], "torch.float32", [0, 1, 2, 3]]
    # Nobody said what it holds: it fails as it would anywhere, and the report says what to do.
    assert answer.said["Own"] == "FileNotFoundError"
    assert answer.said["Broken"] == "RuntimeError"
    assert answer.said["Remote"] == answer.said["Graphs"] == "URLError"
    assert noted(
        answer, "`CIFAR10`", "are missing (", "--synthetic-data='image:3x32x32:float32,label:int64<10'`"
    )
    assert noted(answer, "`MNIST`", "--synthetic-data='image:1x28x28:float32,label:int64<10'`")
    # Photographs differ in size: scripts train on crops.
    assert noted(answer, "`ImageFolder`", "--synthetic-data='image:3x224x224:float32,label:int64<1000'`")
    assert noted(answer, "`Own`", "--synthetic-data=")
    assert noted(answer, "`Remote`", "--synthetic-data=")
    assert noted(answer, "`Graphs`", "graphs, which cannot be synthesised")


def test_data_that_is_not_here_is_as_it_was_stated(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    answer = ask(DATA, tmp_path, "--synthetic-data=image:3x40x30:uint8,label:int64<3@77")
    assert answer.status == 0, answer.output
    assert answer.said["Graphs"] == "URLError"
    for name in ("CIFAR10", "ImageFolder", "Own", "Remote"):
        assert answer.said[name] == [77, [4, 3, 40, 30], "torch.uint8", [0, 1, 2, 0]], name
    assert answer.said["Broken"] == "RuntimeError", "a mistake of the script's own is not a lack of files"
    assert noted(answer, "`Own`", "image:3x40x30:uint8", "77")


DIFFUSION = """
    import diffusers
    folder = os.path.join(os.path.dirname(__file__), "pipeline")
    shape = dict(
        sample_size=16, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, cross_attention_dim=32,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    with torch.device("meta"):
        whole = diffusers.UNet2DConditionModel(**shape)
    whole.save_config(os.path.join(folder, "unet"))
    model = diffusers.UNet2DConditionModel.from_pretrained(folder, subfolder="unet", torch_dtype=torch.bfloat16)
    model.to(device)
    try:
        diffusers.UNet2DConditionModel.from_pretrained(folder, subfolder="vae")
        refused = None
    except OSError as error:
        refused = str(error)
    answer(
        numbers=sum(each.numel() for each in model.parameters()),
        expected=sum(each.numel() for each in whole.parameters()),
        dtypes=sorted({str(each.dtype) for each in model.parameters()}),
        named=model.config._name_or_path, folder=folder, refused=refused,
    )
"""


def test_a_model_of_diffusers_takes_its_shapes_from_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    answer = ask(DIFFUSION, tmp_path, "--synthetic-weights")
    assert answer.status == 0, answer.output
    said = answer.said
    assert said["numbers"] == said["expected"]
    assert (said["dtypes"], said["named"]) == (["torch.bfloat16"], said["folder"])
    assert "config.json" in said["refused"]
    assert noted(answer, "synthetic weights", "pipeline", "configuration")


STATIC = """
__attribute__((section(".nvFatBinSegment"), used)) static const long wrapper[3] = {0};
static void *__cudaRegisterFatBinary(void *p) { return p; }
void *PyInit_carrier(void) { return __cudaRegisterFatBinary((void *)wrapper); }
"""

DOUBTS = """
    import ctypes
    folder = os.path.dirname(__file__)
    sys.path.insert(0, folder)
    errors = []
    try:
        import carrier
    except ImportError as error:
        errors.append(str(error))
    try:
        ctypes.CDLL(os.path.join(folder, "carrier.so"))
    except OSError as error:
        errors.append(str(error))
    x = torch.randn(1000, device=device)
    found = len(x[x > 0])
    positive = bool(x[0] > 5)
    runtime = ctypes.CDLL(None)
    resources = runtime.cudaGraphicsMapResources(0, None, None)
    node, graph = ctypes.c_void_p(), ctypes.c_void_p()
    runtime.cudaGraphCreate(ctypes.byref(graph), 0)
    memory = runtime.cudaGraphAddMemAllocNode(ctypes.byref(node), graph, None, ctypes.c_size_t(0), None)
    answer(errors=errors, found=found, resources=resources, memory=memory)
"""


def test_the_report_names_each_stand_in(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    assert compiler is not None
    (tmp_path / "carrier.c").write_text(STATIC)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", tmp_path / "carrier.so", tmp_path / "carrier.c"], check=True
    )
    answer = ask(DOUBTS, tmp_path, "--other-processes", "700MiB")
    # Refused calls are among the doubts, and little of this card is used: it fits all the same.
    assert answer.status == 0, answer.output
    assert len(answer.said["errors"]) == 2
    assert all("statically linked with a CUDA runtime" in error for error in answer.said["errors"])
    assert answer.unmodelled["static CUDA runtime in carrier.so"] == 2
    assert answer.said["resources"] != 0
    assert answer.unmodelled["cudaGraphicsMapResources"] == 1
    assert answer.said["memory"] != 0
    assert "cudaGraphAddMemAllocNode" in answer.unmodelled
    assert answer.said["found"] == 1000
    values = {value["call"]: value["count"] for value in answer.report["fidelity"]["values"]}
    assert values["the size of `nonzero` depends on computed values: upper bound used"] == 1
    assert values["a condition on computed values, taken as false, or as true in an `assert`"] == 1
    outside, peak = answer.report["outside"], answer.report["peak"]
    assert outside["other_processes"] == 700 * MIB
    assert peak["device"] == peak["reserved"] + sum(outside.values())
    assert noted(answer, "other processes", "assumed")
    assert noted(answer, "outside PyTorch's allocator", "modelled")


def test_a_library_that_finds_no_room_says_where(tmp_path: Path) -> None:
    answer = ask(
        """
        x = torch.zeros(8, 8, device=device)

        def multiply():
            return x @ x

        multiply()
        """,
        tmp_path,
        "--memory",
        "560MiB",
    )
    oom = answer.report["oom"]
    assert answer.report["verdict"] == "oom", answer.output
    assert oom["requested"] > 0
    assert oom["step"] == 1
    assert "in multiply" in oom["stack"][0]


# Two libraries in small: what the probe takes hold of is where they have it.
TIMM = {
    "timm/__init__.py": "from timm.models import create_model\n",
    "timm/models/__init__.py": "from timm.models._builder import create_model\n",
    "timm/models/_builder.py": """
import torch

def load_pretrained(model, *args, **kwargs):
    raise OSError("no network")

def create_model(name, pretrained=False):
    model = torch.nn.Linear(256, 256)
    if pretrained:
        load_pretrained(model)
    return model
""",
}
DATASETS = {
    "datasets/__init__.py": """
def load_dataset(path, name=None, split=None):
    if path != "here":
        raise ConnectionError("no network")
    return "the data that are here"

class Dataset:
    def __init__(self, columns):
        self.columns = columns

    @classmethod
    def from_dict(cls, columns):
        return cls(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index):
        return {name: column[index] for name, column in self.columns.items()}

class DatasetDict(dict):
    pass
""",
}
LACKING = """
    sys.path.insert(0, os.path.dirname(__file__))
    import timm
    from datasets import load_dataset
    model = timm.create_model("vit", pretrained=True).to(device)
    train = load_dataset("glue", "sst2", split="train")
    whole = load_dataset("glue", "sst2")
    rows = [train[index] for index in range(4)]
    model(torch.tensor([row["x"] for row in rows], device=device)).sum().backward()
    answer(
        rows=len(train), splits=sorted(whole), labels=sorted({row["label"] for row in rows}),
        texts=all(isinstance(row["text"], str) for row in rows), here=load_dataset("here"),
    )
"""


def test_weights_of_timm_and_tables_of_datasets_are_stood_in_for(tmp_path: Path) -> None:
    for name, text in {**TIMM, **DATASETS}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    fields = "--synthetic-data={text:str,x:256:float32,label:int64<2}@50"
    answer = ask(LACKING, tmp_path, "--synthetic-weights", fields)
    assert answer.status == 0, answer.output
    said = answer.said
    assert (said["rows"], said["splits"]) == (50, ["test", "train", "validation"])
    assert set(said["labels"]) <= {0, 1}
    assert said["texts"]
    assert said["here"] == "the data that are here", "what is here is never stood in for"
    assert noted(answer, "timm", "keeps its initial weights")
    assert noted(answer, "`glue`", "ConnectionError", "50 rows")

    answer = ask(LACKING, tmp_path, "--synthetic-weights", "--synthetic-data")
    assert answer.report["verdict"] == "error"
    assert noted(answer, "`glue`", "its rows were not described")


# The parts of torchtune that the stand-in knows. A checkpointer checks the path of each file when it is made.
TORCHTUNE = {
    "_utils": """
        import os

        def get_path(input_dir, filename, missing_ok=False):
            path = os.path.join(input_dir, filename)
            if not missing_ok and not os.path.isfile(path):
                raise ValueError(f"No file with name: {filename} found in {input_dir}.")
            return path
    """,
    "_checkpointer": """
        import torch
        from ._utils import get_path

        class FullModelHFCheckpointer:
            def __init__(self, folder, files):
                self._checkpoint_paths = [get_path(folder, each) for each in files]

            def load_checkpoint(self):
                return {"model": torch.load(self._checkpoint_paths[0])}
    """,
}
TUNED = """
    from torchtune.training.checkpointing._checkpointer import FullModelHFCheckpointer
    folder = os.path.dirname(__file__)
    model = torch.nn.Linear(4, 4)
    torch.save(model.state_dict(), os.path.join(folder, "here.pt"))
    kept = FullModelHFCheckpointer(folder, ["here.pt"]).load_checkpoint()["model"]
    missing = FullModelHFCheckpointer(folder, ["model-1.safetensors"]).load_checkpoint()["model"]
    answer(kept=sorted(kept), loaded=str(model.load_state_dict(missing)))
"""


def package(folder: Path, name: str, modules: dict[str, str]) -> None:
    """Writes a package with these modules."""
    path = folder.joinpath(*name.split("."))
    path.mkdir(parents=True)
    for each in [path, *path.parents[: name.count(".")]]:
        (each / "__init__.py").touch()
    for module, code in modules.items():
        (path / f"{module}.py").write_text(textwrap.dedent(code), encoding="utf-8")


def test_the_checkpoints_of_torchtune_are_stood_in_for(tmp_path: Path) -> None:
    package(tmp_path, "torchtune.training.checkpointing", TORCHTUNE)
    answer = ask(TUNED, tmp_path, "--synthetic-weights")
    assert answer.said == {"kept": ["bias", "weight"], "loaded": "<All keys matched successfully>"}, (
        answer.output
    )
    assert noted(answer, "model-1.safetensors", "does not exist"), answer.report["fidelity"]["notes"]


MMPRETRAIN = """
    from urllib.error import URLError

    class CIFAR10:
        def load_data_list(self):
            raise URLError("no network")

    class CIFAR100(CIFAR10):
        pass
"""
LISTED = """
    from mmpretrain.datasets.cifar import CIFAR10, CIFAR100
    few, many = CIFAR10().load_data_list(), CIFAR100().load_data_list()
    answer(
        lengths=[len(few), len(many)], shape=list(few[0]["img"].shape), dtype=str(few[0]["img"].dtype),
        classes=[len({each["gt_label"] for each in every}) for every in (few, many)],
    )
"""


def test_data_sets_of_mmpretrain_are_as_their_classes_have_them(tmp_path: Path) -> None:
    package(tmp_path, "mmpretrain.datasets", {"cifar": MMPRETRAIN})
    answer = ask(LISTED, tmp_path, "--synthetic-data")
    assert answer.said == {
        "lengths": [50_000, 50_000],
        "shape": [32, 32, 3],
        "dtype": "uint8",
        "classes": [10, 100],
    }, answer.output
    assert noted(answer, "CIFAR100", "50000 samples"), answer.report["fidelity"]["notes"]
