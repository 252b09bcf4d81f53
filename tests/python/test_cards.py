"""`memfit cards`: replayed verdicts are a run's, and what a script does by the card that it is on is seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import chromium
import pytest
from runs import WORKLOADS, hold_to_shapes, memfit

PROGRAM = chromium.find()
# Attention in its memory-efficient kernel, whose backward splits keys by the number of multiprocessors.
SCRIPT = """
import sys, torch
from torch import nn
from torch.nn import functional as F
batch = int(sys.argv[sys.argv.index("--batch-size") + 1])
model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    x = torch.randn(batch, 256, device="cuda")
    q = model(x).view(batch // 64, 4, 64, 64)
    loss = F.scaled_dot_product_attention(q, q, q).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ASKING = """
import torch
size = torch.cuda.get_device_properties(0).total_memory
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(size // 10**6, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""

# It reports an accuracy, and leaves less than a tenth of an RTX 4060.
COUNTING = """
import torch
held = torch.zeros(6900 << 20, dtype=torch.uint8, device="cuda")
model = torch.nn.Linear(64, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    scores = model(torch.ones(400, 64, device="cuda"))
    print((scores.argmax(1) == 0).sum().item() / 400)
    optimizer.zero_grad()
    scores.sum().backward()
    optimizer.step()
"""


def cards(folder: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    """The document of one comparison."""
    done = subprocess.run(
        [memfit(), "cards", "--quiet", "--format", "json", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return hold_to_shapes(json.loads(done.stdout))


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["gpu"]: row for row in document["rows"]}


LOADING = """
import torch
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 64)), batch_size=8)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    model(x.cuda()).sum().backward()
    optimizer.step()
"""
GROWING = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for _ in range(9):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    kept.append(torch.zeros(8 << 20, device="cuda"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "asking.py").write_text(ASKING)
    (folder / "counting.py").write_text(COUNTING)
    (folder / "prices.toml").write_text(
        'currency = "EUR"\n'
        '[[offer]]\ngpu = "l4"\nper_hour = 0.5\nvendor = "one"\n'
        '[[offer]]\ngpu = "l40s"\ncards = 4\nper_hour = 8.0\ninstance = "four"\n'
    )
    return folder


ADA = ("rtx-4050-laptop", "rtx-4060", "rtx-4070", "rtx-4090", "l4", "l40s")


def test_replayed_verdicts_peaks_and_times_are_a_runs(folder: Path) -> None:
    of = [word for name in ADA for word in ("--gpu", name)]
    command = ["--", sys.executable, "train.py", "--batch-size", str(64 << 12)]
    replayed = by_name(cards(folder, *of, *command))
    proven = by_name(cards(folder, *of, "--prove", *command))
    assert set(replayed) == set(proven) == set(ADA)
    verdicts = {row["verdict"] for row in proven.values()}
    assert verdicts == {"fits-as-is", "does-not-fit"}, "the sizes of this test tell cards apart"
    assert {row["evidence"] for row in proven.values()} == {"run"}
    assert any(row["evidence"] == "replayed" for row in replayed.values())
    for name, row in proven.items():
        assert replayed[name]["verdict"] == row["verdict"], name
        if row["verdict"] == "fits-as-is":
            assert replayed[name]["peak"]["device_upper"] >= row["peak"]["device_upper"] * 0.999, name
            assert replayed[name]["step_ms_estimate"] == pytest.approx(row["step_ms_estimate"], rel=0.05), (
                name
            )


def test_a_gpu_is_run_where_only_further_runs_settle_what_the_script_reads(folder: Path) -> None:
    of = [word for name in ADA for word in ("--gpu", name)]
    rows = by_name(cards(folder, *of, "--", sys.executable, "counting.py"))
    tight = rows["rtx-4060"]
    free = 1 - tight["peak"]["device_upper"] / tight["capacity"]
    assert 0 < free < 0.1, tight
    assert tight["verdict"] == "fits-as-is"
    assert rows["rtx-4050-laptop"]["verdict"] == "does-not-fit"


def test_kept_batches_are_read_after_their_file_with_made_up_weights(folder: Path) -> None:
    """With `--synthetic-weights`, the tensors of a file that is loaded are mapped from it."""
    (folder / "loading.py").write_text(LOADING)
    gpus = ("--gpu", "rtx-4090", "--gpu", "rtx-3090")
    document = cards(folder, *gpus, "--synthetic-weights", "--", sys.executable, "loading.py")
    assert [row["verdict"] for row in document["rows"]] == ["fits-as-is"] * 2, document


def test_a_table_says_that_memory_grows(folder: Path) -> None:
    (folder / "growing.py").write_text(GROWING)
    (note,) = cards(folder, "--gpu", "l4", "--gpu", "l40s", "--", sys.executable, "growing.py")["notes"]
    assert "took 32.0 MiB more than the one before" in note, note


# They belong to each row's command.
OPTIONS = ["--synthetic-weights", "--synthetic-data=x:8:float32,y:int64<10", "--steps=2"]


@pytest.fixture(scope="module")
def priced(folder: Path) -> tuple[dict[str, Any], Path]:
    """Two cards, two counts and two batches with prices, and the page of it."""
    of = ["--gpu", "l4", "--gpu", "l40s", "--batch", "64,128", "--count", "1,2", *OPTIONS]
    command = ["--", sys.executable, "train.py", "--batch-size", "64"]
    prices = ["--prices", "prices.toml", "--samples", "1000000"]
    page = folder / "cards.html"
    return cards(folder, *of, *prices, "-o", str(page), *command), page


def test_prices_batches_and_counts(priced: tuple[dict[str, Any], Path]) -> None:
    document, page = priced
    rows = document["rows"]
    asked = {(gpu, count, batch) for gpu in ("l4", "l40s") for count in (1, 2) for batch in (64, 128)}
    assert {(row["gpu"], row["count"], row["batch"]) for row in rows} == asked
    assert document["priced"] == {"samples": 1000000, "epochs": None, "currency": "EUR"}
    for row in rows:
        offered = row["gpu"] == "l40s" or row["count"] == 1
        assert (row["price"] is not None) == offered, row
        assert row["command"][-1] == str(row["batch"])
        assert row["command"][4 : row["command"].index("--")] == OPTIONS
        assert row["samples_per_s"] == pytest.approx(
            row["batch"] * row["count"] * 1000 / row["step_ms_estimate"], rel=0.01
        )
        if row["price"]:
            assert row["price"]["cards"] == (4 if row["gpu"] == "l40s" else 1)
            assert row["price"]["low"] < row["price"]["amount"] < row["price"]["high"]
    amounts = [row["price"]["amount"] for row in rows if row["price"]]
    assert amounts == sorted(amounts)
    assert json.dumps(rows[0]["gpu"]) in page.read_text()


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed (or named by MEMFIT_CHROMIUM)")
def test_the_page_is_read_on_a_phone_and_with_keys(priced: tuple[dict[str, Any], Path]) -> None:
    assert PROGRAM
    address = priced[1].as_uri()
    focused = "document.activeElement.getAttribute('aria-label')"
    with chromium.Chromium(PROGRAM) as browser:
        browser.size(390, 800, mobile=True)
        browser.open(address, ready="document.querySelector('#plot svg')")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        letters = "document.querySelector('#plot text').getBoundingClientRect().height"
        assert browser.evaluate(letters) >= 11, "the plot is drawn for its width, and not scaled down to it"
        cells = (
            "[...document.querySelectorAll('#rows td:first-child')].map(e => e.getClientRects()[0].height)"
        )
        assert max(browser.evaluate(cells)) < 60, "no word is broken into letters"
        stops = "document.querySelectorAll('#plot [tabindex=\"0\"]').length"
        assert browser.evaluate(stops) == 1, "the plot is one stop of the tabulator"
        browser.evaluate("document.querySelector('#plot [tabindex=\"0\"]').focus()")
        first = browser.evaluate(focused)
        browser.key("ArrowRight")
        second = browser.evaluate(focused)
        assert second
        assert second != first
        browser.key("Enter")
        assert browser.evaluate("document.querySelector('#selected strong').textContent") == second
        assert browser.evaluate(focused) == second, "the choice keeps the keyboard's place"
        assert browser.complaints == []
        assert browser.requests == [address], "nothing is fetched"


def test_a_script_that_asks_how_large_its_card_is_runs_on_each(folder: Path) -> None:
    of = ["--gpu", "rtx-4090", "--gpu", "l4"]
    rows = by_name(cards(folder, *of, "--", sys.executable, "asking.py"))
    assert {row["evidence"] for row in rows.values()} == {"run"}
    assert rows["rtx-4090"]["peak"]["allocated"] > rows["l4"]["peak"]["allocated"]


def test_a_script_that_halves_its_batch_fits_where_a_run_shows_it(folder: Path) -> None:
    script = str(WORKLOADS / "catch_oom.py")
    of = ["--gpu", "rtx-4050-laptop", "--gpu", "rtx-6000-ada"]
    rows = by_name(cards(folder, *of, "--", sys.executable, script))
    assert rows["rtx-4050-laptop"]["verdict"] == "fits-as-is"
    assert rows["rtx-4050-laptop"]["evidence"] == "run"
    assert rows["rtx-6000-ada"]["evidence"] == "replayed"
    # The script begins with 1,024 samples and halves them until they fit.
    small, large = rows["rtx-4050-laptop"], rows["rtx-6000-ada"]
    assert (large["batch"], large["note"]) == (1024, None)
    assert small["batch"] in (64, 128, 256)
    assert small["note"].endswith(f"went on with a batch of {small['batch']}")
    assert small["samples_per_s"] == pytest.approx(1e3 * small["batch"] / small["step_ms_estimate"], rel=1e-3)


def test_a_signal_during_a_run_ends_the_command(folder: Path) -> None:
    running = subprocess.Popen(
        [memfit(), "cards", "--", sys.executable, str(folder / "train.py")],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    while not (line := running.stderr.readline()).startswith("run 1"):
        assert line, "it ended by itself"
    running.terminate()
    rest = running.stderr.read()
    assert running.wait() == 2, rest
    assert "interrupted" in rest
    commands = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    assert not [command for command in commands if str(folder / "train.py").encode() in command]


def test_an_unknown_gpu_in_the_price_file_comes_with_similar_names(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(
        'currency = "EUR"\n[[offer]]\ngpu = "a100-80gb-sxm"\nper_hour = 2\n'
    )
    done = subprocess.run(
        [memfit(), "cards", "--prices", "prices.toml", "--", "python", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "`prices.toml`" in done.stderr
    assert "did you mean `a100-80gb`?" in done.stderr


# Parameters, gradients and Adam's state take more than a card of 8 GiB has, and less than two.
LARGE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
with torch.device("cuda"):
    model = nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(8)))
optimizer = torch.optim.AdamW(model.parameters())
for (x,) in DataLoader(TensorDataset(torch.zeros(96, 8192)), batch_size=32):
    loss = model(x.cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


# Halves its batch on an out-of-memory error; a layer's output is large, so many sizes fail at the same one.
HALVING = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch, step = 1024, 0
while step < 3:
    try:
        model(torch.empty(batch, 3, 224, 224, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    except torch.OutOfMemoryError:
        pass
    else:
        continue
    batch //= 2
    torch.cuda.empty_cache()
"""


def test_cards_between_two_equal_runs_are_not_run(folder: Path) -> None:
    (folder / "halving.py").write_text(HALVING)
    names = ("t4", "rtx-2080-super", "rtx-2080", "rtx-2070-super", "rtx-2070", "rtx-2060-super")
    of = [word for name in names for word in ("--gpu", name)]
    command = ["--", sys.executable, "halving.py"]
    found = by_name(cards(folder, *of, *command))
    proven = by_name(cards(folder, *of, "--prove", *command))
    assert {row["evidence"] for row in proven.values()} == {"run"}
    assert "replayed" in {row["evidence"] for row in found.values()}
    for name, row in proven.items():
        assert found[name]["verdict"] == row["verdict"], name
        assert found[name]["peak"] == row["peak"], name
        # The time on the host differs between runs.
        assert found[name]["step_ms_estimate"] == pytest.approx(row["step_ms_estimate"], rel=0.2), name


def test_a_plan_for_several_cards_divides_one_batch(folder: Path) -> None:
    (folder / "large.py").write_text(LARGE)
    of = ["--gpu", "rtx-4060", "--count", "2", "--plan", "1", "--", sys.executable, "large.py"]
    (row,) = cards(folder, *of)["rows"]
    assert (row["verdict"], row["evidence"], row["count"]) == ("fits-with-plan", "run", 2)
    degrees = row["chosen"]["parallel"]
    assert degrees["replicate"] * degrees["shard"] * degrees["tensor"] == 2
    assert row["samples_per_s"] == pytest.approx(32 * 1000 / row["step_ms_estimate"], rel=0.01)
    assert "share each batch" in row["note"]


def test_a_script_without_steps_reports_zero_steps(folder: Path) -> None:
    (folder / "idle.py").write_text("import torch\ntorch.zeros(1 << 28, device='cuda')\n")
    document = cards(folder, "--gpu", "l4", "--", sys.executable, "idle.py")
    assert document["steps"] == 0
    assert document["rows"][0]["verdict"] == "fits-as-is"


def test_errors_have_their_kind_and_exit_status(folder: Path) -> None:
    failing = str(WORKLOADS / "failing.py")
    document = cards(folder, "--gpu", "l4", "--", sys.executable, failing, status=2)
    assert document["problem"]["message"]
    for arguments, kind in [
        (["--batch", "8", "--", sys.executable, "asking.py"], "usage"),
        (["--architecture", "abacus", "--", sys.executable, "asking.py"], "usage"),
        (["--prices", "asking.py", "--", sys.executable, "asking.py"], "prices"),
        (["--gpu", "l4:2", "--", sys.executable, "asking.py"], "usage"),
        (["--gpu", "local", "--", sys.executable, "asking.py"], "usage"),
    ]:
        assert cards(folder, *arguments, status=2)["problem"]["kind"] == kind
    small = ["--gpu", "rtx-4050-laptop", "--", sys.executable, "train.py", "--batch-size", str(64 << 14)]
    assert cards(folder, *small, status=1)["rows"][0]["verdict"] == "does-not-fit"
