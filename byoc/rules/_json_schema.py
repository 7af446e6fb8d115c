"""The JSON Schema of rule files for editors, made from the types that check them."""

from typing import Any

from byoc.model.schemas import DTYPE_NUMBERS, list_onnx_operators
from byoc.patterns import ANY_OPERATOR
from byoc.rules._composite_library import read_library
from byoc.rules._rule_schema import RuleFile
from byoc.rules._schema_values import ANY_DTYPE, NOT_IN_GENERATIONS

SCHEMA_FILE = "rules.schema.json"
"""The name of the shipped file with the schema, next to the rule files."""

_AXIS_PATTERN = r"^(each|-?[0-9]+)$"
# An operator of a domain other than ONNX's own: `com.microsoft.Gelu`.
_FOREIGN_OPERATOR = r"^(?!ai\.onnx\.)[^.].*\."
# In these null removes a key that the extended file has.
_NULLABLE = ("Layout", "Limits", "Quantization", "QuantizedTensors", "QuantizedRule")


def make_json_schema() -> dict[str, Any]:
    """Make the JSON Schema (draft 2020-12) of a rule file.

    It lists the operators and dtypes of the installed ONNX, and the composites of the installed library.
    """
    schema: dict[str, Any] = _simplify(RuleFile.model_json_schema())
    del schema["required"]
    schema["anyOf"] = [
        {"required": ["extends"]},
        {"required": ["target", "cost_model", "dtype", "ops"]},
    ]
    parts = schema["$defs"]
    parts["CompositeRule"]["oneOf"] = [{"required": ["name", "pattern"]}, {"required": ["library"]}]
    dims = parts["TensorRule"]["properties"]["dims"]
    dims["patternProperties"] = {_AXIS_PATTERN: dims["additionalProperties"]}
    dims["additionalProperties"] = False
    parts["operators"] = {
        "anyOf": [
            {"enum": [ANY_OPERATOR, *sorted(list_onnx_operators())]},
            {"type": "string", "pattern": _FOREIGN_OPERATOR},
        ]
    }
    parts["dtypes"] = {"enum": [ANY_DTYPE, *sorted(DTYPE_NUMBERS)]}
    keys = [key for key in schema["properties"] if key not in NOT_IN_GENERATIONS]
    changes = {
        key: {
            "$ref": f"#/properties/{key}",
            "description": schema["properties"][key].get("description", ""),
        }
        for key in keys
    }
    parts["generation"] = {"type": "object", "additionalProperties": False, "properties": changes}
    parts["library"] = {"enum": list(read_library().entries)}
    for name in _NULLABLE:
        for key, part in parts[name]["properties"].items():
            described = {"description": part.pop("description")} if "description" in part else {}
            parts[name]["properties"][key] = {"anyOf": [part, {"type": "null"}], **described}
    start = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "byoc rule file"}
    return {**start, **{key: schema[key] for key in sorted(schema, key=_sort_key)}}


def _sort_key(key: str) -> tuple[bool, str]:
    return key == "$defs", key


def _simplify(schema: Any) -> Any:
    """Return pydantic's schema without titles, empty defaults, and null as an alternative."""
    if isinstance(schema, list):
        return [_simplify(part) for part in schema if part != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    if "x-offered" in schema:
        return {"$ref": f"#/$defs/{schema['x-offered']}"}
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: _simplify(part) for name, part in value.items()}
        elif key != "title" and not (key == "default" and (not value or isinstance(value, dict))):
            result[key] = _simplify(value)
    if len(result.get("anyOf", ())) == 1:
        (only,) = result.pop("anyOf")
        result = {**only, **result}
    return result
