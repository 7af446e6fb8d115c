"""Regions as operations, and emitters as tables of functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import cut, original, ramp
from helpers.support import parse

from byoc.bundle import open_bundle
from byoc.codegen import (
    Artifact,
    CompileError,
    Emitters,
    Executor,
    NoOptions,
    Operation,
    Region,
    ResourceError,
)
from byoc.onnxrt import open_session, run_session
from byoc.pipeline import partition

RULES = """
target: acme
codegen: odd
cost_model: dla
dtype: float32
{layout}
ops:
  - op: [Conv, MaxPool, Relu, Sigmoid, Add, Mul, Softmax, Split]
composites:
  - name: conv_act
    pattern: |
      c = Conv(x, w, b?)
      y = Relu|Sigmoid(c)
"""


def regions(
    model: onnx.ModelProto, folder: Path, layout: str = "", verify: bool = False
) -> list[Region]:
    """Return the regions that a model has on an accelerator that takes what RULES list."""
    (folder / "acme.yaml").write_text(RULES.format(layout=layout))
    partition(
        model,
        folder / "acme.yaml",
        output=folder / "b",
        strategy="all-supported",
        codegen="reference",
        verify=verify,
    )
    return [region for _, region, _ in open_bundle(folder / "b").regions()]


def convolution(*values: onnx.TensorProto) -> onnx.ModelProto:
    model = parse(
        "g (float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) {"
        " [conv] c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w, b) [act] r = Sigmoid(c)"
        " [pool] p = MaxPool<kernel_shape = [1, 1]>(r) [add] y = Add(p, e) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(ramp(4, 3, 3, 3), "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(ramp(4), "b"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(ramp(4, 1, 1), "e"))
    return model


def test_operations_are_decoded_with_defaults(tmp_path: Path) -> None:
    (region,) = regions(convolution(), tmp_path)
    call, pool, add = region.operations()
    assert (call.composite, call.domain, call.name) == ("conv_act", "byoc.acme", "act")
    assert call.op == "conv_act_Sigmoid" or call.op.startswith("conv_act")
    assert (call.inputs, call.outputs, call.constants) == (("x", "w", "b"), ("r",), ("w", "b"))
    assert call.attributes == {
        **{"c_auto_pad": "NOTSET", "c_dilations": [1, 1], "c_group": 1, "c_kernel_shape": [3, 3]},
        **{"c_pads": [1, 1, 1, 1], "c_strides": [2, 2]},
    }
    assert (pool.name, pool.op, pool.composite, pool.domain) == ("pool", "MaxPool", "", "")
    assert (pool.inputs, pool.outputs, pool.constants) == (("r",), ("p",), ())
    assert pool.attributes == {
        **{"auto_pad": "NOTSET", "ceil_mode": 0, "dilations": [1, 1], "kernel_shape": [1, 1]},
        **{"pads": [0, 0, 0, 0], "storage_order": 0, "strides": [1, 1]},
    }
    assert (add.constants, add.attributes, add.inner) == (("e",), {}, ())
    assert [operation.node for operation in (call, pool, add)] == list(region.nodes)


def test_composites_have_what_is_inside(tmp_path: Path) -> None:
    (region,) = regions(convolution(), tmp_path)
    conv, act = region.operations()[0].inner
    assert (conv.op, conv.inputs, conv.outputs) == ("Conv", ("x", "w", "b"), ("r/c",))
    assert conv.attributes["strides"] == [2, 2]
    assert conv.attributes["group"] == 1
    assert conv.constants == ("w", "b")
    assert (act.op, act.inputs, act.outputs, act.attributes) == ("Sigmoid", ("r/c",), ("r",), {})


def test_an_output_that_a_call_leaves_out_and_its_function_reads_has_a_name(tmp_path: Path) -> None:
    (region,) = regions(convolution(), tmp_path)
    (function,) = region.model.functions
    function.output.append(function.node[0].output[0])
    region.nodes[0].output.append("")
    conv, act = region.operations()[0].inner
    assert conv.outputs == act.inputs != ("",)


def test_an_input_that_is_left_out_is_an_empty_name(tmp_path: Path) -> None:
    model = convolution()
    model.graph.node[0].input.pop()
    del model.graph.initializer[1]
    (region,) = regions(model, tmp_path)
    call = region.operations()[0]
    assert [name for name in call.inputs if name] == ["x", "w"]
    assert [name for name in call.inner[0].inputs if name] == ["x", "w"]


def test_what_is_computed_of_constants_is_a_constant(tmp_path: Path) -> None:
    wide = ramp(4, 400)
    model = parse(
        "g (float[4, 1] x) => (float[4, 400] y) <float[1] h = {0.5}> {"
        " t = Transpose<perm = [1, 0]>(w) s = Exp(h) a = Mul(x, s) y = Add(a, t) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(wide.T), "w"))
    (region,) = regions(model, tmp_path)
    mul, add = region.operations()
    assert (mul.op, mul.inputs, mul.constants) == ("Mul", ("x", "s"), ("s",))
    assert (add.op, add.constants) == ("Add", ("t",))
    np.testing.assert_array_equal(region.constant("t"), wide)
    np.testing.assert_allclose(region.constant("s"), np.exp(np.float32([0.5])), 1e-6)
    assert {op.op for op in region.operations(fold=False)} == {"Transpose", "Exp", "Mul", "Add"}
    with pytest.raises(KeyError, match=rf"{region.name} has no constant 'x', it has: "):
        region.constant("x")


def test_conversions_at_the_border_are_in_the_contracts_alone(tmp_path: Path) -> None:
    (region,) = regions(convolution(), tmp_path, "layout: {activations: NHWC, weights: OHWI}")
    assert [op.op for op in region.operations()][1:] == ["MaxPool", "Add"]
    first, last = region.operations()[0], region.operations()[-1]
    assert (region.inputs[0].inner, region.outputs[0].inner) == (first.inputs[0], last.outputs[0])
    assert (region.inputs[0].name, region.inputs[0].layout) == ("x_NHWC", "NHWC")
    assert region.constant("w").shape == (4, 3, 3, 3)
    whole = region.operations(boundary=True)
    assert [op.op for op in whole] == ["Transpose", first.op, "MaxPool", "Add", "Transpose"]
    assert (whole[0].inputs, whole[-1].outputs) == ((region.inputs[0].name,), (region.outputs[0].name,))
    assert whole[0].attributes == {"perm": [0, 3, 1, 2]}


def test_every_region_of_blocks_begins_and_ends_at_inner(tmp_path: Path) -> None:
    (region,) = regions(convolution(), tmp_path, "layout: {activations: NCHW16c}")
    made = {name for op in region.operations() for name in op.outputs}
    known = {contract.inner for contract in region.inputs}
    for operation in region.operations():
        assert {name for name in operation.inputs if name} <= known | {*operation.constants}
        known |= {*operation.outputs}
    assert {contract.inner for contract in region.outputs} <= made


def table() -> Emitters[str]:
    """Return a table that writes operations in words."""
    emit: Emitters[str] = Emitters()

    @emit.op("MaxPool", "Add")
    def plain(operation: Operation, unit: str = "") -> str:
        return f"{unit}{operation.op} {operation.outputs[0]}"

    @emit.composite("conv_act")
    def fused(operation: Operation, unit: str = "") -> str:
        return f"{unit}conv and {operation.inner[1].op}"

    return emit


def test_each_operation_is_handed_to_its_function(tmp_path: Path) -> None:
    (region,) = regions(convolution(), tmp_path)
    assert table()(region) == ["conv and Sigmoid", "MaxPool p", "Add y"]
    assert table()(region, "u0: ") == ["u0: conv and Sigmoid", "u0: MaxPool p", "u0: Add y"]


def test_what_has_no_function_is_told_with_its_nodes(tmp_path: Path) -> None:
    (region,) = regions(convolution(), tmp_path)
    called: list[str] = []
    emit: Emitters[None] = Emitters()
    emit.op("Conv", "Sigmoid", "conv_act", "MaxPool")(lambda operation: called.append(operation.op))
    with pytest.raises(CompileError) as caught:
        emit(region)
    assert str(caught.value) == "no code is emitted for conv_act, Add (act, add)"
    assert caught.value.nodes == ("act", "add")
    assert called == []


def test_operators_of_another_domain_go_by_it(tmp_path: Path) -> None:
    (region,) = regions(convolution(), tmp_path)
    node = onnx.helper.make_node("Add", ["a"], ["b"], domain="com.acme")
    operation = Operation("b", "Add", "", "com.acme", ("a",), ("b",), {}, (), node)
    emit: Emitters[str] = Emitters()
    function = emit.op("com.acme.Add")(lambda operation: "theirs")
    assert emit.find(operation) is function
    assert emit.find(region.operations()[-1]) is None
    assert table().find(operation) is None


@pytest.mark.parametrize("kind", [CompileError, ResourceError])
def test_a_function_that_refuses_names_the_node(kind: type[CompileError], tmp_path: Path) -> None:
    (region,) = regions(convolution(), tmp_path)
    own: Emitters[str] = Emitters()
    own.composite("conv_act")(lambda operation: "")
    own.op("MaxPool")(lambda operation: "")

    @own.op("Add")
    def add(operation: Operation) -> str:
        raise kind("no adder")

    with pytest.raises(kind, match=r"^no adder$") as caught:
        own(region)
    assert caught.value.nodes == ("add",)


def test_two_functions_for_one_operator_are_a_mistake() -> None:
    emit = table()
    with pytest.raises(ValueError, match="there are two functions for Add"):
        emit.op("Add")(lambda operation: "")


@dataclass
class Machine:
    """An emitter's context: closures in order, over a memory of arrays."""

    region: Region
    steps: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)


compute: Emitters[None] = Emitters()


@compute.op("Mul")
def _mul(operation: Operation, machine: Machine) -> None:
    one, other = operation.inputs
    (out,) = operation.outputs
    machine.steps.append(lambda memory: memory.update({out: memory[one] * memory[other]}))


@compute.op("Softmax")
def _softmax(operation: Operation, machine: Machine) -> None:
    ((given,), (out,)) = operation.inputs, operation.outputs
    axis = operation.attributes["axis"]

    def step(memory: dict[str, Any]) -> None:
        powers = np.exp(memory[given] - memory[given].max(axis, keepdims=True))
        memory[out] = powers / powers.sum(axis, keepdims=True)

    machine.steps.append(step)


@compute.op("Split")
def _split(operation: Operation, machine: Machine) -> None:
    count = len(operation.outputs)
    axis = operation.attributes["axis"]
    machine.steps.append(
        lambda memory: memory.update(
            zip(operation.outputs, np.split(memory[operation.inputs[0]], count, axis), strict=True)
        )
    )


class Computes:
    """Compiles nothing, and runs by the table."""

    name = "odd"
    Options = NoOptions

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        compute(region, Machine(region))
        return Artifact()

    def load(self, region: Region, artifact: Artifact) -> Executor:
        machine = Machine(region)
        compute(region, machine)
        names = {name for operation in region.operations() for name in operation.constants}
        constants = {name: region.constant(name) for name in names}

        def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            memory = {**constants, **inputs}
            for step in machine.steps:
                step(memory)
            return {value.name: memory[value.name] for value in region.outputs}

        return run


MIXED = """
g (float[2, 6] x) => (float[2, 3] y, float[2, 3] z) <float[1] half = {0.5}> {
  h = Exp(half)
  a = Mul(x, h)
  p, q = Split<axis = 1>(a)
  y = Softmax(p)
  z = Softmax<axis = 0>(q)
}"""


def test_a_table_runs_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, odd=Computes)
    (tmp_path / "acme.yaml").write_text(RULES.format(layout=""))
    model = parse(MIXED)
    result = partition(model, tmp_path / "acme.yaml", output=tmp_path / "b", strategy="all-supported")
    assert result.verification is not None
    assert result.verification.passed
    (entry,) = open_bundle(tmp_path / "b").manifest.regions
    assert entry.codegen == "odd"


def test_load_can_put_bodies_in_the_place_of_composites(tmp_path: Path) -> None:
    model = convolution()
    (region,) = regions(model, tmp_path)
    flat = region.load(inline=True)
    assert [node.op_type for node in flat.graph.node] == ["Conv", "Sigmoid", "MaxPool", "Add"]
    assert not flat.functions
    given = {"x": ramp(1, 3, 8, 8)}
    made = run_session(open_session(flat), given)
    np.testing.assert_allclose(made["y"], original(model, given)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fold", [False, True])
def test_load_converts_to_what_a_compiler_reads(fold: bool, tmp_path: Path) -> None:
    model = convolution()
    (region,) = regions(model, tmp_path, "layout: {activations: NHWC, weights: OHWI}")
    given = {"x": ramp(1, 3, 8, 8)}
    inputs = {"x_NHWC": given["x"].transpose(0, 2, 3, 1)}
    for opset, ir_version in ((13, 7), (13, None), (21, 10), (None, 9)):
        converted = region.load(fold, opset=opset, ir_version=ir_version)
        onnx.checker.check_model(converted, full_check=True)
        assert not converted.functions
        assert converted.opset_import[0].version == opset or opset is None
        assert converted.ir_version == ir_version or ir_version is None
        made = run_session(open_session(converted), inputs)
        (found,) = made.values()
        expected = original(model, given)["y"].transpose(0, 2, 3, 1)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_converted_is_refused_with_its_node(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[2] y, float[2] z) { [cut] y, z = Split(x) }"
    (region,) = regions(parse(text), tmp_path)
    with pytest.raises(
        CompileError, match=r"^Split 'cut' cannot be converted to operator set 9: "
    ) as caught:
        region.load(opset=9)
    assert caught.value.nodes == ("cut",)
    with pytest.raises(CompileError, match="its operator sets need IR version 8 to"):
        region.load(ir_version=4)


def test_a_refusal_names_codegen_region_and_keeps_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit: Emitters[None] = Emitters()
    vendors.install(monkeypatch, odd=vendors.compiles(emit))
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { [twice] a = Add(x, x) y = Relu(a) }")
    with pytest.raises(CompileError) as caught:
        cut(model, tmp_path / "b", codegen="odd", verify=False)
    assert str(caught.value) == "codegen odd: dla_0: no code is emitted for Add, Relu (twice, y)"
    assert caught.value.nodes == ("twice", "y")
