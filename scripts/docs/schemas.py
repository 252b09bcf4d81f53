"""Writes `docs/schema/`: each JSON report as a JSON Schema, from the wire types in Rust.

`--check` writes nothing and fails if a file is outdated. What a report has to have, and of which
type, follows from the types; a newer memfit may add fields, so the schemas allow for others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from wire import REPORT, ROOT, Shape, schema_names, shapes_of, vocabulary

TARGET = ROOT / "docs/schema"
#: Types of other crates that reports contain.
ELSEWHERE = ("memfit-vocabulary/src/parallel.rs", "memfit-devices/src/overhead.rs")
STRING, BOOLEAN, NUMBER, OBJECT = ({"type": kind} for kind in ("string", "boolean", "number", "object"))
UNSIGNED, INTEGER = {"type": "integer", "minimum": 0}, {"type": "integer"}
PLAIN: dict[str, dict[str, Any]] = {
    "String": STRING,
    "&'static str": STRING,
    "bool": BOOLEAN,
    "u8": UNSIGNED,
    "u32": UNSIGNED,
    "u64": UNSIGNED,
    "usize": UNSIGNED,
    "i32": INTEGER,
    "i64": INTEGER,
    "f64": NUMBER,
    # Levers and kinds of problems may be added without a new number.
    "Lever": STRING,
    "ProblemKind": STRING,
    "Value": {"type": ["boolean", "integer", "string", "array", "object"]},
    # Rows of the catalogue and of calibrations, whose files state their fields.
    "Calibration": OBJECT,
    "&'a Device": OBJECT,
    "Overhead": OBJECT,
    "[u32; 2]": {"type": "array", "items": UNSIGNED, "minItems": 2, "maxItems": 2},
}


def prose(comment: str) -> str:
    """Return a comment with JSON's word for nothing."""
    return comment.replace("`None`", "`null`")


INDEX = """# Schemas of memfit's JSON

Each verb prints one document with `--format json`; its `schema` names a file here, in [JSON
Schema](https://json-schema.org/) 2020-12. A field that is here stays, with its meaning, until the number in the name
changes. A newer memfit may add fields, so ignore those that you do not know. Bytes are integers.

Written by `python scripts/docs/schemas.py` from the code. [python.md](../python.md) has the same reports as Python classes.

| document | |
|---|---|
"""


class Document:
    """A document's schema, with the shapes that it names so far."""

    def __init__(self, known: dict[str, Shape], words: dict[str, list[str]]) -> None:
        self.known, self.words = known, words
        self.named: dict[str, dict[str, Any]] = {}

    def schema(self, rust: str, inside: Shape) -> dict[str, Any]:
        """Return the schema of a type of Rust."""
        if rust in PLAIN:
            return PLAIN[rust]
        if rust in self.words:
            return {"enum": self.words[rust]}
        if rust == "CategoryBytes":
            categories = self.words["Category"]
            return {
                "type": "object",
                "required": categories,
                "properties": dict.fromkeys(categories, UNSIGNED),
                "additionalProperties": UNSIGNED,
            }
        outer, _, inner = rust.partition("<")
        inner = inner.removesuffix(">")
        if outer == "Option":
            of = self.schema(inner, inside)
            if set(of) == {"type"} and isinstance(of["type"], str):
                return {"type": [of["type"], "null"]}
            return {"anyOf": [of, {"type": "null"}]}
        if outer == "Vec":
            return {"type": "array", "items": self.schema(inner, inside)}
        if outer == "BTreeMap":
            return {"type": "object", "additionalProperties": self.schema(inner.split(", ", 1)[1], inside)}
        if rust.startswith("("):
            parts = [self.schema(part, inside) for part in rust[1:-1].split(", ")]
            return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
        shape = inside if rust == "Self" else self.known[rust]
        if shape.name not in self.named:
            # It may contain itself.
            self.named[shape.name] = {}
            self.named[shape.name] = self.body(shape)
        return {"$ref": f"#/$defs/{shape.name}"}

    def body(self, shape: Shape) -> dict[str, Any]:
        """Return the schema of a struct or of an enum of words."""
        if shape.words:
            return {"description": prose(shape.doc), "enum": shape.words}
        properties: dict[str, Any] = {}
        required: list[str] = []
        if shape.base is not None and shape.base in self.known:
            base = self.body(self.known[shape.base])
            properties, required = dict(base["properties"]), list(base["required"])
        for member in shape.members:
            if member.constant:
                properties[member.name] = {"const": schema_names()[member.constant]}
            else:
                said = self.schema(member.kind, shape)
                properties[member.name] = {"description": prose(member.doc), **said}
            if not member.optional:
                required.append(member.name)
        return {
            "description": prose(shape.doc),
            "type": "object",
            "required": required,
            "properties": properties,
        }


def document(report: Shape, known: dict[str, Shape], words: dict[str, list[str]]) -> dict[str, Any]:
    """Return the schema of a report."""
    name = next(schema_names()[member.constant] for member in report.members if member.constant)
    made = Document(known, words)
    body = made.body(report)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        "title": name,
        **body,
        "$defs": dict(sorted(made.named.items())),
    }


def files() -> dict[Path, str]:
    """Return every generated file with its text."""
    words = vocabulary()
    elsewhere = [shape for path in ELSEWHERE for shape in shapes_of(ROOT / "crates" / path)]
    own = {path.stem: shapes_of(path) for path in sorted((REPORT / "wire").glob("*.rs"))}
    made: dict[Path, str] = {}
    for shapes in own.values():
        everything = [*elsewhere, *[shape for others in own.values() for shape in others], *shapes]
        # A file's own shapes win over others of the same name.
        known = {shape.name: shape for shape in everything}
        known["Exception"] = known["UncaughtException"]
        for shape in shapes:
            if any(member.constant for member in shape.members):
                schema = document(shape, known, words)
                path = TARGET / f"{schema['$id'].replace('/', '-')}.json"
                made[path] = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    rows = [json.loads(text) for text in made.values()]
    made[TARGET / "README.md"] = INDEX + "".join(
        f"| [`{row['$id']}`]({row['$id'].replace('/', '-')}.json) | {row['description']} |\n" for row in rows
    )
    missing = set(schema_names().values()) - {row["$id"] for row in rows}
    if missing:
        raise ValueError(f"no wire type has the schema of {', '.join(sorted(missing))}")
    return made


def main() -> int:
    texts = files()
    unknown = [path for path in TARGET.iterdir() if path not in texts]
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in texts.items() if not path.is_file() or path.read_text() != text]
        for path in [*stale, *unknown]:
            print(f"{path.relative_to(ROOT)} is outdated: python scripts/docs/schemas.py", file=sys.stderr)
        return int(bool(stale or unknown))
    TARGET.mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text)
    for path in unknown:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
