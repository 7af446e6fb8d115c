"""Random models of small operators, the nodes in any order that is one."""

import random

import onnx
from onnx import TensorProto, helper

_OPS = ("Relu", "Neg", "Tanh", "Add", "Mul", "Sub")


def random_model(seed: int, size: int) -> onnx.ModelProto:
    """Return a model of two inputs; its nodes have names, and what nobody reads is an output."""
    chance = random.Random(seed)
    tensors = ["x0", "x1"]
    nodes = []
    for number in range(size):
        op = chance.choice(_OPS)
        count = 1 if op in {"Relu", "Neg", "Tanh"} else 2
        reads = [chance.choice(tensors[-5:]) for _ in range(count)]
        nodes.append(helper.make_node(op, reads, [f"t{number}"], f"{op.lower()}_{number}"))
        tensors.append(f"t{number}")
    read = {name for node in nodes for name in node.input}
    outputs = [node.output[0] for node in nodes if node.output[0] not in read]
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x0", "x1")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in outputs],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def shuffled(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return the model with its nodes in another topological order."""
    chance = random.Random(seed)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    waiting = list(model.graph.node)
    made = {value.name for value in model.graph.input} | {""}
    made.update(tensor.name for tensor in model.graph.initializer)
    del result.graph.node[:]
    while waiting:
        ready = [node for node in waiting if made.issuperset(node.input)]
        node = chance.choice(ready)
        waiting.remove(node)
        made.update(node.output)
        result.graph.node.append(node)
    return result
