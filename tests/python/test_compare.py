"""`memfit.shrink.compare`: intervals of paired scores, bytes of weights, and models left as they were."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lever_models import Language
from memfit import shrink
from torch import nn

NUMBERS = torch.Generator().manual_seed(3)


class Scores(nn.Module):
    """A model whose score of a sample is the sample, shifted."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(shift))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.training
        assert torch.is_inference_mode_enabled()
        return x + self.shift


def metric(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch)


def batches() -> Iterator[torch.Tensor]:
    """Batches of unequal size, once."""
    yield from torch.randn(100, generator=torch.Generator().manual_seed(4)).split(30)


def test_a_constant_difference_is_certain_where_the_scores_are_not() -> None:
    found = shrink.compare(Scores(0.0), Scores(-0.25), batches(), metric)
    assert found.samples == 100
    # Pairing removes the spread of the samples.
    assert found.difference == pytest.approx(-0.25) == pytest.approx(found.low) == pytest.approx(found.high)
    assert found.verdict == "worse"
    assert found.before.high - found.before.low > 0.2
    assert found.after.score == pytest.approx(found.before.score - 0.25)
    assert shrink.compare(Scores(0.0), Scores(0.5), batches(), metric).verdict == "better"
    assert "worse: -0.25" in str(found)
    assert "95% interval of 100 paired scores" in str(found)


class Noisy(Scores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.randn(x.shape, generator=NUMBERS)


def test_the_interval_is_that_of_the_mean() -> None:
    data = [torch.zeros(400)]
    found = shrink.compare(Scores(0.0), Noisy(0.0), data, metric, resamples=4000)
    # The standard error of 400 standard normal numbers is 0.05.
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.05, rel=0.12)
    narrow = shrink.compare(Scores(0.0), Noisy(0.0), data, metric, resamples=4000, confidence=0.5)
    assert narrow.high - narrow.low == pytest.approx(2 * 0.674 * 0.05, rel=0.15)
    seeded = [
        shrink.compare(Scores(0.0), Scores(0.1), batches(), metric, seed=seed).before for seed in (1, 1, 2)
    ]
    assert seeded[0].low == seeded[1].low != seeded[2].low


def test_undecided_is_a_verdict() -> None:
    data = [torch.tensor([1.0, -1.0] * 20)]
    found = shrink.compare(
        Scores(0.0), Scores(0.0), data, lambda model, batch: model(batch) * torch.sign(batch) * 0
    )
    assert found.verdict == "undecided"
    assert found.low == found.high == 0


def test_models_are_left_as_they_were_and_weights_are_counted() -> None:
    model, small = Language(), Language()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    applied = shrink.quantized_weights(small, bits=8)
    tokens = torch.zeros(2, 12, dtype=torch.long)

    def score(each: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return each(batch).float().mean((1, 2))

    found = shrink.compare(model, small, [tokens, tokens], score)
    assert [module.training for module in model.modules()] == modes
    assert found.before.peak is None
    linear = sum(each.weight.numel() for each in model.blocks.modules() if isinstance(each, nn.Linear))
    # A byte for each weight, and a scale for each block of up to 256 elements of a layer.
    less = 4 * linear - found.before.weights + found.after.weights
    assert linear < less < 1.1 * linear
    assert all(each.requires_grad for each in model.parameters())
    applied.undo()


@pytest.mark.parametrize(
    ("data", "score", "text"),
    [
        ([torch.zeros(1)], metric, "at least two scores"),
        ([torch.tensor([float("nan"), 0.0])], metric, "not finite"),
        (
            [torch.zeros(4)],
            lambda model, batch: model(batch)[: 2 + (model.shift.item() > 0)],
            "2 and 3 scores",
        ),
    ],
)
def test_scores_that_cannot_be_compared_are_refused(
    data: list[torch.Tensor], score: object, text: str
) -> None:
    model = Scores(0.0)
    with pytest.raises(ValueError, match=text):
        shrink.compare(model, Scores(1.0), data, score)  # type: ignore[arg-type]
    assert model.training


def test_one_number_for_a_batch_is_a_score() -> None:
    found = shrink.compare(
        Scores(0.0), Scores(1.0), batches(), lambda model, batch: float(model(batch).mean())
    )
    assert found.samples == 4
    assert found.difference == pytest.approx(1.0)


def test_a_page_has_the_figures_and_needs_no_network(tmp_path: Path) -> None:
    found = shrink.compare(Scores(0.0), Scores(-0.25), batches(), metric)
    found.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    for text in ("worse", "-0.25", "95%", "100 paired scores", f"{found.before.milliseconds:.2f} ms", "4 B"):
        assert text in page, text
    assert page.startswith("<!doctype html>")
    assert not re.search(r"https?:|<script|<link|src=", page)
    assert found._repr_html_() in page
    # The intervals are on one scale: the shifted scores end further left.
    lines = re.findall(r'<line x1="([\d.]+)" x2="([\d.]+)"', page)
    (low, high), (shifted_low, shifted_high) = [tuple(map(float, each)) for each in lines]
    assert 0 < shifted_low < low < high < 1000
    assert high - low == pytest.approx(shifted_high - shifted_low, abs=0.5)
    # No card, no peaks.
    assert "peak" not in page
