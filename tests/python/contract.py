"""The published schemas of memfit's JSON, to which reports are held."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schema"


def check_document(document: dict[str, Any]) -> None:
    """Fail if a document breaks the schema that it names, or has a field that the schema does not list."""
    _validator(document["schema"]).validate(document)


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name.replace('/', '-')}.json").read_text())
    return jsonschema.Draft202012Validator(_closed(schema))


def _closed(schema: Any) -> Any:
    """Return the schema without room for the fields of newer releases."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if "properties" in closed and isinstance(closed["properties"], dict) and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed
