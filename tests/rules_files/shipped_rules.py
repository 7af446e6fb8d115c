"""What the tests of shipped rule files share: one operator, plain or in QDQ form, and its verdict."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from helpers.support import parse
from onnx import helper, numpy_helper

from byoc.model import Model, prepare_model
from byoc.patterns import Mark
from byoc.rules import Target, annotate_graph, load_rules
from byoc.zoo import load_model

INDICES = "indices"


@cache
def target(name: str) -> Target:
    """Return an installed rule file."""
    return load_rules(name)


@cache
def zoo(name: str) -> Model:
    """Return a model of the zoo."""
    return load_model(f"zoo:{name}")


def plain(inputs: str, line: str, constants: str = "", opset: int = 17) -> Model:
    """Return a model of one line: `y = Conv (x, w)` over inputs; constants without a value are zeros.

    Results have the first input's type, one called `indices` has int64.
    """
    dtype = inputs.partition(" ")[0].partition("[")[0]
    results = line.splitlines()[-1].partition(" = ")[0].split(", ")
    kinds = {name: "int64" if name == INDICES else dtype for name in results}
    outputs = ", ".join(f"{kind}[] {name}" for name, kind in kinds.items())
    return _model(inputs, line, outputs, constants, opset)


def qdq(  # noqa: PLR0917 - each is one part of a QDQ model
    shapes: Mapping[str, str],
    line: str,
    weights: Mapping[str, str] | None = None,
    constants: str = "",
    opset: int = 17,
    dtype: str = "int8",
    inputs: str = "",
) -> Model:
    """Return a model of one line between DequantizeLinear and QuantizeLinear.

    `shapes` gives the extents of each activation, `weights` type and extents of each constant behind a
    DequantizeLinear, behind a comma its scales where it has several: `int8[4,8,3,3], float[4]`;
    `!` in front for a zero point other than 0. `inputs` are those that are not quantized.
    """
    lines, read, stated = (
        [],
        [inputs] if inputs else [],
        [f"float scale = {{0.5}}, {dtype} zero = {{3}}"],
    )
    for name, shape in shapes.items():
        read.append(f"{dtype}[{shape}] {name}_q" if shape else f"{dtype} {name}_q")
        lines.append(f"{name} = DequantizeLinear ({name}_q, scale, zero)")
    for name, described in (weights or {}).items():
        kind, _, scales = described.removeprefix("!").partition(", ")
        value = " = {1}" if described.startswith("!") else ""
        axis = " <axis = 0>" if scales else ""
        points = kind.partition("[")[0] + scales.removeprefix("float")
        stated.append(f"{kind} {name}_q, {scales or 'float'} {name}_s, {points} {name}_z{value}")
        lines.append(f"{name} = DequantizeLinear{axis} ({name}_q, {name}_s, {name}_z)")
    results = [part.strip() for part in line.splitlines()[-1].partition(" = ")[0].split(",")]
    lines.append(line)
    quantized = [name for name in results if name != INDICES]
    lines += [f"{name}_q = QuantizeLinear ({name}, scale, zero)" for name in quantized]
    outputs = ", ".join(f"{dtype}[] {name}_q" for name in quantized)
    outputs += f", int64[] {INDICES}" if INDICES in results else ""
    both = ", ".join([*stated, constants] if constants else stated)
    return _model(", ".join(read), "\n".join(lines), outputs, both, opset)


def _model(inputs: str, lines: str, outputs: str, constants: str, opset: int) -> Model:
    held = f"<{constants}>" if constants else ""
    model = parse(f"g ({inputs}) => ({outputs}) {held} {{ {lines} }}", opset=opset)
    for value in model.graph.value_info:
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        zeros = np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind.elem_type))
        model.graph.initializer.append(numpy_helper.from_array(zeros, value.name))
    del model.graph.value_info[:]
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for value in model.graph.output:
        if not value.type.tensor_type.HasField("shape"):  # which a model must have
            value.type.tensor_type.shape.dim.add().dim_param = f"extent of {value.name}"
    return prepare_model(model, "test")


def firsts(cases: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the first case of each operator that is accepted."""
    found: dict[str, tuple[Any, ...]] = {}
    for case in cases:
        operator = case[1].partition(" = ")[2].partition(" ")[0]
        if case[-1] == "yes":
            found.setdefault(operator, case)
    return list(found.values())


def stretched(inputs: str, extent: int) -> str:
    """Return the inputs with another extent in front, where they share that of the first one."""
    first = re.search(r"\[(\d+)", inputs)
    assert first
    return re.sub(rf"\[{first[1]}(?=[],])", f"[{extent}", inputs)


def mark(name: str, model: Model) -> Mark:
    """Return what a rule file says of the one operator of a model."""
    marks = annotate_graph(model.index, target(name))
    (found,) = [
        mark
        for node, mark in zip(model.index.nodes, marks, strict=True)
        if node.op_type not in {"DequantizeLinear", "QuantizeLinear"}
    ]
    return found


def verdict(name: str, model: Model) -> str:
    """Return `yes`, or the reasons against the one operator of a model."""
    return str(mark(name, model).verdict)


def taken(name: str, model: str) -> tuple[Counter[str], Counter[str]]:
    """Return how often each operator of a model of the zoo is taken, and how often not."""
    index = zoo(model).index
    yes, no = Counter[str](), Counter[str]()
    for node, mark in zip(index.nodes, annotate_graph(index, target(name)), strict=True):
        (yes if mark.verdict else no)[node.op_type] += 1
    return yes, no
