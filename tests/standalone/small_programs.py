"""Models that tests export: a small one, and one of all forms of the recurrent operators.

What a recurrent operator makes is written out here: onnx.reference knows one direction and no lengths,
and onnxruntime no layout of batches first.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from byoc.memory import arena

WEIGHTS = ", ".join(f"{number % 7 - 3}" for number in range(54))
SMALL = f"""net (float[1, 2, 6, 6] x) => (float[1, 3, 6, 6] y) <float[3, 2, 3, 3] k = {{{WEIGHTS}}}> {{
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Relu(a)
    c = Sigmoid(b)
    y = Add(b, c)
}}"""


@contextmanager
def planning_quickly() -> Iterator[None]:
    """Search an arena for a tenth of a second: no test asks for the best of a hundred steps."""
    with pytest.MonkeyPatch.context() as patch:
        quick = partial(arena.plan_buffers, time_limit=0.1)
        patch.setattr("byoc.standalone._program_steps.plan_buffers", quick)
        yield


STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
WAYS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_OWN = {
    "LSTM": ({}, {"clip": 0.4}, {"input_forget": 1}, {"clip": 0.3, "input_forget": 1}),
    "GRU": ({}, {"linear_before_reset": 1}, {"clip": 0.4}, {"clip": 0.4, "linear_before_reset": 1}),
    "RNN": ({}, {"clip": 0.4}, {"activations": ["Relu"]}, {"activations": ["Sigmoid"]}),
}
Arrays = dict[str, np.ndarray]


def list_forms() -> Iterator[tuple[str, str, int, bool, bool, Mapping[str, object]]]:
    """Yield operator, direction, layout, whether lengths and peepholes are given, and attributes."""
    for op in GATES:
        for direction, layout, lengths, peep in itertools.product(
            WAYS, (0, 1), (False, True), (False, True)
        ):
            if op == "LSTM" or not peep:
                for own in _OWN[op]:
                    yield op, direction, layout, lengths, peep, own


class RecurrentModel:
    """Forms of the recurrent operators, one of so many: each node's weights and states are its own."""

    def __init__(self, every: int = 1) -> None:
        self.random = np.random.default_rng(9)
        self.graph = onnx.GraphProto(name="recurrent")
        self.inputs: Arrays = {}
        self.expected: Arrays = {}
        self.read("x0", (STEPS, BATCH, INPUTS))
        self.read("x1", (BATCH, STEPS, INPUTS))
        self.inputs["x1"][:] = self.inputs["x0"].swapaxes(0, 1)
        self.inputs["lengths"] = np.array([5, 1, 3], np.int32)
        given = helper.make_tensor_value_info("lengths", TensorProto.INT32, [BATCH])
        self.graph.input.append(given)
        for form in itertools.islice(list_forms(), 0, None, every):
            self.add(*form)

    def read(self, name: str, shape: tuple[int, ...]) -> str:
        """Add an input."""
        self.inputs[name] = self.random.standard_normal(shape).astype(np.float32)
        self.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def store(self, *shape: int) -> np.ndarray:
        """Return a new constant of the model."""
        value = (self.random.standard_normal(shape) / 2).astype(np.float32)
        name = f"w{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(value, name))
        return value

    def add(  # noqa: PLR0917 - a form has as many parts
        self,
        op: str,
        direction: str,
        layout: int,
        has_lengths: bool,
        peep: bool,
        own: Mapping[str, object],
    ) -> None:
        """Add a node and what it makes."""
        ways, gates = WAYS[direction], GATES[op]
        number, count = len(self.graph.node), len(ways)
        shapes = [
            (count, gates * HIDDEN, INPUTS),
            (count, gates * HIDDEN, HIDDEN),
            (count, 2 * gates * HIDDEN),
        ]
        names, values = [], []
        for shape in shapes:
            values.append(self.store(*shape))
            names.append(self.graph.initializer[-1].name)
        states: list[np.ndarray | None] = [None, None]
        given = [f"x{layout}", *names, "lengths" if has_lengths else ""]
        if number % 2:  # with states before the first step
            shape = (count, BATCH, HIDDEN) if layout == 0 else (BATCH, count, HIDDEN)
            for at in range(2 if op == "LSTM" else 1):
                state = self.store(*shape)
                states[at] = state if layout == 0 else state.swapaxes(0, 1)
                given.append(self.graph.initializer[-1].name)
        holes = np.zeros((count, 3 * HIDDEN), np.float32)
        if peep:
            given += [""] * (7 - len(given))
            holes = self.store(count, 3 * HIDDEN)
            given.append(self.graph.initializer[-1].name)
        attributes = dict(own)
        if "activations" in own:
            attributes["activations"] = list(own["activations"]) * count  # type: ignore[call-overload]
        made = [
            f"{kind}{number}_{op}_{direction}" for kind in ("y", "h", "c")[: 3 if op == "LSTM" else 2]
        ]
        self.graph.node.append(
            helper.make_node(
                op, given, made, direction=direction, hidden_size=HIDDEN, layout=layout, **attributes
            )
        )
        lengths = self.inputs["lengths"] if has_lengths else np.full(BATCH, STEPS)
        results = [
            run_way(op, turned, lengths, [v[at].astype(float) for v in values], holes[at].astype(float),
                    [None if s is None else s[at].astype(float) for s in states], attributes,
                    self.inputs["x0"].astype(float))
            for at, turned in enumerate(ways)
        ]  # fmt: skip
        whole = [
            np.stack(each, axis=1 if at == 0 else 0)
            for at, each in enumerate(zip(*results, strict=True))
        ]
        turned = [(2, 0, 1, 3), (1, 0, 2), (1, 0, 2)]  # batches first
        for name, value, axes in zip(made, whole, turned, strict=False):
            laid = value.transpose(axes) if layout else value
            self.expected[name] = np.array(laid, np.float32, order="C")
            self.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, laid.shape))

    def build(self) -> onnx.ModelProto:
        """Return the model."""
        return helper.make_model(self.graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def run_way(  # noqa: PLR0917 - as the operator has
    op: str,
    turned: bool,
    lengths: np.ndarray,
    values: list[np.ndarray],
    holes: np.ndarray,
    states: list[np.ndarray | None],
    attributes: Mapping[str, object],
    x: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Y, Y_h and Y_c of one direction, [step][batch][hidden], by the formulas of ONNX."""
    w, r, b = values
    y = np.zeros((STEPS, BATCH, HIDDEN))
    last = [np.zeros((BATCH, HIDDEN)) if s is None else s.copy() for s in states]
    limit = attributes.get("clip", np.inf)

    def clip(value: np.ndarray) -> np.ndarray:
        return np.clip(value, -limit, limit)  # type: ignore[operator]

    wb, rb = np.split(b, 2)
    for item in range(BATCH):
        h, c = last[0][item], last[1][item]
        order = range(int(lengths[item]))
        for step in reversed(order) if turned else order:
            g, s = w @ x[step, item] + wb, r @ h + rb
            if op == "RNN":
                name = (attributes.get("activations") or ["Tanh"])[0]  # type: ignore[index]
                function = {"Tanh": np.tanh, "Relu": lambda v: np.maximum(v, 0), "Sigmoid": sigmoid}[
                    name
                ]
                h = function(clip(g + s))
            elif op == "GRU":
                (gz, gr, gh), (sz, sr, sh) = np.split(g, 3), np.split(s, 3)
                z, reset = sigmoid(clip(gz + sz)), sigmoid(clip(gr + sr))
                if attributes.get("linear_before_reset"):
                    new = np.tanh(clip(gh + reset * sh))
                else:
                    rh, rbh = np.split(r, 3)[2], np.split(rb, 3)[2]
                    new = np.tanh(clip(gh + rh @ (reset * h) + rbh))
                h = (1 - z) * new + z * h
            else:
                gi, go, gf, gc = np.split(g + s, 4)
                pi, po, pf = np.split(holes, 3)
                i = sigmoid(clip(gi + pi * c))
                f = 1 - i if attributes.get("input_forget") else sigmoid(clip(gf + pf * c))
                c = f * c + i * np.tanh(clip(gc))
                h = sigmoid(clip(go + po * c)) * np.tanh(c)
            y[step, item] = h
        last[0][item], last[1][item] = h, c
    return y, last[0], last[1]
