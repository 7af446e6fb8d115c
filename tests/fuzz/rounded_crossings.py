"""The original model, rounded where a cut rounds it, and nowhere else.

onnxruntime has no kernel in 16-bit floats for most operators. It computes in float32, and what lies
between two of them is not rounded (docs/boundary.md), not even by a Cast. What crosses between two parts
of a cut model is, as its type says. No bound on the difference would do: a comparison behind it makes a
step of a unit in the last place. So the original runs with these tensors as inputs, too, and what it
computes for them is fed to it again, until it stays the same.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from byoc.model import prepare_model
from byoc.planning import Plan
from byoc.runtime._program_builder import find_steps

_ROUNDED = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
Run = Callable[[ModelProto, Mapping[str, Any]], Mapping[str, Any]]


def run_rounded(
    model: ModelProto, plan: Plan, inputs: Mapping[str, Any], run: Run
) -> tuple[Mapping[str, Any], int]:
    """Return the outputs of the original with what crosses in a plan rounded, and how many tensors do.

    `run` returns the outputs of a model. The tensors are those of the main graph, whose nodes must have
    distinct names.
    """
    outputs = [value.name for value in model.graph.output]
    fed, crossing = _feed_crossings(model, plan)
    whole = ModelProto()
    whole.CopyFrom(model)
    whole.graph.output.extend(value for value in crossing if value.name not in outputs)
    found = run(whole, inputs)
    for _ in range(len(crossing) + 1):
        before = {value.name: found[value.name] for value in crossing}
        found = run(fed, {**inputs, **{_name_fed(name): before[name] for name in before}})
        if all(np.asarray(found[n]).tobytes() == np.asarray(v).tobytes() for n, v in before.items()):
            return {name: found[name] for name in outputs}, len(crossing)
    raise AssertionError("each run makes one tensor more right, and yet the last one changed some")


def _feed_crossings(model: ModelProto, plan: Plan) -> tuple[ModelProto, list[onnx.ValueInfoProto]]:
    """Return the model in which other parts read 16-bit tensors from inputs, and these tensors.

    So they do what a Cast makes of one: onnxruntime leaves out no Cast that gives an output.
    """
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    kinds = {value.name: value for value in (*inferred.value_info, *inferred.output)}
    makers = {name: node for node in model.graph.node for name in node.output}
    short = {name for name, value in kinds.items() if value.type.tensor_type.elem_type in _ROUNDED}
    short |= {n for n, node in makers.items() if node.op_type == "Cast" and node.input[0] in short}
    parts = find_parts(plan)
    fed = ModelProto()
    fed.CopyFrom(model)
    found: dict[str, onnx.ValueInfoProto] = {}
    for node in fed.graph.node:
        for place, name in enumerate(node.input):
            if name in short & makers.keys() and parts.get(makers[name].name) != parts.get(node.name):
                found[name] = kinds[name]
                node.input[place] = _name_fed(name)
    outputs = [value.name for value in model.graph.output]
    fed.graph.output.extend(value for name, value in found.items() if name not in outputs)
    for name, value in found.items():
        fed.graph.input.append(helper.make_value_info(_name_fed(name), value.type))
    return fed, list(found.values())


def _name_fed(tensor: str) -> str:
    return f"{tensor}.rounded"


def find_parts(plan: Plan) -> Mapping[str, str]:
    """Return the region or segment of the host that computes a node of the main graph, by its name."""
    names = {region.name for region in plan.regions}
    functions = {f.name: f for f in plan.proto.functions if f.name in names}
    parts = {node.name: name for name, function in functions.items() for node in function.node}
    index = prepare_model(plan.proto, "partitioned").index
    calls = {i for i, node in enumerate(index.nodes) if node.op_type in functions}
    controls = {
        i
        for i, bodies in index.bodies.items()
        if any(n.op_type in functions for body in bodies for g in body.index.walk() for n in g.nodes)
    }
    for number, step in enumerate(find_steps(index, calls, controls)):
        parts.update((index.nodes[i].name, f"host_{number}") for i in step.nodes if i not in calls)
    return parts
