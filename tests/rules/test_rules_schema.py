"""The JSON Schema cannot drift from the types, fits the shipped files, and every key is documented."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from byoc import annotations
from byoc.rules import RuleFile, lint_rule_file, make_json_schema
from byoc.support import ANNOTATIONS, find_files, validate_content

SHIPPED = Path(annotations.__path__[0]) / "rules.schema.json"
ROOT = Path(__file__).parents[2]


def without_names(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without what depends on the version of ONNX."""
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    del copy["$defs"]["operators"]["anyOf"][0]["enum"]
    del copy["$defs"]["dtypes"]["enum"]
    return copy


def test_the_shipped_schema_is_that_of_the_types(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--regenerate"):
        SHIPPED.write_text(json.dumps(make_json_schema(), indent=2) + "\n", encoding="utf-8")
    shipped = json.loads(SHIPPED.read_text(encoding="utf-8"))
    assert without_names(shipped) == without_names(make_json_schema())
    assert {"Conv", "ai.onnx.ml.Normalizer", "*"} < {*shipped["$defs"]["operators"]["anyOf"][0]["enum"]}
    assert {"float32", "int8", "any"} < {*shipped["$defs"]["dtypes"]["enum"]}


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(make_json_schema())


def complaints(content: Any) -> list[str]:
    """Return what an editor would say; in JSON all keys are texts."""
    as_json = json.loads(json.dumps(content))
    return [
        error.message
        for error in jsonschema.Draft202012Validator(make_json_schema()).iter_errors(as_json)
    ]


SHIPPED_FILES = [file.path for same in find_files(ANNOTATIONS)[0].values() for file in same.values()]


@pytest.mark.parametrize("path", SHIPPED_FILES, ids=lambda path: str(path.stem))
def test_shipped_files_fit(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert complaints(yaml.safe_load(text)) == []


def test_listing_ignores_the_schema_and_the_library() -> None:
    assert "dla.yaml" in [path.name for path in SHIPPED_FILES]
    assert all(path.suffix == ".yaml" and path.parent.name != "composites" for path in SHIPPED_FILES)


EVERY_KEY = """
extends: dla
drop: {ops: Sum, composites: [conv_bn], host: {ops: [Exp], names: ['^tail/'], after: {ops: TopK}}}
target: dla2
description: a line
generation: second
generations:
  first: {}
  second: {limits: {batch: 4}, cost_parameters: {launch: 2.0e-6}, ops: [{op: Exp}], drop: {ops: [Log]}}
codegen: reference
cost_parameters: {peak.float32: 1.0e+12, launch: 1.0e-6}
codegen_options: {speed: high, tiles: 4, fast: true, share: 0.5}
passes: {conv-to-matmul: {least_channels: 4}, quiet: {}}
wants: [folded_batchnorm]
unwanted_forms: [planar-form, narrow-integers, frame-form, flat-form]
cost_model: dla
regions: phase
overlaps: placement
dtype: [float32]
shapes: ranked
state: kept
state_pairs: {'past_*': 'present_*'}
layout: {activations: NHWC, weights: OHWI, convert: either}
annotations: {layer_ann: [encoder, '^head']}
keep: [Softmax]
quantization:
  activations: {dtype: [int8], symmetric: false, per_channel: false}
  weights: {dtype: int8, symmetric: true, per_channel: true, largest: 126}
  bias: {dtype: [int32]}
  scales: power_of_two
  same_scale: [Add, Concat]
  convert: device
arithmetic:
  - {computes: float16}
  - {op: [Div, '*'], dtype: [int32, any], exact_below: 16777216, overflow: saturates}
  - {op: TopK, nan: any, infinities: any, denormals: flushed, equal_keys: any, halves: any}
limits: {regions: 16, min_nodes: 3, max_nodes: 1000, memory: 1MiB, batch: 32}
host:
  ops: [NonMaxSuppression]
  names: '^head/'
  after: {ops: ArgMax, names: ['^cut_here$']}
ops:
  - op: Conv
    opset: {min: 7, max: 30}
    dtype: [float32, float16]
    level: must
    standalone: false
    quantized: true
    check: size
    where: [attr.group == 1, {expr: X.rank == 4, reason: only images}]
    tensors:
      X:
        dtype: int8
        rank: [3, 4]
        constant: false
        absent: false
        dims:
          '0': 1
          1: [1, 3]
          -1: {min: 1, max: 9, multiple_of: 2, one_of: 4, equals: 'W[1]'}
          each: {max: 9}
        elements: {min: 1, max: 100, multiple_of: 2}
        bytes: {min: 1, max: 512KiB}
        scalar: false
        static: true
        broadcast: [none, scalar, channel, last, other]
        value: {min: 0, max: 1, one_of: [0, 1]}
        quantized: {per_channel: true, symmetric: true, power_of_two: true, axis: [0, -1], same_as: Y}
    attributes:
      pads: {each: {min: 0, max: 3, one_of: [0, 1]}, length: [2, 4], absent: false}
      group: {min: 1, max: 3, one_of: 1}
  - {op: '*', where: opset > 7}
composites:
  - {name: a, pattern: y = Relu(x), where: [x.rank == 4], check: size, description: a line}
  - {name: b, pattern: [y = Relu(x), y = Neg(x)], finer: true}
  - {library: silu, name: swish}
"""


def test_every_key_fits() -> None:
    content = yaml.safe_load(EVERY_KEY)
    assert complaints(content) == []
    RuleFile.model_validate(content)


@pytest.mark.parametrize(
    "wrong",
    [
        "{extends: dla, generations: {v1: {target: t}}}",
        "{extends: dla, generations: {v1: {opps: []}}}",
        "{extends: dla, cost_parameters: {launch: [1]}}",
        "{target: t, dtype: float32, ops: [{op: Relu}]}",
        "{extends: dla, opps: []}",
        "{extends: dla, dtype: []}",
        "{extends: dla, ops: [{opset: {min: 3}}]}",
        "{extends: dla, ops: [{op: Conv, tensors: {X: {dims: {last: 3}}}}]}",
        "{extends: dla, ops: [{op: Conv, tensors: {X: {dims: {1: {equals: W}}}}}]}",
        "{extends: dla, ops: [{op: Conv, tensors: {X: {dims: {1: 2.5}}}}]}",
        "{extends: dla, ops: [{op: Conv, tensors: {X: {broadcast: [channels]}}}]}",
        "{extends: dla, ops: [{op: Conv, where: [{reason: none}]}]}",
        "{extends: dla, composites: [{name: a}]}",
        "{extends: dla, composites: [{name: a, pattern: y = Relu(x), library: silu}]}",
        "{extends: dla, limits: {batch: 0}}",
        "{extends: dla, ops: [{op: Gem}]}",
        "{extends: dla, ops: [{op: ai.onnx.ml.Norm}]}",
        "{extends: dla, dtype: fp16}",
        "{extends: dla, ops: [{op: Conv, dtype: [int8, fp16]}]}",
        "{extends: dla, limits: {memory: lots}}",
        "{extends: dla, limits: {memory: 1 MBit}}",
        "{extends: dla, composites: [{library: sillu}]}",
        "{extends: dla, drop: {op: Sum}}",
        "{extends: dla, arithmetic: [{op: Dib, nan: any}]}",
        "{extends: dla, arithmetic: [{exact_below: 0}]}",
        "{extends: dla, arithmetic: [{computes: int8}]}",
        "{extends: dla, arithmetic: [{overflow: traps}]}",
    ],
)
def test_what_does_not_fit(wrong: str) -> None:
    assert complaints(yaml.safe_load(wrong))


@pytest.mark.parametrize(
    "right",
    [
        "{extends: dla, ops: [{op: com.microsoft.Gelu}, {op: [acme.Conv, Conv]}]}",
        "{extends: dla, limits: {memory: 1.5 MiB, batch: null}, quantization: {scales: null}}",
        "{extends: dla, composites: [{library: silu}]}",
    ],
)
def test_what_fits(right: str) -> None:
    content = yaml.safe_load(right)
    assert complaints(content) == []
    assert [p for p in validate_content(content, RuleFile)[1] if "must be given" not in p] == []


def test_shipped_files_fit_without_a_detour_through_json() -> None:
    """The jsonschema package wants keys to be texts, which YAML's numbers are not."""
    validator = jsonschema.Draft202012Validator(make_json_schema())
    for path in SHIPPED_FILES:
        assert list(validator.iter_errors(yaml.safe_load(path.read_text(encoding="utf-8")))) == []


def models() -> list[type[BaseModel]]:
    """Return the type of a rule file, and all types of its parts."""
    found: dict[type[BaseModel], None] = {}

    def walk(annotation: Any) -> None:
        for part in get_args(annotation):
            walk(part)
        is_new = isinstance(annotation, type) and annotation not in found
        if is_new and issubclass(annotation, BaseModel):
            found[annotation] = None
            for field in annotation.model_fields.values():
                walk(field.annotation)

    walk(RuleFile)
    return [*found]


def test_every_key_has_a_description_for_editors() -> None:
    parts = make_json_schema()["$defs"]
    for name, part in parts.items():
        for key, described in part.get("properties", {}).items():
            target = parts.get(described.get("$ref", "").rpartition("/")[2], {})
            assert described.get("description") or target.get("description"), f"{name}.{key}"


def read_pages() -> str:
    """Return the pages that have the keys of rule files."""
    pages = ("rules.md", "operator_rules.md")
    return "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in pages)


def test_every_key_stands_in_the_documentation() -> None:
    text = read_pages()
    code = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]*)`", text))))
    missing = [
        f"{model.__name__}.{key}" for model in models() for key in model.model_fields if key not in code
    ]
    assert missing == []
    assert len(models()) > 15


def test_every_key_is_in_the_example_above() -> None:
    keys = {key for model in models() for key in model.model_fields}
    assert [key for key in sorted(keys) if f"{key}:" not in EVERY_KEY] == []


def test_examples_of_the_documentation_are_right() -> None:
    text = read_pages()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    whole = [block for block in blocks if isinstance(block, dict) and "target" in block]
    assert whole
    for block in whole:
        assert complaints(block) == []
        assert lint_rule_file(block) == []
    rules = [rule for block in blocks if isinstance(block, list) for rule in block]
    assert rules
    assert lint_rule_file({"dtype": "float32", "ops": rules}) == []
