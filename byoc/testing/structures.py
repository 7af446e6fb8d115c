"""Regions of all forms found in networks, drawn with operators that the rules accept."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from byoc.testing.case import Case, Shape, Sketch

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
_TWO = (
    "Split<axis=1>(x)",
    "MaxPool<kernel_shape=[2,2]>(x)",
    "Dropout(x)",
    "TopK(x, k!2)",
)


@dataclass(frozen=True)
class Words:
    """Nodes that a target accepts, as text: of one operand, of two, and of one and a constant."""

    dtype: str
    shape: tuple[int, ...]
    unary: Sequence[str]
    binary: Sequence[str]
    fixed: Sequence[str]

    @property
    def one(self) -> Sequence[str]:
        """All nodes of one operand that is not constant."""
        return (*self.unary, *self.fixed)


@dataclass(frozen=True)
class Form:
    """A form of a region: a function that draws it with unary and binary nodes, and its description.

    `needs` names the kind of `Words` that it requires. With `claim` it is tested only where claimed.
    """

    draw: Callable[["Drawing"], Sequence[str]]
    says: str
    needs: str = "one"
    shapes: Callable[[tuple[int, ...]], Shape] = tuple
    claim: str = ""


@dataclass(eq=False)
class Drawing(Sketch):
    """A sketch with a choice of nodes that a target accepts."""

    shape: Shape = ()
    one: str = ""
    other: str = ""
    third: str = ""
    both: str = ""

    def x(self, name: str = "x") -> str:
        """Add an input of the drawing's shape."""
        return self.input(name, self.shape)

    def u(self, reads: str, makes: str) -> str:
        """Add a node of one operand."""
        return self.add(self.one, makes, x=reads)

    def v(self, reads: str, makes: str) -> str:
        """Add a node of one operand and another operator, where there is one."""
        return self.add(self.other, makes, x=reads)

    def b(self, reads: str, also: str, makes: str) -> str:
        """Add a node of two operands."""
        return self.add(self.both, makes, x=reads, z=also)


def _chain(d: Drawing) -> Sequence[str]:
    return [d.v(d.u(d.x(), "a"), "y")]


def _outputs(d: Drawing) -> Sequence[str]:
    d.u(d.x(), "a")
    d.v("a", "b")
    d.add(d.third, "c", x="a")
    return ["c", "a", "b"]


def _read_inside(d: Drawing) -> Sequence[str]:
    d.u(d.x(), "a")
    return [d.v("a", "y"), "a"]


def _twice(d: Drawing) -> Sequence[str]:
    x = d.x()
    return [d.b(x, d.u(x, "a"), "y")]


def _same_operand(d: Drawing) -> Sequence[str]:
    x = d.x()
    return [d.b(x, x, "y")]


def _inputs(d: Drawing) -> Sequence[str]:
    return [d.b(d.b(d.x("z9"), d.x("a1"), "c"), d.x("m5"), "y")]


def _shared(d: Drawing) -> Sequence[str]:
    d.shared = ("w",)
    return [d.u(d.u(d.x(), "a"), "y"), "a"]


def _unused(d: Drawing) -> Sequence[str]:
    d.add(d.one, "y, n", x=d.x())
    return ["y"]


def _computed(d: Drawing) -> Sequence[str]:
    """Draw a constant that is computed from another one."""
    d.add(d.one, "y", x=d.x())
    node = d.nodes.pop()
    d.add("Identity(x)", "computed", x=node.input[1])
    node.input[1] = "computed"
    d.nodes.append(node)
    return ["y"]


def _plain(d: Drawing) -> Sequence[str]:
    return [d.u(d.x(), "y")]


def _batched(shape: tuple[int, ...]) -> Shape:
    return ("N", *shape[1:])


def _large(shape: tuple[int, ...]) -> Shape:
    return (*shape[:-2], 96, 96)


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "chain": Form(_chain, "two nodes, one after the other"),
        "several outputs": Form(_outputs, "three outputs of one shape, not in the order of the nodes"),
        "an output read inside": Form(_read_inside, "an output that the region itself reads as well"),
        "an input read twice": Form(_twice, "an input that two nodes read", "binary"),
        "an operand twice": Form(_same_operand, "a node both of whose operands are the input", "binary"),
        "several inputs": Form(_inputs, "three inputs whose order is not that of their names", "binary"),
        "a shared constant": Form(_shared, "a constant that two nodes read", "fixed"),
        "a computed constant": Form(_computed, "a constant that a node makes of another", "fixed"),
        "a large constant": Form(_plain, "a constant of 36 KiB, which lies in a file", "fixed", _large),
        "an unused output": Form(_unused, "a node one of whose outputs nobody reads", "two"),
        "scalars": Form(_plain, "tensors of rank 0", shapes=lambda shape: ()),
        "empty tensors": Form(_plain, "tensors without elements", shapes=lambda s: (0, *s[1:])),
        "a dynamic batch": Form(
            _chain, "a first extent that varies", shapes=_batched, claim="dynamic_batch"
        ),
    }
)


def drawn(name: str, words: Words) -> Iterator[Case]:
    """Yield a form drawn with a target's nodes, in all choices of these."""
    form = FORMS[name]
    binary = words.binary if form.needs == "binary" else ("",)
    ones = {"fixed": words.fixed, "two": _TWO}.get(form.needs, words.one)
    for both in binary:
        for one in ones:
            others = [word for word in words.one if word != one] or [one]
            shape = form.shapes(words.shape)
            extents = "x".join(map(str, shape))
            drawing = Drawing(words.dtype, shape=shape, one=one.replace("SHAPE", extents), both=both)
            drawing.other = others[0].replace("SHAPE", extents)
            third = next(
                (word for word in (*words.fixed, *others[1:]) if word not in (one, others[0])), one
            )
            drawing.third = third.replace("SHAPE", extents)
            try:
                yield drawing.case(name, form.draw(drawing))
            except Exception:  # a node does not support the shape; onnx raises various exceptions
                continue


def choices(shape: tuple[int, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, node, model) for each node to choose from.

    The kind is `unary`, `fixed` or `binary`; the model is in the notation of `one_node`.
    """
    extents = "x".join(map(str, shape))
    for kind, texts in (("unary", (*UNARY, *POOL)), ("fixed", FIXED), ("binary", BINARY)):
        inputs = f"x:{extents} z:{extents}" if kind == "binary" else f"x:{extents}"
        for text in texts:
            yield kind, text, f"{inputs} | {text.replace('SHAPE', extents)}"
