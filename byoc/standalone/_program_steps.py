"""The steps of a program: their calls in the order of the memory plan, and the arena they work in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from onnx import NodeProto

from byoc.errors import InputError, shorten_text
from byoc.memory.arena import ArenaPlan, ArenaStep, plan_buffers
from byoc.memory.reading import CONVENTIONS, MemoryModel, read_memory_model
from byoc.model import describe_node, is_onnx
from byoc.numerics import round_up
from byoc.standalone._node_calls import (
    DECODER_FILE,
    DECODER_KERNELS,
    EmittedFunctions,
    FusedNodes,
    NodeFunctions,
    find_fused_nodes,
    is_decoder_operator,
    make_decoder_call,
)
from byoc.standalone._program_graph import (
    SCRATCH,
    Call,
    ProgramGraph,
    UnsupportedNodeError,
    format_float,
)
from byoc.standalone._proof import Proof

ALIGNMENT = 64  # bytes: a cache line, and the longest vector
_MOST_CHARACTERS = 200  # of attributes in a sentence
_KERNEL_FILES = ("kernels.h", "kernels.c", "windows.c", "rows.c")


@dataclass(frozen=True, eq=False)
class ProgramStep:
    """A step: what it is called in comments, its call or its region, and the offset of its scratch."""

    title: str
    call: Call | None
    region: int | None
    nodes: tuple[int, ...]
    scratch: int


@dataclass(frozen=True, eq=False)
class ProgramSteps:
    """The steps of a program in order, the functions they call and their proof, the plan of the arena."""

    steps: tuple[ProgramStep, ...]
    functions: EmittedFunctions | None
    memory: MemoryModel
    plan: ArenaPlan
    proof: Proof

    @property
    def kernel_files(self) -> tuple[str, ...]:
        """The files of the folder `source` with the kernels that steps call."""
        called = {step.call.function for step in self.steps if step.call}
        return (*_KERNEL_FILES, *((DECODER_FILE,) if called & DECODER_KERNELS else ()))

    def find_offset(self, tensor: str) -> int | None:
        """Return the offset of a tensor in the arena, None for a tensor known before a run."""
        row = self.memory.buffers_of.get(tensor)
        return None if row is None else self.plan.offsets[row[0]]


def plan_steps(graph: ProgramGraph, prefix: str = "") -> ProgramSteps:
    """Choose a function for each step, and plan the arena.

    Names of functions that are emitted for it begin with `prefix`. Raises InputError that names all
    nodes without a function, or with one that is proven wrong, one a line.
    """
    fused = {each.nodes: each for each in find_fused_nodes(graph)}
    fused = {nodes: each for nodes, each in fused.items() if make_kernel_call(graph, each)}
    memory = read_memory_model(graph.index, CONVENTIONS["C"], ALIGNMENT, [*fused], graph.source)
    functions = NodeFunctions(tuple(graph.index.proto.opset_import), prefix)
    calls, numbers = _choose_calls(graph, memory, fused, functions)
    emitted = functions.emit() if functions.kinds else None
    proof = Proof({}, 0) if emitted is None else functions.prove(emitted)
    _require_right(graph, memory, numbers, proof)
    for step, number in numbers.items():
        assert emitted is not None
        calls[step] = emitted.make_call(graph, memory.nodes[step][0], number)
    in_place = {
        step for step, number in numbers.items() if emitted is not None and number in emitted.one_pass
    }
    changed = [
        _adapt_step(graph, step, memory.nodes[number], calls[number], number in in_place)
        for number, step in enumerate(memory.problem.steps)
    ]
    plan = plan_buffers(replace(memory.problem, steps=tuple(changed)))
    regions = {name: number for number, name in enumerate(graph.regions)}
    steps = []
    for number in plan.order:
        nodes = memory.nodes[number]
        first = graph.index.nodes[nodes[0]]
        region = regions[first.op_type] if graph.is_region(nodes[0]) else None
        title = " + ".join(describe_node(graph.index.nodes[node]) for node in nodes)
        steps.append(ProgramStep(title, calls[number], region, nodes, plan.scratch[number]))
    return ProgramSteps(tuple(steps), emitted, memory, plan, proof)


def _require_right(
    graph: ProgramGraph, memory: MemoryModel, numbers: Mapping[int, int], proof: Proof
) -> None:
    """Raise InputError that names the first node of each function that is proven wrong."""
    first: dict[int, int] = {}
    for step, number in numbers.items():
        first.setdefault(number, memory.nodes[step][0])
    wrong = []
    for number, problem in proof.wrong.items():
        node = graph.index.nodes[first[number]]
        stated = ", ".join(
            f"{name} {value}" for name, value in sorted(graph.index.get_attributes(node).items())
        )
        with_these = f", with {shorten_text(stated, _MOST_CHARACTERS)}," if stated else ""
        wrong.append(
            f"{graph.source}: {describe_node(node)}{with_these} has no function in C: that of "
            f"emx-onnx-cgen is wrong: {problem}"
        )
    if wrong:
        raise InputError(*wrong)


def _choose_calls(
    graph: ProgramGraph,
    memory: MemoryModel,
    fused: dict[tuple[int, ...], FusedNodes],
    functions: NodeFunctions,
) -> tuple[list[Call | None], dict[int, int]]:
    """Return the calls of kernels by step, and the numbers of functions of all other host steps."""
    calls: list[Call | None] = []
    numbers: dict[int, int] = {}
    refused = []
    for step, nodes in enumerate(memory.nodes):
        call = None
        if not graph.is_region(nodes[0]):
            try:
                call = make_kernel_call(graph, fused.get(nodes, FusedNodes(nodes)))
                if call is None:
                    numbers[step] = functions.add(graph, nodes[0])
            except UnsupportedNodeError as error:
                node = describe_node(graph.index.nodes[nodes[0]])
                refused.append(f"{graph.source}: {node} has no function in C: {error}")
        calls.append(call)
    if refused:
        raise InputError(*refused)
    return calls, numbers


def _adapt_step(
    graph: ProgramGraph, step: ArenaStep, nodes: Sequence[int], call: Call | None, one_pass: bool
) -> ArenaStep:
    """Add the scratch of a call; let it write over an operand only where its function can do that.

    It can where it writes in one pass, and its operands are of one type: where types differ, C lets a
    compiler read and write in another order.
    """
    node = graph.index.nodes[nodes[-1]]
    result = graph.get_dtype(node.output[0]) if one_pass else ""
    same = one_pass and all(graph.get_dtype(name) == result for name in node.input if name)
    scratch = round_up(call.scratch, ALIGNMENT) if call else 0
    return replace(step, may_overwrite=step.may_overwrite if same else (), scratch=scratch)


# Calls of byoc's own kernels (`source/kernels.h`) for the operators that take most of the time.

# KERNEL_DEPTH, KERNEL_COLUMNS, WIDTH and KERNEL_BAND of the C source
_DEPTH, _COLUMNS, _WIDTH, _BAND = 256, 64, 16, 2048
_IMAGE_RANKS = (3, 4)
_FLOAT_BYTES = 4  # bytes of float32
_SOFTMAX_OF_ONE_AXIS = 13  # the operator set


def make_kernel_call(graph: ProgramGraph, fused: FusedNodes) -> Call | None:
    """Return the call of a kernel that computes some nodes, None where no kernel does.

    Raises UnsupportedNodeError with the reason where no other function does, either.
    """
    node = graph.index.nodes[fused.nodes[0]]
    if is_decoder_operator(node):
        return make_decoder_call(graph, node)
    maker = _MAKERS.get(node.op_type) if is_onnx(node) else None
    if maker is None or any(
        name and graph.get_dtype(name) != "float32" for name in (*node.input, node.output[0])
    ):
        return None
    result = graph.index.nodes[fused.nodes[-1]].output[0]
    call: Call | None = maker(graph, node, fused, result)
    return call


def _make_convolution(
    graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str
) -> Call | None:
    x, weights = (graph.get_shape(name) for name in node.input[:2])
    y = graph.get_shape(node.output[0])
    if len(x) not in _IMAGE_RANKS or not prod(y):
        return None
    attributes = graph.index.get_attributes(node)
    window = _make_window(attributes, weights[2:], x[2:], y[2:])
    groups = int(attributes.get("group", 1))
    inside, outside = weights[1], weights[0] // groups
    image = _describe_images(x, y)
    structure = (
        f"{{{x[0]}, {groups}, {inside}, {outside}, {image}, {window}, {_format_activation(fused)}}}"
    )
    operands = [node.input[0], node.input[1], _get_bias(node), result]
    if inside == 1 and (outside == 1 or groups > 1):
        scratch = _count_band(attributes, weights[2:], y[2:])
        operands.append(SCRATCH)
        return Call("kernel_convolve_depthwise", tuple(operands), "kernel_conv", structure, scratch)
    scratch = _count_scratch(prod(weights[1:]), prod(y[2:]))
    return Call("kernel_convolve", (*operands, SCRATCH), "kernel_conv", structure, scratch)


def _make_gemm(graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str) -> Call | None:
    attributes = graph.index.get_attributes(node)
    rows, cols = graph.get_shape(node.output[0])
    depth = graph.get_shape(node.input[0])[1 - int(attributes.get("transA", 0))]
    if attributes.get("transA", 0) or not rows * cols * depth:
        return None
    b_row, b_col = (1, depth) if attributes.get("transB", 0) else (cols, 1)
    bias = _get_bias(node)
    bias_row, bias_col = _find_bias_steps(graph.get_shape(bias) if bias else (), rows, cols)
    return _make_product(
        (1, rows, depth, cols),
        (0, 0),
        (depth, b_row, b_col, bias_row, bias_col),
        (float(attributes.get("alpha", 1)), float(attributes.get("beta", 1))),
        fused,
        (node.input[0], node.input[1], bias, result),
    )


def _make_matmul(graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str) -> Call | None:
    a, b = (graph.get_shape(name) for name in node.input)
    y = graph.get_shape(node.output[0])
    if len(a) < 2 or len(b) < 2 or not prod(y) * a[-1]:
        return None
    rows, depth, cols = a[-2], a[-1], b[-1]
    count = prod(y[:-2])
    if prod(b[:-2]) == 1:
        count, rows = 1, rows * count
        if prod(a[:-2]) * a[-2] != rows:
            return None
    elif y[:-2] != b[:-2] or (a[:-2] != b[:-2] and prod(a[:-2]) != 1):
        return None
    steps = (0 if prod(a[:-2]) == 1 else rows * depth, depth * cols)
    bias_col = 1 if fused.bias else 0
    return _make_product(
        (count, rows, depth, cols),
        steps,
        (depth, cols, 1, 0, bias_col),
        (1.0, 1.0),
        fused,
        (node.input[0], node.input[1], fused.bias or None, result),
    )


def _make_product(  # noqa: PLR0913, PLR0917 - the structure has as many parts
    extents: tuple[int, int, int, int],
    batch_steps: tuple[int, int],
    steps: tuple[int, ...],
    scales: tuple[float, float],
    fused: FusedNodes,
    operands: tuple[str | None, ...],
) -> Call:
    values = [*extents, *batch_steps, *steps, *map(format_float, scales), _format_activation(fused)]
    structure = f"{{{', '.join(map(str, values))}}}"
    scratch = _count_scratch(extents[2], extents[3])
    return Call("kernel_multiply", (*operands, SCRATCH), "kernel_product", structure, scratch)


def _make_max_pool(graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str) -> Call | None:
    if len(node.output) > 1 and node.output[1]:
        return None
    return _make_pool(graph, node, "kernel_pool_max", result)


def _make_average_pool(
    graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str
) -> Call | None:
    return _make_pool(graph, node, "kernel_pool_average", result)


def _make_global_pool(
    graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str
) -> Call | None:
    x = graph.get_shape(node.input[0])
    if len(x) not in _IMAGE_RANKS or not prod(x):
        return None
    rows, cols = _as_image(x[2:])
    function = "kernel_pool_max" if node.op_type == "GlobalMaxPool" else "kernel_pool_average"
    window = f"{{{rows}, {cols}, 1, 1, 1, 1, 0, 0}}"
    structure = f"{{{x[0] * x[1]}, {rows}, {cols}, 1, 1, {window}, 0, 0, 0}}"
    return Call(function, (node.input[0], result), "kernel_pool", structure)


def _make_pool(graph: ProgramGraph, node: NodeProto, function: str, result: str) -> Call | None:
    x, y = graph.get_shape(node.input[0]), graph.get_shape(node.output[0])
    if len(x) not in _IMAGE_RANKS or not prod(y):
        return None
    attributes = graph.index.get_attributes(node)
    kernel = tuple(attributes["kernel_shape"])
    window = _make_window(attributes, kernel, x[2:], y[2:])
    counts = int(attributes.get("count_include_pad", 0))
    bottom, right = _as_image(_find_pads(attributes, kernel, x[2:], y[2:])[1], 0)
    structure = f"{{{x[0] * x[1]}, {_describe_images(x, y)}, {window}, {counts}, {bottom}, {right}}}"
    return Call(function, (node.input[0], result), "kernel_pool", structure)


def _make_softmax(graph: ProgramGraph, node: NodeProto, fused: FusedNodes, result: str) -> Call | None:
    shape, old = graph.get_shape(node.input[0]), graph.index.get_opset(node) < _SOFTMAX_OF_ONE_AXIS
    axis = int(graph.index.get_attributes(node).get("axis", 1 if old else -1))
    axis += len(shape) if axis < 0 else 0
    cols = prod(shape[axis:])  # up to operator set 12 of all axes from that one on
    if not prod(shape) or (not old and cols != shape[axis]):
        return None
    structure = f"{{{prod(shape) // cols}, {cols}}}"
    return Call("kernel_softmax", (node.input[0], result), "kernel_rows", structure)


def _get_bias(node: NodeProto) -> str | None:
    return (node.input[2] or None) if len(node.input) > 2 else None


def _find_bias_steps(shape: Sequence[int], rows: int, cols: int) -> tuple[int, int]:
    """Return the steps from one row, and one column, to the next of what is added to a matrix."""
    high, wide = (1, 1, *shape)[-2:]
    return (wide if high == rows and rows > 1 else 0), (1 if wide == cols and cols > 1 else 0)


def _count_scratch(depth: int, cols: int) -> int:
    """Return the bytes of the block that a product copies its second operand to."""
    width = min(_COLUMNS, -(-cols // _WIDTH) * _WIDTH)
    return min(depth, _DEPTH) * width * _FLOAT_BYTES


def _count_band(attributes: Mapping[str, Any], kernel: Sequence[int], y: Sequence[int]) -> int:
    """Return the bytes of a band of a depthwise convolution, and of what its windows read."""
    ones = [1] * len(kernel)
    down, across = _as_image(attributes.get("strides") or ones)
    rows, cols = (
        (size - 1) * dilation
        for size, dilation in zip(
            _as_image(kernel), _as_image(attributes.get("dilations") or ones), strict=True
        )
    )
    width = (_as_image(y)[1] - 1) * across + cols + 1
    band = min(_as_image(y)[0], max(1, _BAND // width))
    return (band + (band - 1) * down + rows + 1) * width * _FLOAT_BYTES


def _format_activation(fused: FusedNodes) -> str:
    return f"{{{int(fused.hard_swish)}, {format_float(fused.low)}, {format_float(fused.high)}}}"


def _as_image(extents: Sequence[int], missing: int = 1) -> tuple[int, int]:
    """Return rows and columns; one axis is a row."""
    return (missing, extents[0]) if len(extents) == 1 else (extents[0], extents[1])


def _describe_images(x: Sequence[int], y: Sequence[int]) -> str:
    return ", ".join(str(extent) for shape in (x, y) for extent in _as_image(shape[2:]))


def _make_window(
    attributes: Mapping[str, Any], kernel: Sequence[int], x: Sequence[int], y: Sequence[int]
) -> str:
    """Return the initializer of a `kernel_window`."""
    ones = [1] * len(kernel)
    strides = attributes.get("strides") or ones
    dilations = attributes.get("dilations") or ones
    before = _find_pads(attributes, kernel, x, y)[0]
    values = (*_as_image(kernel), *_as_image(strides), *_as_image(dilations), *_as_image(before, 0))
    return f"{{{', '.join(map(str, values))}}}"


def _find_pads(
    attributes: Mapping[str, Any], kernel: Sequence[int], x: Sequence[int], y: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the padding before and behind each axis of an image."""
    rank = len(kernel)
    auto = attributes.get("auto_pad") or "NOTSET"
    auto = auto.decode() if isinstance(auto, bytes) else auto
    if not auto.startswith("SAME"):
        pads = list(attributes.get("pads") or [0] * (2 * rank))
        return pads[:rank], pads[rank:]
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    total = [
        max(0, (y[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - x[i]) for i in range(rank)
    ]
    less = [each // 2 for each in total]
    more = [each - half for each, half in zip(total, less, strict=True)]
    return (more, less) if auto == "SAME_LOWER" else (less, more)


_MAKERS: Mapping[str, Any] = {
    "Conv": _make_convolution,
    "Gemm": _make_gemm,
    "MatMul": _make_matmul,
    "MaxPool": _make_max_pool,
    "AveragePool": _make_average_pool,
    "GlobalAveragePool": _make_global_pool,
    "GlobalMaxPool": _make_global_pool,
    "Softmax": _make_softmax,
}
