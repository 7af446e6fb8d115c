"""Regions of all forms found in networks, drawn with operators that the rules accept."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import onnx

from byoc._dataclasses import dataclass
from byoc.testing._operator_cases import Case, CaseShape, GraphSketch

SHAPES: tuple[tuple[int, ...], ...] = ((1, 4, 4, 4), (4, 4), (1, 4, 4))

# Nodes that preserve the shapes above; `SHAPE` stands for the shape.
UNARY = (
    *("Relu(x)", "Sigmoid(x)", "Tanh(x)", "Neg(x)", "Abs(x)", "LeakyRelu(x)", "Exp(x)", "Not(x)"),
    *("Softmax<axis=1>(x)", "Identity(x)"),
)
FIXED = (
    *("Add(x, w=SHAPE)", "Mul(x, w=SHAPE)", "Sub(x, w=SHAPE)", "Conv(x, w=4x4x1x1)", "MatMul(x, w=4x4)"),
    *("Gemm(x, w=4x4)", "Conv<group=4>(x, w=4x1x1x1)", "Conv<pads=[1,1,1,1]>(x, w=4x4x3x3)"),
)
POOL = (
    "MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)",
    "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)",
    "MaxPool<kernel_shape=[1,1]>(x)",
)
BINARY = ("Add(x, z)", "Mul(x, z)", "Sub(x, z)", "Max(x, z)", "Min(x, z)", "Sum(x, z)", "MatMul(x, z)")
_TWO_OUTPUTS = (
    "Split<axis=1>(x)",
    "MaxPool<kernel_shape=[2,2]>(x)",
    "Dropout(x)",
    "TopK(x, k!2)",
)


_LARGE_WEIGHTS = {"4x4x1x1": "512x4x1x1", "4x4x3x3": "64x4x3x3", "w=4x4)": "w=96x96)"}
_IN_FILE = 2048  # bytes; smaller constants stay in the model's own file


@dataclass(frozen=True)
class NodeWords:
    """Nodes that a target accepts, as text: of one operand, of two, and of one and a constant."""

    dtype: str
    shape: tuple[int, ...]
    unary: Sequence[str]
    binary: Sequence[str]
    fixed: Sequence[str]

    @property
    def one_operand(self) -> Sequence[str]:
        """All nodes of one operand that is not constant."""
        return (*self.unary, *self.fixed)


@dataclass(frozen=True)
class RegionForm:
    """A form of a region: a function that draws it with unary and binary nodes, and its description.

    `needs` names the kind of `NodeWords` that it requires. With `claim` it is tested only where claimed.
    """

    draw: Callable[["FormDrawing"], Sequence[str]]
    description: str
    needs: str = "one"
    shapes: Callable[[tuple[int, ...]], CaseShape] = tuple
    claim: str = ""


@dataclass(eq=False)
class FormDrawing(GraphSketch):
    """A sketch with a choice of nodes that a target accepts."""

    shape: CaseShape = ()
    one: str = ""
    other: str = ""
    third: str = ""
    both: str = ""

    def add_shaped_input(self, name: str = "x") -> str:
        """Add an input of the drawing's shape."""
        return self.add_input(name, self.shape)

    def add_unary(self, reads: str, makes: str) -> str:
        """Add a node of one operand."""
        return self.add_node(self.one, makes, x=reads)

    def add_other_unary(self, reads: str, makes: str) -> str:
        """Add a node of one operand and another operator, where there is one."""
        return self.add_node(self.other, makes, x=reads)

    def add_binary(self, reads: str, also: str, makes: str) -> str:
        """Add a node of two operands."""
        return self.add_node(self.both, makes, x=reads, z=also)


def _draw_chain(d: FormDrawing) -> Sequence[str]:
    return [d.add_other_unary(d.add_unary(d.add_shaped_input(), "a"), "y")]


def _draw_outputs(d: FormDrawing) -> Sequence[str]:
    d.add_unary(d.add_shaped_input(), "a")
    d.add_other_unary("a", "b")
    d.add_node(d.third, "c", x="a")
    return ["c", "a", "b"]


def _draw_read_inside(d: FormDrawing) -> Sequence[str]:
    d.add_unary(d.add_shaped_input(), "a")
    return [d.add_other_unary("a", "y"), "a"]


def _draw_input_twice(d: FormDrawing) -> Sequence[str]:
    x = d.add_shaped_input()
    return [d.add_binary(x, d.add_unary(x, "a"), "y")]


def _draw_same_operand(d: FormDrawing) -> Sequence[str]:
    x = d.add_shaped_input()
    return [d.add_binary(x, x, "y")]


def _draw_inputs(d: FormDrawing) -> Sequence[str]:
    return [
        d.add_binary(
            d.add_binary(d.add_shaped_input("z9"), d.add_shaped_input("a1"), "c"),
            d.add_shaped_input("m5"),
            "y",
        )
    ]


def _draw_shared_constant(d: FormDrawing) -> Sequence[str]:
    d.shared = ("w",)
    return [d.add_unary(d.add_unary(d.add_shaped_input(), "a"), "y"), "a"]


def _draw_unused_output(d: FormDrawing) -> Sequence[str]:
    d.add_node(d.one, "y, n", x=d.add_shaped_input())
    return ["y"]


def _draw_computed_constant(d: FormDrawing) -> Sequence[str]:
    """Draw a constant that is computed from another one."""
    d.add_node(d.one, "y", x=d.add_shaped_input())
    node = d.nodes.pop()
    d.add_node("Identity(x)", "computed", x=node.input[1])
    node.input[1] = "computed"
    d.nodes.append(node)
    return ["y"]


def _draw_plain(d: FormDrawing) -> Sequence[str]:
    return [d.add_unary(d.add_shaped_input(), "y")]


def _draw_large_constant(d: FormDrawing) -> Sequence[str]:
    """Draw a node with a constant that lies in a file. Raises ValueError for one that has a small one.

    Weights do not grow with the input, so that there are more of them.
    """
    for small, large in _LARGE_WEIGHTS.items():
        d.one = d.one.replace(small, large)
    outputs = _draw_plain(d)
    if max(value.nbytes for value in d.constants.values()) < _IN_FILE:
        raise ValueError("its constants are small")
    return outputs


def _batched_shape(shape: tuple[int, ...]) -> CaseShape:
    return ("N", *shape[1:])


def _large_shape(shape: tuple[int, ...]) -> CaseShape:
    return (*shape[:-2], 96, 96)


FORMS: Mapping[str, RegionForm] = MappingProxyType(
    {
        "chain": RegionForm(_draw_chain, "two nodes, one after the other"),
        "several outputs": RegionForm(
            _draw_outputs, "three outputs of one shape, not in the order of the nodes"
        ),
        "an output read inside": RegionForm(
            _draw_read_inside, "an output that the region itself reads as well"
        ),
        "an input read twice": RegionForm(_draw_input_twice, "an input that two nodes read", "binary"),
        "an operand twice": RegionForm(
            _draw_same_operand, "a node both of whose operands are the input", "binary"
        ),
        "several inputs": RegionForm(
            _draw_inputs, "three inputs whose order is not that of their names", "binary"
        ),
        "a shared constant": RegionForm(
            _draw_shared_constant, "a constant that two nodes read", "fixed"
        ),
        "a computed constant": RegionForm(
            _draw_computed_constant, "a constant that a node makes of another", "fixed"
        ),
        "a large constant": RegionForm(
            _draw_large_constant,
            "a constant of at least 2 KiB, in a file of its own",
            "fixed",
            _large_shape,
        ),
        "an unused output": RegionForm(
            _draw_unused_output, "a node one of whose outputs nobody reads", "two"
        ),
        "scalars": RegionForm(_draw_plain, "tensors of rank 0", shapes=lambda shape: ()),
        "empty tensors": RegionForm(
            _draw_plain, "tensors without elements", shapes=lambda s: (0, *s[1:])
        ),
        "a dynamic batch": RegionForm(
            _draw_chain, "a first extent that varies", shapes=_batched_shape, claim="dynamic_batch"
        ),
    }
)


def draw_form(name: str, words: NodeWords, seed: int = 0) -> Iterator[Case]:
    """Yield a form drawn with a target's nodes, in all choices of these.

    Another `seed` than 0 gives the same forms with other names and constants.
    """
    form = FORMS[name]
    binary = words.binary if form.needs == "binary" else ("",)
    ones = {"fixed": words.fixed, "two": _TWO_OUTPUTS}.get(form.needs, words.one_operand)
    for both in binary:
        for one in ones:
            others = [word for word in words.one_operand if word != one] or [one]
            shape = form.shapes(words.shape)
            extents = "x".join(map(str, shape))
            unary = one.replace("SHAPE", extents)
            drawing = FormDrawing(words.dtype, seed=seed, shape=shape, one=unary, both=both)
            drawing.other = others[0].replace("SHAPE", extents)
            third = next(
                (word for word in (*words.fixed, *others[1:]) if word not in (one, others[0])), one
            )
            drawing.third = third.replace("SHAPE", extents)
            try:
                case = drawing.build_case(name, form.draw(drawing))
                yield _rename_tensors(case, f"other{seed}_") if seed else case
            except Exception:  # a node does not support the shape; onnx raises various exceptions
                continue


def _rename_tensors(case: Case, prefix: str) -> Case:
    """Return a case whose tensors and nodes have other names."""
    inputs = {f"{prefix}{name}": value for name, value in (case.inputs or {}).items()}
    return Case(case.name, onnx.compose.add_prefix(case.model, prefix), inputs)


def list_node_choices(shape: tuple[int, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, node, model) for each node to choose from.

    The kind is `unary`, `fixed` or `binary`; the model is in the notation of `parse_one_node`.
    """
    extents = "x".join(map(str, shape))
    for kind, texts in (("unary", (*UNARY, *POOL)), ("fixed", FIXED), ("binary", BINARY)):
        inputs = f"x:{extents} z:{extents}" if kind == "binary" else f"x:{extents}"
        for text in texts:
            yield kind, text, f"{inputs} | {text.replace('SHAPE', extents)}"
