"""Quantized operators by value on `ethos-u55` and `dla`: within one unit at the ends of the integers.

The models are those that rule files are held to Vela with; operands are the least and the greatest
integers, both in turn, and all that 8 bits have.
"""

import json
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from byoc.codegens.ethos_u import EthosU
from byoc.codegens.ethos_u.lower_regions import lower_region
from helpers.quantized import list_codes
from helpers.support import sample_cases
from one_node import OneNode
from onnx.reference import ReferenceEvaluator
from vela_agreement import find_refusal
from vela_cases import make_cases

from byoc.codegen import Artifact, CompileError, find_codegen, parse_codegen_options, read_region
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.rules import load_rules

_PARTS = 80
_MOST = 20_000  # elements of a model: others take long, and show no more
_ROWS = ((0, 0), (1, 1), (0, 1), (2, 2), (3, 4), (100, 3))
"""What the operands are, by `list_codes`."""
_MAKES_NAN = {"dla": ("Sqrt",), "ethos-u55": ()}
"""Operators that make NaN, for which the rule file says that any integer may stand."""
Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def open_case(case: OneNode, target: str, folder: Path) -> Run | None:
    """Return what runs a model on a target's codegen, None where that refuses it."""
    path = folder / "model.onnx"
    onnx.save(case.model, path)
    region = read_region(path, "asked", target)
    try:
        if target == "dla":
            codegen: Any = find_codegen("dla")
            run: Run = codegen.load(region, codegen.compile(region, parse_codegen_options(codegen, {})))
            return run
        graph, places = lower_region(region)
    except CompileError:
        return None
    artifact = Artifact({"region.tosa": graph}, {"inputs": json.dumps(places)})
    return EthosU().load(region, artifact)


def count_elements(case: OneNode) -> int:
    graph = case.model.graph
    return sum(int(np.prod(read_extents(value))) for value in (*graph.input, *graph.output))


def read_extents(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def is_near(given: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return whether all integers are within one unit."""
    return all(
        given[name].shape == value.shape
        and np.abs(given[name].astype(int) - value.astype(int)).max(initial=0) <= 1
        for name, value in expected.items()
    )


def compute_reference(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Return a model's outputs by ONNX's reference, which has no DequantizeLinear of earlier sets."""
    newer = onnx.ModelProto()
    newer.CopyFrom(model)
    newer.opset_import[0].version = max(19, model.opset_import[0].version)
    return list(ReferenceEvaluator(newer).run(None, dict(inputs)))


def find_wrong(case: OneNode, run: Run) -> list[tuple[int, int]]:
    """Return for which operands a model's results are off by more than one unit.

    ONNX's reference decides where onnxruntime differs: it crops where automatic padding is negative.
    """
    with without_optimizations():
        session = open_session(case.model)
    names = [value.name for value in case.model.graph.output]
    wrong = []
    for rows in _ROWS:
        inputs = {
            value.name: list_codes(
                read_extents(value),
                onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
                rows[number % 2],
            )
            for number, value in enumerate(case.model.graph.input)
        }
        made = run(inputs)
        if is_near(made, run_session(session, inputs)):
            continue
        defined = compute_reference(case.model, inputs)
        if not is_near(made, dict(zip(names, defined, strict=True))):
            wrong.append(rows)
    return wrong


@pytest.mark.parametrize("part", sample_cases(range(_PARTS), 7))
@pytest.mark.parametrize(
    "target",
    [
        "dla",
        pytest.param(
            "ethos-u55",
            marks=[
                pytest.mark.ethos_u,
                pytest.mark.skipif(
                    "BYOC_TOSA_PYTHON" not in os.environ and not find_spec("tosa_reference_model"),
                    reason="BYOC_TOSA_PYTHON names no interpreter with the TOSA reference model",
                ),
            ],
        ),
    ],
)
def test_a_quantized_operator_is_within_one_unit(target: str, part: int, tmp_path: Path) -> None:
    rules = load_rules(target)
    tried, wrong = 0, {}
    for case in make_cases()[part::_PARTS]:
        if count_elements(case) > _MOST or case.op in _MAKES_NAN[target] or find_refusal(case, rules):
            continue
        run = open_case(case, target, tmp_path)
        if run is not None:
            tried += 1
            rows = find_wrong(case, run)
            wrong |= {f"{case.op} {case.name}": rows} if rows else {}

    assert wrong == {}
    assert tried >= 3
