"""Bisection: the first operation at fault is named, and the written model shows it alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.support import parse
from interpreting import bundle_of, interpreter, only, operators, right
from onnx import ModelProto, NodeProto

from byoc.codegen import read_region
from byoc.errors import InputError
from byoc.model import parse_layout
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.samples import read_npz
from byoc.verification import Fault, bisect_region, read_thresholds, rerun_fault, write_fault

NET = """
net (float[1, 2, 6, 6] x) => (float[1, 2, 6, 6] y)
<float[2, 2, 1, 1] w = {1, 2, 3, 4}, float[2, 2, 3, 3] v = {0.5, 1, -1, 2, 0.25, -2, 1, 0, 3, 1, 1, -1,
  2, 0.5, -2, 1, 0, 1, 0.5, 1, -1, 2, 0.25, -2, 1, 0, 3, 1, 1, -1, 2, 0.5, -2, 1, 0, 1}> {
  a = Conv(x, w)
  b = Abs(a)
  c = Conv <pads = [1, 1, 1, 1]> (b, v)
  d = Add(c, b)
  e = Mul(d, x)
  f = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (e)
  g = Sub(f, d)
  y = Relu(g)
}
"""


def larger(value: Any) -> Any:
    """A tenth of the range off in one element: what a wrong kernel does at a corner."""
    spoilt = value.copy()
    spoilt.flat[-1] += np.ptp(value) / 10 + 1
    return spoilt


def bisect_model(model: str | ModelProto, folder: Path, **options: Any) -> Fault:
    proto = parse(model) if isinstance(model, str) else model
    bundle = bundle_of(proto, folder, **options)
    return bisect_region(bundle, bundle.manifest.regions[0].name)


def shows_alone(fault: Fault, folder: Path) -> None:
    """Assert that what is written shows it: plain onnxruntime gives what is expected, codegen not."""
    write_fault(fault, folder)
    model = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(model)
    given, expected = read_npz(folder / "inputs.npz"), read_npz(folder / "expected.npz")
    with without_optimizations():
        made = run_session(open_session(model), given)
    assert list(made) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(made[name], value)
    actual = read_npz(folder / "actual.npz")
    assert any(not np.array_equal(expected[name], actual[name]) for name in expected)
    told, region = rerun_fault(folder, None)
    assert told.operation == fault.operation
    assert not region.within
    assert f"byoc verify {folder.name}\n" in (folder / "README.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e", "f", "g"])
def test_any_one_operation_of_a_region(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, wrong=interpreter(only(name, larger)))
    fault = bisect_model(NET, tmp_path)
    made_by = {node.output[0]: node.op_type for node in parse(NET).graph.node}
    assert (fault.operation, fault.op, fault.operations) == (name, made_by[name], (name,))
    assert operators(fault.trial.part.model) == [made_by[name]]
    assert fault.trial_count <= 6, "by halves: 8 operations, the whole, and the one alone"
    shows_alone(fault, tmp_path / "fault")


def test_openvino_37264_compiles_clean_and_every_answer_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """openvinotoolkit/openvino issue 37264: no refusal, no warning, wrong numbers; one op is enough."""

    def spoil(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
        return [value * 1.5 for value in made] if node.op_type == "Mul" else made

    vendors.install(monkeypatch, wrong=interpreter(spoil))
    fault = bisect_model(NET, tmp_path)
    assert (fault.op, fault.operation, fault.is_joint) == ("Mul", "e", False)
    assert fault.worst.relative > 0.1
    shows_alone(fault, tmp_path / "fault")


def wrong_if_fused(*ops: str) -> Callable[[NodeProto, ModelProto, list[Any]], Sequence[Any]]:
    """Make a function that changes the last operator of a chain of operators."""

    def spoil(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
        makers = {name: each for each in model.graph.node for name in each.output}
        current: NodeProto | None = node
        for op in reversed(ops):
            if current is None or current.op_type != op:
                return made
            current = makers.get(current.input[0])
        return [larger(value) for value in made]

    return spoil


@pytest.mark.parametrize(
    ("ops", "names"),
    [(("Conv", "Add"), ("c", "d")), (("Add", "Mul", "MaxPool"), ("d", "e", "f"))],
)
def test_what_is_wrong_only_together(
    ops: tuple[str, ...], names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, wrong=interpreter(wrong_if_fused(*ops)))
    fault = bisect_model(NET, tmp_path)
    assert fault.operations == names
    assert (fault.operation, fault.is_joint) == (names[-1], True)
    assert f"and right alone: together with '{names[0]}'" in str(fault)
    shows_alone(fault, tmp_path / "fault")


def test_the_second_of_two_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    g (float[1, 4] x) => (float[1, 2] y, float[1, 2] z) {
      a = Abs(x)
      b, c = Split <axis = 1, num_outputs = 2> (a)
      y = Relu(b)
      z = Neg(c)
    }"""
    vendors.install(monkeypatch, wrong=interpreter(only("b", larger, position=1)))
    fault = bisect_model(parse(text, ir=9, opset=18), tmp_path)
    assert (fault.op, fault.operations) == ("Split", ("b",))
    assert [(e.name, e.within) for e in fault.trial.errors] == [("b", True), ("c", False)]
    assert fault.worst.name == "c"
    shows_alone(fault, tmp_path / "fault")


def test_a_codegen_that_refuses_small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is inconclusive: the smallest accepted part is reported."""
    vendors.install(monkeypatch, wrong=interpreter(only("d", larger), least=3))
    fault = bisect_model(NET, tmp_path)
    assert len(fault.operations) == 3
    assert "d" in fault.operations
    shows_alone(fault, tmp_path / "fault")


def test_parts_have_the_layout_that_the_region_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = "target: npu\ncost_model: dla\ndtype: float32\n"
    rules += "layout: {activations: NHWC, weights: OHWI}\nops:\n"
    rules += "  - op: [Conv, Relu, Add, Mul, Sub, Abs, MaxPool]\n"
    vendors.install(monkeypatch, wrong=interpreter(only("c", larger)))
    fault = bisect_model(NET, tmp_path, rules=rules)
    assert (fault.operation, fault.operations) == ("c", ("c",))
    assert operators(fault.trial.part.model) == ["Transpose", "Conv", "Transpose"]
    shows_alone(fault, tmp_path / "fault")
    weights = parse_layout("OHWI")
    region = read_region(tmp_path / "fault" / "model.onnx", "npu_0", "npu", None, weights)
    borders = (*region.inputs, *region.outputs)
    assert [(c.inner, c.layout, c.type.shape) for c in borders] == [
        ("b", "NHWC", (1, 6, 6, 2)),
        ("c", "NHWC", (1, 6, 6, 2)),
    ]
    assert region.constant("v").shape == (2, 3, 3, 2)


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("a", ["Transpose", "Transpose", "Conv", "Transpose"]),
        ("y", ["Transpose", "Relu", "Transpose", "Transpose"]),
    ],
)
def test_parts_transpose_what_the_region_transposes(
    name: str, ops: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = "kind: roofline\nname: npu\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\n"
    costs += "overhead: 1.0e-8\nlaunch: 1.0e-8\nlink: {bandwidth: 1.0e+12, latency: 1.0e-8}\n"
    (tmp_path / "costs.yaml").write_text(costs)
    rules = f"target: npu\ncost_model: {tmp_path}/costs.yaml\ndtype: float32\n"
    rules += "layout: {activations: NHWC, convert: either}\nops:\n"
    rules += "  - op: [Conv, Relu, Add, Mul, Sub, Abs, MaxPool, Transpose]\n"
    vendors.install(monkeypatch, wrong=interpreter(only(name, larger)))
    fault = bisect_model(NET, tmp_path, rules=rules)
    assert (fault.operation, fault.operations) == (name, (name,))
    assert operators(fault.trial.part.model) == ops
    shows_alone(fault, tmp_path / "fault")
    region = read_region(tmp_path / "fault" / "model.onnx", "npu_0", "npu", None, None)
    borders = [each for each in (*region.inputs, *region.outputs) if each.inner in ("x", "y")]
    assert [(c.layout, c.type.shape, c.converts) for c in borders] == [
        ("", (1, 2, 6, 6), {"layout": "device"})
    ]


def test_a_composite_is_taken_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, wrong=interpreter(only("b", lambda value: value + 1)))
    text = """
    g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) <float[2, 2, 1, 1] w = {1, 2, 3, 4}> {
      a = Conv(x, w)
      b = Relu(a)
      c = Mul(b, x)
      y = Relu(c)
    }"""
    rules = (
        "target: npu\ncost_model: dla\ndtype: float32\nops:\n  - op: [Conv, Relu, Mul]\ncomposites:\n"
    )
    rules += "  - name: conv_relu\n    pattern: |\n      c = Conv(x, w, b?)\n      y = Relu(c)\n"
    fault = bisect_model(text, tmp_path, rules=rules)
    assert (fault.op, fault.operation, fault.inside) == ("conv_relu", "b", "a, b")
    assert "conv_relu 'b' is the first operation that is off (it is a, b)" in str(fault)
    shows_alone(fault, tmp_path / "fault")


def test_a_region_in_the_body_of_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is right in the first trips, so that what reaches it in a later one is what shows the fault."""
    text = """
    g (float[1, 4] x) => (float[1, 4] y) <int64 trips = {4}, bool go = {1}> {
      y = Loop(trips, go, x) <body = body
        (int64 i, bool go_in, float[1, 4] v) => (bool go_out, float[1, 4] w) {
        go_out = Identity(go_in)
        a = Abs(v)
        b = Add(a, a)
        w = Tanh(b)
      }>
    }"""

    def spoil(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
        return [larger(v) if v.max() > 1.7 else v for v in made] if node.op_type == "Add" else made

    vendors.install(monkeypatch, wrong=interpreter(spoil))
    bundle = bundle_of(parse(text), tmp_path)
    (name,) = [region.name for region in bundle.manifest.regions]
    inputs = {"x": np.array([[0.1, 0.2, 0.3, 0.4]], np.float32)}
    fault = bisect_region(bundle, name, inputs)
    assert (fault.op, fault.operations) == ("Add", ("b",))
    assert fault.trial.part.inputs["a"].max() > 0.85, "not the first trip's 0.4"
    assert fault.trial.expected["b"].max() > 1.7


def test_the_one_that_is_the_same_as_an_earlier_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
    g (float[1, 4] x) => (float[1, 4] y) {
      a = Abs(x)  b = Neg(a)  c = Tanh(b)  d = Abs(c)  y = Neg(d)
    }"""

    def spoil(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
        return [larger(v) for v in made] if node.op_type == "Neg" else made

    vendors.install(monkeypatch, wrong=interpreter(spoil))
    bundle = bundle_of(parse(text), tmp_path)
    assert bundle.identical_regions == {"npu_1": "npu_0"}
    assert [bisect_region(bundle, name).operation for name in ("npu_0", "npu_1")] == ["b", "y"]


def test_the_options_that_the_bundle_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of the rule file, which the bundle does not need any longer."""
    seen: list[Mapping[str, str]] = []
    base = interpreter(only("a", larger))

    class Noting(base):  # type: ignore[misc, valid-type]
        def compile(self, region: Any, options: Mapping[str, str]) -> Any:
            seen.append(dict(options))
            return super().compile(region, options)

    vendors.install(monkeypatch, wrong=Noting)
    rules = "target: npu\ncost_model: dla\ndtype: float32\ncodegen: wrong\n"
    rules += "codegen_options: {speed: 5}\nops:\n  - op: [Abs, Neg]\n"
    text = "g (float[1, 4] x) => (float[1, 4] y) { a = Abs(x) y = Neg(a) }"
    fault = bisect_model(text, tmp_path, rules=rules, codegen_options={"npu:mode": "fast"})
    wanted = {"speed": "5", "mode": "fast"}
    assert len(seen) > 1
    assert all(options == wanted for options in seen)
    write_fault(fault, tmp_path / "f")
    rerun_fault(tmp_path / "f", None)
    assert seen[-1] == wanted


def test_what_is_not_off_has_nothing_to_narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, wrong=interpreter(right))
    bundle = bundle_of(parse(NET), tmp_path)
    with pytest.raises(
        InputError, match=r"^region npu_0 is not off on these inputs, nor on special values$"
    ):
        bisect_region(bundle, "npu_0")
    with pytest.raises(InputError, match=r"no region 'npu_7'; there are: npu_0$"):
        bisect_region(bundle, "npu_7")


def test_what_is_off_is_what_the_thresholds_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, wrong=interpreter(only("d", lambda v: v + np.ptp(v) / 1000)))
    bundle = bundle_of(parse(NET), tmp_path)
    assert bisect_region(bundle, "npu_0").operation == "d"
    with pytest.raises(InputError, match="is not off"):
        bisect_region(bundle, "npu_0", thresholds=read_thresholds({"float32": "0.1"}))


def test_an_artifact_that_is_not_what_the_codegen_makes_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stale:
        name = "wrong"
        made = b"old"

        def compile(self, region: Any, options: Any) -> Any:
            return vendors.Artifact({"version": self.made})

        def load(self, region: Any, artifact: Any) -> Any:
            old = artifact.files["version"] == b"old"
            session = open_session(region.path)
            return lambda given: {k: v + np.float32(old) for k, v in run_session(session, given).items()}

    vendors.install(monkeypatch, wrong=Stale)
    bundle = bundle_of(parse(NET), tmp_path)
    Stale.made = b"new"
    with pytest.raises(InputError, match=r"npu_0 is right when it is compiled again: its artifact in"):
        bisect_region(bundle, "npu_0")


def test_a_codegen_that_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, compileonly=vendors.CompileOnly)
    bundle = bundle_of(parse(NET), tmp_path, codegen="compileonly")
    sentence = (
        r"^region npu_0: codegen compileonly cannot run here what it compiles \(it has no `load`\)"
    )
    with pytest.raises(InputError, match=sentence):
        bisect_region(bundle, "npu_0")


def test_only_a_fault_is_ever_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, wrong=interpreter(only("c", larger)))
    fault = bisect_model(NET, tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(InputError, match="there is something else than a fault"):
        write_fault(fault, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    write_fault(fault, tmp_path / "f")
    write_fault(fault, tmp_path / "f")
    assert rerun_fault(tmp_path / "f", None)[0].operation == "c"
    (tmp_path / "f" / "model.onnx").unlink()
    (tmp_path / "f" / "model.onnx").symlink_to(tmp_path / "mine" / "thesis.txt")
    with pytest.raises(InputError, match="a link that leads out of its folder"):
        write_fault(fault, tmp_path / "f")
    (tmp_path / "g").symlink_to(tmp_path / "f")
    with pytest.raises(InputError, match="it is a link"):
        write_fault(fault, tmp_path / "g")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}'])
def test_what_is_no_fault(text: str, tmp_path: Path) -> None:
    (tmp_path / "fault.json").write_text(text)
    with pytest.raises(InputError, match=r"fault\.json: not a fault of byoc verify: "):
        rerun_fault(tmp_path)


def test_no_more_is_read_of_a_fault_than_is_allowed(tmp_path: Path) -> None:
    with (tmp_path / "fault.json").open("wb") as file:
        file.truncate((1 << 24) + 1)
    with pytest.raises(InputError, match=r"fault\.json: not a fault of byoc verify: it has more than"):
        rerun_fault(tmp_path)
