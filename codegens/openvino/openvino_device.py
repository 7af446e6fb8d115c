"""Access to OpenVINO: read a region, compile it, and shorten its error messages."""

import re
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import helper, numpy_helper

from byoc.codegen import (
    AnyArray,
    CompileError,
    Fit,
    MissingRuntimeError,
    Region,
    describe_missing,
    find_library,
    shorten_text,
)

from .openvino_options import OpenVINOOptions

# Rewrite OpenVINO's model so that it computes the values that ONNX defines.
#
# OpenVINO 2026.4.1 on x86 loses NaN in some operators, selects equal keys in its own order, and
# computes whole numbers of constants its own way: it divides by floor, and saturates in 32 bits. An
# operator that the plug-in fuses with the product before it stays as it is, since it would be slow
# alone; the rule file says that it does not keep NaN.

_PRODUCTS = (
    *("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"),
    "MatMul",
)
_FUSED = (
    *(
        "BatchNormInference",
        "Add",
        "Subtract",
        "Multiply",
        "Divide",
        "Select",
        "Convert",
        "FakeQuantize",
    ),
    *("Reshape", "Squeeze", "Unsqueeze", "Transpose"),
)
_MOST_BETWEEN = 12  # operators behind a product that may be fused with it: bias, scale, mask, views
_INEXACT = ("Mod",)  # of floats: a multiple of the divisor is subtracted, which is rounded
_WEIGHTS = ("DequantizeLinear", "QuantizeLinear")  # OpenVINO has to see how weights are quantized


def find_corrections(model: onnx.ModelProto) -> dict[str, AnyArray]:
    """Return constants that OpenVINO would compute otherwise than ONNX defines it, by name of tensor.

    These are whole numbers that nodes compute of constants, remainders, and constants without elements,
    which OpenVINO's reader takes for scalars. Constants in other files are large, and left to OpenVINO,
    as is what onnx.reference cannot run.
    """
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    known = {
        tensor.name: tensor
        for tensor in model.graph.initializer
        if tensor.data_location != onnx.TensorProto.EXTERNAL
    }
    folded = {}
    for node in model.graph.node:
        read = {name for name in node.input if name}
        if not read <= known.keys() or node.domain not in ("", "ai.onnx") or node.op_type in _WEIGHTS:
            continue
        values = _compute(model, node, [known[name] for name in read])
        for name, value in values.items():
            known[name] = numpy_helper.from_array(value, name)
        whole = any(value.dtype.kind in "iub" for value in values.values())
        if read and (whole or node.op_type in _INEXACT):
            folded.update(values)
    empty = {name: numpy_helper.to_array(tensor) for name, tensor in known.items() if 0 in tensor.dims}
    return {**empty, **folded}


def _compute(
    model: onnx.ModelProto, node: onnx.NodeProto, constants: list[onnx.TensorProto]
) -> dict[str, AnyArray]:
    """Return a node's outputs by name; nothing where onnx.reference cannot run it."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow to import, seldom needed

    names = [name for name in node.output if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    graph = helper.make_graph([node], "constant", [], outputs, constants)
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        values = ReferenceEvaluator(alone).run(None, {})
    except Exception:  # whatever onnx.reference says of what it lacks
        return {}
    arrays = all(isinstance(value, np.ndarray | np.generic) for value in values)
    return dict(zip(names, map(np.asarray, values), strict=True)) if arrays else {}


def correct_values(model: Any, constants: Mapping[str, AnyArray]) -> None:
    """Put constants by name of tensor into OpenVINO's model, and keep NaN where it would be lost."""
    from openvino import opset15 as ops  # noqa: PLC0415 - optional

    for node in model.get_ordered_ops():
        for output in node.outputs() if constants else ():
            name = next((name for name in output.get_names() if name in constants), None)
            if name is not None:
                value = _make_constant(ops, constants[name], output.get_element_type())
                output.replace(value.output(0))
                if node.get_type_name() == "Parameter":  # as some constants without elements are read
                    model.remove_parameter(node)
    model.validate_nodes_and_infer_types()
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Divide":
            _correct_dynamic_quantization(ops, node)
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind not in {*_REWRITES, *_FREE_REWRITES}:
            continue
        if kind not in _ANY_TYPE and not node.get_input_element_type(0).is_real():
            continue
        operands = node.input_values()
        if kind in _REWRITES and any(_follows_product(operand) for operand in operands):
            continue
        rewrite = _REWRITES.get(kind) or _FREE_REWRITES[kind]
        result = rewrite(ops, node.get_attributes(), *operands)
        for number, output in enumerate(node.outputs() if result is not None else ()):
            output.replace(result.output(number))


_LEVELS = 255.0  # the greatest uint8, which DynamicQuantizeLinear makes of the greatest number


def _correct_dynamic_quantization(ops: Any, quotient: Any) -> None:
    """Make a DynamicQuantizeLinear exact, if this quotient is the one of its numbers.

    OpenVINO's reader multiplies by 255 and divides by the span of the numbers, and the plug-in computes
    a quotient as the product by 1 / x. So what lies half-way between two integers goes to the wrong one,
    the zero point of numbers between -a and a among it. Of numbers that are all 0 the scale is 1.
    """
    product, span = quotient.input_values()
    if (product.get_node().get_type_name(), span.get_node().get_type_name()) != ("Multiply", "Subtract"):
        return
    x, limits = product.get_node().input_value(0), span.get_node().input_values()
    if not all(_is_limit_of(each, x) for each in limits):
        return
    divisions = [each for each in _list_readers(span) if each.get_type_name() == "Divide"]
    for scaling in [each for each in divisions if _is_constant(each.input_value(1))]:
        scale = _divide_by_levels(ops, span)
        for other in _list_readers(scaling.output(0)):
            dividend = other.input_value(0).get_node()
            least = dividend.get_type_name() == "Subtract" and dividend.input_value(1) == limits[1]
            if other.get_type_name() == "Divide" and least:  # the zero point before it is rounded
                rounded = _divide_to_even(ops, dividend.output(0), scale)
                other.output(0).replace(rounded.output(0))
        quotient.output(0).replace(_divide_to_even(ops, x, scale).output(0))
        scaling.output(0).replace(scale.output(0))


def _list_readers(value: Any) -> list[Any]:
    return [each.get_node() for each in value.get_target_inputs()]


def _divide_by_levels(ops: Any, span: Any) -> Any:
    """Return span / 255 rounded to float32, and 1 for 0: a product, and what that is off by.

    span - 255 * y is exact as (span - 256 * y) + y, and a multiple of 1 / 255 is never so near to the
    middle between two floats that the correction could be rounded to the wrong one.
    """
    zero, one, more, inverse = (
        ops.constant(value, span.get_element_type()) for value in (0.0, 1.0, _LEVELS + 1, 1 / _LEVELS)
    )
    near = ops.multiply(span, inverse)
    rest = ops.add(ops.subtract(span, ops.multiply(near, more)), near)
    return ops.select(ops.equal(span, zero), one, ops.add(near, ops.multiply(rest, inverse)))


def _divide_to_even(ops: Any, dividend: Any, divisor: Any) -> Any:
    """Return x / y, rounded to float32 and then to a whole number, halves to even.

    FloorMod divides without a reciprocal. It gives the whole numbers below and above x / (y / 2), and so
    the mean of the two nearest whole numbers of x / y: a half where it is half-way between them.
    """
    half, one = (ops.constant(value, dividend.get_element_type()) for value in (0.5, 1.0))
    divisor = ops.multiply(divisor, half)
    inverse = ops.divide(one, divisor)

    def find_floor(value: Any) -> Any:
        whole = ops.subtract(value, ops.floor_mod(value, divisor))
        return ops.round(ops.multiply(whole, inverse), "half_to_even")

    below, above = find_floor(dividend), ops.negative(find_floor(ops.negative(dividend)))
    upper = ops.floor(ops.multiply(ops.add(below, one), half))
    lower = ops.ceiling(ops.multiply(ops.subtract(above, one), half))
    return ops.round(ops.multiply(ops.add(upper, lower), half), "half_to_even")


def _is_limit_of(value: Any, x: Any) -> bool:
    """Return whether a value is the least or the greatest number of a tensor, or 0."""
    node = value.get_node()
    if node.get_type_name() not in ("Maximum", "Minimum"):
        return False
    found = [each.get_node() for each in node.input_values() if not _is_constant(each)]
    kinds = [each.get_type_name() for each in found]
    return kinds in (["ReduceMax"], ["ReduceMin"]) and found[0].input_value(0) == x


def _follows_product(value: Any) -> bool:
    """Return whether OpenVINO may compute a value in one kernel with a convolution or product."""
    waiting = [value.get_node()]
    for _ in range(_MOST_BETWEEN):
        if not waiting:
            return False
        node = waiting.pop(0)
        if node.get_type_name() in _PRODUCTS:
            return True
        if node.get_type_name() in _FUSED:
            waiting += [each.get_node() for each in node.input_values() if not _is_constant(each)]
    return False


def _make_constant(ops: Any, value: AnyArray, kind: Any) -> Any:
    """Return a constant; numpy has not all types, so it goes through one that it has."""
    plain = value if value.dtype.kind in "iub" else value.astype(np.float32)
    made = ops.constant(plain)
    return made if made.get_element_type() == kind else ops.convert(made, kind.to_string())


def _is_constant(value: Any) -> bool:
    return bool(value.get_node().get_type_name() == "Constant")


def _keep_nan(ops: Any, operand: Any, result: Any) -> Any:
    return ops.select(ops.is_nan(operand), operand, result)


def _keep_nan_of_rows(ops: Any, operand: Any, axes: Any, keep: bool, result: Any) -> Any:
    found = ops.reduce_logical_or(ops.is_nan(operand), axes, keep_dims=keep)
    return ops.select(found, _make_constant(ops, np.array(np.nan), operand.get_element_type()), result)


def _correct_relu(ops: Any, _: Mapping[str, Any], x: Any) -> Any:
    return ops.maximum(ops.constant(0, x.get_element_type()), x)  # of NaN and 0 it gives the second


def _correct_clamp(ops: Any, attributes: Mapping[str, Any], x: Any) -> Any:
    return _keep_nan(ops, x, ops.clamp(x, attributes["min"], attributes["max"]))


def _correct_exp(ops: Any, _: Mapping[str, Any], x: Any) -> Any:
    return _keep_nan(ops, x, ops.exp(x))


def _correct_hard_sigmoid(ops: Any, _: Mapping[str, Any], x: Any, alpha: Any, beta: Any) -> Any:
    return _keep_nan(ops, x, ops.hard_sigmoid(x, alpha, beta))


def _correct_extreme(make: str) -> Callable[..., Any]:
    """Return the rewrite of Maximum or Minimum, whose kernels give the second operand if one is NaN."""

    def rewrite(ops: Any, _: Mapping[str, Any], first: Any, second: Any) -> Any:
        if _is_constant(second):
            first, second = second, first
        if not _is_constant(first):
            return _keep_nan(ops, first, getattr(ops, make)(first, second))
        bound = first.get_node().data
        if np.isnan(bound).any():
            return _keep_nan(ops, second, getattr(ops, make)(second, first))
        if not first.get_names() and np.all(abs(bound) == np.finfo(bound.dtype).max):
            # A bound that Clip leaves out, for which OpenVINO's reader puts the largest number.
            first = _make_constant(ops, np.sign(bound) * np.inf, first.get_element_type())
        result = getattr(ops, make)(first, second)
        inner = second.get_node()
        if inner.get_type_name() in ("Maximum", "Minimum"):  # the two become a Clamp, which loses NaN
            return _keep_nan(ops, inner.input_value(1), result)
        return result

    return rewrite


def _correct_softmax(make: str) -> Callable[..., Any]:
    def rewrite(ops: Any, attributes: Mapping[str, Any], x: Any) -> Any:
        axis = attributes["axis"]
        result = getattr(ops, make)(x, axis)
        return _keep_nan_of_rows(ops, result, ops.constant(np.array([axis])), True, result)

    return rewrite


def _correct_reduction(make: str) -> Callable[..., Any]:
    def rewrite(ops: Any, attributes: Mapping[str, Any], x: Any, axes: Any) -> Any:
        if not _is_constant(axes):
            return None  # the plug-in has no ReduceLogicalOr along others
        keep = attributes["keep_dims"]
        return _keep_nan_of_rows(ops, x, axes, keep, getattr(ops, make)(x, axes, keep_dims=keep))

    return rewrite


def _correct_conversion(ops: Any, attributes: Mapping[str, Any], x: Any) -> Any:
    """Return a comparison for a conversion to bool, which takes NaN and the lowest integer for 0."""
    if attributes["destination_type"] != "boolean" or x.get_element_type().to_string() == "boolean":
        return None
    return ops.not_equal(x, ops.constant(0, x.get_element_type()))


def _select_first_of_equals(ops: Any, attributes: Mapping[str, Any], x: Any, count: Any) -> Any:
    """Return a stable TopK; a time that grows with the count makes rule files limit it."""
    kept = {name: attributes[name] for name in ("axis", "mode", "index_element_type")}
    return ops.topk(x, count, **kept, sort="value", stable=True)


_REWRITES: Mapping[str, Callable[..., Any]] = {
    "Relu": _correct_relu,
    "Clamp": _correct_clamp,
    "Exp": _correct_exp,
    "HardSigmoid": _correct_hard_sigmoid,
    "Maximum": _correct_extreme("maximum"),
    "Minimum": _correct_extreme("minimum"),
    "Softmax": _correct_softmax("softmax"),
    "LogSoftmax": _correct_softmax("log_softmax"),
    "ReduceMax": _correct_reduction("reduce_max"),
    "ReduceMin": _correct_reduction("reduce_min"),
}
_ANY_TYPE = ("Convert", "TopK")  # rewritten for whole numbers as well
_FREE_REWRITES: Mapping[str, Callable[..., Any]] = {
    "TopK": _select_first_of_equals,
    "Greater": lambda ops, _, first, second: ops.less(second, first),
    "GreaterEqual": lambda ops, _, first, second: ops.less_equal(second, first),
    "Convert": _correct_conversion,
}
"""Rewrites for which it does not matter what is before them."""


_TAKES_ALL = ("CPU", "AUTO", "HETERO", "MULTI", "BATCH")
_MAX_CHARACTERS = 300  # of OpenVINO's message in a sentence
_MAX_IN_MEMORY = 1 << 30  # bytes of constants; a protobuf holds at most 2 GB

_NO_RULE = re.compile(r"^-- No conversion rule found for operations: (.+)$", re.MULTILINE)
_FAILED = re.compile(r"^-- (\w[\w.]*?)-\d+ with a message:$", re.MULTILINE)
_CONTEXT = ("Exception from", "Check '", "While validating", "FrontEnd API failed", "Loading input")


@cache
def openvino_package() -> Any:
    """Return the package. Raises MissingRuntimeError if it is not installed."""
    try:
        import openvino as package  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingRuntimeError(describe_missing("openvino", "openvino")) from None
    return package


@cache
def openvino_core() -> Any:
    """Return the only core of this process; another would load every device's plug-in again."""
    return openvino_package().Core()


def find_fit(has_blob: bool, metadata: Mapping[str, str]) -> Fit:
    """Return whether OpenVINO is installed, without loading it.

    A blob of another version is no obstacle: the region is compiled again.
    """
    version = find_library("openvino", "openvino")
    if version is None:
        return Fit.without(describe_missing("openvino", "openvino"))
    device, made = metadata.get("device", "CPU"), metadata.get("openvino", "")
    again = ""
    if not has_blob:
        again = "what was compiled is not stored"
    elif made.partition("-")[0] != version:
        again = f"its blob was made by OpenVINO {made}"
    return Fit(
        f"OpenVINO {version}".strip(),
        accepts=f"OpenVINO {made}" if has_blob else "",
        machine=metadata.get("device_name", ""),
        again=again,
        unknown="" if device == "CPU" else f"whether OpenVINO has a device {device} here",
    )


def device_stamp(device: str) -> dict[str, str]:
    """Return the properties that a blob depends on: OpenVINO's build, the device, its capabilities.

    Raises MissingRuntimeError if there is no such device.
    """
    try:
        name = openvino_core().get_property(device, "FULL_DEVICE_NAME")
        able = openvino_core().get_property(device, "OPTIMIZATION_CAPABILITIES")
    except RuntimeError as error:
        raise MissingRuntimeError(
            f"OpenVINO has no device '{device}' here: {shorten_refusal(error)}"
        ) from None
    return {
        "openvino": str(openvino_package().__version__),
        "device_name": str(name),
        "device_abilities": " ".join(sorted(able)),
    }


def compile_region_model(
    region: Region, options: OpenVINOOptions, further: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Any, list[str]]:
    """Compile a region; return the model, and for each of its inputs the name in the region.

    `further` are properties besides those of the options. Raises CompileError with OpenVINO's reason.
    """
    try:
        properties = {**select_properties(options), **further}
        read = _read(region)
        correct_values(read, find_corrections(region.model))
        model = openvino_core().compile_model(read, options.device, properties)
        return model, _input_names(region, model)
    except RuntimeError as error:
        raise CompileError(shorten_refusal(error)) from None


def select_properties(options: OpenVINOOptions) -> dict[str, Any]:
    """Return the properties of the options that their device has; another would be an error.

    Devices that only choose others, such as `AUTO`, list few properties and pass all on.
    """
    if options.device.partition(":")[0] in _TAKES_ALL:
        return options.properties
    supported = openvino_core().get_property(options.device, "SUPPORTED_PROPERTIES")
    return {name: value for name, value in options.properties.items() if name in supported}


def import_blob(
    blob: bytes, options: OpenVINOOptions, further: Mapping[str, Any] = MappingProxyType({})
) -> Any | None:
    """Return the model of a blob, or None if OpenVINO refuses the blob.

    `further` are properties besides those of the options.
    """
    properties = {**select_properties(options), **further}
    try:
        return openvino_core().import_model(blob, options.device, properties)
    except RuntimeError:
        return None


def state_defaults(model: onnx.ModelProto) -> bool:
    """Write an attribute that OpenVINO's reader wants written; return whether one was left out.

    It is `interleaved` of com.microsoft.RotaryEmbedding, whose default is 0.
    """
    unstated = _find_unstated(model)
    for node in unstated:
        node.attribute.append(onnx.helper.make_attribute("interleaved", 0))
    return bool(unstated)


def is_read_from_file(region: Region) -> bool:
    """Return whether OpenVINO reads a region's file as it is, its weights mapped.

    Its reader supports no model-local functions, and wants an attribute written (`state_defaults`).
    """
    return not region.model.functions and not _find_unstated(region.model)


def _find_unstated(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that leave out the attribute which OpenVINO's reader wants written."""
    inside = [node for function in model.functions for node in function.node]
    return [
        node
        for node in (*model.graph.node, *inside)
        if (node.domain, node.op_type) == ("com.microsoft", "RotaryEmbedding")
        and not any(attribute.name == "interleaved" for attribute in node.attribute)
    ]


def _read(region: Region) -> Any:
    """Return a region as OpenVINO's model.

    Composites are inlined. It maps the weights of a model in a file; it refuses external data outside
    the folder of the file, also by links.
    """
    if is_read_from_file(region):
        return openvino_core().read_model(region.path)
    model = region.load(inline=True)
    state_defaults(model)
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) <= _MAX_IN_MEMORY:
        return openvino_core().read_model(model.SerializeToString())
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "region.onnx"
        save_region(region, path)
        return openvino_core().read_model(path)


def save_region(region: Region, path: Path) -> None:
    """Write a region in standard operators to a file, its weights beside it."""
    model = region.load(inline=True)
    state_defaults(model)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin")


def _input_names(region: Region, model: Any) -> list[str]:
    """Return the region's input for each of a model's.

    By name; but an input that an operator only passes on is called as that operator's output is, so
    those that are left over go by their order. Inputs that nobody reads are left out, some of them.
    """
    ports = [set(port.names) for port in model.inputs]
    graph = onnx.load(region.path, load_external_data=False).graph
    read = {name for node in graph.node for name in node.input} | {v.name for v in graph.output}
    names = [value.name for value in region.inputs]
    by_port = [next((name for name in names if name in port), None) for port in ports]
    left = [name for name in names if name in read and name not in by_port]
    if by_port.count(None) > len(left):
        raise CompileError("OpenVINO gave the model inputs that the region does not have")
    rest = iter(left)
    return [name or next(rest) for name in by_port]


def shorten_refusal(error: Exception) -> str:
    """Return the sentence in which OpenVINO says why, without the places in its source."""
    text = str(error)
    missing = _NO_RULE.search(text)
    if missing:
        operators = re.sub(r"-\d+\b", "", missing[1])
        return shorten_text(f"OpenVINO has no conversion for {operators}", _MAX_CHARACTERS)
    failed = _FAILED.search(text)
    body = text[failed.end() :] if failed else text
    lines = [line.strip() for line in body.partition("\nSummary:")[0].splitlines()]
    relevant = [line for line in lines if line and not line.startswith(_CONTEXT)]
    what = f"OpenVINO refuses {failed[1]}: " if failed else "OpenVINO refuses: "
    return shorten_text(what + (" ".join(relevant) or type(error).__name__), _MAX_CHARACTERS)
