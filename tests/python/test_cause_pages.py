"""The pages of docs/causes: there is one for each cause, and the code on it fits where the broken script does
not.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from runs import ROOT
from test_explain import drive

PAGES = ROOT / "docs" / "causes"
CAUSES = sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "README")


def code(cause: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / f"{cause}.md").read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def came(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("pages")
    scripts = []
    for cause in CAUSES:
        for index, text in enumerate(code(cause)):
            script = folder / f"{cause}-{index}.py"
            script.write_text(text)
            scripts.append(str(script))
    return drive(folder, scripts)


def test_each_cause_has_a_page_and_a_broken_script() -> None:
    vocabulary = (ROOT / "crates" / "memfit-vocabulary" / "src" / "lib.rs").read_text()
    declared = vocabulary.split("    Cause {")[1].split("    }\n}")[0]
    names = set(re.findall(r'= \d+, "([a-z-]+)";', declared)) - {"none"}
    assert set(CAUSES) == names
    listed = (PAGES / "README.md").read_text()
    for cause in CAUSES:
        script = Path("examples") / "broken" / f"{cause.replace('-', '_')}.py"
        assert (ROOT / script).is_file()
        assert f"({cause}.md)" in listed
        assert str(script) in listed


def test_a_cause_has_one_sentence_everywhere() -> None:
    source = (ROOT / "crates" / "memfit-report" / "src" / "text" / "explain.rs").read_text()
    body = source.split("fn sentence(cause: Cause)")[1].split("\n}\n")[0]
    shown = {
        re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(): sentence
        for name, sentence in re.findall(r'Cause::(\w+) => "(.*)",', body)
    }
    listed = (PAGES / "README.md").read_text()
    for cause in CAUSES:
        assert (PAGES / f"{cause}.md").read_text().startswith(f"# {cause}: {shown[cause]}\n")
        assert f"| [{cause}]({cause}.md) | {shown[cause]} |" in listed


@pytest.mark.parametrize("cause", CAUSES)
def test_the_mended_script_of_each_cause_page_fits(cause: str, came: dict[str, dict[str, Any]]) -> None:
    scripts = [what for name, what in came.items() if name.startswith(f"{cause}-")]
    assert scripts, "there is code on the page"
    for what in scripts:
        assert what["oom"] is None, what["oom"]
        assert what["failed"] is None, what["failed"]
