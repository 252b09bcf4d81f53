"""The atlas: the search for edges on canned verdicts, its resumption, and its pages."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chromium
import pytest
import tomllib
from runs import ROOT, memfit
from script_modules import load_script, load_scripts

atlas, page, edges = load_scripts("scripts/atlas", "atlas", "atlas_page", "edges")

GIB = 1 << 30
GPUS = [
    edges.Gpu("tiny", 1 * GIB, "7.5"),
    edges.Gpu("small", 8 * GIB, "8.6"),
    edges.Gpu("middle", 24 * GIB, "8.9"),
    edges.Gpu("old", 8 * GIB, "6.1"),
    edges.Gpu("large", 80 * GIB, "9.0"),
]
PUBLISHED = {
    "gpu": "middle",
    "precision": "fp32",
    "source": "somebody",
    "batches": {"net": [128, 192], "absent": [1, 2]},
}
PROGRAM = chromium.find()


def peak(batch: int) -> int:
    """Return the peak of a batch: a line with a step in it, as of a convolution's workspace."""
    return 2 * GIB + batch * (GIB // 8) + (3 * GIB if batch >= 32 else 0)


class Canned:
    """Answers for memfit, and counts how often it is asked."""

    def __init__(self, peak: Callable[[int], int] = peak, most: int = 1000) -> None:
        self.peak, self.most, self.asked = peak, most, []

    def __call__(self, batches: tuple[int, ...], gpus: tuple[str, ...], prove: bool) -> list[edges.Answer]:
        if len(self.asked) >= self.most:
            raise edges.OutOfTimeError
        self.asked.append((batches, gpus, prove))
        memory = {gpu.id: gpu.memory for gpu in GPUS}
        return [self.answer(gpu, batch, memory[gpu], prove) for gpu in gpus for batch in batches]

    def answer(self, gpu: str, batch: int, memory: int, prove: bool) -> edges.Answer:
        if gpu == "old":
            return edges.Answer(gpu, batch, "unknown", "run", None, None, None, None, "no kernels")
        used, evidence = self.peak(batch), "run" if prove else "replayed"
        verdict = "fits-as-is" if used <= memory else "does-not-fit"
        return edges.Answer(gpu, batch, verdict, evidence, used, used, used, batch / 0.1, None)


def found_edges(known: edges.Known) -> dict[str, tuple[int | None, int | None]]:
    sides = {gpu.id: known.edge(gpu.id) for gpu in GPUS}
    return {gpu: (fits and fits.batch, fails and fails.batch) for gpu, (fits, fails) in sides.items()}


def test_every_edge_is_found_between_neighbours_of_the_series() -> None:
    known, ask = edges.Known(), Canned()
    edges.search(GPUS, known, ask)
    assert found_edges(known) == {
        "tiny": (None, 1),
        # 2 GiB and 48 eighths are 8 GiB, without the step.
        "small": (24, 32),
        "middle": (128, 192),
        "old": (None, None),
        "large": (512, 768),
    }
    assert len(ask.asked) < 15


@pytest.mark.parametrize("growth", [0, GIB, 100 * GIB])
def test_a_search_ends_whatever_the_growth(growth: int) -> None:
    known, ask = edges.Known(), Canned(lambda batch: GIB // 2 + batch * growth)
    edges.search(GPUS, known, ask)
    assert all(known.settled(gpu.id) for gpu in GPUS)
    assert len(ask.asked) < edges.MAX_ROUNDS


def test_proven_gpus_have_both_verdicts_from_runs() -> None:
    known, ask = edges.Known(), Canned()
    edges.search(GPUS, known, ask, frozenset({"middle"}))
    assert [each and each.evidence for each in known.edge("middle")] == ["run", "run"]
    assert [each and each.evidence for each in known.edge("large")] == ["replayed", "replayed"]


def test_a_run_that_differs_from_its_replay_moves_the_edge() -> None:
    class Wrong(Canned):
        def answer(self, gpu: str, batch: int, memory: int, prove: bool) -> edges.Answer:
            return super().answer(gpu, batch, memory if prove else memory * 2, prove)

    known = edges.Known()
    edges.search(GPUS, known, Wrong(), frozenset({"middle"}))
    fits, fails = known.edge("middle")
    assert fits is not None
    assert fails is not None
    assert (fits.batch, fails.batch) == (128, 192)
    assert fits.evidence == fails.evidence == "run"


def test_an_interrupted_search_goes_on_where_it_stopped() -> None:
    known = edges.Known()
    with pytest.raises(edges.OutOfTimeError):
        edges.search(GPUS, known, Canned(most=3))
    left = Canned()
    edges.search(GPUS, known, left)
    whole = Canned()
    edges.search(GPUS, edges.Known(), whole)
    assert len(left.asked) == len(whole.asked) - 3


def test_answers_of_other_versions_are_not_taken(tmp_path: Path) -> None:
    store, answer = tmp_path / "answers.jsonl", Canned()((2,), ("small",), False)[0]
    record = {
        "environment": {"torch": "2.15.0"},
        "commit": "0123abc",
        "model": "net",
        "precision": "fp32",
        "answers": [vars(answer)],
        "runs": 1,
        "wall_s": 2.5,
    }
    store.write_text(json.dumps(record) + "\n")
    taken = atlas.Memfit(store, "python", time.monotonic(), {"torch": "2.15.0"})
    assert taken.answers["net", "fp32"].by_gpu == {"small": {2: answer}}
    assert taken.seconds["net", "fp32"] == 2.5
    assert not atlas.Memfit(store, "python", time.monotonic(), {"torch": "2.16.0"}).answers
    with pytest.raises(edges.OutOfTimeError):
        taken.asker("net", "fp32")((3,), ("small",), False)


def test_a_lost_store_is_made_again_from_the_result(tmp_path: Path, result: dict[str, Any]) -> None:
    committed, store = tmp_path / "atlas.json", tmp_path / "answers.jsonl"
    committed.write_text(json.dumps(result))
    resumed = atlas.Memfit(store, "python", time.monotonic(), result["environment"], committed)
    again = Canned()
    edges.search(GPUS, resumed.answers["net", "fp32"], again)
    assert again.asked == []
    listed = {"model": [{"name": "net"}]}
    assert atlas.document(listed, GPUS, resumed)["cells"] == result["cells"]
    other = atlas.Memfit(tmp_path / "none", "python", time.monotonic(), {"torch": "2.16.0"}, committed)
    assert not other.answers


@pytest.fixture
def result(tmp_path: Path) -> dict[str, Any]:
    """Return the result of a search on canned verdicts, read back from its file."""
    computed = atlas.Memfit(
        tmp_path / "none", "python", time.monotonic(), {"torch": "2.15.0", "memfit": "0.1.0"}
    )
    edges.search(GPUS, computed.answers["net", "fp32"], Canned())
    listed = {"model": [{"name": "net"}, {"name": "not computed"}]}
    return json.loads(atlas.written(atlas.document(listed, GPUS, computed)))


def shown(text: str) -> dict[str, Any]:
    """Return the data that a table's page has."""
    return json.loads(text.partition('id="data">')[2].partition("</script>")[0])


def test_the_table_has_exactly_the_cells_of_the_data(result: dict[str, Any]) -> None:
    data = shown(page.table(result))
    rows = [dict(zip(data["columns"], cell, strict=True)) for cell in data["cells"]]
    assert [(each["model"], each["precision"], each["GPU"]) for each in rows] == [
        (each["model"], each["precision"], each["gpu"]) for each in result["cells"]
    ]
    assert {each["GPU"]: (each["largest batch"], each["does not fit"]) for each in rows} == {
        "tiny": (0, 1),
        "small": (24, 32),
        "middle": (128, 192),
        "old": (None, None),
        "large": (512, 768),
    }


def test_the_guide_tells_what_is_computed(result: dict[str, Any]) -> None:
    text = page.guide(result, {"model": [{"name": "net"}, {"name": "not computed"}], "published": PUBLISHED})
    assert "1 of 2 models of the list are computed so far (1 in fp32, 0 in bf16)" in text
    assert "not computed |" not in text
    assert "| net | 128 | 192 | 128 | agrees |" in text
    assert "1 are computed, and 1 agree." in text


def test_committed_pages_are_those_of_the_committed_data() -> None:
    if not atlas.RESULT.exists():
        pytest.skip("the atlas is not computed")
    result, listed = json.loads(atlas.RESULT.read_text()), tomllib.loads(atlas.MODELS.read_text())
    assert page.GUIDE.read_text() == page.guide(result, listed)
    assert page.TABLE.read_text() == page.table(result)
    assert atlas.RESULT.read_text() == atlas.written(result)


def test_a_command_parses(result: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    train = load_script(atlas.SCRIPT)
    cell = {**result["cells"][1], "gpu": "rtx-4090", "model": "resnet50"}
    words = page.command(cell, 24)
    at = words.index("--")
    # With `--help`, memfit reads what is before it, and runs nothing.
    helped = [memfit(), *words[1:at], "--help"]
    assert subprocess.run(helped, capture_output=True, check=False).returncode == 0
    refused = [memfit(), *words[1:at], "--no-such-option", "--help"]
    assert subprocess.run(refused, capture_output=True, check=False).returncode == 2
    python, script, *rest = words[at + 1 :]
    assert (python, (ROOT / script).exists()) == ("python", True)
    given = train.arguments(rest)
    assert (given.model, given.precision, given.batch) == ("resnet50", "fp32", 24)


def test_each_model_is_listed_once_and_known_to_the_training_script() -> None:
    pytest.importorskip("torch")
    train = load_script(atlas.SCRIPT)
    listed = tomllib.loads(atlas.MODELS.read_text())
    names = [each["name"] for each in listed["model"]]
    assert len(names) == len(set(names)) == 50
    assert list(train.entries()) == names
    for each in listed["model"]:
        assert each["task"] in train.TASKS
        assert each["library"] in atlas.LIBRARIES
        assert ("config" in each) == (each["library"] == "transformers")
    assert set(listed["published"]["batches"]) <= set(names)
    catalogue = {gpu.id for gpu in atlas.catalogue()}
    assert {*listed["proven"], listed["published"]["gpu"], *page.SHOWN} <= catalogue


def test_a_model_is_built_from_its_configuration() -> None:
    pytest.importorskip("transformers")
    train = load_script(atlas.SCRIPT)
    options = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = train.build({**train.entries()["bert-base"], "options": {**options, "vocab_size": 100}})
    assert sum(each.numel() for each in model.parameters()) < 100_000


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium here")
def test_the_table_searches_sorts_and_fits_narrow_screens(result: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "table.html"
    file.write_text(page.table(result))
    rows = "[...document.querySelectorAll('tbody tr')].map(row => row.cells[2].textContent)"
    assert PROGRAM is not None
    with chromium.Chromium(PROGRAM) as browser:
        browser.size(390, 800)
        browser.prefer(prefers_color_scheme="dark")
        browser.open(file.as_uri(), "document.querySelectorAll('tbody tr').length > 0")
        assert browser.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
        browser.evaluate("[...document.querySelectorAll('th button')][4].click()")
        assert browser.evaluate(rows) == ["large", "middle", "small", "tiny", "old"]
        browser.evaluate("""(() => {
            const field = document.getElementById("search");
            field.value = "net middle";
            field.dispatchEvent(new Event("input"));
        })()""")
        assert browser.evaluate(rows) == ["middle"]
        command = browser.evaluate("document.querySelector('tbody code').textContent")
        assert command.split() == page.command({**result["cells"][2]}, 128)
        assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
        assert browser.complaints == []
