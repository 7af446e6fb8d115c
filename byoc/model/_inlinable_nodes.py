"""Nodes of a region in forms that onnxruntime reads inside a function.

onnxruntime 1.31 loses the overload (ONNX IR 10) of a call inside another function, and then runs another
body or finds none; and inside a function it knows no type of a sparse initializer of a body.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from math import prod

import numpy as np
from onnx import FunctionProto, GraphProto, SparseTensorProto, TensorProto, numpy_helper

from byoc.errors import InputError
from byoc.model._tensor_types import DTYPES, count_bits
from byoc.model._walk import walk_nodes
from byoc.numerics import sort_topologically

_FunctionKey = tuple[str, str, str]

_MAX_DENSE_BYTES = 1 << 28


def rename_overloads(
    made: Sequence[FunctionProto], functions: Iterable[FunctionProto]
) -> list[FunctionProto]:
    """Give overloads that functions call names of their own: `F` with the overload `a` becomes `F_a`.

    The calls are changed in the functions `made`; the model's own `functions` stay as they are. Returns
    `made` and the renamed copies, those that copies call included. A function comes behind those that it
    calls, since onnx.reference reads them in their order.
    """
    by_key = {(f.domain, f.name, f.overload): f for f in functions}
    taken = {(domain, name) for domain, name, _ in by_key}
    found: dict[_FunctionKey, FunctionProto] = {}
    pending = list(made)
    while pending:
        for node in walk_nodes(pending.pop().node):
            key = (node.domain, node.op_type, node.overload)
            if not node.overload or key not in by_key:
                continue
            if key not in found:
                found[key] = deepcopy(by_key[key])
                found[key].name = _choose_name(key, taken)
                found[key].ClearField("overload")
                pending.append(found[key])
            node.op_type = found[key].name
            node.ClearField("overload")
    return _put_callees_first([*made, *found.values()])


def _put_callees_first(functions: Sequence[FunctionProto]) -> list[FunctionProto]:
    numbers = {(f.domain, f.name, f.overload): i for i, f in enumerate(functions)}
    calls = [
        {(node.domain, node.op_type, node.overload) for node in walk_nodes(function.node)}
        for function in functions
    ]
    order = sort_topologically([[numbers[key] for key in keys & numbers.keys()] for keys in calls])
    return [functions[i] for i in order]


def _choose_name(key: _FunctionKey, taken: set[tuple[str, str]]) -> str:
    domain, name, overload = key
    plain = "".join(c if c.isalnum() else "_" for c in f"{name}_{overload}")
    while (domain, plain) in taken:
        plain += "_"
    taken.add((domain, plain))
    return plain


def make_initializers_dense(graph: GraphProto) -> None:
    """Replace the sparse initializers of a body by dense ones, in place."""
    for sparse in graph.sparse_initializer:
        graph.initializer.append(make_dense(sparse))
    del graph.sparse_initializer[:]


def make_dense(sparse: SparseTensorProto) -> TensorProto:
    """Return a sparse tensor as onnxruntime reads it: all its elements, most of them 0.

    Raises InputError where these take more than 256 MiB: a file of some bytes can state any extents.
    """
    size = prod(sparse.dims) * count_bits(DTYPES[sparse.values.data_type]) // 8
    if size > _MAX_DENSE_BYTES:
        name = sparse.values.name
        raise InputError(f"the sparse initializer '{name}' would take {size:,} bytes with all its zeros")
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim > 1:
        dense[tuple(indices.T)] = values
    else:
        dense.reshape(-1)[indices] = values
    return numpy_helper.from_array(dense, sparse.values.name)
