"""Samples that `--synthetic-data` describes or makes up: their parts, streams, and data sets of libraries."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from support import Answer, on_device, through_memfit

pytest.importorskip("torch")


def asked(code: str, folder: Path, *options: str) -> Answer:
    return on_device(code, folder, start=lambda *words: through_memfit(*words, options=options))


BOXES = """
    class Boxes(torch.utils.data.Dataset):
        def __init__(self, root):
            {fails}

        def __len__(self):
            return 8

        def __getitem__(self, index):
            return index

    data = Boxes("/nowhere")
    batches = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=lambda batch: tuple(zip(*batch)))
    images, targets, paths = next(iter(batches))
    answer(
        image=list(images[0].shape), boxes=list(targets[0]["boxes"].shape),
        labels=[target["labels"].tolist() for target in targets], path=type(paths[0]).__name__,
        classes=data.num_classes,
    )
"""
SAMPLE = "image:3x16x16:float32,target:{boxes:5x4:float32,labels:2:int64<21},path:str"


@pytest.mark.parametrize(
    "fails",
    [
        "open(root)",
        "raise RuntimeError(f'Found 0 files in subfolders of: {{root}}')",
        "assert os.path.isdir(root)",
        "assert os.path.isdir(root), '%s is not a valid directory' % root",
        "raise ValueError(f'no images in {{root}}')",
        "raise Exception('Dataset not found')",
    ],
)
def test_samples_with_parts_replace_a_data_set_however_it_tells_that_its_files_are_missing(
    fails: str, tmp_path: Path
) -> None:
    code = BOXES.format(fails=fails.replace("{{", "{").replace("}}", "}"))
    hint = asked(code, tmp_path).report["problem"]["hint"]
    assert "describe a sample of `Boxes`" in hint, hint
    answer = asked(code, tmp_path, f"--synthetic-data={SAMPLE}")
    assert answer.said == {
        "image": [3, 16, 16],
        "boxes": [5, 4],
        "labels": [[0, 0], [1, 1], [2, 2], [3, 3]],
        "path": "str",
        "classes": 21,
    }, answer.output


@pytest.mark.parametrize(
    "fails", ["raise RuntimeError('the sizes do not match')", "assert len(root) > 99", "{}[root]"]
)
def test_another_failure_of_a_data_set_is_not_taken_for_missing_files(fails: str, tmp_path: Path) -> None:
    answer = asked(BOXES.format(fails=fails), tmp_path, f"--synthetic-data={SAMPLE}")
    assert answer.said == {}
    assert "failed" in answer.report["problem"]["message"], answer.output


def test_the_option_of_a_hint_is_one_word_of_a_shell(tmp_path: Path) -> None:
    hint = asked(BOXES.format(fails="open(root)"), tmp_path).report["problem"]["hint"]
    option = next(part for part in hint.split("`") if part.startswith("--synthetic-data="))
    words = list(shlex.shlex(option, posix=True, punctuation_chars=True))
    assert len(words) == 1, option
    assert words[0].endswith("label:int64<1000")


STREAM = """
    class Lines(torch.utils.data.IterableDataset):
        def __init__(self, path):
            self.path = path

        def __iter__(self):
            for line in open(self.path):
                yield line

    batches = list(torch.utils.data.DataLoader(Lines("/nowhere/text"), batch_size=4, num_workers={workers}))
    answer(batches=len(batches), shape=list(batches[0].shape))
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_without_files_yields_described_samples(workers: int, tmp_path: Path) -> None:
    code = STREAM.format(workers=workers)
    hint = asked(code, tmp_path).report["problem"]["hint"]
    assert "describe a sample" in hint, hint
    answer = asked(code, tmp_path, "--synthetic-data=ids:16:int64<99@20")
    assert answer.said == {"batches": 5, "shape": [4, 16]}, answer.output


CAPTIONS = """
    import torchvision

    class Captions(torchvision.datasets.VisionDataset):
        def __init__(self, root):
            super().__init__(root)
            self.ids = open(root).read().split()

    class Parent(torchvision.datasets.CocoDetection):
        def __init__(self, root):
            open(root)

    parent = Parent("/nowhere/captions.json")
    answer(length=len(parent), shape=list(parent[3].shape))
"""


def test_a_data_set_that_inherits_from_torchvision_is_described(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    hint = asked(CAPTIONS, tmp_path).report["problem"]["hint"]
    assert "describe a sample of `Parent`" in hint, hint
    answer = asked(CAPTIONS, tmp_path, "--synthetic-data=image:3x8x8:float32@30")
    assert answer.said == {"length": 30, "shape": [3, 8, 8]}, answer.output


SIGNATURES = """
    import inspect
    import torchvision

    taken = inspect.getfullargspec(torchvision.datasets.CIFAR10.__init__).args
    answer(taken=taken[:3], folder=inspect.getfullargspec(torchvision.datasets.ImageFolder.__init__).args[1])
"""


def test_a_data_set_that_may_be_replaced_keeps_its_signature(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    answer = asked(SIGNATURES, tmp_path, "--synthetic-data")
    assert answer.said == {"taken": ["self", "root", "train"], "folder": "root"}, answer.output


# The parts of timm that read images.
FACTORY = """
import os

def create_reader(name, root=None, split="train", **kwargs):
    assert os.path.exists(root)
    return os.listdir(root)
"""
IMAGES = """
from PIL import Image
from torch.utils import data
from .readers.reader_factory import create_reader

class ImageDataset(data.Dataset):
    def __init__(self, root, reader=None, split="train", transform=None):
        self.reader = create_reader(reader or "", root=root, split=split)
        self.transform = transform

    def __getitem__(self, index):
        image, target = self.reader[index]
        image = Image.open(image).convert("RGB")
        return self.transform(image), target

    def __len__(self):
        return len(self.reader)
"""
TIMM = """
    sys.path.insert(0, {site!r})
    from timm.data.dataset import ImageDataset

    data = ImageDataset("/nowhere/imagenet", transform=lambda image: torch.zeros(image.size))
    images, labels = next(iter(torch.utils.data.DataLoader(data, batch_size=4)))
    answer(length=len(data), images=list(images.shape), labels=labels.tolist())
"""


def test_timm_reads_made_up_images(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    site = tmp_path / "site-packages"
    for name, text in {
        "timm/__init__.py": "",
        "timm/data/__init__.py": "",
        "timm/data/readers/__init__.py": "",
        "timm/data/readers/reader_factory.py": FACTORY,
        "timm/data/dataset.py": IMAGES,
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    code = TIMM.format(site=str(site))
    hint = asked(code, tmp_path).report["problem"]["hint"]
    assert "`--synthetic-data`" in hint, hint
    answer = asked(code, tmp_path, "--synthetic-data")
    assert answer.said == {"length": 1_281_167, "images": [4, 500, 375], "labels": [0, 1, 2, 3]}, (
        answer.output
    )


OPENED = """
    model = torch.nn.Linear(8, 8)
    with open("/nowhere/{name}", "rb") as file:
        state = torch.load(file)
    model.load_state_dict(state)
    model.to(device)
    answer(loaded=True)
"""


@pytest.mark.parametrize(("name", "holds_weights"), [("sam_vit_b.pth", True), ("words.txt", False)])
def test_weights_that_a_script_opens_itself_are_replaced(
    name: str, holds_weights: bool, tmp_path: Path
) -> None:
    code = OPENED.format(name=name)
    hint = asked(code, tmp_path).report["problem"]["hint"]
    assert ("`--synthetic-weights`" in hint) == holds_weights, hint
    answer = asked(code, tmp_path, "--synthetic-weights")
    assert (answer.said == {"loaded": True}) == holds_weights, answer.output


COPIED = """
    def load(model):
        saved = torch.load("/nowhere/backbone.pth")
        {own}
        chosen = {{{name}: value for key, value in saved.items() {wanted}}}
        {needs}
        {update}
        return model.load_state_dict({loaded}, strict=True)

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    load(model)
    torch.cuda.synchronize()
    answer(loaded=True, parameters=sum(each.numel() for each in model.parameters()))
"""
# How scripts copy weights, with a check that some were there in the first ones.
COPIES = [
    {
        "own": "own = model.state_dict()",
        "name": "key",
        "wanted": "if key in own and value.size() == own[key].size()",
        "needs": "assert chosen, 'no weights were loaded'",
        "update": "own.update(chosen)",
        "loaded": "own",
    },
    {
        "own": "own = model.state_dict()",
        "name": "'module.' + key",
        "wanted": "",
        "needs": "list(saved.keys())[0]",
        "update": "pass",
        "loaded": "chosen",
    },
    {
        "own": "pass",
        "name": "key[7:]",
        "wanted": "",
        "needs": "pass",
        "update": "pass",
        "loaded": "chosen",
    },
]


@pytest.mark.parametrize("copy", COPIES, ids=["compared", "renamed", "unseen"])
def test_missing_weights_are_copied_entry_by_entry(copy: dict[str, str], tmp_path: Path) -> None:
    answer = asked(COPIED.format(**copy), tmp_path, "--synthetic-weights")
    assert answer.said == {"loaded": True, "parameters": 90}, answer.output


def test_a_refusal_of_memfits_is_not_blamed_on_described_samples(tmp_path: Path) -> None:
    refusal = "\n    raise RuntimeError('memfit: the shapes of `gpt2` are not on this machine')"
    code = BOXES.format(fails="open(root)") + refusal
    problem = asked(code, tmp_path, f"--synthetic-data={SAMPLE}").report["problem"]
    assert "the shapes of `gpt2`" in problem["message"], problem
    assert "real samples" not in problem["hint"], problem


STATISTICS = """
    class Trajectories(torch.utils.data.Dataset):
        def __init__(self, path):
            self.rows = open(path).read().split()
            self.mean = sum(map(float, self.rows)) / len(self.rows)

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]

        def statistics(self):
            return self.mean, len(self)

    data = Trajectories("/nowhere/rows.txt")
    mean, count = data.statistics()
    torch.zeros(8, device=device)
    answer(count=count, other=hasattr(data, "std"), kept=mean is data.mean)
    {use}
"""


def test_an_attribute_that_comes_from_missing_files_may_be_passed_on_but_not_used(tmp_path: Path) -> None:
    fields = "--synthetic-data=state:17:float32@40"
    answer = asked(STATISTICS.format(use="print(data.mean)"), tmp_path, fields)
    assert answer.said == {"count": 40, "other": False, "kept": True}, answer.output
    assert answer.status == 0, answer.output
    problem = asked(STATISTICS.format(use="mean + 1"), tmp_path, fields).report["problem"]
    assert "`mean` of `Trajectories` comes from its files" in problem["message"], problem


REQUESTED = """
    import requests

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "backbone.pth")
    answered = requests.get("https://weights.invalid/{name}?download=1", stream=True, timeout=9)
    answered.raise_for_status()
    with open(path, "wb") as file:
        for piece in answered.iter_content(1 << 20):
            file.write(piece)
    model = torch.nn.Linear(8, 8)
    model.load_state_dict(torch.load(path))
    model.to(device)
    answer(loaded=True)
"""


@pytest.mark.parametrize(("name", "holds_weights"), [("resnet.pth", True), ("rows.json", False)])
def test_weights_that_requests_cannot_fetch_are_replaced(
    name: str, holds_weights: bool, tmp_path: Path
) -> None:
    pytest.importorskip("requests")
    answer = asked(REQUESTED.format(name=name), tmp_path, "--synthetic-weights")
    assert (answer.said == {"loaded": True}) == holds_weights, answer.output
