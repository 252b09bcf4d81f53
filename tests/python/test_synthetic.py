"""Made-up data sets and weights, as public training scripts use them, and what is blamed on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Answer, on_device, through_memfit
from tiers import rarely


def with_data(code: str, folder: Path, *options: str) -> Answer:
    """Runs a script whose torchvision data sets have no files."""
    pytest.importorskip("torchvision")
    options = options or ("--synthetic-data",)
    return on_device(code, folder, start=lambda *asked: through_memfit(*asked, options=options))


CONTENTS = """
    import torchvision
    found = {}
    for name in ("CIFAR10", "MNIST", "SVHN"):
        made = getattr(torchvision.datasets, name)("/nowhere", download=False)
        labels = getattr(made, "targets", None)
        labels = made.labels if labels is None else labels
        found[name] = [
            list(made.data.shape), str(made.data.dtype), len(torch.tensor(labels[:5])), int(max(labels)), len(made),
        ]
    answer(**found)
"""


def test_a_made_up_data_set_has_all_samples_as_its_class_keeps_them(tmp_path: Path) -> None:
    answer = with_data(CONTENTS, tmp_path)
    assert answer.said == {
        "CIFAR10": [[50_000, 32, 32, 3], "uint8", 5, 9, 50_000],
        "MNIST": [[60_000, 28, 28], "torch.uint8", 5, 9, 60_000],
        "SVHN": [[73_257, 3, 32, 32], "uint8", 5, 9, 73_257],
    }, answer.output


SUBCLASSES = """
    import torchvision

    class Indexed(torchvision.datasets.CIFAR100):
        def __getitem__(self, index):
            return (*super().__getitem__(index), index)

    class Grouped(torchvision.datasets.MNIST):
        def __init__(self, root, wanted):
            super().__init__(root, download=True)
            self.chosen = [index for index, label in enumerate(self.targets) if label == wanted]

        def __getitem__(self, index):
            return self.data[self.chosen[index]], self.targets[self.chosen[index]]

        def __len__(self):
            return len(self.chosen)

    image, label, index = Indexed("/nowhere", transform=torchvision.transforms.ToTensor())[7]
    grouped = Grouped(os.path.join(os.path.dirname(__file__), "nowhere"), 3)
    answer(indexed=[list(image.shape), label, index], grouped=[list(grouped[5][0].shape), int(grouped[5][1])])
"""


def test_a_subclass_of_a_known_data_set_gets_made_up_samples(tmp_path: Path) -> None:
    answer = with_data(SUBCLASSES, tmp_path)
    assert answer.said == {"indexed": [[3, 32, 32], 7, 7], "grouped": [[28, 28], 3]}, answer.output


OWN_CONSTRUCTORS = """
    import torchvision

    class Copied(torchvision.datasets.CIFAR10):
        # As it was in an older torchvision, which kept other attributes.
        def __init__(self, root, transform=None, download=True):
            self.root, self.transform = root, transform
            if download:
                self.download()
            if not self._check_integrity():
                raise RuntimeError("Dataset not found or corrupted. You can use download=True to download it")
            self.data, self.labels = [], []

        def __getitem__(self, index):
            return self.transform(self.data[index]), self.labels[index]

        def __len__(self):
            return len(self.labels)

    class Broken(torchvision.datasets.CIFAR10):
        def __init__(self):
            raise RuntimeError("a mistake of its own")

    root = os.path.join(os.path.dirname(__file__), "nowhere")
    images, labels = next(iter(torch.utils.data.DataLoader(
        Copied(root, torchvision.transforms.ToTensor(), DOWNLOAD), batch_size=12
    )))
    try:
        Broken()
    except RuntimeError as error:
        broken = str(error)
    answer(images=list(images.shape), labels=labels.tolist()[-3:], broken=broken)
"""


@pytest.mark.parametrize("download", ["True", "False"])
def test_a_subclass_with_a_constructor_of_its_own_gets_made_up_samples(download: str, tmp_path: Path) -> None:
    answer = with_data(OWN_CONSTRUCTORS.replace("DOWNLOAD", download), tmp_path)
    expected = {"images": [12, 3, 32, 32], "labels": [9, 0, 1], "broken": "a mistake of its own"}
    assert answer.said == expected, answer.output


NARROWED = """
    import numpy
    import torchvision

    class Labelled(torchvision.datasets.CIFAR10):
        def __init__(self, root, indices):
            super().__init__(root, download=True)
            self.data, self.targets = self.data[indices], numpy.array(self.targets)[indices]

        def __getitem__(self, index):
            return torchvision.transforms.functional.to_tensor(self.data[index]), self.targets[index]

    made = Labelled(os.path.join(os.path.dirname(__file__), "nowhere"), numpy.arange(5, 45))
    loader = torch.utils.data.DataLoader(made, batch_size=16, shuffle=True)
    answer(length=len(made), batches=[len(labels) for _, labels in loader])
"""


def test_a_subclass_that_keeps_a_part_has_its_length(tmp_path: Path) -> None:
    answer = with_data(NARROWED, tmp_path)
    assert answer.said == {"length": 40, "batches": [16, 16, 8]}, answer.output


OWN_DATASETS = """
    import datasets
    made = datasets.load_dataset("mnist", "../data", normal=3)
    answer(made=made)
"""


def test_a_load_dataset_of_the_scripts_own_is_called_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text(
        "def load_dataset(name, path, normal):\n    return [name, path, normal]\n"
    )
    answer = with_data(OWN_DATASETS, tmp_path)
    assert answer.said == {"made": ["mnist", "../data", 3]}, answer.output


STATISTICS = """
    import torchvision
    from torchvision.transforms import ToTensor
    deviations = {}
    for name in ("CIFAR10", "MNIST", "SVHN"):
        made = getattr(torchvision.datasets, name)("/nowhere", transform=ToTensor())
        deviations[name] = [float(made[0][0].std(dim=(1, 2)).min()), float(torch.as_tensor(made.data).float().std())]
    answer(deviations=deviations)
"""


def test_scripts_may_divide_by_the_standard_deviation_of_made_up_images(tmp_path: Path) -> None:
    answer = with_data(STATISTICS, tmp_path)
    assert all(min(pair) > 0.01 for pair in answer.said["deviations"].values()), answer.output


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("images = len(made)", "exception"),
        # What was read has no way to the line that fails.
        ("first = made[0]; images = 3", "exception"),
        rarely("images = made[0]", "exception-after-change"),
        rarely("images = made.targets[0]", "exception-after-change"),
        ("images = made.no_such_attribute", "exception-after-change"),
        ("images = next(iter(torch.utils.data.DataLoader(made)))", "exception-after-change"),
        rarely("made[0][0].sum().data[0]", "exception"),
        ("torchvision.datasets.CIFAR10('/nowhere').train_data", "exception"),
        ("made[0]; open('statistics.npz')", "exception"),
        ("made[0]; open('class 3.txt')", "exception-after-change"),
        ("torch.nn.functional.binary_cross_entropy(made[0][0], made[0][0].long())", "exception"),
        ("torchvision.transforms.Normalize((0.5,) * 3, (0.5,) * 3)(made[0][0])", "exception"),
        rarely("torch.nn.Linear(3072, 10)(made[0][0].flatten(1))", "exception"),
        (
            "torch.nn.Linear(3, 10)(torchvision.datasets.ImageFolder('/x', made.transform)[0][0].flatten(1))",
            "exception-after-change",
        ),
    ],
)
def test_a_made_up_data_set_is_blamed_only_if_something_of_it_was_read(
    line: str, kind: str, tmp_path: Path
) -> None:
    code = f"""
    import torchvision
    made = torchvision.datasets.MNIST("/nowhere", transform=torchvision.transforms.ToTensor())
    def check(images):
        if images is not None:
            raise ValueError("assignment destination is read-only")
    {line}
    check(images)
    """
    answer = with_data(code, tmp_path)
    assert answer.report["problem"]["kind"] == kind, answer.report["problem"]


def test_a_host_that_was_not_reached_is_told_beside_made_up_data(tmp_path: Path) -> None:
    """What the script lacks of it, such as a tokenizer, may be the cause as well."""
    code = """
    import socket, torchvision
    made = torchvision.datasets.MNIST("/nowhere", transform=torchvision.transforms.ToTensor())
    try:
        socket.getaddrinfo("hub.invalid", 443)
    except socket.gaierror:
        pass
    image, label = made[0]
    print(image[label + 7])
    """
    problem = with_data(code, tmp_path).report["problem"]
    assert problem["kind"] == "exception-after-change", problem
    assert "The host `hub.invalid` could not be reached either" in problem["message"], problem
    assert problem["hint"].startswith("download what the script asks that host for"), problem


def test_options_that_make_up_a_missing_file_are_suggested(tmp_path: Path) -> None:
    data = with_data(
        """
        import torchvision
        torchvision.datasets.CIFAR10("/nowhere", download=False)
        """,
        tmp_path,
        "--steps=3",
    )
    assert "`--synthetic-data`" in data.report["problem"]["hint"], data.report["problem"]
    weights = with_data("torch.load('models/vgg.pth')", tmp_path, "--steps=3")
    assert "`--synthetic-weights`" in weights.report["problem"]["hint"], weights.report["problem"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("open('models/labels.csv')", "exception"),
        ("open('models/vgg.pth')", "exception-after-change"),
        ("names = {}; raise RuntimeError('data set not found')", "exception"),
        ("raise RuntimeError(f'{weights} has no entries')", "exception-after-change"),
    ],
)
def test_missing_weights_are_blamed_only_for_what_they_can_have_reached(
    line: str, kind: str, tmp_path: Path
) -> None:
    code = f"""
    weights = torch.load("models/vgg.pth")
    {line}
    """
    answer = with_data(code, tmp_path, "--synthetic-weights")
    assert answer.report["problem"]["kind"] == kind, answer.report["problem"]


IN_A_WORKER = """
    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            raise ValueError("too short")

    weights = torch.load("models/vgg.pth")
    next(iter(torch.utils.data.DataLoader(Items(), num_workers=1)))
"""


def test_missing_weights_are_not_blamed_for_what_fails_in_a_loader_worker(tmp_path: Path) -> None:
    answer = with_data(IN_A_WORKER, tmp_path, "--synthetic-weights")
    assert answer.report["problem"]["kind"] == "exception", answer.report["problem"]


def test_rows_with_images_are_made_up_in_no_time(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    code = """
    import os, time
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets
    begun = time.monotonic()
    rows = datasets.load_dataset("nobody/has-this")["train"]
    last = rows[len(rows) - 1]
    answer(count=len(rows), size=list(last["image"].size), quick=time.monotonic() - begun < 60)
    """
    answer = with_data(code, tmp_path, "--synthetic-data={image:500x667:pil,label:int64<10}@9000")
    assert answer.said == {"count": 9000, "size": [667, 500], "quick": True}, answer.output


ROWS_OF_FORMS = """
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets
    name = "nobody/has-this"
    stream = datasets.load_dataset(name, streaming=True)
    shuffled = stream["train"].shuffle(buffer_size=10).take(3)
    lists = datasets.load_dataset(name, split=["train", "test"])
    positional = datasets.load_dataset(name, None, None, None, "train")
    answer(
        streams=sorted(stream), first=[len(row["text"]) > 0 for row in shuffled],
        part=type(datasets.load_dataset(name, split="train", streaming=True)).__name__,
        lists=[len(part) for part in lists], positional=len(positional),
    )
"""


def test_rows_have_the_form_that_the_script_asks_for(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    answer = with_data(ROWS_OF_FORMS, tmp_path, "--synthetic-data={text:8:str}@50")
    assert answer.said == {
        "streams": ["test", "train", "validation"],
        "first": [True] * 3,
        "part": "IterableDataset",
        "lists": [50, 50],
        "positional": 50,
    }, answer.output


def test_the_shape_of_a_missing_tensor_is_what_the_script_compares_it_with(tmp_path: Path) -> None:
    code = """
    class Net(torch.nn.Linear):
        def load_state_dict(self, state, strict=True):
            if "weight" in state and state["weight"].shape[0] != self.weight.shape[0]:
                raise ValueError("another model's weights")
            if state["bias"].size() != self.bias.size() or state["bias"].cpu().shape != (4,):
                raise ValueError("another model's weights")
            return super().load_state_dict(state, strict)

    Net(4, 4).load_state_dict(torch.load("/nowhere/net.pth"))
    answer(loaded=True)
    """
    answer = with_data(code, tmp_path, "--synthetic-weights")
    assert answer.said == {"loaded": True}, answer.output


@pytest.mark.parametrize(
    ("kept", "loads"),
    [
        ("{}", True),
        ("{'bias': torch.ones(4)}", True),
        ("{'head.bias': torch.ones(4)}", False),
    ],
)
def test_what_a_script_copies_entry_by_entry_from_missing_weights_is_loaded(
    kept: str, loads: bool, tmp_path: Path
) -> None:
    code = f"""
    entries = {kept}
    for name, value in torch.load("/nowhere/net.pth")["state_dict"].items():
        entries[name.removeprefix("module.")] = value
    net = torch.nn.Linear(4, 4)
    net.load_state_dict(entries)
    answer(loaded=True)
    """
    answer = with_data(code, tmp_path, "--synthetic-weights")
    assert answer.said == ({"loaded": True} if loads else {}), answer.output


def test_a_model_needs_all_entries_of_a_checkpoint_that_is_there(tmp_path: Path) -> None:
    code = """
    torch.load("/nowhere/net.pth")["step"]
    torch.nn.Linear(4, 4).load_state_dict({"bias": torch.ones(4)})
    """
    problem = with_data(code, tmp_path, "--synthetic-weights").report["problem"]
    assert "Missing key(s)" in problem["message"], problem
