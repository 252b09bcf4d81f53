"""Read the shapes of memfit's JSON from the wire types in Rust.

The structs of `crates/memfit-report/src/wire/` own these shapes: their fields, types and comments.
`results.py` writes them as dataclasses, `schemas.py` as JSON Schema.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "crates/memfit-report/src"
#: Classes of another name than in Rust: a builtin has it.
RENAMED = {"Exception": "UncaughtException"}

ITEM = re.compile(
    r"(?P<doc>(?:^///.*\n)+)(?P<attributes>(?:^#\[.*\n)*)^pub (?P<kind>struct|enum) (?P<name>\w+)(?:<'a>)? \{\n"
    r"(?P<body>[\s\S]*?)^\}$",
    re.M,
)
MEMBER = re.compile(
    r"(?P<doc>(?:^    ///.*\n)+)(?P<attributes>(?:^    #\[.*\n)*)^    (?:pub (?P<field>[\w#]+): (?P<type>.+)|(?P<variant>\w+)),$",
    re.M,
)


@dataclass
class Member:
    """A field of a struct or a variant of an enum."""

    name: str
    doc: str
    kind: str = ""
    default: bool = False
    # Left out of the document where there is nothing to say.
    optional: bool = False
    # For `schema`: the constant that it holds.
    constant: str | None = None


@dataclass
class Shape:
    """A struct, with the struct that is flattened into it, or an enum of words."""

    name: str
    doc: str
    home: str
    members: list[Member] = field(default_factory=list)
    base: str | None = None
    words: list[str] = field(default_factory=list)


def comment(text: str) -> str:
    """Return a comment of Rust as prose."""
    words = " ".join(line.strip().removeprefix("///").strip() for line in text.strip().splitlines())
    words = re.sub(r"\[`([^`]*)`\](?:\([^)]*\))?", r"`\1`", words)
    words = re.sub(r"`(?:super::)?schema::[A-Z_]+`\.?", "The name and version of this schema.", words)
    return words if words.endswith(".") else f"{words}."


def stated_schema(doc: str) -> str | None:
    """Return the constant that a comment names as the name and version of a schema."""
    named = re.search(r"schema::([A-Z_]+)`", doc)
    return named[1] if named else None


def schema_names() -> dict[str, str]:
    """Return the names and versions of all documents, by their constants."""
    return dict(re.findall(r'pub const ([A-Z_]+): &str = "(\S+)";', (REPORT / "wire.rs").read_text()))


def vocabulary() -> dict[str, list[str]]:
    """Return the words of each enum that the macro `vocabulary!` declares."""
    text = (ROOT / "crates/memfit-vocabulary/src/lib.rs").read_text()
    blocks = re.findall(r"^vocabulary! \{\n(?:    ///.*\n)+    (\w+) \{\n([\s\S]*?)^    \}$", text, re.M)
    return {name: re.findall(r'= \d+, "(\S+)";', body) for name, body in blocks}


def read(verb: str) -> list[Shape]:
    """Return the shapes of a verb's report, in their order."""
    return shapes_of(REPORT / "wire" / f"{verb}.rs")


def shapes_of(path: Path) -> list[Shape]:
    """Return the shapes that a file declares, in its order."""
    shapes = []
    for item in ITEM.finditer(path.read_text()):
        if "Serialize" not in item["attributes"]:
            continue
        shape = Shape(RENAMED.get(item["name"], item["name"]), comment(item["doc"]), path.stem)
        found = MEMBER.findall(item["body"])
        stated = re.findall(r"^    (?:pub \w|[A-Z]\w*,$)", item["body"], re.M)
        if len(found) != len(stated):
            raise ValueError(
                f"{path.name}: {len(stated)} fields of {shape.name}, of which {len(found)} were read"
            )
        renamed = re.search(r'rename_all = "(\S+)"', item["attributes"])
        for member in MEMBER.finditer(item["body"]):
            said = member["attributes"]
            own = re.search(r'rename = "(\w+(?:-\w+)*)"', said)
            if member["variant"]:
                words = re.sub(r"(?<!^)(?=[A-Z])", "-", member["variant"]).lower()
                if own:
                    words = own[1]
                elif not renamed or renamed[1] not in ("kebab-case", "lowercase"):
                    raise ValueError(f"{path.name}: how are the variants of {shape.name} named?")
                elif renamed[1] == "lowercase":
                    words = words.replace("-", "")
                shape.words.append(words)
            elif "serde(skip)" in said:
                continue
            elif "serde(flatten)" in said:
                shape.base = member["type"]
            else:
                shape.members.append(
                    Member(
                        own[1] if own else member["field"].removeprefix("r#"),
                        comment(member["doc"]),
                        member["type"],
                        "serde(default" in said,
                        "skip_serializing_if" in said,
                        stated_schema(member["doc"]),
                    )
                )
        shapes.append(shape)
    return shapes
