"""Several models of one operator as one model, and how exact its outputs must be."""

from collections.abc import Iterable, Iterator, Sequence

import onnx
from attribute_cases import AttributeCase
from onnx import compose, helper
from value_cases import ValueCase

from byoc.rules import ArithmeticClause

Case = ValueCase | AttributeCase
BATCH = 60
FORMS = ("variables", "later constant", "empty")
TOLERANCES = {"float16": (4e-3, 1e-3), "bfloat16": (2.0**-6, 1e-2)}  # of other floats (1e-5, 1e-6)

UNDEFINED = ArithmeticClause(op=("MaxPool",), nan="any")
"""NaN is padding to onnx.reference, and onnxruntime's kernels differ; test_c_values.py has it."""


def group_cases(cases: Iterable[Case], most: int = BATCH) -> Iterator[list[Case]]:
    """Yield cases in groups of one operator set, without those of texts."""
    groups: dict[object, list[Case]] = {}
    for case in cases:
        values = (*case.inputs.values(), *case.expected.values())
        if all(value.dtype.kind not in "OSU" for value in values):
            opsets = tuple((each.domain, each.version) for each in case.model.opset_import)
            groups.setdefault(opsets, []).append(case)
    for group in groups.values():
        yield from (group[start : start + most] for start in range(0, len(group), most))


def find_limits(case: Case) -> tuple[float, float]:
    """Return how far off the outputs of a case may be, relative and absolute."""
    if isinstance(case, AttributeCase):
        return case.rtol, case.atol
    return TOLERANCES.get(case.dtype, (1e-5, 1e-6))


def join_models(cases: Sequence[Case]) -> onnx.ModelProto:
    """Return one model of several, with names of theirs behind `k0_`, `k1_`."""
    graphs = [compose.add_prefix(case.model, f"k{i}_").graph for i, case in enumerate(cases)]
    graph = helper.make_graph(
        [node for each in graphs for node in each.node],
        "values",
        [value for each in graphs for value in each.input],
        [value for each in graphs for value in each.output],
        [tensor for each in graphs for tensor in each.initializer],
    )
    return helper.make_model(graph, opset_imports=cases[0].model.opset_import, ir_version=10)
