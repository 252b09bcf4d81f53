"""The gallery of recordings: its page, and the viewer's page of an entry."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from runs import ROOT, memfit
from script_modules import load_script

gallery = load_script("scripts/site/gallery.py")


def test_the_page_is_that_of_the_list() -> None:
    assert gallery.GUIDE.read_text() == gallery.guide(linked=False)


def test_each_entry_has_a_script_and_a_name_of_its_own() -> None:
    entries = gallery.entries()
    assert len({each.name for each in entries}) == len(entries) > 5
    for each in entries:
        assert (ROOT / each.script.split()[0]).is_file()
        assert f"gallery/{each.name}.html" in gallery.guide(linked=True)


def test_an_entry_becomes_a_page_of_the_viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("MEMFIT_COMMAND", memfit())
    leak = next(each for each in gallery.entries() if each.name == "leaking")
    page = gallery.write_page(leak, tmp_path)
    encoded = page.read_text().partition('id="manifest">')[2].partition("</script>")[0]
    assert "predictions.append(logits)" in json.dumps(json.loads(base64.b64decode(encoded)))
    assert [each.name for each in tmp_path.iterdir()] == ["leaking.html"]


def test_a_script_that_leaves_no_recording_is_an_error(tmp_path: Path) -> None:
    entry = gallery.Entry("none", "", "--gpu no-such-gpu", "examples/classifier/train.py", "")
    with pytest.raises(RuntimeError, match="no-such-gpu"):
        gallery.write_page(entry, tmp_path)
