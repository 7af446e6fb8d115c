"""Running a session where some tensors have element types that numpy lacks (bfloat16, float8, int4).

In byoc these are numpy arrays with the dtypes of ml_dtypes, as in onnx. onnxruntime takes and returns
them only as OrtValues, with elements below one byte packed. A run that returns one is given and returns
everything so. Of text, sequences and optional values onnxruntime's Python interface makes no OrtValues,
and reads no sequences: models of one constant or one node do.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, TypeVar

import numpy as np
from onnx import GraphProto, TensorProto, TypeProto, helper, numpy_helper

from byoc.long_calls import can_stop, stopping_by
from byoc.model import DTYPE_NUMBERS, DTYPES, build_node, count_bits

# Runs of onnxruntime that can be stopped: the command line does so when it is told to leave.

T = TypeVar("T")


def run_stoppable(run: Callable[[Any], T]) -> T:
    """Call `run` with the options of a run of onnxruntime, None for the usual ones; return its result.

    Where nobody may stop it, it costs nothing; else 2 microseconds. A run that is stopped ends after the
    node that is being computed, with onnxruntime's error.
    """
    if not can_stop():
        return run(None)
    import onnxruntime  # noqa: PLC0415 - optional, and there

    options = onnxruntime.RunOptions()

    def stop() -> None:
        options.terminate = True

    with stopping_by(stop):
        return run(options)


_FOREIGN_PREFIXES = ("bfloat16", "float8", "float4", "float6", "int4", "uint4", "int2", "uint2")
_FOREIGN_DTYPES = frozenset(name for name in DTYPE_NUMBERS if name.startswith(_FOREIGN_PREFIXES))
# onnxruntime names dtypes as C does where it can, and otherwise as ONNX.
_TYPE_NUMBERS = {**DTYPE_NUMBERS, "float": DTYPE_NUMBERS["float32"], "double": DTYPE_NUMBERS["float64"]}
_OPSET, _IR = 17, 10


def parse_type(text: str) -> TypeProto:
    """Parse a type as onnxruntime writes it, such as `seq(tensor(float))`."""
    kind, _, inner = text.removesuffix(")").partition("(")
    if kind == "seq":
        return helper.make_sequence_type_proto(parse_type(inner))
    if kind == "optional":
        return helper.make_optional_type_proto(parse_type(inner))
    if kind == "map":
        key, _, value = inner.partition(",")
        return helper.make_map_type_proto(_TYPE_NUMBERS[key], parse_type(value))
    return helper.make_tensor_type_proto(_TYPE_NUMBERS[inner], None)


def is_foreign_type(kind: str) -> bool:
    """Return whether onnxruntime's type name, such as `tensor(bfloat16)`, is one that numpy lacks."""
    return (
        kind.startswith("tensor(") and kind.removeprefix("tensor(").removesuffix(")") in _FOREIGN_DTYPES
    )


def run_foreign(ort: Any, session: Any, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
    """Run a session that has such tensors among its inputs or outputs; return the named outputs.

    Raises ValueError for an empty optional input where an output is one: onnxruntime 1.31 would end the
    process.
    """
    kinds = {value.name: value.type for value in session.get_inputs()}
    made = {value.name: value.type for value in session.get_outputs()}
    owners = {n: np.asarray(v, order="C") for n, v in inputs.items() if _is_plain_tensor(kinds[n])}
    if not any(is_foreign_type(made[name]) for name in names):
        held = {
            n: _hold_tensor(ort, v, kinds[n]) for n, v in owners.items() if is_foreign_type(kinds[n])
        }
        given = {name: held[name][0] if name in held else value for name, value in inputs.items()}
        return list(run_stoppable(lambda options: session.run(names, given, options)))
    held = {n: _hold_tensor(ort, v, kinds[n]) for n, v in owners.items()}
    empty = next((name for name, value in inputs.items() if value is None), "")
    if empty:
        raise ValueError(f"'{empty}' has no value, beside outputs of types that numpy lacks")
    values = {name: value for name, (value, _) in held.items()}
    values |= {n: _state_constant(ort, v, kinds[n]) for n, v in inputs.items() if n not in values}
    results = run_stoppable(lambda options: session.run_with_ort_values(names, values, options))
    return [_read_value(ort, value, made[name]) for name, value in zip(names, results, strict=True)]


def _is_plain_tensor(kind: str) -> bool:
    return kind.startswith("tensor(") and kind != "tensor(string)"


def _hold_tensor(ort: Any, array: Any, kind: str) -> tuple[Any, Any]:
    """Return an OrtValue and the array that owns its memory."""
    if not is_foreign_type(kind):
        return ort.OrtValue.ortvalue_from_numpy(array), array
    number = DTYPE_NUMBERS[kind.removeprefix("tensor(").removesuffix(")")]
    raw = numpy_helper.from_array(array).raw_data  # packed, as in onnxruntime
    carrier = np.empty(array.shape, helper.tensor_dtype_to_np_dtype(number))
    carrier.reshape(-1).view(np.uint8)[: len(raw)] = np.frombuffer(raw, np.uint8)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(carrier, number), carrier


def _state_constant(ort: Any, value: Any, kind: str) -> Any:
    """Return text, a sequence or an optional value as the output of a model that computes nothing."""
    graph = GraphProto(name="constant")
    graph.output.append(helper.make_value_info("value", parse_type(kind)))
    _add_constant(graph, value, graph.output[0].type, "value")
    (made,) = _open_small_session(ort, graph).run_with_ort_values(["value"], {})
    return made


def _add_constant(graph: GraphProto, value: Any, kind: TypeProto, name: str) -> None:
    if kind.HasField("optional_type"):
        _add_constant(graph, value, kind.optional_type.elem_type, f"{name}_element")
        graph.node.append(build_node("Optional", [f"{name}_element"], [name]))
    elif kind.HasField("sequence_type"):
        element = kind.sequence_type.elem_type
        if not len(value):
            number = element.tensor_type.elem_type
            graph.node.append(build_node("SequenceEmpty", [], [name], dtype=number))
            return
        elements = [f"{name}_{i}" for i in range(len(value))]
        for each, inner in zip(value, elements, strict=True):
            _add_constant(graph, each, element, inner)
        graph.node.append(build_node("SequenceConstruct", elements, [name]))
    else:
        array = np.asarray(value)
        array = array.astype(object) if array.dtype.kind in "US" else array
        graph.initializer.append(numpy_helper.from_array(array, f"{name}_stored"))
        graph.node.append(build_node("Identity", [f"{name}_stored"], [name]))


def _read_value(ort: Any, value: Any, kind: str) -> Any:
    if not value.has_value():
        return None
    if not value.is_tensor():
        kind = kind.removeprefix("optional(").removesuffix(")") if kind.startswith("optional") else kind
        (found,) = _open_passing(ort, kind).run(["value"], {"given": value})
        return found
    number = value.element_type()
    if DTYPES[number] not in _FOREIGN_DTYPES:
        return value.numpy()
    size = -(-prod(value.shape()) * count_bits(DTYPES[number]) // 8)
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return numpy_helper.to_array(TensorProto(data_type=number, dims=value.shape(), raw_data=raw))


@cache
def _open_passing(ort: Any, kind: str) -> Any:
    """Return a session that gives a value back, as what Python has for it."""
    graph = helper.make_graph(
        [build_node("Identity", ["given"], ["value"])],
        "passing",
        [helper.make_value_info("given", parse_type(kind))],
        [helper.make_value_info("value", parse_type(kind))],
    )
    return _open_small_session(ort, graph)


def _open_small_session(ort: Any, graph: GraphProto) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    imports = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(graph, ir_version=_IR, opset_imports=imports)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
