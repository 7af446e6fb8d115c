"""Compile a region to a program with the codegen's options: lower, schedule, cut into tiles, emit."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import onnx

from byoc.codegen import (
    YES,
    CompileError,
    Region,
    ResourceError,
    Verdict,
    check_each_node,
    is_qdq_node,
    read_region,
    refuse,
)

from ..dla_options import DLAOptions
from ..machine import (
    Command,
    End,
    Load,
    MachineFigures,
    Memory,
    Operand,
    Program,
    Statistics,
    Store,
    simulate_timing,
)
from .emission import CONSTANT, EmitterState, TileStep, WeightPiece, WeightsImage, interleave_steps
from .emit_convolutions import emit_convolution
from .emit_tiles import (
    compute_activation,
    compute_eltwise,
    compute_matmul,
    compute_normalize,
    compute_pool,
    compute_quantize,
    emit_boxes,
    emit_concat,
    emit_min_max,
    emit_move,
    emit_restack,
)
from .layer_groups import LayerGroup, group_operations
from .layers import (
    ActivationLayer,
    ConcatLayer,
    ConvLayer,
    EltwiseLayer,
    LayerNetwork,
    MachineLayer,
    MatMulLayer,
    MinMaxLayer,
    MoveLayer,
    NormalizeLayer,
    PoolLayer,
    QuantizeLayer,
    RestackLayer,
)
from .lower_arithmetic import (
    lower_div,
    lower_guard,
    lower_layer_normalization,
    lower_mean,
    lower_mul,
    lower_neg,
    lower_power,
    lower_rms_normalization,
    lower_skip_layer_normalization,
    lower_skip_rms_normalization,
    lower_softmax,
    lower_sub,
    lower_sum,
)
from .lower_cached_attention import (
    lower_contrib_rotary_embedding,
    lower_group_query_attention,
    lower_rotary_embedding,
)
from .lower_convolutions import (
    lower_batch_normalization,
    lower_conv,
    lower_gemm,
    lower_int4_product,
    lower_matmul,
)
from .lower_moves import (
    find_dynamic_product,
    lower_cast,
    lower_clamp,
    lower_concat,
    lower_conversion,
    lower_dequantize,
    lower_dynamic_product,
    lower_dynamic_quantization,
    lower_function,
    lower_gather,
    lower_global_pool,
    lower_pool,
    lower_reshape,
    lower_split,
    lower_transpose,
)
from .network_builder import NetworkBuilder
from .output_shapes import check_dtype
from .region_reading import FUNCTIONS, RegionReading
from .scheduling import (
    Action,
    AddressMap,
    CopyTensor,
    LayerSchedule,
    RunLayer,
    plan_residency,
    schedule_striped,
    schedule_whole,
)
from .tiling import AxisSpan, TileBudget

# Lowering of a region to layers by the function for each operator, and a check of single nodes.

LOWERINGS: Mapping[str, Callable[[NetworkBuilder, LayerGroup], None]] = {
    "Conv": lower_conv,
    "Gemm": lower_gemm,
    "MatMul": lower_matmul,
    "BatchNormalization": lower_batch_normalization,
    "MaxPool": lower_pool,
    "AveragePool": lower_pool,
    "GlobalAveragePool": lower_global_pool,
    "Add": lower_sum,
    "Sum": lower_sum,
    "Mul": lower_mul,
    "Sub": lower_sub,
    "IsNaN": lower_guard,
    "Neg": lower_neg,
    "Div": lower_div,
    "Pow": lower_power,
    "Relu": lower_clamp,
    "Clip": lower_clamp,
    **dict.fromkeys(FUNCTIONS, lower_function),
    "Concat": lower_concat,
    "Reshape": lower_reshape,
    **dict.fromkeys(("Flatten", "Squeeze", "Unsqueeze"), lower_reshape),
    "Dropout": lower_reshape,
    **dict.fromkeys(("Identity", "QuantizeLinear"), lower_conversion),
    "DequantizeLinear": lower_dequantize,
    "DynamicQuantizeLinear": lower_dynamic_quantization,
    "Cast": lower_cast,
    "Transpose": lower_transpose,
    "Split": lower_split,
    "Gather": lower_gather,
    "Softmax": lower_softmax,
    "ReduceMean": lower_mean,
    "LayerNormalization": lower_layer_normalization,
    "RMSNormalization": lower_rms_normalization,
    "SimplifiedLayerNormalization": lower_rms_normalization,
    "com.microsoft.SkipLayerNormalization": lower_skip_layer_normalization,
    "com.microsoft.SkipSimplifiedLayerNormalization": lower_skip_rms_normalization,
    "com.microsoft.MatMulNBits": lower_int4_product,
    "com.microsoft.GroupQueryAttention": lower_group_query_attention,
    "RotaryEmbedding": lower_rotary_embedding,
    "com.microsoft.RotaryEmbedding": lower_contrib_rotary_embedding,
}
"""By operator, named as in rule files, the function that lowers a group that begins with it."""


WIDE = "int32"
"""The type of positions, which enter a region and become floats."""

_READ_WIDE = ("Cast", "com.microsoft.GroupQueryAttention")


def lower_region(region: Region) -> LayerNetwork:
    """Lower a region to a network of layers.

    Raises CompileError for what the machine cannot do, with the nodes at fault.
    """
    reading = RegionReading(region)
    for contract in region.inputs:
        if contract.type.dtype != WIDE:
            check_dtype(contract.name, contract.type.dtype)
    for contract in region.outputs:
        check_dtype(contract.name, contract.type.dtype)
    reading.check_shapes()
    builder = NetworkBuilder(reading)
    groups = group_operations(reading)
    unknown = [group for group in groups if group.operator not in LOWERINGS]
    if unknown:
        listed = ", ".join(dict.fromkeys(group.operator for group in unknown))
        raise CompileError(f"the machine has no {listed}", [n for group in unknown for n in group.nodes])
    for group in groups:
        _check_wide_inputs(builder, group)
        product = find_dynamic_product(builder, group)
        if product is None:
            LOWERINGS[group.operator](builder, group)
        else:
            lower_dynamic_product(builder, group, product)
    outputs = [builder.add_output(contract) for contract in region.outputs]
    return LayerNetwork(
        builder.layers, builder.inputs, outputs, builder.constants, builder.list_results()
    )


def _check_wide_inputs(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Raise CompileError for a tensor of int32 where the machine has only floats and bytes."""
    for name in group.main.inputs:
        is_wide = name in builder.tensors and builder.tensors[name].dtype == WIDE
        if is_wide and group.operator not in _READ_WIDE:
            check_dtype(name, WIDE)


def check_nodes(model: onnx.ModelProto) -> Sequence[Verdict]:
    """Return for each node of a model's main graph whether it can be lowered, or why it cannot.

    If the model cannot be lowered as a whole, each node is checked alone. DequantizeLinear and
    QuantizeLinear are parts of the groups that they begin and end, and are not checked.
    """
    if _try_lowering(model):
        return [YES] * len(model.graph.node)
    return check_each_node(
        model, lambda each: YES if is_qdq_node(each.node) else _try_lowering(each.standard_model())
    )


def _try_lowering(model: onnx.ModelProto) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        try:
            lower_region(read_region(path, "dla_0", "dla"))
        except CompileError as error:
            return refuse(str(error))
    return YES


Emitter = Callable[[EmitterState, int, Any, AxisSpan], Iterator[TileStep]]

EMITTERS: Mapping[type[MachineLayer], Emitter] = {
    ConvLayer: emit_convolution,
    PoolLayer: partial(emit_boxes, compute_pool),
    EltwiseLayer: partial(emit_boxes, compute_eltwise),
    ActivationLayer: partial(emit_boxes, compute_activation),
    MatMulLayer: partial(emit_boxes, compute_matmul),
    NormalizeLayer: partial(emit_boxes, compute_normalize),
    QuantizeLayer: partial(emit_boxes, compute_quantize),
    MinMaxLayer: emit_min_max,
    ConcatLayer: emit_concat,
    MoveLayer: emit_move,
    RestackLayer: emit_restack,
}
"""By type of layer, the function that emits the commands of some of its rows."""

_ADDRESSES = 2**32  # addresses and sizes are words of 32 bits
_MAX_COMMANDS = 2**18  # the simulator takes about a minute for so many


@dataclass(frozen=True)
class StoredResult:
    """The box of a layer's result, in the scratchpad where it is `near`, else in the arena."""

    box: Operand
    near: bool


@dataclass(frozen=True, eq=False)
class CompiledRegion:
    """A compiled region: the program with its weights, and the intermediate results of compiling."""

    network: LayerNetwork
    schedule: LayerSchedule
    arena: AddressMap
    program: Program
    weights: bytes
    pieces: Sequence[WeightPiece]
    statistics: Statistics
    results: Sequence[StoredResult]
    """Where each layer's result is when the layer has run, in the order of the layers."""


def compile_region(region: Region, options: DLAOptions, figures: MachineFigures) -> CompiledRegion:
    """Compile a region. With the option `resident`, return the faster of two programs.

    One of the two keeps tensors in the scratchpad between layers. Raises CompileError for what the
    machine cannot do, and ResourceError for what does not fit.
    """
    network = lower_region(region)
    schedule = (schedule_striped if options.stripes else schedule_whole)(network, options.memory)
    _check_addresses(network, schedule)
    plain = emit_program(network, schedule, options.scratchpad, figures)
    if options.stripes or not options.resident:
        return plain
    actions = plan_residency(network, schedule, TileBudget(options.scratchpad, figures))
    if actions is None:
        return plain
    other = emit_program(network, schedule, options.scratchpad, figures, actions)
    return min(plain, other, key=lambda built: built.statistics.cycles)


def emit_program(
    network: LayerNetwork,
    schedule: LayerSchedule,
    scratchpad: int,
    figures: MachineFigures,
    actions: Sequence[Action] | None = None,
) -> CompiledRegion:
    """Emit the program of a network for a schedule.

    `actions` keep tensors in the scratchpad between layers; without them, none stays there. Raises
    ResourceError for a layer that does not fit.
    """
    weights = WeightsImage()
    constants = {name: weights.add(array) for name, array in network.constants.items()}
    arena = AddressMap(schedule.places, constants)
    budget = TileBudget(scratchpad, figures)
    machine = EmitterState(arena, weights, budget, count(len(arena.addresses) + 1), scratchpad)
    for number, name in enumerate(constants):
        machine.pieces.append(WeightPiece(constants[name], CONSTANT, number))
    if actions is None:
        actions = [RunLayer(turn.number, {}, None, turn.rows) for turn in schedule.turns]
    actions = tuple(actions)
    done = chain.from_iterable(_action_commands(machine, network, action) for action in actions)
    commands = _check_count(network, done)
    content = weights.content()
    program = Program((*commands, End(len(network.layers))), schedule.size, scratchpad, len(content))
    statistics = simulate_timing(program, figures)
    results = _find_results(network, arena, actions)
    return CompiledRegion(
        network, schedule, arena, program, content, machine.pieces, statistics, results
    )


def _find_results(
    network: LayerNetwork, arena: AddressMap, actions: Sequence[Action]
) -> list[StoredResult]:
    """Return the place of the result of each layer when its last rows have been computed."""
    near = {each.number: each.near for each in actions if isinstance(each, RunLayer)}
    found = []
    for number, layer in enumerate(network.layers):
        name = layer.y.storage_name
        place = near.get(number, {}).get(name)
        where = arena if place is None else AddressMap({name: place}, {})
        found.append(StoredResult(where.whole_operand(layer.y), place is not None))
    return found


def _check_addresses(network: LayerNetwork, schedule: LayerSchedule) -> None:
    """Raise ResourceError, with the nodes of the largest result, for an arena of 2**32 bytes or more."""
    if schedule.size >= _ADDRESSES:
        largest = max(network.layers, key=lambda layer: layer.y.nbytes)
        what = f"its arena has {schedule.size} bytes, but must have fewer than {_ADDRESSES}"
        raise ResourceError(what, largest.nodes)


def _check_count(network: LayerNetwork, commands: Iterator[Command]) -> Sequence[Command]:
    """Return the commands. Raises ResourceError, with the nodes of the longest layer, for too many."""
    found = list(islice(commands, _MAX_COMMANDS + 1))
    if len(found) <= _MAX_COMMANDS:
        return found
    longest = network.layers[Counter(command.layer for command in found).most_common(1)[0][0]]
    what = f"its program has more than {_MAX_COMMANDS} commands, most of them for '{longest.y.name}'"
    raise ResourceError(what, longest.nodes)


def _action_commands(machine: EmitterState, network: LayerNetwork, action: Action) -> Iterator[Command]:
    """Yield the commands of an action: of some rows of a layer, or of copying a whole tensor."""
    if isinstance(action, CopyTensor):
        far = machine.arena.whole_operand(action.tensor)
        near = AddressMap({action.tensor.storage_name: action.near}, {}).whole_operand(action.tensor)
        if action.is_load:
            yield Load(action.number, Memory.ARENA, far, near)
        else:
            yield Store(action.number, near, far)
        return
    layer = network.layers[action.number]
    machine.near, machine.area = action.near, action.area
    machine.budget = TileBudget(action.room or machine.scratchpad, machine.budget.figures)
    machine.set_tiling(action.number, action.rows.count, action.tiling)
    yield from interleave_steps(EMITTERS[type(layer)](machine, action.number, layer, action.rows))
