"""Numbers with which a script compares a plain number that it read from the GPU."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from support import on_device

Probe = Callable[[str], ModuleType]
# Each reads 0 with `read`, and the numbers are those with which it does something else.
COMPARED = {
    "a constant": ("if read() == 50256: pass", [50256]),
    "several statements of a line": ("x = read(); y = 1; z = x == 5", [5]),
    "a constant before": ("if 50256 != read(): pass", [50256]),
    "a variable that is assigned later": ("x = read()\ny = x\nif y > 100: pass", [101]),
    "a threshold that it is below": ("if read() < 100: pass", [100]),
    "a range": ("if 10 < read() < 20: pass", [15]),
    "two comparisons": ("x = read()\nif x == 3: pass\nelif x == 7: pass", [3, 7]),
    "a sum": ("x = 2 * read() + 1\nif x == 9: pass", [4]),
    "a constant of a module": ("END = 5\ndef ends(token): return token == END\nif ends(read()): pass", [5]),
    "a default": ("def ends(token, end=5): return token == end\nends(read())", [5]),
    "an attribute": (
        "class M:\n    end = 5\n    def ends(self, x): return x == self.end\nm = M()\nm.ends(read())",
        [5],
    ),
    "an attribute of an object": (
        "import types\na = types.SimpleNamespace(end=5)\nif read() == a.end: pass",
        [5],
    ),
    "a set": ("if read() in {5, 7}: pass", [5, 7]),
    "a list that is kept": ("seen = []\nseen.append(read())\nif seen[-1] == 5: pass", [5]),
    "a list of them": ("if 5 in [read() for _ in range(2)]: pass", [5]),
    "a count of them": ("found = [read()]\nfound.count(5)", [5]),
    "keys": ("sizes = {0: 1, 3: 1, 5: 9}\nsizes.get(read())", [5, 3]),
    "an item": ("sizes = {0: 1, 5: 9}\nsizes[read()]", [5]),
    "cases": ("match read():\n    case 5 | 6: pass\n    case _: pass", [5, 6]),
    "a text": ("if str(read()) == '5': pass", [5]),
    "another text": ("if f'{read()}' == '5': pass", [5]),
    "a returned number": ("def token(): return read()\nif token() == 5: pass", [5]),
    "a function that compares": ("import operator\noperator.eq(read(), 5)", [5, 6, 4]),
    "a number that is computed": ("x = read() + 1\ny = 2 * x\nif y == 8: pass", [3]),
    "the best so far": ("best = 9\nfor _ in range(2):\n    x = read()\n    if x < best: best = x", []),
    "a condition on it": ("if read() == 5: mode = 3\nif mode == 4: pass", [5]),
    "another variable": ("step = 3\nx = read()\nif step == 5: print(x)", []),
    "another such number": ("best = read()\nif read() < best: pass", [-1]),
    "a container with such numbers": ("seen = {7}\nx = read()\nif x in seen: pass\nseen.add(x)", []),
    "a call of the script's": ("if read() == end(): pass", []),
    "nothing": ("print(read())", []),
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not tell the place of an expression")
@pytest.mark.parametrize("how", COMPARED)
def test_numbers_that_change_what_a_script_does(how: str, probe: Probe, tmp_path: Path) -> None:
    code, numbers = COMPARED[how]
    code = f"mode, end = 0, lambda: 5\n{code}\n"
    found: list[list[int]] = []
    compared = probe("compared").Compared()

    def read() -> int:
        frame = sys._getframe(1)
        frames = [frame, *([frame.f_back] if frame.f_code.co_name != "<module>" else [])]
        found.append(compared.numbers(frames, 0))
        return 0

    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(code))
    exec(compile(code, str(path), "exec"), {"read": read, "__name__": "train"})
    assert sorted(found[-1]) == sorted(numbers)


LOCAL = """
    layer = torch.nn.Linear(8, 50).to(device)
    def work(limit):
        large = torch.zeros(1 << 28, dtype=torch.uint8, device=device)
        token = int(layer(torch.zeros(1, 8, device=device)).argmax())
        if token == limit:
            print("there")
        del large
        return torch.cuda.memory_allocated()
    answer(held=work(49))
"""


def test_a_look_at_the_variables_of_a_function_keeps_no_tensor_alive(tmp_path: Path) -> None:
    answer = on_device(LOCAL, tmp_path)
    assert answer.said["held"] < 1 << 20, answer.output
