"""Random host graphs between regions that want NHWC, and what their Transposes cost at least."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from byoc.boundary.convert import (
    BoundaryFormat,
    ModelEditor,
    RegionBoundary,
    TransposeShares,
    insert_layouts,
    minimize_transposes,
)
from byoc.model import LAYOUT, TensorLayout, get_purpose, parse_layout, walk_graphs

SHAPE = (1, 2, 3, 4)
IMAGE_BYTES = 96
NHWC = parse_layout("NHWC")
TO, BACK = (0, 2, 3, 1), (0, 3, 1, 2)
_DOMAIN = "byoc.dla"
# Numbers of few bits: sums of them in any order are exact.
CONSTANTS = {
    "scalar": np.float32(2),
    "row": np.arange(1, 5, dtype=np.float32),
    "channel": np.array([[[1]], [[-1]]], np.float32),
    "image": np.arange(24, dtype=np.float32).reshape(SHAPE) - 12,
}
FIXED = ("MaxPool", "DepthToSpace", "ReduceSum")
KINDS = (
    *("relu", "clip", "binary", "where", "constant", "concat", "pad", "reduce", "split", "slice"),
    *("fixed", "quantize", "region", "region", "region"),
)


@dataclass
class Drawn:
    """A graph while it is drawn: its nodes, its images (all of `SHAPE`), and its regions."""

    draw: st.DrawFn
    nodes: list[NodeProto] = field(default_factory=list)
    images: list[str] = field(default_factory=lambda: ["x0", "x1"])
    regions: list[onnx.FunctionProto] = field(default_factory=list)
    stored: dict[str, np.ndarray] = field(default_factory=lambda: dict(CONSTANTS))

    def node(self, op: str, inputs: Sequence[str], count: int = 1, **attributes: object) -> list[str]:
        names = [f"t{len(self.nodes)}_{i}" for i in range(count)]
        # Many exporters call a node like what it makes.
        self.nodes.append(helper.make_node(op, inputs, names, name=names[0], **attributes))
        return names

    def any(self) -> str:
        return self.draw(st.sampled_from(self.images))

    def axis(self) -> int:
        return self.draw(st.integers(-4, 3))

    def numbers(self, *values: int) -> str:
        name = f"n{len(self.stored)}"
        self.stored[name] = np.array(values, np.int64)
        return name


def _region(drawn: Drawn) -> list[str]:
    """Put a region in that reads one or two images and gives out one or two."""
    count = drawn.draw(st.integers(1, 2))
    reads = list(dict.fromkeys(drawn.any() for _ in range(count)))
    name = f"dla_{len(drawn.regions)}"
    made = [f"{name}_{i}" for i in range(count)]
    inside = [helper.make_node("MaxPool", [reads[0]], made[:1], kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
    inside += [helper.make_node("Sub", [reads[-1], made[0]], made[1:])] if count == 2 else []
    imports = [helper.make_opsetid("", 17)]
    drawn.regions.append(helper.make_function(_DOMAIN, name, reads, made, inside, imports))
    drawn.nodes.append(helper.make_node(name, reads, made, name=name, domain=_DOMAIN))
    return made


def _host(drawn: Drawn, kind: str) -> list[str]:  # noqa: PLR0911, PLR0912 - a table of operators
    """Put host operators in; return the images that they make."""
    node, numbers = drawn.node, drawn.numbers
    match kind:
        case "relu":
            return node(drawn.draw(st.sampled_from(["Relu", "Neg", "Identity", "Abs"])), [drawn.any()])
        case "clip":
            return node("Clip", [drawn.any(), "", "scalar"])
        case "binary":
            op = drawn.draw(st.sampled_from(["Add", "Sub", "Max", "Min"]))
            return node(op, [drawn.any(), drawn.any()])
        case "where":
            return node("Where", [*node("Greater", [drawn.any(), "row"]), drawn.any(), drawn.any()])
        case "constant":
            pair = [drawn.any(), drawn.draw(st.sampled_from(sorted(CONSTANTS)))]
            return node("Add", drawn.draw(st.permutations(pair)))
        case "concat":
            axis = drawn.axis()
            joined = node("Concat", [drawn.any(), drawn.any()], axis=axis)
            size = SHAPE[axis]
            start = drawn.draw(st.integers(0, size))
            parts = numbers(start), numbers(start + size), numbers(axis)
            return node("Slice", [*joined, *parts])
        case "slice":
            ends = numbers(*(2 * size for size in SHAPE))  # an end past the end is the end
            return node("Slice", [drawn.any(), numbers(0, 0, 0, 0), ends])
        case "pad":
            pads = drawn.draw(st.lists(st.integers(0, 2), min_size=8, max_size=8))
            mode = "constant" if any(p >= n for p, n in zip(pads, SHAPE * 2, strict=True)) else "reflect"
            inputs = [drawn.any(), numbers(*pads), *(["scalar"] if mode == "constant" else [])]
            padded = node("Pad", inputs, mode=mode)
            ends = numbers(*(p + n for p, n in zip(pads, SHAPE, strict=False)))
            return node("Slice", [*padded, numbers(*pads[:4]), ends])
        case "reduce":
            axes = drawn.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))
            summed = node("ReduceSum", [drawn.any(), numbers(*axes)])
            largest = node("ReduceMax", [drawn.any()], axes=axes)
            return node("Sub", [*node("Sub", [drawn.any(), *summed]), *largest])
        case "split":
            axis = drawn.draw(st.sampled_from([1, 3, -1, -3]))
            parts = node("Split", [drawn.any()], 2, axis=axis)
            return node("Concat", parts[::-1], axis=axis)
        case "fixed":
            return node("MaxPool", [drawn.any()], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        case "quantize":
            quantized = node("QuantizeLinear", [drawn.any(), "scales", "zeros"], axis=1)
            return node("DequantizeLinear", [*quantized, "scales", "zeros"], axis=1)
        case "user":
            turned = node("Transpose", [drawn.any()], perm=drawn.draw(st.sampled_from([TO, BACK])))
            order = next(n.attribute[0].ints for n in drawn.nodes if n.output[0] == turned[0])
            inside = node(drawn.draw(st.sampled_from(["Relu", "Neg"])), turned)
            back = [list(order).index(axis) for axis in range(4)]
            return node("Transpose", inside, perm=back)
        case _:
            return _region(drawn)


@st.composite
def host_graphs(draw: st.DrawFn, kinds: Sequence[str] = KINDS, most: int = 12) -> ModelProto:
    """Draw an outlined model: regions, host operators between them, images of 24 elements."""
    drawn = Drawn(draw)
    drawn.stored["scales"] = np.array([0.5, 2], np.float32)
    drawn.stored["zeros"] = np.array([3, -3], np.int8)
    for _ in range(draw(st.integers(1, most))):
        drawn.images += _host(drawn, draw(st.sampled_from(kinds)))
    outputs = draw(st.lists(st.sampled_from(drawn.images[2:]), min_size=1, max_size=3, unique=True))
    graph = helper.make_graph(
        drawn.nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x0", "x1")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in drawn.stored.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=drawn.regions)


def arranged(  # noqa: PLR0917 - what a boundary may be
    model: ModelProto,
    layout: TensorLayout = NHWC,
    remove: bool = True,
    apart: bool = False,
    plain: Iterable[str] = (),
    shares: TransposeShares | None = None,
) -> ModelProto:
    """Return a model whose regions are in a layout, with as few Transposes as can be if `remove`.

    With `apart` each region's tensors are converted for it alone; those in `plain` are no images. All
    regions may transpose all images for `shares` of what the host does it for.
    """
    model = onnx.shape_inference.infer_shapes(model)
    known = (v for g in walk_graphs(model.graph) for v in (*g.input, *g.output, *g.value_info))
    types = {value.name: value.type for value in known}
    wants = BoundaryFormat(activations=layout)
    regions = [f for f in model.functions if f.domain == _DOMAIN]
    given = {} if shares is None else dict.fromkeys(types, shares)
    borders = [
        RegionBoundary(f.name, wants, frozenset(types.keys() - {*plain}), types, given) for f in regions
    ]
    edit = ModelEditor(model)
    for some in [[border] for border in borders] if apart else [borders]:
        insert_layouts(edit, some)
    if remove:
        minimize_transposes(edit, borders)
    return edit.finish()


def transposes(model: ModelProto) -> list[NodeProto]:
    """Return the Transposes in a model's main graph."""
    return [node for node in model.graph.node if node.op_type == "Transpose"]


def transposed_bytes(model: ModelProto) -> int:
    """Return how many bytes the Transposes in the main graph move."""
    graph = model.graph
    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    kinds = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        sizes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        kinds[value.name] = value.type.tensor_type.elem_type
    widths = {TensorProto.FLOAT: 4, TensorProto.BOOL: 1, TensorProto.INT8: 1}
    return sum(
        int(np.prod(sizes[n.input[0]])) * widths[kinds.get(n.input[0], TensorProto.FLOAT)]
        for n in transposes(model)
    )


def inverse_pairs(model: ModelProto) -> int:
    """Return how many Transposes in the main graph undo the one that they read, one of them ours."""
    maker = {node.output[0]: node for node in transposes(model)}
    pairs = 0
    for node in transposes(model):
        before = maker.get(node.input[0])
        if before is not None and LAYOUT in (get_purpose(before), get_purpose(node)):
            first, second = before.attribute[0].ints, node.attribute[0].ints
            pairs += [first[axis] for axis in second] == [0, 1, 2, 3]
    return pairs


def opened_ports(model: ModelProto) -> list[int]:
    """Return how many inputs, and how many outputs, regions transpose themselves."""
    counts = [0, 0]
    for function in (f for f in model.functions if f.domain == _DOMAIN):
        maker = {node.output[0]: node for node in function.node if node.op_type == "Transpose"}
        reader = {node.input[0]: node for node in maker.values()}
        counts[0] += sum(name in reader and reader[name].output[0] in reader for name in function.input)
        counts[1] += sum(name in maker and maker[name].input[0] in maker for name in function.output)
    return counts


def least(
    model: ModelProto, stays: Iterable[str] = FIXED, shares: TransposeShares | None = None
) -> float:
    """Return the fewest bytes over all ways to run the operators of a model whose regions have layouts.

    Tries them all: an operator but those in `stays` reads and makes plain tensors, or transposed ones.
    A tensor that is made in one form and needed in the other is transposed once. With `shares`, a region
    may read and return a plain tensor for that part of its bytes.
    """
    graph = onnx.shape_inference.infer_shapes(model).graph
    constants = {tensor.name for tensor in graph.initializer}
    value = {}  # a Transpose makes another form of what it reads
    called = [node for node in graph.node if node.domain == _DOMAIN]
    permuted = {name for node in called for name in (*node.input, *node.output)}
    for node in (node for node in graph.node if node.op_type == "Transpose"):
        value[node.output[0]] = value.get(node.input[0], node.input[0])
    nodes = [node for node in graph.node if node.op_type != "Transpose"]
    free = [i for i, node in enumerate(nodes) if node.domain != _DOMAIN and node.op_type not in stays]
    kinds = {v.name: v.type.tensor_type for v in (*graph.value_info, *graph.input, *graph.output)}
    rank = {name: len(kind.shape.dim) for name, kind in kinds.items()}
    names = {name for node in nodes for name in (*node.input, *node.output)} - constants - {""}
    names |= {v.name for v in (*graph.input, *graph.output)}
    names = {name for name in names if rank[name] == 4}
    ports = [
        (i, name, share)
        for i, node in enumerate(nodes if shares is not None else [])
        if node.domain == _DOMAIN
        for side, share in ((node.input, shares.entering), (node.output, shares.leaving))
        for name in dict.fromkeys(side)
    ]
    best = None
    for labels in itertools.product((False, True), repeat=len(free) + len(ports)):
        label = dict(zip(free, labels, strict=False))
        port = {(i, n): form for (i, n, _), form in zip(ports, labels[len(free) :], strict=True)}
        made = {v.name: False for v in graph.input}
        needed: dict[str, set[bool]] = {}
        for i, node in enumerate(nodes):
            for name in set(node.output) & names:
                made[value.get(name, name)] = port.get((i, name), label.get(i, name in permuted))
            for name in set(node.input) & names:
                form = port.get((i, name), label.get(i, name in permuted))
                needed.setdefault(value.get(name, name), set()).add(form)
        for v in graph.output:
            needed.setdefault(value.get(v.name, v.name), set()).add(v.name in permuted)
        cost = sum(
            int(np.prod([dim.dim_value for dim in kinds[name].shape.dim]))
            * (4 if kinds[name].elem_type == TensorProto.FLOAT else 1)
            for name, forms in needed.items()
            if not forms <= {made[name]}
        ) + sum(share * IMAGE_BYTES for i, name, share in ports if not port[i, name])
        best = cost if best is None else min(best, cost)
    return best or 0
