"""Models of one quantized operator, with DequantizeLinear before it and QuantizeLinear behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.model import prepare_model

_STEP, _RESULT_STEP, _WEIGHT_STEP = 0.05, 0.07, 0.004
_OPSET = 18
_MOST_SHOWN = 8  # floats of a constant in a name
_NEWER = 21  # in which QuantizeLinear has 16 bits
_KINDS = {"int8": TensorProto.INT8, "int16": TensorProto.INT16, "uint8": TensorProto.UINT8}


@dataclass(frozen=True)
class Given:
    """A computed operand."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """A constant operand that is quantized, with a scale for each index of `axis` if there is one."""

    shape: tuple[int, ...]
    axis: int | None = None
    dtype: str = "int8"
    point: int = 0


Operand = Given | Stored | np.ndarray[Any, Any] | None


@dataclass(frozen=True)
class OneNode:
    """A model of one operator; `name` tells it from the others of the operator."""

    op: str
    name: str
    model: onnx.ModelProto


def make_case(  # noqa: PLR0917 - each is one part of a model
    op: str,
    operands: Sequence[Operand],
    dtype: str = "int8",
    results: int = 1,
    same: bool = False,
    opset: int = 0,
    points: tuple[int, int] | None = None,
    **attributes: Any,
) -> OneNode:
    """Return a model of an operator; with `same`, its results have its operands' scale.

    Arrays among the operands are stored as they are, and None is an operand that is omitted. `points`
    are the zero points of operands and results, usual ones of the type unless given.
    """
    kind = _KINDS[dtype]
    usual = {"int8": (3, -5), "int16": (0, 0), "uint8": (128, 120)}[dtype]
    points = points or usual
    given_point, made_point = (points[0], points[0]) if same else points
    stored: dict[str, Any] = {
        "s": np.float32(_STEP),
        "z": np.array(given_point, dtype),
        "t": np.float32(_STEP if same else _RESULT_STEP),
        "u": np.array(made_point, dtype),
    }
    nodes, inputs, names = [], [], []
    for number, operand in enumerate(operands):
        name = f"x{number}"
        if operand is None:
            names.append("")
        elif isinstance(operand, Given):
            inputs.append(helper.make_tensor_value_info(name, kind, operand.shape))
            nodes.append(helper.make_node("DequantizeLinear", [name, "s", "z"], [f"d{number}"]))
            names.append(f"d{number}")
        elif isinstance(operand, Stored):
            nodes.append(_store(operand, number, stored))
            names.append(f"d{number}")
        else:
            stored[name] = operand
            names.append(name)
    made = [f"r{number}" for number in range(results)]
    nodes.append(helper.make_node(op, names, made, name="asked", **attributes))
    nodes += [helper.make_node("QuantizeLinear", [each, "t", "u"], [f"y{each}"]) for each in made]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info(f"y{each}", kind, None) for each in made],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()],
    )
    version = opset or (_NEWER if dtype == "int16" else _OPSET)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    _correct_shapes(model)
    shown = attributes | ({} if points == usual else {"zero points": points})
    return OneNode(op, _describe(operands, dtype, results, same, opset, shown), model)


def _correct_shapes(model: onnx.ModelProto) -> None:
    """State the extents that onnxruntime makes, where ONNX's inference finds others (ceil_mode)."""
    try:
        types = prepare_model(model, "case").index.types
    except InputError:
        return
    for value in (*model.graph.value_info, *model.graph.output):
        shape = types[value.name].shape if value.name in types else None
        if shape is not None and all(isinstance(extent, int) for extent in shape):
            for dim, extent in zip(value.type.tensor_type.shape.dim, shape, strict=True):
                dim.dim_value = extent


def _store(operand: Stored, number: int, stored: dict[str, Any]) -> onnx.NodeProto:
    """Enter a constant, its scales and zero points; return the DequantizeLinear."""
    drawn = np.random.default_rng(0)
    limits = (-120, 121) if operand.dtype != "uint8" else (0, 256)
    count = () if operand.axis is None else (operand.shape[operand.axis],)
    stored[f"w{number}"] = drawn.integers(*limits, operand.shape).astype(operand.dtype)
    scale = _STEP * _WEIGHT_STEP if operand.dtype == "int32" else _WEIGHT_STEP
    stored[f"s{number}"] = np.full(count, scale, np.float32)
    stored[f"z{number}"] = np.full(count, operand.point, operand.dtype)
    more = {} if operand.axis is None else {"axis": operand.axis}
    names = [f"{letter}{number}" for letter in "wsz"]
    return helper.make_node("DequantizeLinear", names, [f"d{number}"], **more)


def _describe(  # noqa: PLR0917 - as above
    operands: Sequence[Operand],
    dtype: str,
    results: int,
    same: bool,
    opset: int,
    attributes: dict[str, Any],
) -> str:
    parts = [] if dtype == "int8" else [dtype]
    for operand in operands:
        if operand is None:
            parts.append("-")
        elif isinstance(operand, Given):
            parts.append(str(list(operand.shape)))
        elif isinstance(operand, Stored):
            axis = "" if operand.axis is None else f" by axis {operand.axis}"
            point = f" from {operand.point}" if operand.point else ""
            parts.append(f"{operand.dtype}{list(operand.shape)}{axis}{point}")
        else:
            long = operand.size > _MOST_SHOWN and operand.dtype.kind == "f"
            parts.append(f"values {list(operand.shape)}" if long else str(operand.tolist()))
    parts += [f"{name}={value}" for name, value in attributes.items()]
    parts += [f"{results} results"] * (results > 1) + ["same scale"] * same
    return ", ".join(parts + [f"opset {opset}"] * bool(opset))
