"""How much of each detector `dla` takes, against a count apart: `python tests/zoo_suite/detectors.py`.

Printed are the operations of a run, by formula from the shapes in onnxruntime's profile; the share that
`dla.yaml` supports by a plain reading of it (`supports` below), which asks byoc nothing; the share that
byoc finds supported (placement `all-supported`); the share that it places by default; and what it
reports of that. Models of the zoo may be named; without names, the five detectors. The exit code is 1
where byoc's support is more than a hundredth off.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

import onnx  # noqa: E402 - needs the path
from data_dependence import find_data_dependence  # noqa: E402
from onnx import GraphProto, NodeProto  # noqa: E402
from operation_counts import count_operations  # noqa: E402
from reference_run import Execution, Key, list_bodies, run_profiled, walk_nodes  # noqa: E402

import byoc  # noqa: E402
from byoc import zoo  # noqa: E402
from byoc.planning import Plan  # noqa: E402

MODELS = ("ssdlite320", "ssd300_vgg16", "retinanet", "fasterrcnn_mobilenet", "detr")
_TOLERANCE = 0.01
_ATTRIBUTES = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """The operations of a detector, and shares of them; `reported` is byoc's own share of the placed."""

    model: str
    operations: int
    supported: float
    accepted: float
    placed: float
    reported: float
    regions: int

    @property
    def passed(self) -> bool:
        """Whether byoc finds supported what a plain reading of the rules does."""
        return abs(self.supported - self.accepted) <= _TOLERANCE


def measure(name: str) -> Row:
    """Return the row of a model of the zoo."""
    plans = [
        byoc.partition(f"zoo:{name}", "dla", strategy=strategy)
        for strategy in ("all-supported", "min-cut")
    ]
    proto = plans[0].plan.model.proto
    nodes = dict(walk_nodes(proto.graph))
    runs = run_profiled(proto, zoo.sample_inputs(name))
    constants = _find_constants(proto.graph, set())
    work = {
        key: sum(count_operations(nodes[key], each) for each in executions)
        for key, executions in runs.items()
        if not constants.issuperset(nodes[key].output)  # what is constant is computed once
    }
    total = sum(work.values())
    counted = sum(work.get(key, 0) for key in find_supported(proto, runs))
    accepted, placed = (sum(work.get(key, 0) for key in _find_placed(each.plan)) for each in plans)
    compute = plans[1].report.compute
    return Row(
        name,
        total,
        counted / total,
        accepted / total,
        placed / total,
        compute.offloaded,
        len(plans[1].plan.regions),
    )


def find_supported(proto: onnx.ModelProto, runs: Mapping[Key, Sequence[Execution]]) -> set[Key]:
    """Return the nodes of a run that `dla.yaml` supports, where data do not decide their shapes."""
    dependent = find_data_dependence(proto).nodes
    constants = _find_constants(proto.graph, set())
    nodes = dict(walk_nodes(proto.graph))
    return {
        key
        for key, executions in runs.items()
        if key not in dependent and supports(nodes[key], executions[0], constants)
    }


def supports(node: NodeProto, run: Execution, constants: set[str]) -> bool:
    """Return whether `dla.yaml` supports a node in float32, given the shapes that it had."""
    rule = _RULES.get(node.op_type)
    if node.domain or rule is None or run.dtypes[:1] != ("float",):
        return False
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    return rule(node, attributes, run, constants)


def _window(attributes: _ATTRIBUTES, largest: int, farthest: int) -> bool:
    kernel = attributes.get("kernel_shape", ())
    dilations = attributes.get("dilations", [1, 1])
    pads = attributes.get("pads", [0] * 4)
    reach = [(size - 1) * dilation for size, dilation in zip(kernel, dilations, strict=True)]
    return (
        len(kernel) == 2
        and all(1 <= size <= largest for size in kernel)
        and all(1 <= stride <= 8 for stride in attributes.get("strides", [1, 1]))
        and all(dilation <= farthest for dilation in dilations)
        and all(0 <= pad <= 15 for pad in pads)
        and attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
        and all(pad <= far for pad, far in zip(pads, reach * 2, strict=True))
    )


def _are_constant(node: NodeProto, positions: Iterable[int], constants: set[str]) -> bool:
    given = [node.input[i] for i in positions if i < len(node.input) and node.input[i]]
    return constants.issuperset(given)


def _conv(node: NodeProto, attributes: _ATTRIBUTES, run: Execution, constants: set[str]) -> bool:
    kernel = attributes.get("kernel_shape", run.inputs[1][2:])
    window = _window({**attributes, "kernel_shape": kernel}, 11, 4)
    return len(run.inputs[0]) == 4 and window and _are_constant(node, (1, 2), constants)


def _pool(node: NodeProto, attributes: _ATTRIBUTES, run: Execution, _: set[str]) -> bool:
    one = len([name for name in node.output if name]) == 1
    return one and len(run.inputs[0]) == 4 and _window(attributes, 16, 1)


def _image(_: NodeProto, __: _ATTRIBUTES, run: Execution, ___: set[str]) -> bool:
    return len(run.inputs[0]) == 4


def _gemm(node: NodeProto, attributes: _ATTRIBUTES, run: Execution, constants: set[str]) -> bool:
    bias = run.inputs[2] if len(run.inputs) > 2 else ()
    fits = not bias or prod(bias) in (1, bias[-1])
    return not attributes.get("transA") and fits and _are_constant(node, (1, 2), constants)


def _matmul(node: NodeProto, _: _ATTRIBUTES, run: Execution, constants: set[str]) -> bool:
    ranks = len(run.inputs[0]) in (2, 3) and len(run.inputs[1]) == 2
    return ranks and _are_constant(node, (1,), constants)


def _normalization(
    node: NodeProto, attributes: _ATTRIBUTES, run: Execution, constants: set[str]
) -> bool:
    plain = not attributes.get("training_mode") and len(run.inputs[0]) == 4
    return plain and _are_constant(node, (1, 2, 3, 4), constants)


def _elements(_: NodeProto, __: _ATTRIBUTES, run: Execution, ___: set[str]) -> bool:
    return len(run.outputs[0]) <= 4 or len(set(run.inputs)) == 1


def _clip(node: NodeProto, _: _ATTRIBUTES, __: Execution, constants: set[str]) -> bool:
    return _are_constant(node, (1, 2), constants)


def _always(_: NodeProto, __: _ATTRIBUTES, ___: Execution, ____: set[str]) -> bool:
    return True


_Rule = Callable[[NodeProto, _ATTRIBUTES, Execution, set[str]], bool]
# Reshape, Flatten and Dropout cost no operations, and are left out.
_RULES: Mapping[str, _Rule] = {
    "Add": _elements,
    "AveragePool": _pool,
    "BatchNormalization": _normalization,
    "Clip": _clip,
    "Conv": _conv,
    "Elu": _always,
    "Gemm": _gemm,
    "GlobalAveragePool": _image,
    "HardSigmoid": _always,
    "HardSwish": _always,
    "LeakyRelu": _always,
    "MatMul": _matmul,
    "MaxPool": _pool,
    "Mul": _elements,
    "Relu": _always,
    "Sigmoid": _always,
    "Sum": _elements,
    "Tanh": _always,
}


def _find_constants(graph: GraphProto, around: set[str]) -> set[str]:
    """Return the tensors of a graph, and of the bodies inside, that do not depend on its inputs."""
    found = {*around, *(tensor.name for tensor in graph.initializer)}
    for node in graph.node:
        bodies = [body for _, _, body in list_bodies(node)]
        for body in bodies:
            found |= _find_constants(body, found)
        if not bodies and found.issuperset(filter(None, node.input)):
            found.update(node.output)
    return found


def _find_placed(plan: Plan) -> set[Key]:
    """Return the nodes of a plan's regions, by the output names that identify them."""
    keys = {node.output[0]: key for key, node in walk_nodes(plan.model.proto.graph)}
    return {
        keys[region.index.nodes[number].output[0]] for region in plan.regions for number in region.nodes
    }


def main(names: Sequence[str]) -> int:
    """Print the table, and return the exit code."""
    heads = ("supported", "byoc finds", "placed", "reported")
    sys.stdout.write(
        f"{'model':<22}{'GFLOP':>8}{''.join(f'{head:>12}' for head in heads)}{'regions':>9}\n"
    )
    wrong = 0
    for name in names:
        row = measure(name)
        wrong += not row.passed
        shares = (row.supported, row.accepted, row.placed, row.reported)
        sys.stdout.write(
            f"{row.model:<22}{row.operations / 1e9:>8.3f}"
            f"{''.join(f'{share:>12.1%}' for share in shares)}{row.regions:>9}\n"
        )
        sys.stdout.flush()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or MODELS))
