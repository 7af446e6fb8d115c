"""Biases of matrix products, which exporters write as sums behind them, joined with the products.

A transformer's linear layer is a MatMul of `[batch, tokens, features]` and an Add. In integers the
product would be rounded before its bias is added, to the scale of a tensor that nothing else reads, and
the sum once more. A Gemm adds the bias to the sums of products before they are rounded, and what
rounding moves the means by can be taken from it. It has two dimensions, so views stand around it, and
around a function behind it, which targets compute with a product.
"""

from collections.abc import Collection, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from byoc.model import (
    EditableGraph,
    GraphIndex,
    Model,
    build_node,
    copy_without,
    get_constant_value,
    is_onnx,
    prepare_model,
)
from byoc.quantization._precision import read_constant
from byoc.samples import model_samples

_MATRIX = 2  # dimensions
_FUNCTIONS = frozenset(
    {"Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Swish", "Tanh"}
)


@dataclass(frozen=True)
class _BiasedProduct:
    """The numbers of a MatMul, of the Add and any function behind it, the bias, and shapes."""

    product: int
    total: int
    function: int | None
    bias: str
    read_shape: tuple[int, ...]
    made_shape: tuple[int, ...]


def join_biases(model: Model) -> Model:
    """Return a model in which products of a matrix and the sum with a bias behind each are one Gemm.

    The shapes of what they read have to be known. A model without such products is returned as it is.
    """
    index = model.index
    found = list(_find_biased(index))
    if not found:
        return model
    graph = EditableGraph.of_index(index)
    joined = {each.product for each in found}
    rows: dict[str, str] = {}  # tensors as matrices, which products share
    for each in found:
        product, total = index.nodes[each.product], index.nodes[each.total]
        read, name = product.input[0], product.name or product.output[0]
        bias = graph.store(
            read_constant(index, each.bias, model.folder).reshape(-1), f"{each.bias}_vector"
        )
        if read not in rows:
            viewed = _find_viewed(index, read)
            source = rows.get(viewed, viewed)
            rows[read] = graph.names.new_tensor(f"{read}_rows")
            shape = [prod(each.read_shape[:-1]), each.read_shape[-1]]
            stored = graph.store(np.asarray(shape), f"{read}_rows_shape")
            view = build_node(
                "Reshape", [source, stored], [rows[read]], graph.names.new_node(f"{name}_rows")
            )
            graph.insert_before(each.product, view)
            if viewed != read and _is_read_by(index, read, joined):
                graph.remove(index.producers[read])
        last = total if each.function is None else index.nodes[each.function]
        made = graph.names.new_tensor(f"{total.output[0]}_rows")
        nodes = [build_node("Gemm", [rows[read], product.input[1], bias], [made], name)]
        if last is not total:
            function = deepcopy(last)
            function.input[0], made = made, graph.names.new_tensor(f"{last.output[0]}_rows")
            function.output[0] = made
            nodes.append(function)
        rows[last.output[0]] = made
        reader = _find_next_view(index, last.output[0])
        if reader is not None:
            other = deepcopy(index.nodes[reader])
            other.input[0] = made
            graph.replace(reader, other)
        elif not _is_read_by(index, last.output[0], joined):
            stored = graph.store(np.asarray(each.made_shape), f"{last.output[0]}_shape")
            view_name = graph.names.new_node(f"{last.name or last.output[0]}_view")
            nodes.append(build_node("Reshape", [made, stored], [last.output[0]], view_name))
        graph.remove(each.product, *({each.total} if last is not total else ()))
        graph.replace(each.total if each.function is None else each.function, *nodes)
    proto = copy_without(model.proto)
    graph.write_to(proto.graph)
    graph.write_stored(proto.graph, graph.list_unread_stored())
    return replace(
        prepare_model(proto, model.source, model.folder),
        lost=model.lost,
        make_samples=partial(model_samples, model),
    )


def _find_viewed(index: GraphIndex, name: str) -> str:
    """Return the tensor that a Reshape views as another one; that other one where none does."""
    number = index.producers.get(name)
    if number is None or index.nodes[number].op_type != "Reshape" or not is_onnx(index.nodes[number]):
        return name
    return index.nodes[number].input[0]


def _is_read_by(index: GraphIndex, name: str, numbers: Collection[int]) -> bool:
    """Return whether some nodes alone read a tensor, as what they multiply."""
    readers = index.consumers.get(name, ())
    return (
        name not in index.outputs
        and bool(readers)
        and all(each in numbers and index.nodes[each].input[0] == name for each in readers)
    )


def _find_next_view(index: GraphIndex, name: str) -> int | None:
    """Return the Reshape that alone reads a tensor, to a shape that is stored and copies no extent."""
    readers = index.consumers.get(name, ())
    if len(readers) != 1 or name in index.outputs:
        return None
    node = index.nodes[readers[0]]
    if node.op_type != "Reshape" or not is_onnx(node) or node.input[0] != name:
        return None
    shape = get_constant_value(index, node.input[1])
    return None if shape is None or 0 in shape else readers[0]


def _find_biased(index: GraphIndex) -> Iterator[_BiasedProduct]:
    """Yield the products by a constant matrix whose result a sum with a bias alone reads."""
    for number, node in enumerate(index.nodes):
        if node.op_type != "MatMul" or not is_onnx(node) or not index.is_constant(node.input[1]):
            continue
        readers = index.consumers.get(node.output[0], ())
        total = index.nodes[readers[0]] if len(readers) == 1 else None
        if (
            total is None
            or total.op_type != "Add"
            or not is_onnx(total)
            or node.output[0] in index.outputs
        ):
            continue
        biases = [name for name in total.input if name != node.output[0] and index.is_constant(name)]
        read, made, columns = (
            _get_extents(index, name) for name in (node.input[0], total.output[0], node.input[1])
        )
        if not biases or not read or not made or not columns or len(columns) != _MATRIX:
            continue
        shape = _get_extents(index, biases[0])
        same = len(read) >= _MATRIX and made == (*read[:-1], columns[-1])
        if same and shape and prod(shape) == shape[-1] == columns[-1]:
            function = _find_function(index, total.output[0])
            yield _BiasedProduct(number, readers[0], function, biases[0], read, made)


def _find_function(index: GraphIndex, name: str) -> int | None:
    """Return the function that alone reads a tensor."""
    readers = index.consumers.get(name, ())
    if len(readers) != 1 or name in index.outputs:
        return None
    node = index.nodes[readers[0]]
    is_function = is_onnx(node) and node.op_type in _FUNCTIONS and len(node.input) == 1
    return readers[0] if is_function else None


def _get_extents(index: GraphIndex, name: str) -> tuple[int, ...]:
    """Return the shape of a float32 tensor; empty where it is not known, or there is none."""
    shape = index.get_shape(name) or ()
    known = tuple(each for each in shape if isinstance(each, int))
    return known if len(known) == len(shape) and index.get_dtype(name) == "float32" else ()
