"""Random models whose steps are tried as they are made, in scopes of their own: `ScopedGraphMaker`.

Where `MixedGraphMaker` leads tensors of one shape through fixed detours, this one keeps whatever was
made, of any type, rank and extents, sequences among it, and each step takes what fits. A step is run by
onnxruntime before it is kept, so that every value of the model is known: what fails, or becomes NaN or
very large, is left out. A body is made by the same steps on the values of its first trip, and may read
whatever is visible where it stands.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from evaluators import rename_tensor
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from scoped_steps import INTEGERS, StepMaker
from scoped_values import DOMAIN, FLOATS, CannotStepError, Scope, Value

_USUAL = (TensorProto.FLOAT,) * 8 + (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
_DEEPEST = 3
_TRIES = 40


class ScopedGraphMaker(StepMaker):
    """Builds a random model with inputs; the same seed gives the same model."""

    def step(self) -> None:
        """Add one step, or none where forty do not fit."""
        for _ in range(_TRIES):
            scope = self._scope
            before = [len(each) for each in (scope.nodes, scope.made, scope.visible)]
            try:
                self.pick(self._steps())()
            except CannotStepError:
                self._scope = scope
                for kept, size in zip((scope.nodes, scope.made, scope.visible), before, strict=True):
                    del kept[size:]
            else:
                return

    def _steps(self) -> list[Callable[[], object]]:
        steps = [self._unary] * 4 + [self._binary] * 4 + [self._product] * 3 + [self._convolution] * 4
        steps += (
            [self._move] * 5 + [self._reduce] * 2 + [self._compare, self._where, self._cast, self._cast]
        )
        steps += [self._normalize, self._pool, self._pool, self._select, self._shape, self._logic]
        steps += [self._codes] * 3 + [self._integer_product, self._text, self._sequence, self._optional]
        if self._scope.depth < _DEEPEST:
            steps += [self._if, self._if, self._loop, self._scan]
        if not self._scope.is_function:
            steps += [self._call, self._call]
        return steps

    def _optional(self) -> None:
        """An optional, made and asked in one body, since neither evaluator is given one."""
        value = self.find(*FLOATS, *INTEGERS)
        names = [self.fresh() for _ in range(3)]
        given = helper.make_node("Optional", [value.name], names[:1], self.node_name())
        asked = self.pick(("OptionalGetElement", "OptionalHasElement"))
        if self.opset < 15:
            raise CannotStepError
        last = helper.make_node(asked, names[:1], names[1:2], self.node_name())
        dtype = TensorProto.BOOL if asked == "OptionalHasElement" else value.dtype
        bodies = [
            helper.make_graph([given, last], "some", [], [Value(names[1], dtype, None).describe()]),
            helper.make_graph(
                [
                    helper.make_node(
                        "Identity" if dtype == value.dtype else "IsInf", [value.name], names[2:]
                    )
                ]
                if dtype == value.dtype
                else [
                    self._constant_node(
                        names[2], np.array(False), numpy_helper.from_array(np.array(False))
                    )
                ],
                "none",
                [],
                [Value(names[2], dtype, None).describe()],
            ),
        ]
        condition = self._condition()
        self.add("If", [condition.name], then_branch=bodies[0], else_branch=bodies[1])

    # Bodies and functions

    def _condition(self) -> Value:
        flags = [
            v
            for v in self._scope.visible
            if v.dtype == TensorProto.BOOL and v.shape == () and not v.is_sequence
        ]
        if flags and self.chance(0.6):
            return self.pick(flags)  # type: ignore[no-any-return]
        if self.chance(0.3):
            return self.store(np.array(self.chance(0.5)))
        value = self.find(TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32)
        kept = self.add("ReduceMax", [value.name], keepdims=0)[0]
        return self.add(
            "Greater", [kept.name, self.store(self.draw(value.dtype, ()), value.dtype).name]
        )[0]

    @contextmanager
    def _inside(self, formal: Sequence[Value], is_function: bool = False) -> Iterator[Scope]:
        outside = self._scope
        visible = [*formal] if is_function else [*outside.visible, *formal]
        self._scope = Scope(visible, outside.depth + 1, is_function or outside.is_function)
        for value in formal:
            self._values[value.name] = value
        try:
            yield self._scope
        finally:
            self._scope = outside

    def _formal(self, dtype: int, held: Any) -> Value:
        return Value(self.fresh(), dtype, held)

    def _if(self) -> None:
        condition = self._condition()
        with self._inside(()) as one:
            for _ in range(1 + self.below(3)):
                self.step()
        if not one.made:
            raise CannotStepError
        results = [self.pick(one.made) for _ in range(1 + self.below(2))]
        results = list({value.name: value for value in results}.values())
        other_results = []
        with self._inside(()) as other:
            for _ in range(self.below(3)):
                self.step()
            for result in results:
                fitting = [
                    v
                    for v in other.visible
                    if v.dtype == result.dtype and v.is_sequence == result.is_sequence
                ]
                same = [v for v in fitting if v.shape == result.shape]
                chosen = self.pick(same or fitting)
                other_results.append(self.add("Identity", [chosen.name])[0])
        bodies = [self._graph(one, (), results), self._graph(other, (), other_results)]
        if self.chance(0.5):
            bodies.reverse()
        self._share_names(bodies)
        self.add("If", [condition.name], len(results), then_branch=bodies[0], else_branch=bodies[1])

    def _share_names(self, bodies: Sequence[onnx.GraphProto]) -> None:
        """Call a tensor of one branch as one of the other, which no scope forbids."""
        if not self.chance(0.5):
            return
        last = [body.node[-1].output[0] for body in bodies if body.node and body.node[-1].output]
        if len(last) == 2 and last[0] != last[1]:
            rename_tensor(bodies[1], last[1], last[0])

    def _loop(self) -> None:
        carried = [self.find(*FLOATS, *INTEGERS) for _ in range(1 + self.below(2))]
        trips = self.store(np.array(self.pick((0, 1, 2, 3)), np.int64))
        if self.chance(0.3):
            shape = self.find(least=1)
            first = self.store(np.array(0, np.int64)).name
            trips = self.add("Gather", [self.add("Shape", [shape.name])[0].name, first])[0]
        number = self._formal(TensorProto.INT64, np.array(0, np.int64))
        going = self._formal(TensorProto.BOOL, np.array(True))
        states = [self._formal(value.dtype, value.held) for value in carried]
        with self._inside((number, going, *states)) as scope:
            for _ in range(1 + self.below(3)):
                self.step()
            nexts = []
            for state in states:
                found = [v for v in scope.made if _alike(v, state) and v not in nexts]
                if not found:
                    found = [self.add(self.pick(("Identity", "Abs")), [state.name])[0]]
                nexts.append(self.pick(found))
            rest = [v for v in scope.made if not v.is_sequence and v not in nexts]
            stacked = [self.pick(rest)] if rest and self.chance(0.6) else []
            on = self.add("Identity", [going.name])[0]
            if self.chance(0.2):
                few = self.store(np.array(1, np.int64)).name
                on = self.add("Less", [number.name, few])[0]
        body = self._graph(scope, (number, going, *states), (on, *nexts, *stacked))
        go = "" if self.chance(0.3) else self.store(np.array(True)).name
        inputs = [trips.name, go, *(value.name for value in carried)]
        self.add("Loop", inputs, len(nexts) + len(stacked), body=body)

    def _scan(self) -> None:
        rows = self.find(*FLOATS, *INTEGERS, least=1)
        if not rows.shape[0]:
            raise CannotStepError
        state = self.find(*FLOATS, *INTEGERS)
        formal = [self._formal(state.dtype, state.held), self._formal(rows.dtype, rows.held[0])]
        with self._inside(formal) as scope:
            for _ in range(1 + self.below(3)):
                self.step()
            found = [v for v in scope.made if _alike(v, state)]
            after = self.pick(found) if found else self.add("Identity", [formal[0].name])[0]
            rest = [v for v in scope.made if not v.is_sequence and v is not after]
            made = [self.pick(rest)] if rest else [self.add("Identity", [formal[1].name])[0]]
        body = self._graph(scope, formal, (after, *made))
        given = {"scan_input_directions": [1]} if self.chance(0.3) else {}
        self.add("Scan", [state.name, rows.name], 1 + len(made), body=body, num_scan_inputs=1, **given)

    def _graph(self, scope: Scope, formal: Sequence[Value], results: Sequence[Value]) -> onnx.GraphProto:
        described = [value.describe(None) for value in formal]
        shown = [value.describe(None) for value in results]
        return helper.make_graph(scope.nodes, f"g{self.fresh()}", described, shown)

    def _call(self) -> None:
        """Call a function of the model, a new one or one that was called before."""
        if self._functions and self.chance(0.5):
            name = self.pick(list(self._functions))
            inputs = [self.find(value.dtype, rank=len(value.shape)) for value in self._calls[name]]
        else:
            inputs = [self.find(*FLOATS, *INTEGERS) for _ in range(1 + self.below(2))]
            name = self._make_function(inputs)
        function = self._functions[name]
        self.add(f"{DOMAIN}.{name}", [value.name for value in inputs], len(function.output))

    def _make_function(self, inputs: Sequence[Value]) -> str:
        formal = [self._formal(value.dtype, value.held) for value in inputs]
        with self._inside(formal, is_function=True) as scope:
            for _ in range(1 + self.below(3)):
                self.step()
        results = [v for v in scope.made if not v.is_sequence]
        chosen = list({v.name: v for v in (self.pick(results), self.pick(results))}.values())
        name = f"F{len(self._functions)}"
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, 1)]
        names = [[value.name for value in side] for side in (formal, chosen)]
        self._functions[name] = helper.make_function(DOMAIN, name, *names, scope.nodes, imports)
        self._calls[name] = list(inputs)
        return name

    # The whole

    def types(self) -> Mapping[str, int]:
        """Return the element types of all tensors of the model by name, those in bodies too."""
        return {name: value.dtype for name, value in self._values.items()}

    def model(self, size: int) -> tuple[onnx.ModelProto, Mapping[str, NDArray[Any]]]:
        """Return a model of about `size` steps, and values for its inputs."""
        inputs, described = {}, []
        batch = 1 + self.below(3) if self.chance(0.3) else 0
        for _ in range(1 + self.below(3)):
            dtype = (
                self.pick(_USUAL)
                if self.chance(0.7)
                else self.pick((*FLOATS, *INTEGERS, TensorProto.STRING))
            )
            shape = self.extents(self.pick((0, 1, 2, 2, 3, 4, 4, 4)))
            if batch and shape:
                shape = (batch, *shape[1:])
            value = Value(self.fresh(), dtype, self.draw(dtype, shape))
            self._values[value.name] = value
            self._scope.visible.append(value)
            inputs[value.name] = value.held
            shown: list[int | str | None] = [*shape]
            if batch and shape:
                shown[0] = self.pick(("N", "N", None))
            described.append(value.describe(shown))
        if self.chance(0.3):
            self._scope.visible.append(self.store(self.draw(TensorProto.FLOAT, self.extents(2))))
        for _ in range(size):
            self.step()
        return self._finish(described, inputs), inputs

    def _finish(
        self, described: list[onnx.ValueInfoProto], inputs: dict[str, NDArray[Any]]
    ) -> onnx.ModelProto:
        made = [value for value in self._scope.made if value.name]
        made = made or [self._scope.visible[0]]
        chosen = [made[-1], *(self.pick(made) for _ in range(self.below(4)))]
        if self.chance(0.1):
            chosen.append(self.pick([self._values[each.name] for each in described]))
        if self.chance(0.1) and self._constants:
            name = self.pick(
                [n for n, t in self._constants.items() if t.data_type != TensorProto.STRING]
            )
            chosen.append(self._values[name])
        outputs = [
            v.describe(None if v.is_sequence else [None] * len(v.shape))
            for v in {value.name: value for value in chosen}.values()
        ]
        known = self.chance(0.5) and not any(d.dim_param for each in described for d in _dims(each))
        if known:
            outputs = [
                v.describe(None if v.is_sequence else v.shape)
                for v in {value.name: value for value in chosen}.values()
            ]
        stored = [self._constants[name] for name in self._constants]
        if self.chance(0.1) and stored:
            described.append(
                Value(stored[0].name, stored[0].data_type, None).describe(list(stored[0].dims))
            )
        if self.chance(0.2):
            stored.append(numpy_helper.from_array(np.arange(3.0), f"unread {self.fresh()}"))
        graph = helper.make_graph(self._scope.nodes, "scoped", described, outputs, stored)
        model = self._model(graph)
        if self.chance(0.3):
            model = onnx.shape_inference.infer_shapes(model)
        return model


def _alike(one: Value, other: Value) -> bool:
    return (one.is_sequence, one.dtype, one.shape) == (other.is_sequence, other.dtype, other.shape)


def _dims(value: onnx.ValueInfoProto) -> Sequence[Any]:
    return value.type.tensor_type.shape.dim
