"""Made-up data sets and weights, as public training scripts use them, and what is blamed on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Answer, on_device, through_memfit


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
        ("images = made[0]", "exception-after-change"),
        ("images = made.targets[0]", "exception-after-change"),
        ("images = made.no_such_attribute", "exception-after-change"),
        ("images = next(iter(torch.utils.data.DataLoader(made)))", "exception-after-change"),
    ],
)
def test_a_made_up_data_set_is_blamed_only_if_something_of_it_was_read(
    line: str, kind: str, tmp_path: Path
) -> None:
    code = f"""
    import torchvision
    made = torchvision.datasets.MNIST("/nowhere", transform=torchvision.transforms.ToTensor())
    {line}
    raise ValueError("assignment destination is read-only")
    """
    answer = with_data(code, tmp_path)
    assert answer.report["problem"]["kind"] == kind, answer.report["problem"]


@pytest.mark.parametrize(
    ("missing", "kind"), [("labels.csv", "exception"), ("vgg.pth", "exception-after-change")]
)
def test_missing_weights_are_not_blamed_for_another_missing_file(
    missing: str, kind: str, tmp_path: Path
) -> None:
    code = f"""
    weights = torch.load("models/vgg.pth")
    open("models/{missing}")
    """
    answer = with_data(code, tmp_path, "--synthetic-weights")
    assert answer.report["problem"]["kind"] == kind, answer.report["problem"]
