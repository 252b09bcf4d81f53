"""The arithmetic of `make scale`: exponents, and the page that shows them."""

from __future__ import annotations

import sys

import pytest
from script_modules import load_script

scale = load_script("scripts/scale/curves.py")


def points(*times: tuple[int, float]) -> list[scale.Point]:
    return [scale.Point(size, seconds, seconds, 100 * scale.MIB) for size, seconds in times]


def test_an_exponent_is_the_slope_beyond_the_cost_of_the_smallest_size() -> None:
    # Start-up takes 5 s; the rest is quadratic.
    found = scale.exponent(points((1, 5.0), (100, 6.0), (1000, 105.0)), lambda point: point.processor)
    assert found == pytest.approx(2.0)


@pytest.mark.parametrize(
    "times", [((1, 5.0), (10, 5.0)), ((1, 5.0), (10, 5.01), (100, 5.02)), ((1, 5.0), (10, 7.0), (100, 6.0))]
)
def test_a_cost_that_hardly_grows_has_no_exponent(times: tuple[tuple[int, float], ...]) -> None:
    assert scale.exponent(points(*times), lambda point: point.processor) is None


def test_a_curve_is_measured_and_shown() -> None:
    curve = scale.Curve(
        "images of an epoch",
        "numbers",
        (1,),
        lambda size, folder: [
            sys.executable,
            "-c",
            f"import os; assert os.listdir({str(folder)!r}) == ['{size}']",
        ],
        "",
        lambda size, folder: (folder / str(size)).write_text(""),
    )
    point = scale.measure(curve, 7)
    assert point.size == 7
    assert point.processor > 0
    assert point.peak > scale.MIB
    text = scale.page({"date": "today", "machine": "here", "curves": {curve.name: [vars(point)]}})
    assert "| images of an epoch | 7 images |" in text
    assert "hardly grows | hardly grows |" in text


def test_a_command_that_fails_is_no_point() -> None:
    curve = scale.Curve(
        "x", "x", (1,), lambda _size, _folder: [sys.executable, "-c", "raise SystemExit(3)"], ""
    )
    with pytest.raises(RuntimeError, match="SystemExit"):
        scale.measure(curve, 1)
