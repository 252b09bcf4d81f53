"""Writes `python/memfit/results/`: the JSON reports as dataclasses, from the wire types in Rust.

Fields, types and comments become fields, annotations and docstrings. `--check` writes nothing and fails if a
file is outdated.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from wire import RENAMED, ROOT, Shape, read

TARGET = ROOT / "python" / "memfit" / "results"
VERBS = ("run", "plan", "explain", "check", "cards")
#: Reports, with the class that holds what can be asked of them.
REPORTS = {f"{verb.capitalize()}Report": f"{verb.capitalize()}Questions" for verb in VERBS}
WIDTH = 110

#: Rust types whose JSON is plain.
PLAIN = {
    "String": "str",
    "&'static str": "str",
    "bool": "bool",
    "u32": "int",
    "u64": "int",
    "i32": "int",
    "i64": "int",
    "usize": "int",
    "f64": "float",
    # The vocabulary's words, which grow.
    "Category": "str",
    "Cause": "str",
    "Framework": "str",
    "Label": "str",
    "Lever": "str",
    "Origin": "str",
    "Phase": "str",
    "Proof": "str",
    "ProblemKind": "str",
    "CategoryBytes": "dict[str, int]",
    "Bound": "str",
    "Parallel": "dict[str, Any]",
    "Value": "bool | int | str | tuple[str, ...]",
}


def python_type(rust: str, known: dict[str, Shape], used: set[str]) -> str:
    """Return the annotation for a type of Rust; note the shapes that it names."""
    if rust in PLAIN:
        return PLAIN[rust]
    rust = RENAMED.get(rust, rust)
    if rust in known:
        used.add(rust)
        return rust
    if rust == "Self":
        return rust
    outer, _, inner = rust.partition("<")
    inner = inner.removesuffix(">")
    if outer == "Option":
        return f"{python_type(inner, known, used)} | None"
    if outer == "Vec":
        return f"tuple[{python_type(inner, known, used)}, ...]"
    if outer == "BTreeMap":
        key, value = inner.split(", ", 1)
        return f"dict[{python_type(key, known, used)}, {python_type(value, known, used)}]"
    if rust.startswith("("):
        return f"tuple[{', '.join(python_type(part, known, used) for part in rust[1:-1].split(', '))}]"
    raise ValueError(f"no Python type is known for `{rust}`")


def absent(annotation: str) -> str:
    """Return the value of a field that an older report lacks."""
    if annotation.endswith("| None"):
        return "None"
    plain = {"int": "0", "float": "0.0", "str": '""', "bool": "False"}
    if annotation.startswith("dict"):
        return "field(default_factory=dict)"
    return "()" if annotation.startswith("tuple") else plain[annotation]


def docstring(text: str) -> str:
    """Return prose as the docstring of a class or a field."""
    for rust, python in (("`None`", "None"), ("`true`", "True"), ("`false`", "False")):
        text = text.replace(rust, python)
    if len(text) + 10 <= WIDTH:
        return f'    """{text}"""'
    lines = textwrap.wrap(text, WIDTH - 7)
    return textwrap.indent('"""' + "\n".join(lines) + '\n"""', "    ")


def written(shape: Shape, known: dict[str, Shape], used: set[str]) -> str:
    """Return the class of a shape."""
    if shape.words:
        words = ", ".join(f'"{word}"' for word in shape.words)
        return f"{shape.name} = Literal[{words}]\n"
    if shape.base:
        used.add(shape.base)
    report = REPORTS.get(shape.name)
    base = report or shape.base
    lines = [f"@dataclass(frozen=True, kw_only=True{', repr=False' if report else ''})"]
    lines += [f"class {shape.name}{f'({base})' if base else ''}:", docstring(shape.doc), ""]
    for member in shape.members:
        annotation = python_type(member.kind, known, used).replace("Self", shape.name)
        default = member.default or annotation.endswith("| None")
        lines.append(f"    {member.name}: {annotation}{f' = {absent(annotation)}' if default else ''}")
        lines.append(docstring(member.doc))
    return "\n".join(lines) + "\n"


def ordered(shapes: list[Shape]) -> list[Shape]:
    """Put words and bases before the classes that need them when they are defined."""
    words = [shape for shape in shapes if shape.words]
    bases = {shape.base for shape in shapes}
    return [
        *words,
        *[shape for shape in shapes if not shape.words and shape.name in bases],
        *[shape for shape in shapes if not shape.words and shape.name not in bases],
    ]


def module(verb: str, shapes: dict[str, list[Shape]]) -> str:
    """Return the text of a module."""
    known = {shape.name: shape for home, own in shapes.items() if home != verb for shape in own}
    known |= {shape.name: shape for shape in shapes[verb]}
    used: set[str] = set()
    bodies = [written(shape, known, used) for shape in ordered(shapes[verb])]
    text = "\n\n".join(bodies)
    own = {shape.name for shape in shapes[verb]}
    others = []
    for home in sorted({known[name].home for name in used - own}):
        names = sorted(name for name in used - own if known[name].home == home)
        others.append(f"    from .{home} import {', '.join(names)}")
    wanted = (("TYPE_CHECKING", others), ("Any", "Any]" in text), ("Literal", "Literal[" in text))
    typing = [name for name, needed in wanted if needed]
    imports = ["from dataclasses import dataclass" + (", field" if "field(" in text else "")]
    imports += [f"from typing import {', '.join(typing)}"] if typing else []
    imports += ["", f"from .._api.report import {REPORTS[f'{verb.capitalize()}Report']}"]
    # Some shapes of two modules contain each other.
    imports += ["", "if TYPE_CHECKING:", *others] if others else []
    head = f'"""The report of `memfit {verb}`. Generated from the wire types by `scripts/docs/results.py`."""'
    return "\n".join([head, "", "from __future__ import annotations", "", *imports, "", words_together(text)])


def words_together(text: str) -> str:
    """Leave no empty lines between the types of words."""
    text = re.sub(r"(?<=\])\n\n\n(?=\w+ = Literal)", "\n", text)
    return text if not text.startswith("@") else f"\n{text}"


def files() -> dict[Path, str]:
    """Return every generated file with its text."""
    shapes = {verb: read(verb) for verb in VERBS}
    names = [shape.name for own in shapes.values() for shape in own]
    if len(names) != len(set(names)):
        raise ValueError("two wire types have the same name")
    return {TARGET / f"{verb}.py": module(verb, shapes) for verb in VERBS}


def outdated() -> list[Path]:
    """Return the files that differ from what would be written."""
    return [path for path, text in files().items() if not path.is_file() or path.read_text() != text]


def main() -> int:
    if "--check" in sys.argv[1:]:
        for path in outdated():
            print(f"{path.relative_to(ROOT)} is outdated: python scripts/docs/results.py", file=sys.stderr)
        return int(bool(outdated()))
    for path, text in files().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
