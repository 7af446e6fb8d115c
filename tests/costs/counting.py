"""Single nodes as models, and what byoc counts of them: for the tests of costs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper

from byoc.costs import Work
from byoc.costs._measured_costs import sum_seconds  # noqa: F401 - for the tests
from byoc.costs._work import count_work
from byoc.costs._work_node import Sizes
from byoc.model import GraphIndex

Shapes = Sequence[str]


def parse_type(text: str) -> tuple[int, list[int | str]]:
    """Return the type of `float16 2 x 3`, of `2 x 3` (float32), of `float32` (a scalar)."""
    first, _, rest = text.strip().partition(" ")
    named = not first[:1].isdigit()
    dims = rest if named else text
    kind = "FLOAT" if not named else {"float32": "FLOAT"}.get(first, first.upper())
    extents = [d.strip() for d in dims.split("x")] if dims.strip() else []
    return getattr(onnx.TensorProto, kind), [int(d) if d.isdigit() else d for d in extents]


def make_index(
    op: str,
    inputs: Shapes,
    outputs: Shapes,
    values: Mapping[int, ArrayLike],
    opset: int,
    **attributes: Any,
) -> GraphIndex:
    """Return the index of a model of one node; an empty type stands for what is left out."""
    domain, _, name = op.rpartition(".")
    names = [f"i{number}" if text else "" for number, text in enumerate(inputs)]
    results = [f"o{number}" if text else "" for number, text in enumerate(outputs)]
    node = helper.make_node(name, names, results, domain=domain, **attributes)
    stored = [numpy_helper.from_array(np.asarray(value), f"i{i}") for i, value in values.items()]
    given = [
        helper.make_tensor_value_info(name, *parse_type(text))
        for i, (name, text) in enumerate(zip(names, inputs, strict=True))
        if text and i not in values
    ]
    made = [
        helper.make_tensor_value_info(name, *parse_type(text))
        for name, text in zip(results, outputs, strict=True)
        if text
    ]
    graph = helper.make_graph([node], "g", given, made, stored)
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=opsets)
    return GraphIndex.of_model(model)


def count(
    op: str,
    inputs: Shapes,
    outputs: Shapes,
    values: Mapping[int, ArrayLike] | None = None,
    opset: int = 22,
    **attributes: Any,
) -> Work:
    """Return the work of one node on tensors of certain types."""
    index = make_index(op, inputs, outputs, values or {}, opset, **attributes)
    return count_work(index, Sizes(index.types), (0,))
