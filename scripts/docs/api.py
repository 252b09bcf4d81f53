"""Writes `docs/api.md`: the reference of the Python interface, from docstrings and dataclasses.

`--check` writes nothing and fails if the page is outdated. Reads source only; nothing is imported.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "memfit"
PAGE = ROOT / "docs" / "api.md"

HEAD = """\
# Python API reference

Written by `python scripts/docs/api.py` from the code; [python.md](python.md) is the guide. Training under a plan
(`memfit.Step`, `memfit.inference`) is in [training.md](training.md), images are in [data.md](data.md).

| in signatures | |
|---|---|
| `Command` | a list of words, or a text that is split as a shell does |
| `Size` | bytes as an `int`, or a text with its unit: `"12 GiB"` |
| `Seconds` | a number of seconds, or a text with its unit: `"20m"` |
| `Path` | `str` or `os.PathLike` |
| `Label` | `"exact"`, `"rounding"`, `"precision"` or `"changes-training"` |
"""
VERBS = ("run", "plan", "explain", "check", "cards")


def tree(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text())


def classes(file: str) -> Iterator[ast.ClassDef]:
    return (node for node in tree(file).body if isinstance(node, ast.ClassDef))


def prose(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return the docstring, as Markdown already."""
    return inspect.cleandoc(ast.get_docstring(node) or "")


def function(node: ast.FunctionDef) -> str:
    """Return the entry of a function: its signature, a keyword a line, and its docstring."""
    arguments = node.args
    positional = arguments.args
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    lines = [shown(argument, default) for argument, default in zip(positional, defaults, strict=True)]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    lines += (["*"] if arguments.kwonlyargs else []) + [shown(*keyword) for keyword in keywords]
    lines += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    result = ast.unparse(node.returns) if node.returns else "None"
    body = "".join(f"    {line},\n" for line in lines)
    return f"### `memfit.{node.name}`\n\n```text\nmemfit.{node.name}(\n{body}) -> {result}\n```\n\n{prose(node)}\n"


def shown(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{annotation}" + (f" = {ast.unparse(default)}" if default is not None else "")


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def fields(node: ast.ClassDef) -> list[tuple[str, str, str]]:
    """Return the fields of a dataclass: name, type, and the docstring below."""
    found = []
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            said = after.value if isinstance(after, ast.Expr) else None
            text = str(said.value) if isinstance(said, ast.Constant) else ""
            found.append((statement.target.id, ast.unparse(statement.annotation), inspect.cleandoc(text)))
    return found


def members(node: ast.ClassDef) -> list[tuple[str, str, str]]:
    """Return the properties and methods of a class that have a docstring."""
    found = []
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and ast.get_docstring(statement):
            decorators = [ast.unparse(one) for one in statement.decorator_list]
            is_property = any(one.endswith("property") for one in decorators)
            if statement.name.startswith("_") and statement.name != "__bool__":
                continue
            name = "bool(report)" if statement.name == "__bool__" else statement.name
            name = name if is_property or name.endswith(")") else f"{name}()"
            result = ast.unparse(statement.returns) if statement.returns else ""
            found.append((name, result, prose(statement).split("\n\n")[0]))
    return found


def table(rows: list[tuple[str, str, str]]) -> str:
    lines = [f"| `{name}` | `{cell(kind)}` | {cell(text)} |" for name, kind, text in rows]
    return "\n".join(["| name | type | |", "|---|---|---|", *lines]) + "\n" if rows else ""


def results() -> str:
    """Return the section on results: a table for each dataclass."""
    questions = {node.name: node for node in classes("_api/report.py")}
    base = questions["Report"]
    text = [f"## Results\n\n{prose(base)}\n\n### Every report\n\n{table([*fields(base), *members(base)])}"]
    for verb in VERBS:
        # The report first, then what it contains.
        for node in sorted(classes(f"results/{verb}.py"), key=lambda node: not node.name.endswith("Report")):
            parent = ast.unparse(node.bases[0]) if node.bases else ""
            own = members(questions[parent]) if parent in questions else []
            more = f" Also the fields of `{parent}`." if parent and parent not in questions else ""
            path = f"memfit.{node.name}" if parent in questions else f"memfit.results.{verb}.{node.name}"
            level = "###" if parent in questions else "####"
            text.append(f"{level} `{path}`\n\n{prose(node)}{more}\n\n{table([*fields(node), *own])}")
        for node in tree(f"results/{verb}.py").body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                words = ast.literal_eval(node.value.slice) if isinstance(node.value, ast.Subscript) else ()
                listed = ", ".join(f"`{word}`" for word in words)
                text.append(f"`{node.targets[0].id}`: {listed}\n")
    return "\n".join(text)


def errors() -> str:
    text = [f"### `memfit.{node.name}`\n\n{prose(node)}\n" for node in classes("_errors.py")]
    return "## Errors\n\n" + "\n".join(text)


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    sections = {
        "Verbs": [("_api/verbs.py", name) for name in ("run", "plan", "cards", "explain", "check")],
        "Functions and blocks": [("_api/function.py", "fits"), ("_api/recording.py", "record")],
    }
    for title, entries in sections.items():
        parts.append(f"## {title}\n")
        for file, name in entries:
            (node,) = (
                each for each in tree(file).body if isinstance(each, ast.FunctionDef) and each.name == name
            )
            parts.append(function(node))
    return "\n".join([*parts, errors(), results()])


def main() -> int:
    if "--check" in sys.argv[1:]:
        outdated = not PAGE.is_file() or PAGE.read_text() != page()
        if outdated:
            print("docs/api.md is outdated: python scripts/docs/api.py", file=sys.stderr)
        return int(outdated)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
