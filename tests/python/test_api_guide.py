"""The Python blocks of docs/python.md print what the guide shows; the reference is current."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from test_readme import pattern

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n\n```text\n(?P<text>.*?)^```$", re.M | re.S)


def test_the_guide_prints_what_it_shows(tmp_path):
    blocks = list(BLOCK.finditer((ROOT / "docs" / "python.md").read_text()))
    assert len(blocks) == 3
    # As in the guide: a training script, and the blocks one after the other in another.
    (tmp_path / "train.py").write_text((ROOT / "tests" / "python" / "api_script.py").read_text())
    # What is not of the functions stands under the guard, as the guide says.
    *first, last = [block["code"] for block in blocks]
    code = "\n".join(first).replace("import memfit\n", "")
    body = "".join(f"    {line}\n" for line in code.splitlines())
    (tmp_path / "guide.py").write_text(f"import memfit\nif __name__ == '__main__':\n{body}\n{last}")
    folder = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": os.pathsep.join([folder, os.environ["PATH"]])}
    done = subprocess.run(
        [sys.executable, "guide.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    expected = [line for block in blocks for line in block["text"].splitlines()]
    assert pattern(expected).fullmatch(done.stdout), done.stdout + done.stderr
