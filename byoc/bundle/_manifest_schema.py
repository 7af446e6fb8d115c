"""The JSON Schema of manifests, for other tools, derived from the types that byoc parses."""

from typing import Any

from byoc.bundle._manifest import MANIFEST_FORMAT, Manifest
from byoc.codegen import MAX_PATH

SCHEMA_FILE = "manifest.schema.json"
"""The name of the shipped schema file in this package."""

_CONTROL = (
    r"\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff9-\uffff"
)
_NAME_PART = rf'[^{_CONTROL}/\\:*?"<>|]*[^{_CONTROL}/\\:*?"<>|. ]'
_PORT = r"([cC][oO][mM]|[lL][pP][tT])[0-9\u00b9\u00b2\u00b3]"
_CONSOLE = r"[cC][oO][nN]([iI][nN]\$|[oO][uU][tT]\$)?|[cC][lL][oO][cC][kK]\$"
_DEVICE = rf"({_CONSOLE}|[pP][rR][nN]|[aA][uU][xX]|[nN][uU][lL]|{_PORT})"
_NO_DEVICE = rf"(?!{_DEVICE} *(\.[^/]*)?(/|$))"
_NAME = rf"^{_NO_DEVICE}{_NAME_PART}$"
_PATH = rf"^{_NO_DEVICE}{_NAME_PART}(/{_NO_DEVICE}{_NAME_PART})*$"


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the manifest that this version writes and reads.

    It describes each value and requires plain names. Opening a bundle also checks the hashes of files
    and the contracts of regions.
    """
    schema: dict[str, Any] = _without_titles(Manifest.model_json_schema())
    schema["properties"]["format"]["const"] = MANIFEST_FORMAT
    schema["properties"]["files"]["propertyNames"] = {"$ref": "#/$defs/path"}
    region = schema["$defs"]["RegionEntry"]["properties"]
    region["name"] = {"$ref": "#/$defs/name", "description": region["name"]["description"]}
    region["artifact_files"]["propertyNames"] = {"$ref": "#/$defs/name"}
    schema["$defs"]["name"] = {
        "description": "The name of a file, whatever the system.",
        "type": "string",
        "pattern": _NAME,
    }
    schema["$defs"]["path"] = {
        "description": "The path of a file in the bundle, but for the manifest's own.",
        "type": "string",
        "maxLength": MAX_PATH,
        "pattern": _PATH,
        "not": {"pattern": r"^[mM][aA][nN][iI][fF][eE][sS][tT]\.[jJ][sS][oO][nN]$"},
    }
    start = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "byoc manifest"}
    return {
        **start,
        **{key: schema[key] for key in sorted(schema, key=lambda key: (key == "$defs", key))},
    }


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(part) for name, part in value.items()}
        if key in ("properties", "$defs")
        else _without_titles(value)
        for key, value in schema.items()
        if key != "title"
    }
