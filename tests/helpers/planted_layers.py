"""Faults planted in quantized layers of regions, and a codegen that computes with them.

The codegen runs a region on onnxruntime, as a machine of its own would: each layer scales its results by
a number that is off by some hundredths of a unit, so that about one result of a hundred is rounded to
the other integer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from byoc.codegen import Artifact, Executor, Region
from byoc.onnxrt import open_session, run_session, without_optimizations

Array = np.ndarray[Any, Any]

CONTRACTIONS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, eq=False)
class Layer:
    """A contraction of a flat model, with what it reads and the QuantizeLinear that follows it."""

    model: ModelProto
    node: NodeProto
    quantize: NodeProto

    def find_stored(self, position: int) -> str:
        """Return the initializer behind the DequantizeLinear of an input; empty without one."""
        if position >= len(self.node.input):
            return ""
        maker = _find_maker(self.model, self.node.input[position])
        name = maker.input[0] if maker is not None else ""
        return name if name in _list_stored(self.model) else ""

    @property
    def out_axis(self) -> int:
        """The axis of the weights along which results' channels lie."""
        if self.node.op_type == "Conv":
            return 0
        if self.node.op_type == "Gemm":
            return 0 if any(each.name == "transB" and each.i for each in self.node.attribute) else 1
        return 1 if self.node.op_type == "ConvTranspose" else -1


def list_layers(model: ModelProto) -> list[Layer]:
    """Return the contractions of a flat model with stored 8-bit weights whose result is quantized."""
    readers: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = []
    for node in model.graph.node:
        if node.op_type not in CONTRACTIONS:
            continue
        after = readers.get(node.output[0], [])
        while len(after) == 1 and after[0].op_type != "QuantizeLinear":
            after = readers.get(after[0].output[0], [])
        if after and after[0].op_type == "QuantizeLinear":
            layer = Layer(model, node, after[0])
            if layer.find_stored(1):
                found.append(layer)
    return found


def _find_maker(model: ModelProto, tensor: str) -> NodeProto | None:
    return next((node for node in model.graph.node if tensor in node.output), None)


def _list_stored(model: ModelProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


def _read(model: ModelProto, name: str) -> Array:
    return numpy_helper.to_array(_list_stored(model)[name])


def _store(model: ModelProto, name: str, value: Any) -> str:
    """Add an initializer under a name that is not in use yet; return the name."""
    stored = _list_stored(model)
    while name in stored:
        name += "_planted"
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def _store_spread(model: ModelProto, node: NodeProto, position: int) -> str:
    """Return the name of an input of a QuantizeLinear, with each number at its channel (axis 1)."""
    name = node.input[position]
    value = _read(model, name) if name in _list_stored(model) else np.zeros(1)
    if value.size == 1:
        return name
    assert all(each.i == 1 for each in node.attribute if each.name == "axis")
    return _store(model, f"{node.output[0]}_spread", value.reshape(-1, 1, 1))


def _change_input(
    layer: Layer, node: NodeProto | None, position: int, change: Callable[[Array], Array]
) -> bool:
    """Have a node read a changed copy of an initializer; return whether it reads one."""
    if (
        node is None
        or position >= len(node.input)
        or node.input[position] not in _list_stored(layer.model)
    ):
        return False
    name = node.input[position]
    value = _read(layer.model, name)
    changed = np.asarray(change(value.astype(np.int64 if value.dtype.kind in "iu" else value.dtype)))
    if value.dtype.kind in "iu":
        changed = np.clip(changed, np.iinfo(value.dtype).min, np.iinfo(value.dtype).max)
    changed = changed.astype(value.dtype)
    node.input[position] = _store(layer.model, f"{name}_planted", changed)
    return changed.shape == value.shape and not np.array_equal(changed, value)


def _change_weights(layer: Layer, change: Callable[[Array, int], Array]) -> bool:
    """Change the integers of the weights of a layer alone."""
    maker = _find_maker(layer.model, layer.node.input[1])
    return _change_input(layer, maker, 0, lambda weights: change(weights, layer.out_axis))


def _middle_channel(weights: Array, axis: int) -> int:
    """Return the channel of the median magnitude."""
    moved = np.moveaxis(weights.astype(np.float64), axis, 0)
    sizes = np.abs(moved.reshape(len(moved), -1)).sum(axis=1)
    return int(np.argsort(sizes)[len(sizes) // 2])


def _set_channel(weights: Array, axis: int, change: Callable[[Array], Array]) -> Array:
    moved = np.moveaxis(weights.copy(), axis, 0)
    channel = _middle_channel(weights, axis)
    moved[channel] = np.clip(change(moved[channel].astype(np.int32)), -128, 127)
    return np.moveaxis(moved, 0, axis)


def _swap_channels(weights: Array, axis: int) -> Array:
    moved = np.moveaxis(weights.copy(), axis, 0)
    channel = _middle_channel(weights, axis)
    other = (channel + 1) % len(moved)
    moved[[channel, other]] = moved[[other, channel]]
    return np.moveaxis(moved, 0, axis)


def _zero_block(weights: Array, axis: int) -> Array:
    changed = weights.copy()
    rows, columns = (max(1, size // 4) for size in weights.shape[:2])
    changed[:rows, :columns] = 0
    return changed


def _transpose_kernel(weights: Array, axis: int) -> Array:
    """Read a kernel column by column, the weights of a product in the other order."""
    if weights.ndim == 4 and weights.shape[2] > 1:
        return np.swapaxes(weights, 2, 3).copy()
    return np.asfortranarray(weights).reshape(-1, order="F").reshape(weights.shape)


def _change_bias(layer: Layer, change: Callable[[Array], Array]) -> bool:
    if layer.node.op_type not in ("Conv", "Gemm") or len(layer.node.input) < 3:
        return False
    return _change_input(layer, _find_maker(layer.model, layer.node.input[2]), 0, change)


def _drop_largest(bias: Array) -> Array:
    changed = bias.copy()
    changed.reshape(-1)[np.argmax(np.abs(bias.astype(np.float64)))] = 0
    return changed


def _roll(bias: Array) -> Array:
    return np.roll(bias, 1)


def _insert_before(layer: Layer, node: NodeProto, position: int, made: Sequence[NodeProto]) -> bool:
    """Put nodes in front of a node, the last of which makes an input of it."""
    nodes = list(layer.model.graph.node)
    at = next(i for i, each in enumerate(nodes) if each is node or each == node)
    node.input[position] = made[-1].output[0]
    changed = NodeProto()
    changed.CopyFrom(node)
    kept = [NodeProto.FromString(each.SerializeToString()) for each in nodes]
    kept[at] = changed
    del layer.model.graph.node[:]
    layer.model.graph.node.extend([*kept[:at], *made, *kept[at:]])
    return True


def _change_real(layer: Layer, *steps: tuple[str, Any]) -> bool:
    """Compute with what a layer's QuantizeLinear reads, in units: operators and their operands."""
    read = layer.quantize.input[0]
    scale = _store_spread(layer.model, layer.quantize, 1)
    made, value = [], read
    for number, (op, operand) in enumerate([("Div", scale), *steps, ("Mul", scale)]):
        reads = [value] if operand is None else [value, operand]
        if operand is not None and not isinstance(operand, str):
            reads[1] = _store(layer.model, f"{read}_operand{number}", np.asarray(operand))
        value = f"{read}_planted{number}"
        made.append(helper.make_node(op, reads, [value]))
    return _insert_before(layer, layer.quantize, 0, made)


def _change_entry(layer: Layer) -> bool:
    """Give one integer near a layer's zero point another value: a wrong entry of a table."""
    model, tensor = layer.model, layer.quantize.output[0]
    point = _read(model, layer.quantize.input[2]) if len(layer.quantize.input) > 2 else np.uint8(0)
    entry = np.asarray(point).reshape(-1)[0]
    most = np.iinfo(entry.dtype).max
    entry = entry.astype(np.int32) + (7 if entry + 10 <= most else -7)
    inner = f"{tensor}_entry"
    wrong = _store(model, f"{tensor}_wrong", (entry + 3).astype(point.dtype))
    right = _store(model, f"{tensor}_right", np.asarray(entry, np.int32))
    nodes = [NodeProto.FromString(each.SerializeToString()) for each in model.graph.node]
    at = next(i for i, each in enumerate(nodes) if tensor in each.output)
    nodes[at].output[0] = inner
    added = [
        helper.make_node("Cast", [inner], [f"{inner}_wide"], to=TensorProto.INT32),
        helper.make_node("Equal", [f"{inner}_wide", right], [f"{inner}_is"]),
        helper.make_node("Where", [f"{inner}_is", wrong, inner], [tensor]),
    ]
    del model.graph.node[:]
    model.graph.node.extend([*nodes[: at + 1], *added, *nodes[at + 1 :]])
    return True


def _pad_with_zero(layer: Layer) -> bool:
    """Pad with the integer 0 instead of the zero point."""
    maker = _find_maker(layer.model, layer.node.input[0])
    pads = next((each for each in layer.node.attribute if each.name == "pads"), None)
    if layer.node.op_type != "Conv" or pads is None or not any(pads.ints) or maker is None:
        return False
    if maker.op_type != "DequantizeLinear" or len(maker.input) < 3:
        return False
    points, scales = (_read(layer.model, maker.input[i]).reshape(-1) for i in (2, 1))
    point, scale = points[0], scales[0]
    if not point or len(points) > 1:
        return False
    half = len(pads.ints) // 2
    widths = np.array([0, 0, *pads.ints[:half], 0, 0, *pads.ints[half:]], np.int64)
    name = layer.node.output[0]
    value = _store(layer.model, f"{name}_padded", np.float32(-np.float32(point) * scale))
    sizes = _store(layer.model, f"{name}_pads", widths)
    pads.ints[:] = [0] * (2 * half)
    node = helper.make_node("Pad", [layer.node.input[0], sizes, value], [f"{name}_pad"])
    return _insert_before(layer, layer.node, 0, [node])


def _repeat_row(layer: Layer) -> bool:
    """Compute the last row from the one before, as at the seam of two tiles."""
    read = layer.quantize.input[0]
    if layer.node.op_type != "Conv":
        return False
    bounds = {
        word: _store(layer.model, f"{read}_{word}", np.array([number], np.int64))
        for word, number in (("first", 0), ("before", -2), ("last", -1), ("rows", 2))
    }
    most = helper.make_node(
        "Slice", [read, bounds["first"], bounds["last"], bounds["rows"]], [f"{read}_m"]
    )
    row = helper.make_node(
        "Slice", [read, bounds["before"], bounds["last"], bounds["rows"]], [f"{read}_r"]
    )
    whole = helper.make_node("Concat", [f"{read}_m", f"{read}_r"], [f"{read}_w"], axis=2)
    return _insert_before(layer, layer.quantize, 0, [most, row, whole])


def _saturate_early(layer: Layer) -> bool:
    """Clamp at a third of the range above the zero point."""
    point = np.zeros((), np.int8)
    if len(layer.quantize.input) > 2:
        point = _read(layer.model, _store_spread(layer.model, layer.quantize, 2))
    top = np.iinfo(point.dtype).max
    return _change_real(layer, ("Min", ((top - point.astype(np.int32)) // 3).astype(np.float32)))


@dataclass(frozen=True)
class PlantedFault:
    """A fault: what it is, where among the layers (0 the first, 1 the last), and how it is planted."""

    name: str
    place: float
    plant: Callable[[Layer], bool]


def _move_point(position: int, step: int) -> Callable[[Layer], bool]:
    """Move the zero point of what a layer reads (0), or makes (1), by a step."""

    def move(layer: Layer) -> bool:
        node = layer.quantize if position else _find_maker(layer.model, layer.node.input[0])
        return _change_input(layer, node, 2, lambda point: point + step)

    return move


def _change_channel(change: Callable[[Array], Array]) -> Callable[[Layer], bool]:
    return lambda layer: _change_weights(
        layer, lambda weights, axis: _set_channel(weights, axis, change)
    )


FAULTS = (
    PlantedFault("zero point by one, first layer", 0.0, _move_point(1, 1)),
    PlantedFault("zero point by one, last layer", 1.0, _move_point(1, -1)),
    PlantedFault("zero point of what is read by one", 0.5, _move_point(0, 1)),
    PlantedFault("a channel's scale doubled, early", 0.1, _change_channel(lambda c: 2 * c)),
    PlantedFault("a channel's scale doubled, late", 0.9, _change_channel(lambda c: 2 * c)),
    PlantedFault("a channel's scale halved", 0.4, _change_channel(lambda c: c // 2)),
    PlantedFault("a channel zeroed, early", 0.0, _change_channel(lambda c: 0 * c)),
    PlantedFault("a channel zeroed, late", 0.8, _change_channel(lambda c: 0 * c)),
    PlantedFault("two channels swapped", 0.5, lambda each: _change_weights(each, _swap_channels)),
    PlantedFault("a block of weights zeroed", 0.3, lambda each: _change_weights(each, _zero_block)),
    PlantedFault("stale layout of weights", 0.6, lambda each: _change_weights(each, _transpose_kernel)),
    PlantedFault("one bias dropped, early", 0.1, lambda each: _change_bias(each, _drop_largest)),
    PlantedFault("one bias dropped, late", 0.9, lambda each: _change_bias(each, _drop_largest)),
    PlantedFault("biases of the next channel", 0.5, lambda each: _change_bias(each, _roll)),
    PlantedFault("a wrong entry of a table", 0.4, _change_entry),
    PlantedFault("rounded down", 0.7, lambda each: _change_real(each, ("Floor", None))),
    PlantedFault("scale off by 2 %", 0.2, lambda each: _change_real(each, ("Mul", np.float32(1.02)))),
    PlantedFault("saturated early", 0.5, _saturate_early),
    PlantedFault("padded with 0, not the zero point", 0.0, _pad_with_zero),
    PlantedFault("a row of a tile repeated", 0.6, _repeat_row),
)


def find_place(model: ModelProto, fault: PlantedFault, given: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the quantized tensor of the layer nearest to a fault's place that can have it.

    With inputs `given` the tensor changes on some of them: a bias in front of a function that is 0 for
    all of them is no fault. Empty where no layer can have it.
    """
    tensors = [layer.quantize.output[0] for layer in list_layers(model)]
    start = round(fault.place * (len(tensors) - 1))
    for number in sorted(range(len(tensors)), key=lambda each: abs(each - start)):
        planted = ModelProto.FromString(model.SerializeToString())
        if plant(planted, fault, tensors[number]) and (
            not given or _compute_differs(model, planted, tensors[number], given)
        ):
            return tensors[number]
    return ""


def _compute_differs(
    model: ModelProto, other: ModelProto, tensor: str, given: Sequence[Mapping[str, Any]]
) -> bool:
    """Return whether two models make different values of a tensor of some of the inputs."""
    sessions = []
    for one in (model, other):
        shown = ModelProto.FromString(one.SerializeToString())
        del shown.graph.output[:]
        shown.graph.output.append(ValueInfoProto(name=tensor))
        with without_optimizations():
            sessions.append(open_session(shown))
    pairs = ([run_session(session, inputs)[tensor] for session in sessions] for inputs in given)
    return any(not np.array_equal(*pair) for pair in pairs)


def plant(model: ModelProto, fault: PlantedFault, tensor: str) -> bool:
    """Plant a fault in the layer of a flat model that makes a tensor; return whether it has one."""
    return any(fault.plant(layer) for layer in list_layers(model) if layer.quantize.output[0] == tensor)


def roughen(model: ModelProto, deviation: float) -> None:
    """Have each QuantizeLinear of data read values that are off by up to a deviation, in its units."""
    made = {name for node in model.graph.node for name in node.output}
    data = {value.name for value in model.graph.input} | made
    fast = _store(model, "rough_rate", np.float32(977.0))
    size = _store(model, "rough_size", np.float32(deviation))
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        changed = NodeProto.FromString(node.SerializeToString())
        if node.op_type == "QuantizeLinear" and node.input[0] in data:
            value, scale = node.input[0], _store_spread(model, node, 1)
            units, angle, wave, part, step, moved = (f"{node.output[0]}_rough_{i}" for i in range(6))
            nodes += [
                helper.make_node("Div", [value, scale], [units]),
                helper.make_node("Mul", [units, fast], [angle]),
                helper.make_node("Sin", [angle], [wave]),
                helper.make_node("Mul", [wave, size], [part]),
                helper.make_node("Mul", [part, scale], [step]),
                helper.make_node("Add", [value, step], [moved]),
            ]
            changed.input[0] = moved
        nodes.append(changed)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


class RoughMachine:
    """A codegen that runs regions on onnxruntime, roughly, and with a fault where one is planted.

    Before it rounds, it is off by up to `deviation` units.
    """

    name = "rough"
    deviation = 0.03
    fault: PlantedFault | None = None
    tensor = ""

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        return Artifact()

    def load(self, region: Region, artifact: Artifact) -> Executor:
        model = region.load(inline=True)
        if self.fault is not None:
            plant(model, self.fault, self.tensor)
        roughen(model, self.deviation)
        with without_optimizations():
            session = open_session(model)
        return lambda inputs: run_session(session, inputs)
