"""Rules that type products of matrices, recurrent networks and attention."""

import re
from collections.abc import Sequence

from byoc.errors import InputError
from byoc.model._tensor_types import Dim, TensorType
from byoc.model._walk import describe_node
from byoc.model.inference._elementwise_shapes import (
    Shape,
    Types,
    broadcast_dims,
    broadcast_shapes,
    keep_dtype,
    make_type,
    merge_dims,
)
from byoc.model.inference._extents import add_dims, floor_divide_dims
from byoc.model.inference._known_node import KnownNode, Rule
from byoc.model.inference._node_checks import find_equation_problem


def multiply_shapes(a: Shape, b: Shape) -> Shape:
    """Return the shape of a matrix product as numpy defines it; of a vector an axis is left out."""
    if not a or not b:
        return None
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    batch = broadcast_shapes(a[:-2], b[:-2])
    return None if batch is None else (*batch, *rows, *columns)


def _multiply(node: KnownNode) -> Types:
    return [make_type(keep_dtype(node), multiply_shapes(node.get_shape(0), node.get_shape(1)))]


def _multiply_integers(node: KnownNode) -> Types:
    return [make_type("int32", multiply_shapes(node.get_shape(0), node.get_shape(1)))]


def _multiply_quantized(node: KnownNode) -> Types:
    return [make_type(node.get_dtype(7), multiply_shapes(node.get_shape(0), node.get_shape(3)))]


def _multiply_and_add(node: KnownNode) -> Types:
    sides: list[Dim] = []
    for position, name, axis in ((0, "transA", 0), (1, "transB", 1)):
        shape = node.get_shape(position)
        taken = 1 - axis if node.attributes.get(name, 0) else axis
        sides.append(shape[taken] if shape is not None and len(shape) == 2 else None)
    return [make_type(keep_dtype(node), sides)]


def _sum_products(node: KnownNode) -> Types:
    shapes = [node.get_shape(i) for i in range(len(node.types))]
    equation = node.attributes.get("equation", "")
    ranks = [None if shape is None else len(shape) for shape in shapes]
    problem = find_equation_problem(equation, ranks)
    if problem:
        raise InputError(f"{describe_node(node.proto)}: {problem}")
    return [make_type(keep_dtype(node), infer_einsum(equation, shapes))]


def infer_einsum(equation: str, shapes: Sequence[Shape]) -> Shape:
    """Return the shape of an Einsum, None if the equation is wrong or a rank that matters is unknown."""
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        return None
    dims: dict[str, Dim] = {}
    spread: Shape = ()
    for term, shape in zip(terms, shapes, strict=True):
        before, dots, after = term.partition("...")
        letters = before + after
        if shape is None:
            if dots:
                return None
            for letter in letters:
                dims.setdefault(letter, None)
            continue
        rest = len(shape) - len(letters)
        if rest < 0 or (rest > 0 and not dots):
            return None
        for letter, dim in zip(before, shape, strict=False):
            dims[letter] = broadcast_dims(dims[letter], dim) if letter in dims else dim
        for letter, dim in zip(after, shape[len(before) + rest :], strict=True):
            dims[letter] = broadcast_dims(dims[letter], dim) if letter in dims else dim
        spread = broadcast_shapes(spread, shape[len(before) : len(before) + rest])
    if spread is None:
        return None
    if "->" not in equation:
        once = [letter for letter in sorted(dims) if left.count(letter) == 1]
        right = ("..." if "..." in left else "") + "".join(once)
    if not set(right) - {"."} <= dims.keys():
        return None
    found: list[Dim] = []
    for part in re.findall(r"\.\.\.|[A-Za-z]", right):
        found.extend(spread if part == "..." else [dims[part]])
    return tuple(found)


def _recur(node: KnownNode) -> Types:
    """Return the types of RNN, GRU and LSTM: the outputs of all steps, and the last states."""
    shape, recurrence = node.get_shape(0), node.get_shape(2)
    dtype = node.get_dtype(0)
    directions = 2 if node.attributes.get("direction", "forward") == "bidirectional" else 1
    hidden: Dim = node.attributes.get("hidden_size")
    if hidden is None and recurrence is not None:
        hidden = recurrence[-1]
    steps, batch = (shape[0], shape[1]) if shape is not None and len(shape) == 3 else (None, None)
    state: list[Dim] = [directions, batch, hidden]
    every: list[Dim] = [steps, directions, batch, hidden]
    if node.attributes.get("layout", 0):
        steps, batch = batch, steps
        state, every = [batch, directions, hidden], [batch, steps, directions, hidden]
    last = make_type(dtype, state)
    return [make_type(dtype, every), last, last][: len(node.proto.output)]


def _attend(node: KnownNode) -> Types:
    """Return the types of Attention: its output, the keys and values so far, and the scores."""
    query, key, value = (node.get_shape(i) for i in range(3))
    dtype = node.get_dtype(0)
    if query is None or key is None or value is None or len({len(query), len(key), len(value)}) > 1:
        return [make_type(dtype, None)]
    heads, groups = node.attributes.get("q_num_heads"), node.attributes.get("kv_num_heads")
    past = node.get_shape(4) if node.has_input(4) else (0, 0, 0, 0)
    if len(query) == 4:
        heads, groups = query[1], merge_dims(key[1], value[1])
        shape: list[Dim] = [query[0], heads, query[2], value[3]]
        sequence, size, out = key[2], key[3], value[3]
    elif len(query) == 3 and heads and groups:
        size, out = floor_divide_dims(key[2], groups), floor_divide_dims(value[2], groups)
        shape = [query[0], query[1], None if not isinstance(out, int) else out * heads]
        sequence = key[1]
    else:
        return [make_type(dtype, None)]
    total = add_dims(past[2] if past is not None and len(past) == 4 else None, sequence)
    found = [
        make_type(dtype, shape),
        make_type(node.get_dtype(1), [query[0], groups, total, size]),
        make_type(node.get_dtype(2), [query[0], groups, total, out]),
        make_type(dtype, [query[0], heads, query[-2], total]),
    ]
    return found[: len(node.proto.output)]


def _suppress(node: KnownNode) -> Types:
    """Return the type of NonMaxSuppression: batch, class and box of each that is left."""
    return [TensorType("int64", (None, 3))]


MATRIX_RULES: dict[str, Rule] = {
    "Attention": _attend,
    "Einsum": _sum_products,
    "GRU": _recur,
    "Gemm": _multiply_and_add,
    "LSTM": _recur,
    "MatMul": _multiply,
    "MatMulInteger": _multiply_integers,
    "NonMaxSuppression": _suppress,
    "QLinearMatMul": _multiply_quantized,
    "RNN": _recur,
}
"""Operator of ONNX's main domain to its rule."""
