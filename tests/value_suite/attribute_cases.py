"""Models of one operator whose attributes, or whose version, are not those of ONNX's own tests.

Each is a test of ONNX's with one attribute changed, or in an older operator set in which the operator
had another version. What it computes is the word of onnxruntime without optimizations, and of
onnx.reference: where the two differ on another attribute, the case is left out. onnx.reference has
newer versions of some operators only, so that it is not asked about older ones.
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, defs, helper
from onnx.reference import ReferenceEvaluator

sys.path[:0] = [str(Path(__file__).parents[1] / "onnx_suite")]

from differing import differs  # noqa: E402 - needs the path
from partitioned import attempt  # noqa: E402
from suite import Case, collect  # noqa: E402 - needs the path

from byoc.onnxrt import open_session, run_session, without_optimizations  # noqa: E402

_TYPES = defs.OpSchema.AttrType
_FLOATS = (0.5, 1.5)
_SIGNED_FLOATS = (*_FLOATS, 0.0, -0.75)
_SIGNED = ("alpha", "beta", "gamma", "bias", "lambd", "value")
_MODES = {"qk_matmul_output_mode": 4}  # how many there are
_PADDINGS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "HardSigmoid", "Softsign")
_OLDEST = 7
_ROUGH = 1e-2  # the tolerance of float16 and bfloat16
_OVERFLOWN = 3e38
_MOST_ELEMENTS = 100_000
# They say of which type something is, what is random or unordered, or how many outputs there are.
_LEFT_OUT = (
    "to",
    "dtype",
    "output_dtype",
    "output_datatype",
    "stash_type",
    "seed",
    "sorted",
    "num_outputs",
)
# Attributes that other inputs or attributes of a test would have to follow.
_DEPENDENT = {
    "Compress": ("axis",),
    "GroupNormalization": ("num_groups",),
    "LayerNormalization": ("axis",),
    "NegativeLogLikelihoodLoss": ("ignore_index",),
    "ReverseSequence": ("batch_axis", "time_axis"),
    "RMSNormalization": ("axis",),
    "SoftmaxCrossEntropyLoss": ("ignore_index",),
}
_RANDOM = ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform")
# onnxruntime takes in older versions what came later; of Resize with align_corners it is doubted.
_GREW = ("DequantizeLinear", "QuantizeLinear", "Resize")
_LEAST = {"p": 1}  # of an integer that is no flag
Values = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class AttributeCase:
    """A model of one node, its inputs, and what onnxruntime computes; `change` says what is other."""

    name: str
    change: str
    model: onnx.ModelProto
    inputs: Values
    expected: Values
    rtol: float
    atol: float


def attribute_cases(every: int = 1, costly: bool = True) -> Iterator[AttributeCase]:
    """Yield one in so many of the changed tests that onnxruntime runs; alike ones once."""
    seen: set[object] = set()
    number = 0
    for case in collect(costly):
        nodes = case.model.graph.node
        if case.kind != "node" or len(nodes) != 1 or case.model.functions:
            continue
        if len(case.data_sets) != 1 or not _is_small(case):
            continue
        for change, model in _change(case):
            key = (nodes[0].op_type, change, _describe_inputs(case), str(list(nodes[0].attribute)))
            if key in seen:
                continue
            seen.add(key)
            number += 1
            if number % every == 0:
                yield from _judge(case, change, model)


def _is_small(case: Case) -> bool:
    ((inputs, _),) = case.data_sets
    arrays = [value for value in inputs.values() if isinstance(value, np.ndarray)]
    return len(arrays) == len(inputs) and sum(map(np.size, arrays)) < _MOST_ELEMENTS


def _describe_inputs(case: Case) -> tuple[object, ...]:
    ((inputs, _),) = case.data_sets
    return tuple((value.dtype, value.ndim) for value in inputs.values())


def _judge(case: Case, change: str, model: onnx.ModelProto) -> Iterator[AttributeCase]:
    """Yield the case where onnxruntime runs the model and finds the shapes that ONNX says."""
    ((inputs, _),) = case.data_sets
    inferred, _ = attempt(_infer, model)
    if inferred is None:  # onnxruntime aborts on some of these
        return
    outputs, _ = attempt(_run, model, inputs)
    if outputs is None or any(not isinstance(value, np.ndarray) for value in outputs.values()):
        return
    if not change.startswith("opset=") and _is_doubted(case, model, inputs, outputs):
        return
    known = [value for value in inferred.graph.output if value.type.tensor_type.HasField("shape")]
    if not all(map(_is_defined, outputs.values())):
        return
    if any(not _fits(value, outputs[value.name].shape) for value in known):
        return
    for value in model.graph.output:  # the test's own shapes may be others
        made = outputs[value.name]
        kind = (
            helper.np_dtype_to_tensor_dtype(made.dtype)
            if made.dtype != object
            else onnx.TensorProto.STRING
        )
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, made.shape))
    halves = any("float16" in str(value.dtype) for value in (*inputs.values(), *outputs.values()))
    rtol, atol = (_ROUGH, _ROUGH) if halves else (max(case.rtol, 1e-3), max(case.atol, 1e-5))
    yield AttributeCase(
        f"{case.name} {change}",
        change,
        model,
        inputs,
        outputs,
        rtol,
        atol,
    )


def _is_doubted(case: Case, model: onnx.ModelProto, inputs: Values, outputs: Values) -> bool:
    """Return whether onnx.reference runs the model and computes something else."""
    found, _ = attempt(_run_reference, model, inputs)
    if found is None:
        return False
    pairs = zip(outputs.values(), found, strict=True)
    return any(differs(one, other, max(case.rtol, 1e-3), max(case.atol, 1e-5)) for one, other in pairs)


def _run_reference(model: onnx.ModelProto, inputs: Values) -> list[Any]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return list(ReferenceEvaluator(model).run(None, dict(inputs)))


def _is_defined(value: Any) -> bool:
    """Return whether something is there, and nothing overflows or is divided by 0."""
    if value.dtype.kind != "f":
        return value.size > 0
    return value.size > 0 and bool(np.all(abs(value.astype(np.float64)) < _OVERFLOWN))


def _fits(value: onnx.ValueInfoProto, shape: Sequence[int]) -> bool:
    """Return whether a shape is as it was inferred, as far as that is known."""
    dims = value.type.tensor_type.shape.dim
    known = [each.dim_value if each.HasField("dim_value") else None for each in dims]
    return len(known) == len(shape) and all(a in {None, b} for a, b in zip(known, shape, strict=True))


def _infer(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def _run(model: onnx.ModelProto, inputs: Values) -> Values:
    with without_optimizations():
        return run_session(open_session(model), inputs)


def _change(case: Case) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield models of the case with one attribute changed, or of an older operator set."""
    node = case.model.graph.node[0]
    opset = next((each for each in case.model.opset_import if each.domain == node.domain), None)
    if opset is None or node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM:
        return
    schema = defs.get_schema(node.op_type, opset.version, node.domain)
    own = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    ((inputs, _),) = case.data_sets
    rank = next(iter(inputs.values())).ndim if inputs else 0
    shape = next(iter(inputs.values())).shape if inputs else ()
    for name, attribute in schema.attributes.items():
        if name in (*_LEFT_OUT, *_DEPENDENT.get(node.op_type, ())):
            continue
        default = attribute.default_value
        current = own.get(name, helper.get_attribute_value(default) if default.name else None)
        for value in _choose(node.op_type, attribute, current, rank):
            model = _copy(case.model)
            changed = model.graph.node[0]
            kept = [each for each in changed.attribute if each.name != name]
            del changed.attribute[:]
            changed.attribute.extend(
                [*kept, helper.make_attribute(name, value, attr_type=int(attribute.type))]
            )
            if _has_windows(changed, shape):
                yield f"{name}={_show(value)}", model
    for version in _older(node, opset.version) if node.op_type not in _GREW else ():
        model = _copy(case.model)
        for each in model.opset_import:
            if each.domain == node.domain:
                each.version = version
        yield f"opset={version}", model


def _has_windows(node: onnx.NodeProto, shape: Sequence[int]) -> bool:
    """Return whether the window of a pooling operator is no larger than the input."""
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    kernel = given.get("kernel_shape")
    if kernel is None or not node.op_type.endswith("Pool"):
        return True
    dilations = given.get("dilations", [1] * len(kernel))
    sizes = zip(kernel, dilations, shape[2:], strict=True)
    return all((size - 1) * dilation < extent for size, dilation, extent in sizes)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose outputs have no shapes, since they are others."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    return copy


def _older(node: onnx.NodeProto, version: int) -> Iterator[int]:
    """Yield the last operator set of each older version of an operator."""
    for following in sorted(_list_versions()[node.domain, node.op_type])[1:]:
        if _OLDEST < following <= version:
            yield following - 1


@cache
def _list_versions() -> Mapping[tuple[str, str], Sequence[int]]:
    """Return the operator sets that define each operator, by domain and name."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in defs.get_all_schemas_with_history():
        if not each.deprecated:
            found[each.domain, each.name].append(each.since_version)
    return found


def _choose(op: str, attribute: Any, current: Any, rank: int) -> Iterator[Any]:
    """Yield other values of an attribute."""
    match attribute.type:
        case _TYPES.FLOAT:
            chosen = _SIGNED_FLOATS if attribute.name in _SIGNED else _FLOATS
            yield from (value for value in chosen if value != current)
        case _TYPES.INT:
            is_axis = attribute.name.endswith("axis")
            least, most = _LEAST.get(attribute.name, 0), _MODES.get(attribute.name, 2)
            known = range(-rank, rank) if is_axis else range(least, most)
            yield from (
                value
                for value in sorted({*known, *_find_known()[op, attribute.name]})
                if value != current
            )
        case _TYPES.INTS:
            yield from _choose_lists(attribute.name, current, rank)
        case _TYPES.STRING:
            known = _PADDINGS if attribute.name == "auto_pad" else _find_known()[op, attribute.name]
            yield from (value for value in sorted(known) if value.encode() != current)
        case _TYPES.STRINGS if attribute.name == "activations" and op in ("RNN", "GRU", "LSTM"):
            count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op]
            for first in range(len(_ACTIVATIONS)):
                yield [_ACTIVATIONS[(first + each) % len(_ACTIVATIONS)] for each in range(count)]
        case _:
            pass


def _choose_lists(name: str, current: Any, rank: int) -> Iterator[list[int]]:
    spatial = max(rank - 2, 0)
    if name in ("strides", "dilations", "output_padding", "kernel_shape"):
        length = len(current) if current else spatial
        yield from ([each] * length for each in (1, 2, 3) if length)
        yield [1 + each % 2 for each in range(length)]
    elif name == "pads":
        half = len(current) // 2 if current else spatial
        yield [1] * 2 * half
        yield [0] * half + [1] * half
        yield [1] * half + [0] * half
    elif name == "perm":
        yield [*range(rank)]
        yield [*range(1, rank), 0]
    elif name == "axes":
        yield from ([each] for each in range(-rank, rank))
        yield [*range(rank)]
    elif current:
        yield list(reversed(current))
        yield [each + 1 for each in current]


@cache
def _find_known() -> Mapping[tuple[str, str], set[Any]]:
    """Return the texts and integers that attributes have in ONNX's tests, by operator and attribute."""
    found: defaultdict[tuple[str, str], set[Any]] = defaultdict(set)
    for case in collect():
        for node in case.model.graph.node:
            for each in node.attribute:
                if each.type == AttributeProto.STRING:
                    found[node.op_type, each.name].add(each.s.decode())
                if each.type == AttributeProto.INT:
                    found[node.op_type, each.name].add(each.i)
    return found


def _show(value: Any) -> str:
    return (
        ",".join(map(str, value))
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )
