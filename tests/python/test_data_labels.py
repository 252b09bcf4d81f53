"""Labels of `memfit.data` are those that were given: every source, every type, and what could be meant in two
ways.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from memfit.data import ImageLoader, Tiles
from pictures import folder

OPTIONS: dict[str, Any] = {"size": 16, "batch_size": 4, "memory": "64 MiB", "threads": 2}
COUNT = 6


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    found = sorted(folder(tmp_path_factory.mktemp("photographs")).rglob("*.jpg"))
    return [str(path) for path in found[:COUNT]]


class Rows:
    """A data set of bytes and targets."""

    def __init__(self, files: list[str], targets: Any, key: str | None = None) -> None:
        self.files, self.targets, self.key = files, targets, key

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        data, target = Path(self.files[index]).read_bytes(), self.targets[index]
        return (data, target) if self.key is None else {"image": data, self.key: target}


def targets(source: Any, labels: Any = None, **options: Any) -> Any:
    """All targets of a pass: one tensor, or a list."""
    batches = [found for _, found in ImageLoader(source, labels, **{**OPTIONS, **options})]
    if all(isinstance(batch, torch.Tensor) for batch in batches):
        return torch.cat(batches)
    return [target for batch in batches for target in batch]


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return isinstance(found, torch.Tensor) and found.dtype == wanted.dtype and torch.equal(found, wanted)
    return type(found) is type(wanted) and found == wanted


def csv_of(folder: Path, files: list[str], cells: list[Any], header: str = "path,label") -> str:
    path = folder / "labels.csv"
    path.write_text("\n".join([header, *(f'{f},"{c}"' for f, c in zip(files, cells, strict=True))]) + "\n")
    return str(path)


def frame_of(files: list[str], labels: Any) -> Any:
    return pytest.importorskip("pandas").DataFrame({"path": files, "label": labels})


Source = Callable[[list[str], list[Any], Path], tuple[Any, Any]]
SOURCES: dict[str, Source] = {
    "labels": lambda files, labels, _: (files, labels),
    "tuple": lambda files, labels, _: (files, tuple(labels)),
    "pairs": lambda files, labels, _: (list(zip(files, labels, strict=True)), None),
    "csv": lambda files, labels, folder: (csv_of(folder, files, labels), None),
    "frame": lambda files, labels, _: (frame_of(files, labels), None),
    "data set": lambda files, labels, _: (Rows(files, labels), None),
    "dictionaries": lambda files, labels, _: (Rows(files, labels, "label"), None),
    "labels of a data set": lambda files, labels, _: (Rows(files, labels, "other"), labels),
}


@pytest.mark.parametrize("source", SOURCES)
def test_numbers_keep_their_types_whatever_they_come_from(
    source: str, files: list[str], tmp_path: Path
) -> None:
    table = [
        ([3, 0, 2, 0, 1, 7], torch.int64),
        ([-1, 0, 1, 0, 1, 1], torch.int64),
        ([0.5, 1.7, 2.9, -0.2, 0.0, 1.0], torch.float64),
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], torch.float64),
    ]
    for labels, dtype in table:
        given, beside = SOURCES[source](files, labels, tmp_path)
        assert same(targets(given, beside), torch.tensor(labels, dtype=dtype)), labels


def test_tiles_have_the_labels_of_their_images(files: list[str]) -> None:
    for labels in ([0.5, 1.7, 2.9, -0.2, 0.0, 1.0], [[1, 0], [0, 1], [0, 0], [1, 1], [0, 1], [1, 0]]):
        tiles = Tiles(files, labels, size=40)
        wanted = torch.tensor([labels[tile.image] for tile in tiles])
        wanted = wanted if wanted.dtype == torch.int64 else wanted.double()
        found = targets(tiles, size=40)
        assert len(tiles) > COUNT
        assert torch.allclose(found.double(), wanted.double())
        assert found.dtype == (torch.int64 if wanted.dtype == torch.int64 else torch.float64)


def test_a_regression_has_the_targets_that_torch_s_loader_gives_it(files: list[str]) -> None:
    for labels in ([0.5, 1.7, 2.9, -0.2, 0.0, 1.0], [3, 0, 2, 0, 1, 7]):
        theirs = torch.utils.data.DataLoader(Rows(files, labels), batch_size=4, collate_fn=lambda rows: rows)
        collated = [torch.utils.data.default_collate([target for _, target in rows]) for rows in theirs]
        assert same(targets(files, labels), torch.cat(collated))


@pytest.mark.parametrize("source", ["labels", "pairs", "csv", "frame"])
def test_names_are_numbered_in_their_order_or_in_that_of_classes(
    source: str, files: list[str], tmp_path: Path
) -> None:
    names = ["dog", "cat", "ant", "cat", "dog", "ant"]
    given, beside = SOURCES[source](files, names, tmp_path)
    loader = ImageLoader(given, beside, **OPTIONS)
    assert loader.classes == ["ant", "cat", "dog"]
    assert same(targets(given, beside), torch.tensor([2, 1, 0, 1, 2, 0]))
    order = ["dog", "cat", "ant", "bee"]
    assert ImageLoader(given, beside, classes=order, **OPTIONS).classes == order
    assert same(targets(given, beside, classes=order), torch.tensor([0, 1, 2, 1, 0, 2]))
    with pytest.raises(ValueError, match=r"class 'ant', which is not in classes="):
        ImageLoader(given, beside, classes=["dog", "cat"], **OPTIONS)


def test_names_of_a_data_set_stay_names_unless_classes_says_their_numbers(files: list[str]) -> None:
    names = ["dog", "cat", "ant", "cat", "dog", "ant"]
    assert same(targets(Rows(files, names)), names)
    assert same(targets(Rows(files, names), classes=["ant", "cat", "dog"]), torch.tensor([2, 1, 0, 1, 2, 0]))


def test_folders_can_be_numbered_as_is_wanted(files: list[str], tmp_path: Path) -> None:
    for name, file in zip(["b", "a", "c"], files[:3], strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jpg").write_bytes(Path(file).read_bytes())
    assert same(targets(tmp_path), torch.tensor([0, 1, 2]))
    assert same(targets(tmp_path, classes=["c", "b", "a"]), torch.tensor([2, 1, 0]))
    assert ImageLoader(tmp_path, classes=["c", "b", "a"], **OPTIONS).classes == ["c", "b", "a"]
    with pytest.raises(ValueError, match="class 'b', which is not in"):
        ImageLoader(tmp_path, classes=["c", "a"], **OPTIONS)


def test_rows_of_numbers_are_batches_of_rows(files: list[str]) -> None:
    hot = [[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]]
    for given, wanted in (
        (hot, torch.tensor(hot)),
        ([[float(value) for value in row] for row in hot], torch.tensor(hot, dtype=torch.float64)),
        (numpy.array(hot, dtype=numpy.float32), torch.tensor(hot, dtype=torch.float32)),
        (torch.tensor(hot, dtype=torch.bool), torch.tensor(hot, dtype=torch.bool)),
        ([torch.tensor(row) for row in hot], torch.tensor(hot)),
    ):
        assert same(targets(files, given), wanted)
    pairs = list(zip(files, hot, strict=True))
    assert same(targets(pairs), torch.tensor(hot))


def test_arrays_keep_their_types(files: list[str]) -> None:
    for given, wanted in (
        (numpy.arange(COUNT, dtype=numpy.uint16), torch.arange(COUNT)),
        (numpy.linspace(0, 1, COUNT, dtype=numpy.float32), None),
        (torch.linspace(0, 1, COUNT, dtype=torch.float16), None),
        (numpy.array([True, False, True, True, False, False]), None),
        ([True, False, True, True, False, False], torch.tensor([True, False, True, True, False, False])),
        ([numpy.int32(number) for number in range(COUNT)], torch.arange(COUNT)),
    ):
        assert same(targets(files, given), torch.as_tensor(given) if wanted is None else wanted), given


def test_other_labels_are_returned_unchanged(files: list[str]) -> None:
    ragged = [[1, 2], [3], [], [4, 5, 6], [7], [8]]
    boxes = [{"boxes": [[0, 0, 1, 1]], "label": number} for number in range(COUNT)]
    masks = [f"masks/{number}.png" for number in range(COUNT)]
    for labels in (ragged, boxes, masks):
        assert same(targets(files, labels), labels)
        assert same(targets(list(zip(files, labels, strict=True))), labels)
        assert same(targets(Rows(files, labels)), labels)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["0", "1", "", "2", "1", "0"], r"row 4 has no label"),
        (["cat", "", "dog", "cat", "dog", "cat"], r"row 3 has no label"),
        (["0", "1", "nan", "2", "1", "0"], r"row 4 is 'nan'"),
        (
            ["0", "1", "two", "2", "1", "0"],
            r"row 4 is 'two', but .*row 2 is '0': if all are names, pass classes=",
        ),
        (
            ["cat", "1", "two", "2", "1", "0"],
            r"row 3 is '1', but .*row 2 is 'cat': if all are names, pass classes=",
        ),
        (["007", "1", "2", "2", "1", "0"], r"row 2 is '007', .* a number or a name: pass classes="),
    ],
)
def test_a_column_that_could_be_meant_in_two_ways_is_an_error(
    cells: list[str], message: str, files: list[str], tmp_path: Path
) -> None:
    path = csv_of(tmp_path, files, cells)
    with pytest.raises(ValueError, match=message):
        ImageLoader(path, **OPTIONS)


def test_a_column_of_names_that_look_like_numbers_is_read_by_its_classes(
    files: list[str], tmp_path: Path
) -> None:
    path = csv_of(tmp_path, files, ["007", "1", "2", "2", "1", "nan"])
    classes = ["nan", "1", "2", "007"]
    assert same(targets(path, classes=classes), torch.tensor([3, 1, 2, 2, 1, 0]))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, None, 2, 1, 0], r"the label of .* has no label \(None\)"),
        ([0.5, 1.0, float("nan"), 2.0, 1.0, 0.0], r"has no label \(nan\)"),
        (numpy.array([0.5, 1, numpy.nan, 2, 1, 0]), r"has no label \(NaN\)"),
        ([0, 1, 0.5, 2, 1, 0], r"is 0.5, but .* of another type: pass all of them as floats"),
        ([0, 1, True, 2, 1, 0], r"is True, but .* of another type"),
        ([0, 1, "cat", 2, 1, 0], r"is 'cat', but .* 0: pass names or numbers, not both"),
        ([0, 1, 2], r"there are 6 paths and 3 labels"),
        ({"a.jpg": 1}, r"a list in the order of the paths"),
        ([0, 1, 2, 3, 4, 1 << 70], r"does not fit into 64 bits"),
        (["cat", " ", "dog", "cat", "dog", "cat"], r"has no label"),
    ],
)
def test_labels_that_could_be_meant_in_two_ways_are_an_error(
    labels: Any, message: str, files: list[str]
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ImageLoader(files, labels, **OPTIONS)


def test_missing_labels_of_a_frame_and_of_a_data_set_are_errors(files: list[str]) -> None:
    with pytest.raises(ValueError, match=r"row 2 of the table has no label \(NaN\)"):
        ImageLoader(frame_of(files, [0, 1, None, 2, 1, 0]), **OPTIONS)
    with pytest.raises(ValueError, match=r"row 2 of the table has no label"):
        ImageLoader(frame_of(files, ["a", "b", None, "a", "b", "a"]), **OPTIONS)
    for key in (None, "label"):
        with pytest.raises(Exception, match="sample 2 has no label, but sample 0 has"):
            targets(Rows(files, [0, 1, None, 2, 1, 0], key))


def test_labels_for_a_source_that_has_its_own_are_an_error(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_bytes(Path(files[0]).read_bytes())
    for source in (tmp_path, csv_of(tmp_path, files, [0] * COUNT), [(file, 0) for file in files]):
        with pytest.raises(ValueError, match="labels= is for paths and data sets"):
            ImageLoader(source, [1] * COUNT, **OPTIONS)
    with pytest.raises(ValueError, match="classes= needs labels that are names"):
        ImageLoader(files, [1] * COUNT, classes=["a", "b"], **OPTIONS)
    with pytest.raises(Exception, match="has its own target"):
        targets(Rows(files, [0] * COUNT), [1] * COUNT)
    # A table without labels takes those that are given.
    table = tmp_path / "paths.csv"
    table.write_text("\n".join(["path", *files]) + "\n")
    assert same(targets(table, [0.5] * COUNT), torch.tensor([0.5] * COUNT, dtype=torch.float64))


def test_shuffled_and_resumed_targets_belong_to_their_images(files: list[str]) -> None:
    labels = [number / 8 for number in range(COUNT)]
    plain = {float(label): image for image, label in images_and_labels(files, labels)}
    for image, label in images_and_labels(files, labels, shuffle=True, seed=3):
        assert torch.equal(image, plain[float(label)])


def images_and_labels(files: list[str], labels: Any, **options: Any) -> list[tuple[torch.Tensor, Any]]:
    loader = ImageLoader(files, labels, **{**OPTIONS, **options})
    return [
        (image.clone(), label) for images, found in loader for image, label in zip(images, found, strict=True)
    ]


def test_shards_say_which_label_is_no_number(files: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for number, file in enumerate(files):
            data = Path(file).read_bytes()
            for ending, content in (("jpg", data), ("cls", f"{number / 2}".encode())):
                about = tarfile.TarInfo(f"{number:04}.{ending}")
                about.size = len(content)
                tar.addfile(about, io.BytesIO(content))
    with pytest.raises(Exception, match=r"the label of `0000` is not a number: `0.0`"):
        ImageLoader(str(path), **OPTIONS)
