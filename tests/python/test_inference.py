"""`memfit.inference`, batches of every kind, and who holds memory."""

from __future__ import annotations

import gc
import sys
from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import memfit
import pytest
import torch
from memfit._train.batches import Batch
from memfit._train.joining import join
from memfit._train.rules import Rules
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from training import Normalised, Perceptron, mean_loss


def same(one: Any, other: Any) -> bool:
    """Return `True` if two batches are equal."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, (dict, UserDict)):
        return (
            type(one) is type(other)
            and one.keys() == other.keys()
            and all(same(one[k], other[k]) for k in one)
        )
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and same(vars(one), vars(other))
    return bool(one == other)


@dataclass
class Sample:
    """Fields of a batch."""

    pixels: torch.Tensor
    names: list[str]
    scale: float = 2.0


Pair = namedtuple("Pair", ["inputs", "labels"])
X = torch.arange(12.0).reshape(4, 3)
Y = torch.arange(4)
IMAGES = [torch.ones(3, size, size) for size in (4, 5, 6, 7)]
TARGETS = [{"boxes": torch.ones(n, 4)} for n in (1, 2, 3, 0)]


@pytest.mark.parametrize(
    ("batch", "items", "middle"),
    [
        (X, 4, X[1:3]),
        ((X, Y), 4, (X[1:3], Y[1:3])),
        ([X, Y], 4, [X[1:3], Y[1:3]]),
        ({"x": X, "mask": torch.ones(3), "n": 7}, 4, {"x": X[1:3], "mask": torch.ones(3), "n": 7}),
        (((X, X + 1), Y), 4, ((X[1:3], X[1:3] + 1), Y[1:3])),
        (UserDict(x=X, y=Y), 4, UserDict(x=X[1:3], y=Y[1:3])),
        (Pair(X, Y), 4, Pair(X[1:3], Y[1:3])),
        (Sample(X, list("abcd")), 4, Sample(X[1:3], list("bc"))),
        ((IMAGES, TARGETS), 4, (IMAGES[1:3], TARGETS[1:3])),
        ({"images": IMAGES, "y": Y}, 4, {"images": IMAGES[1:3], "y": Y[1:3]}),
        ([{"x": X[i]} for i in range(4)], 4, [{"x": X[i]} for i in (1, 2)]),
        ((X, list("abcd")), 4, (X[1:3], ["b", "c"])),
    ],
    ids=[
        "tensor",
        "tuple",
        "list",
        "dictionary with what is shared",
        "nested",
        "BatchEncoding's kind",
        "namedtuple",
        "dataclass",
        "detection",
        "images of different sizes",
        "samples",
        "names",
    ],
)
def test_batches_are_cut_and_joined(batch: Any, items: int, middle: Any) -> None:
    entry = Batch(batch)
    assert entry.items == items
    assert same(entry.part(1, 3, None), middle)
    assert same(entry.part(0, items, None), batch)
    if not isinstance(batch, dict):
        assert same(join([entry.part(0, 1, None), entry.part(1, 4, None)], [1, 3]), batch)


def test_packed_sequences_are_cut() -> None:
    rows = [torch.arange(float(n)) for n in (2, 5, 3)]
    part = Batch(pack_sequence(rows, enforce_sorted=False)).part(1, 3, None)
    padded, lengths = pad_packed_sequence(part, batch_first=True)
    assert lengths.tolist() == [5, 3]
    assert torch.equal(padded[0], rows[1])


@pytest.mark.parametrize("kind", [tuple, list, lambda entries: dict(zip("xyw", entries, strict=True))])
def test_tensors_shared_by_earlier_batches_are_not_split(kind: Any) -> None:
    rules, weights = Rules(), torch.ones(3)
    whole, ragged = (kind([torch.ones(n, 2), torch.ones(n), weights]) for n in (8, 3))
    assert Batch(ragged).part(1, 3, None)["w" if isinstance(ragged, dict) else 2].shape == (2,)
    for batch in (whole, ragged, whole, ragged):
        entry = Batch(batch, rules)
        for part in (entry.part(1, 3, None), entry.picked(range(1, 3), None)):
            values = list(part.values() if isinstance(part, dict) else part)
            assert [tuple(value.shape) for value in values] == [(2, 2), (2,), (3,)]
        assert len(entry.columns()) == 2


def test_a_batch_of_which_all_was_shared_before_is_still_split() -> None:
    rules = Rules()
    Batch((torch.ones(8, 2), torch.ones(8), torch.ones(3)), rules)
    Batch((torch.ones(3), torch.ones(8), torch.ones(8)), rules)
    entry = Batch((torch.ones(3), torch.ones(3), torch.ones(3)), rules)
    assert (entry.items, len(entry.part(0, 2, None)[1])) == (3, 2)


def test_images_of_different_sizes_are_weighed_by_them() -> None:
    assert Batch((IMAGES, TARGETS)).costs == [48 + 4, 75 + 8, 108 + 12, 147]
    assert Batch((X, Y)).costs is None


def test_a_type_of_ones_own_is_registered() -> None:
    class Graphs:
        def __init__(self, values: list[int]) -> None:
            self.values = values

    with pytest.raises(ValueError, match="register_batch_type"):
        Batch(Graphs([1, 2, 3]))
    memfit.register_batch_type(
        Graphs,
        lambda graphs: len(graphs.values),
        lambda graphs, start, stop: Graphs(graphs.values[start:stop]),
    )
    assert Batch(Graphs([1, 2, 3])).part(1, 3, None).values == [2, 3]


def test_outputs_come_back_whole_and_the_model_as_it_was() -> None:
    model = Normalised()
    model.net[3].eval()
    modes = [module.training for module in model.modules()]
    data = torch.randn(10, 6)
    with memfit.inference(model, batch_size=4) as infer:
        outputs = infer(data)
        assert not model.training
        streamed = list(infer.over(iter([data[:3], data[3:]])))
    assert [module.training for module in model.modules()] == modes
    model.eval()
    with torch.no_grad():
        expected = model(data)
    assert torch.allclose(outputs, expected, atol=1e-6)
    assert torch.allclose(torch.cat(streamed), expected, atol=1e-6)
    assert not outputs.requires_grad
    with pytest.raises(RuntimeError, match=r"with memfit\.inference"):
        infer(data)


def test_a_batch_that_does_not_fit_is_run_in_parts_and_none_twice() -> None:
    ran: list[int] = []

    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Perceptron()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if len(inputs) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            ran.extend(inputs[:, 0].tolist())
            return self.inner(inputs)

    model = Fragile()
    data = torch.arange(60.0).reshape(10, 6)
    with memfit.inference(model) as infer:
        outputs = infer({"inputs": data})
    assert ran == data[:, 0].tolist()
    assert torch.allclose(outputs, model.inner(data), atol=1e-6)

    def never(*_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(memfit.StepDoesNotFit), memfit.inference(model, forward=never) as infer:
        infer(data)


def test_windows_that_overlap_by_what_a_place_sees_give_the_whole_images_result() -> None:
    torch.manual_seed(0)
    # Two rings of pixels around each, at the image's own borders as well.
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))
    image = torch.randn(1, 3, 61, 83)
    with memfit.inference(model) as infer:
        assert torch.allclose(infer.sliding(image, 24), infer(image), atol=1e-6)
        assert not torch.allclose(infer.sliding(image, 24, blend="constant"), infer(image), atol=1e-3)


def test_lists_with_an_entry_for_each_sample_stay_so_however_they_are_cut() -> None:
    class Detector(nn.Module):
        def forward(self, inputs: torch.Tensor) -> dict[str, Any]:
            if len(inputs) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return {
                "boxes": [row[: 1 + i % 3] for i, row in enumerate(inputs)],
                "levels": [inputs, inputs[:, :2]],
            }

    data = torch.randn(6, 4)
    with memfit.inference(Detector()) as infer:
        found = infer(data)
    assert [torch.equal(box, row[: len(box)]) for box, row in zip(found["boxes"], data, strict=True)] == [
        True
    ] * 6
    assert [tuple(level.shape) for level in found["levels"]] == [(6, 4), (6, 2)]


@pytest.mark.parametrize("blend", ["centre", "cosine", "constant"])
@pytest.mark.parametrize(("shape", "window"), [((40, 56), 24), ((33, 47), (16, 20)), ((12, 12), 30)])
def test_windows_give_the_whole_images_result(blend: str, shape: Any, window: Any) -> None:
    """A fully convolutional net: equal where no window's border is near, and everywhere for one that looks at
    a pixel.
    """
    torch.manual_seed(0)
    image = torch.randn(2, 3, *shape)
    pointwise = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    with memfit.inference(pointwise) as infer:
        assert torch.allclose(infer.sliding(image, window, blend=blend), infer(image), atol=1e-5)
    halving = nn.Conv2d(3, 2, 2, stride=2)
    with memfit.inference(halving) as infer:
        even = image[..., : shape[0] // 2 * 2, : shape[1] // 2 * 2]
        assert infer.sliding(even, 8, overlap=0.5, blend=blend).shape == infer(even).shape
        assert torch.allclose(infer.sliding(even, 8, overlap=0.5, blend=blend), infer(even), atol=1e-5)


def test_holders_of_memory_are_named() -> None:
    model = Perceptron()
    kept = {"largest": torch.zeros(1000, 1000)}
    listed = memfit.holders("cpu", least=1 << 20)
    assert [holder.bytes for holder in listed if "largest" in holder.name] == [4_000_000]
    assert "MiB" in str(listed[0])
    names = [holder.name for holder in memfit.holders("cpu")]
    assert any("model.net.0.weight" in name for name in names)
    assert kept
    assert model


def test_tensors_of_a_failed_cell_are_released() -> None:
    def cell() -> None:
        hidden = torch.zeros(7, 7)
        assert hidden.sum() == 1

    try:
        cell()
    except AssertionError as error:
        # An interactive interpreter stores an uncaught exception like this.
        sys.last_value, sys.last_traceback = error, error.__traceback__

    def alive() -> int:
        gc.collect()
        return sum(type(value) is torch.Tensor and value.shape == (7, 7) for value in gc.get_objects())

    assert alive() == 1
    memfit.release()
    assert alive() == 0
    assert not hasattr(sys, "last_value")


def test_a_hugging_face_batch_trains() -> None:
    transformers = pytest.importorskip("transformers")
    encoding = transformers.BatchEncoding({"inputs": torch.randn(6, 6), "labels": torch.randint(0, 5, (6,))})
    model = Perceptron()
    step = memfit.Step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda module, batch: mean_loss(module, (batch["inputs"], batch["labels"])),
        micro_batch=4,
    )
    assert step(encoding).micro_batches == 2
