"""Random models and patterns taken from them, with choices: the partitioned model is valid and the same.

Patterns leave operands open, end in `...`, name inputs as lines are named, stand for any operator, leave
outputs out; models have operators with a few outputs, without operands, and scales that are computed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from helpers.cutting import planned
from helpers.ruling import make_target
from helpers.strategies import Random
from helpers.support import sample_cases
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.model import GraphIndex, Model, get_constant_value, prepare_model
from byoc.patterns import parse_pattern
from byoc.placement import Strategy
from byoc.placement.strategies import AllSupported
from byoc.rules import OpRule, Target
from byoc.samples import sample_inputs
from byoc.verification import run_plain

SHAPE = [1, 4, 3, 3]
ONE, TWO = ("Relu", "Abs", "Neg", "Identity", "Tanh"), ("Add", "Mul", "Sub", "Max")
MANY = ("Sum", "Max", "Min", "Mean")
# What is in a model in many places, in several ways.
WIDE = (
    "ba = *(i1)\nca = *(ba, e1?, e2?)",
    "ba = *(i1)\nca = acme.Op|acme.OP(ba)",
    "ba = *(i1)\nca = Sum|Max|Min|Mean(ba, e1?, e2?)",
    "ca = Sum(i1, e1?, e2?)",
    "ca = Sum(i1, e1?, e2?, e3?)",
    "ca = com.microsoft.FastGelu(i1, e1?)",
    "ba, ca = Split(i1, e1?)\nda = Concat(ba, ca)",
)
QUANTIZED = ("Relu", "Abs", "Neg", "Mul", "Add", "Sum", "Max", "Split")


@dataclass
class Maker:
    """Makes a model; each step adds an operator or a few, whose output has one shape for all."""

    chance: random.Random
    nodes: list[NodeProto] = field(default_factory=list)
    stored: list[TensorProto] = field(default_factory=list)
    made: list[str] = field(default_factory=lambda: ["x0", "x1"])
    values: list[ValueInfoProto] = field(default_factory=list)
    count: int = 0

    def model(self, size: int) -> onnx.ModelProto:
        steps = (self.one, self.two, self.many, self.clip, self.pool, self.top, self.norm, self.dropout)
        steps += (self.conv, self.split, self.quantized, self.scaled, self.function, self.captured)
        steps += (self.acme, self.acme)
        while len(self.nodes) < size:
            self.chance.choice(steps)()
        leaving = self.chance.sample(self.made[2:], min(len(self.made) - 2, self.chance.randint(1, 3)))
        values = [helper.make_tensor_value_info(name, 1, SHAPE) for name in ("x0", "x1", *leaving)]
        graph = helper.make_graph(
            self.nodes, "g", values[:2], values[2:], self.stored, value_info=self.values
        )
        imports = [
            helper.make_opsetid(*entry) for entry in (("", 17), ("com.microsoft", 1), ("acme", 1))
        ]
        own = [
            helper.make_function(
                "acme", name, ["a"], ["b"], [helper.make_node(op, ["a"], ["b"])], imports[:1]
            )
            for name, op in (("Op", "Neg"), ("OP", "Abs"))
        ]
        return helper.make_model(graph, ir_version=8, opset_imports=imports, functions=own)

    def add(self, op: str, inputs: Sequence[str], outputs: int = 1, **more: object) -> list[str]:
        self.count += 1
        names = [f"{op.lower()}{self.count}_{place}" for place in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, names[0], **more))
        return names

    def keep(self, op: str, inputs: Sequence[str], outputs: int = 1, **more: object) -> None:
        self.made.append(self.add(op, inputs, outputs, **more)[0])

    def constant(self, value: object) -> str:
        self.stored.append(numpy_helper.from_array(np.asarray(value), f"k{len(self.stored)}"))
        return self.stored[-1].name

    def pick(self) -> str:
        return self.chance.choice(self.made[-6:])

    def one(self) -> None:
        self.keep(self.chance.choice(ONE), [self.pick()])

    def two(self) -> None:
        self.keep(self.chance.choice(TWO), [self.pick(), self.pick()])

    def many(self) -> None:
        op = self.chance.choice((*MANY, "Sum", "Sum"))
        for count in self.chance.sample((1, 2, 3, 4), 2):
            self.keep(op, [self.pick() for _ in range(count)])

    def clip(self) -> None:
        low, high = self.constant(np.float32(-0.5)), self.constant(np.float32(0.5))
        further: list[str] = self.chance.choice([[], [low], ["", high], [low, high]])
        self.keep("Clip", [self.pick(), *further])

    def pool(self) -> None:
        outputs = self.chance.choice((1, 1, 2))
        self.keep("MaxPool", [self.pick()], outputs, kernel_shape=[3, 3], pads=[1] * 4)

    def top(self) -> None:
        self.keep("TopK", [self.pick(), self.constant(np.array([3]))], 2, axis=-1)

    def norm(self) -> None:
        further = [self.constant(np.full(4, value, np.float32)) for value in (1.1, 0.1, 0.2, 1)]
        trains = self.chance.random() < 0.5
        outputs = 3 if trains else 1
        self.keep("BatchNormalization", [self.pick(), *further], outputs, training_mode=int(trains))

    def dropout(self) -> None:
        self.keep("Dropout", [self.pick()], self.chance.choice((1, 2)))

    def conv(self) -> None:
        weight = self.constant(np.random.default_rng(self.count).random((4, 4, 1, 1), np.float32) - 0.5)
        bias = [self.constant(np.full(4, 0.1, np.float32))] if self.chance.random() < 0.5 else []
        self.keep("Conv", [self.pick(), weight, *bias])

    def split(self) -> None:
        sizes = [self.constant(np.array([2, 2]))] if self.chance.random() < 0.5 else []
        parts = self.add("Split", [self.pick(), *sizes], 2, axis=1)
        self.keep("Concat", self.chance.choice([parts, parts[::-1]]), axis=1)

    def quantized(self) -> None:
        scale = [self.constant(np.float32(0.1)), self.constant(np.int8(0))]
        before = self.add(
            "DequantizeLinear", [*self.add("QuantizeLinear", [self.pick(), *scale]), *scale]
        )
        self.made += before
        for _ in range(self.chance.choice((0, 1, 2))):
            after = self.add(self.chance.choice(ONE), before)
            self.keep("DequantizeLinear", [*self.add("QuantizeLinear", [after[0], *scale]), *scale])

    def scaled(self) -> None:
        scale = [self.constant(np.float32(0.1)), self.constant(np.int8(0))]
        before = self.add(
            "DequantizeLinear", [*self.add("QuantizeLinear", [self.pick(), *scale]), *scale]
        )
        (after,) = self.add("Abs", before)
        again = self.add("DequantizeLinear", [*self.add("QuantizeLinear", [after, *scale]), *scale])
        most = self.add("ReduceMax", again, keepdims=0)
        own = [*self.add("Max", [most[0], scale[0]]), scale[1]]
        self.keep("DequantizeLinear", [*self.add("QuantizeLinear", [after, *own]), *own])

    def acme(self) -> None:
        self.keep(self.chance.choice(("Op", "OP")), [self.pick()], domain="acme")
        self.values.append(helper.make_tensor_value_info(self.made[-1], 1, SHAPE))

    def function(self) -> None:
        bias = [self.constant(np.full(3, 0.1, np.float32))] if self.chance.random() < 0.5 else []
        self.keep("FastGelu", [self.pick(), *bias], domain="com.microsoft")

    def captured(self) -> None:
        bodies = {
            branch: helper.make_graph(
                [helper.make_node(op, [self.pick()], [f"{branch}{self.count}"])],
                branch,
                [],
                [helper.make_tensor_value_info(f"{branch}{self.count}", 1, SHAPE)],
            )
            for branch, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
        }
        self.keep("If", [self.constant(np.array(self.chance.random() < 0.5))], **bodies)


def pattern_of(index: GraphIndex, chance: random.Random) -> str | None:
    """Return some nodes that hang together as a pattern, with choices."""
    possible = set(range(len(index.nodes))) - index.constant_nodes - index.bodies.keys()
    if not possible:
        return None
    chosen = {chance.choice(sorted(possible))}
    for _ in range(chance.randint(0, 5)):
        names = {name for i in chosen for name in (*index.nodes[i].input, *index.nodes[i].output)}
        near = {index.producers[name] for name in names if name in index.producers}
        near |= {
            user for name in names & index.producers.keys() for user in index.consumers.get(name, ())
        }
        if near := (near & possible) - chosen:
            chosen.add(chance.choice(sorted(near)))
    writer = _Writer(index, chance, sorted(chosen))
    lines = [writer.line(number) for number in writer.chosen]
    return "\n".join([*lines, f"return {', '.join(dict.fromkeys(writer.leaving))}"])


@dataclass
class _Writer:
    index: GraphIndex
    chance: random.Random
    chosen: list[int]
    called: dict[str, str] = field(default_factory=dict)
    leaving: list[str] = field(default_factory=list)

    def line(self, number: int) -> str:
        node, own = self.index.nodes[number], f"{'abcdefgh'[self.chosen.index(number)]}a"
        outputs = []
        for place, name in enumerate(node.output):
            users = self.index.consumers.get(name, ())
            if place and not users and name not in self.index.outputs:
                outputs.append("_")
                continue
            outputs.append(own + "b" * place)
            if name in self.index.outputs or not users or not set(self.chosen).issuperset(users):
                self.leaving.append(outputs[-1])
            self.called[name] = outputs[-1]
        while outputs[-1] == "_" and self.chance.random() < 0.6:
            outputs.pop()
        return f"{', '.join(outputs)} = {self.ops(node)}({', '.join(self.operands(node))})"

    def ops(self, node: NodeProto) -> str:
        op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        other = self.chance.choice(("Relu", "Add", "Sum", "Clip"))
        return self.chance.choice((op, op, op, "*", f"{op}|{other}", f"{other}|{op}"))

    def operands(self, node: NodeProto) -> list[str]:
        inputs = list(node.input)
        if node.op_type in MANY and len(inputs) > 1 and self.chance.random() < 0.4:
            inputs = inputs[: self.chance.randint(1, len(inputs) - 1)]
        result = [self.operand(name, place) for place, name in enumerate(inputs)]
        if len(inputs) < len(node.input):
            return [*result, "..."]
        if node.op_type in (*MANY, "Clip", "Split", "FastGelu") and self.chance.random() < 0.4:
            result += [f"e{self.fresh()}?" for _ in range(self.chance.choice((1, 1, 2)))]
        return result

    def fresh(self) -> int:
        self.called[f" {len(self.called)}"] = ""
        return len(self.called)

    def operand(self, name: str, place: int) -> str:
        if not name:
            return f"e{self.fresh()}?"
        known = self.index.is_constant(name)
        if name not in self.called:
            value = get_constant_value(self.index, name) if known else None
            if value is not None and value.size == 1 and value.dtype.kind == "f" and place:
                return repr(value.reshape(-1)[0].item())
            own = self.chance.choice("abcd")
            taken = {self.chance.choice((f"{own}a_{place + 1}", f"{own}a_output_1", f"i{self.fresh()}"))}
            self.called[name] = next(iter(taken - set(self.called.values())), f"i{self.fresh()}")
        elif name in self.index.producers and self.index.producers[name] in self.chosen:
            return self.called[name]
        return self.called[name] + "?" * (place > 0 and self.chance.random() < 0.3)


def target(index: GraphIndex, chance: random.Random) -> Target:
    """Return rules with patterns that the language takes."""
    composites = []
    for number in range(chance.randint(1, 4)):
        text = chance.choice(WIDE) if chance.random() < 0.3 else pattern_of(index, chance)
        try:
            parse_pattern("k", text or "")
        except ValueError:
            continue
        composites.append({"name": f"k{number}", "pattern": text or ""})
    every = OpRule(op=("*",))
    ops = chance.choice([(every,), (OpRule(op=QUANTIZED, quantized=True), every)])
    content = {"target": "t", "cost_model": "dla", "dtype": "any", "ops": ops, "composites": composites}
    return make_target(content)


def strategy(chance: random.Random) -> Strategy:
    return Random(chance.randrange(1000)) if chance.random() < 0.3 else AllSupported()


@pytest.mark.parametrize("part", sample_cases(range(4), 0))
def test_the_partitioned_model_is_valid_and_the_same(part: int) -> None:
    formed = 0
    for seed in range(part * 32, part * 32 + 32):
        chance = random.Random(seed)
        model = prepare_model(Maker(chance).model(chance.randint(2, 16)), "test")
        formed += same(model, target(model.index, chance), strategy(chance), seed)
    assert formed > 8


def same(model: Model, rules: Target, how: Strategy, seed: int) -> int:
    """Assert that a partitioned model computes what the model does; return how many functions it has."""
    inputs = sample_inputs(model.index, seed)
    expected = run_plain(model.proto, model, inputs)
    try:
        plan = planned(model, rules, how)
    except InputError as error:
        assert "both have a function" in str(error), seed  # two composites with a function of one name
        return 0
    onnx.checker.check_model(plan.proto)
    actual = run_plain(plan.proto, model, inputs)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=f"seed {seed}")
    return sum(function.name.startswith("k") for function in plan.proto.functions)
