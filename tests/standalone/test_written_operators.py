"""If, Loop, Scan and kinds of Attention as programs in C, against ONNX's definition."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.c_libraries import build_library, run_library
from helpers.support import parse
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from small_programs import RecurrentModel

from byoc.errors import InputError
from byoc.standalone import export_c, verify_program

pytest.importorskip("emx_onnx_cgen")
InferenceSession = pytest.importorskip("onnxruntime").InferenceSession
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

COMMAND = ("cc", "-std=c99", "-O1", "-w")
# It has a body in a body, a stored tensor in it, and a tensor of the outer graph that it reads.
BODIES = """net (float[2, 3] x) => (float[2, 3] kept, float[4, 2, 3] rows)
    <int64 count = {4}, bool yes = {1}, bool no = {0}> {
    kept, rows = Loop (count, yes, x) <body = each (int64 i, bool on, float[2, 3] a)
        => (bool go, float[2, 3] b, float[2, 3] row) <float[3] half = {0.5, 0.25, 2.0}> {
        go = Identity (on)
        at = Cast <to = 1> (i)
        scaled = Mul (a, half)
        b = If (no) <then_branch = yes_branch () => (float[2, 3] t) { t = Neg (scaled) },
            else_branch = no_branch () => (float[2, 3] e) { e = Add (scaled, x) }>
        row = Sub (b, at)
    }>
}"""
SCAN = """net (float[3, 2] s) => (float[2] sum, float[2, 3] back) {
    zero = Constant <value = float[2] {0.0, 0.0}> ()
    sum, back = Scan (zero, s) <num_scan_inputs = 1, scan_input_directions = [1],
        scan_output_axes = [-1], scan_output_directions = [1], body = step (float[2] old, float[2] part)
        => (float[2] new, float[2] made) {
        new = Add (old, part)
        made = Exp (new)
    }>
}"""
ENDLESS = """net (float[2] x, bool more, int64 count) => (float[2] y) {
    y = Loop (count, more, x) <body = each (int64 i, bool on, float[2] a) => (bool go, float[2] b) {
        go = Identity (on)
        b = Tanh (a)
    }>
}"""
CHOICES = """net (float[4] x, int64[1] at, bool inner) => (float[1] y, float[4] z)
    <int64[1] zero = {0}> {
    inside = GreaterOrEqual (at, zero)
    y, z = If (inside) <
        then_branch = yes () => (float[1] a, float[4] b) {
            a = Gather <axis = 0> (x, at)
            half = Exp (x)
            b = If (inner) <
                then_branch = deep () => (float[4] c) { c = Mul (half, a) },
                else_branch = flat () => (float[4] d) { s = Sqrt (half)  d = Sub (x, s) }>
        },
        else_branch = no () => (float[1] e, float[4] f) {
            e = ReduceMax <keepdims = 1> (x)
            f = Neg (x)
        }>
}"""
WHILE = """net (float[2] x, int64 asked, bool begins) => (float[2] y, int64 steps)
    <int64 most = {5}, int64 none = {0}, float limit = {40.0}> {
    count = Min (asked, most)
    y, steps = Loop (count, begins, x, none)
    <body = each (int64 i, bool on, float[2] a, int64 n) => (bool go, float[2] b, int64 m)
        <float two = {2.0}, int64 one = {1}> {
        b = Mul (a, two)
        m = Add (n, one)
        top = ReduceMax <keepdims = 0> (b)
        go = Less (top, limit)
    }>
}"""


Arrays = dict[str, np.ndarray]


def run_program(model: onnx.ModelProto, inputs: Arrays, out: Path) -> Arrays:
    """Export a model with outputs of floats, build its program, and run it."""
    export_c(model, output=out)
    library = build_library(out, COMMAND)
    given = [inputs[each.name] for each in model.graph.input]
    return dict(run_library(library, given, make_outputs(model)))


def make_outputs(model: onnx.ModelProto) -> Arrays:
    """Return memory for the outputs of a model."""
    return {
        value.name: np.zeros(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim],
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in model.graph.output
    }


def require_equal(made: Arrays, expected: Arrays) -> None:
    """Require that outputs are right up to the rounding of floats."""
    assert made.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(made[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def compare(model: onnx.ModelProto, inputs: Arrays, out: Path) -> None:
    """Run a model's program, and compare every output with that of the reference."""
    made = run_program(model, inputs, out)
    names = [each.name for each in model.graph.output]
    expected = ReferenceEvaluator(model).run(None, inputs)
    require_equal(made, dict(zip(names, expected, strict=True)))


def test_bodies_that_run_a_known_number_of_times_are_steps(tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(2, 3)).astype(np.float32)

    made = run_program(parse(BODIES), {"x": x}, tmp_path / "out")

    # The reference joins rows of two axes along the first one instead of stacking them.
    kept, rows = x, []
    for step in range(4):
        kept = kept * np.array([0.5, 0.25, 2.0], np.float32) + x
        rows.append(kept - step)
    require_equal(made, {"kept": kept, "rows": np.stack(rows)})


def test_a_scan_reads_from_the_end_and_writes_from_the_end(tmp_path: Path) -> None:
    s = np.random.default_rng(3).normal(size=(3, 2)).astype(np.float32)
    sums = np.cumsum(s[::-1], axis=0)

    made = run_program(parse(SCAN), {"s": s}, tmp_path / "out")

    # The reference knows no Scan from the end.
    require_equal(made, {"sum": sums[-1], "back": np.exp(sums)[::-1].T})


def test_a_body_that_may_run_for_ever_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Loop .* has no function in C: nothing limits its iterations"):
        export_c(parse(ENDLESS), output=tmp_path / "out")
    often = BODIES.replace("count = {4}", "count = {2000}").replace(
        "float[4, 2, 3]", "float[2000, 2, 3]"
    )
    with pytest.raises(InputError, match=r"Loop .* add more than 4096 nodes"):
        export_c(parse(often), output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_computed_condition_runs_one_branch(tmp_path: Path) -> None:
    x = np.array([0.5, -1.0, 2.0, 0.25], np.float32)
    export_c(parse(CHOICES), output=tmp_path / "out")
    library = build_library(tmp_path / "out", COMMAND)

    # A branch that is not chosen would read far outside of memory.
    for at, inner in itertools.product((2, 0, -(2**60)), (True, False)):
        inputs = {"x": x, "at": np.array([at]), "inner": np.array(inner)}
        made = run_library(library, list(inputs.values()), make_outputs(parse(CHOICES)))
        half = np.exp(x)
        first = x[[at]] if at >= 0 else x.max(keepdims=True)
        second = -x if at < 0 else half * x[at] if inner else x - np.sqrt(half)
        require_equal(dict(made), {"y": first, "z": second})


def test_a_loop_ends_when_it_is_told_to(tmp_path: Path) -> None:
    x = np.array([1.5, -1.0], np.float32)
    export_c(parse(WHILE), output=tmp_path / "out")
    library = build_library(tmp_path / "out", COMMAND)
    judge = ReferenceEvaluator(parse(WHILE))

    for asked, begins, scale in itertools.product((-3, 0, 2, 9), (True, False), (1, 10)):
        inputs = {"x": scale * x, "asked": np.array(asked), "begins": np.array(begins)}
        made = run_library(library, list(inputs.values()), make_outputs(parse(WHILE)))
        if asked <= 0 or not begins:  # the reference has no results then
            expected = {"y": scale * x, "steps": np.array(0)}
        else:
            expected = dict(zip(("y", "steps"), judge.run(None, inputs), strict=True))
        require_equal(dict(made), expected)


def test_a_loop_that_runs_no_time_is_its_inputs(tmp_path: Path) -> None:
    """An inner Loop runs as often as the outer one ran before: not at all at first."""
    net = parse("""net (float[2] x) => (float[2] y)
        <int64 two = {2}, int64 three = {3}, bool yes = {1}> {
        y = Loop (two, yes, x) <body = each (int64 i, bool on, float[2] a) => (bool go, float[2] b) {
            go = Identity (on)
            times = Min (i, three)
            b = Loop (times, yes, a) <body = inner (int64 j, bool same, float[2] c)
                => (bool more, float[2] d) {
                d = Add (c, c)
                first = Constant <value = int64[1] {0}> ()
                one = Gather (d, first)
                low = Constant <value = float[1] {100.0}> ()
                more = Less (one, low)
            }>
        }>
    }""")
    compare(net, {"x": np.array([1.0, -2.0], np.float32)}, tmp_path / "out")


@pytest.mark.parametrize("operator", ["GRU", "RNN"])
def test_sequences_of_several_lengths_are_read_in_both_directions(operator: str, tmp_path: Path) -> None:
    gates = {"GRU": 3, "RNN": 1}[operator] * 5
    random = np.random.default_rng(4)
    stored = {
        name: random.normal(scale=0.3, size=size).astype(np.float32)
        for name, size in (("w", (2, gates, 4)), ("r", (2, gates, 5)), ("b", (2, 2 * gates)))
    }
    made = "float[6, 2, 3, 5] y, float[2, 3, 5] h"
    net = parse(f"""net (float[6, 3, 4] x, int32[3] lengths) => ({made}) {{
        y, h = {operator} <hidden_size = 5, direction = "bidirectional"> (x, w, r, b, lengths)
    }}""")
    net.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    x = random.normal(size=(6, 3, 4)).astype(np.float32)
    session = InferenceSession(net.SerializeToString())
    export_c(net, output=tmp_path / "out")
    library = build_library(tmp_path / "out", COMMAND)

    for lengths in ([6, 6, 6], [1, 4, 6], [3, 2, 1]):
        inputs = {"x": x, "lengths": np.array(lengths, np.int32)}
        expected = dict(zip(("y", "h"), session.run(None, inputs), strict=True))
        require_equal(dict(run_library(library, [*inputs.values()], make_outputs(net))), expected)


def test_attention_over_a_window_is_written_out(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    inputs = {name: random.normal(size=(1, 2, 5, 4)).astype(np.float32) for name in "qkv"}
    graph = onnx.GraphProto(name="net")
    for name in inputs:
        graph.input.append(helper.make_tensor_value_info(name, 1, (1, 2, 5, 4)))
    graph.output.append(helper.make_tensor_value_info("y", 1, (1, 2, 5, 4)))
    lengths = numpy_helper.from_array(np.array([4], np.int64), "lengths")
    graph.initializer.append(lengths)
    given = ["q", "k", "v", "", "", "", "lengths"]
    graph.node.append(helper.make_node("Attention", given, ["y"], is_causal=1))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)

    compare(model, inputs, tmp_path / "out")


def test_cuts_steps_back_and_signals_without_a_channel_are_written_out(tmp_path: Path) -> None:
    net = """net (float[4, 5] x, float[2, 64] s) => (float[3, 3] cut, float[3, 7] grown,
        float[4, 3] back, float[2, 5] both, float[2, 13, 9, 2] waves)
        <int64[4] a = {-1, 0, 0, -2}, int64[4] b = {-2, 3, 1, -1}, float fill = {2.5},
        int64[1] axis = {1}, int64[1] start = {-1}, int64[1] end = {-100}, int64[1] step = {-2},
        int64[2] starts = {3, 0}, int64[2] ends = {0, 9}, int64[2] steps = {-2, 1},
        int64[2] axes = {0, 1}, int64 hop = {4}, float[16] w = {ONES}> {
        cut = Pad (x, a)
        grown = Pad (x, b, fill)
        back = Slice (x, start, end, axis, step)
        both = Slice (x, starts, ends, axes, steps)
        waves = STFT (s, hop, w)
    }""".replace("ONES", ", ".join(["1.0"] * 16))
    random = np.random.default_rng(5)
    x, s = (random.normal(size=shape).astype(np.float32) for shape in ((4, 5), (2, 64)))

    made = run_program(parse(net), {"x": x, "s": s}, tmp_path / "out")

    # The reference knows neither negative pads nor signals without a channel.
    frames = np.fft.rfft(np.stack([s[:, at : at + 16] for at in range(0, 49, 4)], axis=1))
    expected = {
        "cut": x[1:, :3],
        "grown": np.pad(x[2:, :4], ((0, 1), (3, 0)), constant_values=2.5),
        "back": x[:, ::-2],
        "both": x[3:0:-2],
        "waves": np.stack([frames.real, frames.imag], axis=-1),
    }
    require_equal(made, expected)


def put_in_body(net: onnx.ModelProto, op: str) -> onnx.ModelProto:
    """Return a model whose nodes are in a body: of an If, or of a Loop or a Scan that runs it twice."""
    graph = net.graph
    names = [value.name for value in graph.output]
    nodes = []
    for node in graph.node:
        copied = onnx.NodeProto()
        copied.CopyFrom(node)
        copied.output[:] = [f"{name}_inner" for name in node.output]
        nodes.append(copied)
    made = [
        helper.make_tensor_value_info(f"{value.name}_inner", TensorProto.FLOAT, None)
        for value in graph.output
    ]
    stored = {
        "yes": np.array(True),
        "two": np.array(2),
        "twice": np.zeros((2, 1), np.float32),
    }
    if op == "If":
        body = helper.make_graph(nodes, "branch", [], made)
        outer = helper.make_node("If", ["yes"], names, then_branch=body, else_branch=body)
    else:
        read = [helper.make_tensor_value_info("item", TensorProto.FLOAT, [1])]
        if op == "Loop":
            read = [
                helper.make_tensor_value_info("turn", TensorProto.INT64, []),
                helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            ]
            nodes.insert(0, helper.make_node("Identity", ["on"], ["go"]))
            made.insert(0, helper.make_tensor_value_info("go", TensorProto.BOOL, []))
        body = helper.make_graph(nodes, "body", read, made)
        given = ["two", "yes"] if op == "Loop" else ["twice"]
        own = {} if op == "Loop" else {"num_scan_inputs": 1}
        outer = helper.make_node(op, given, names, body=body, **own)
        for value in graph.output:
            value.type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=2))
    del graph.node[:]
    graph.node.append(outer)
    used = {name for node in nodes for name in node.input} | {*outer.input}
    graph.initializer.extend(
        numpy_helper.from_array(v, name) for name, v in stored.items() if name in used
    )
    return net


@pytest.mark.parametrize("op", ["If", "Loop", "Scan"])
@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.thorough)])
def test_recurrent_operators_in_bodies(op: str, every: int, tmp_path: Path) -> None:
    """In all directions, with steps and with batches first, by the formulas of ONNX."""
    net = RecurrentModel(every)
    model = put_in_body(net.build(), op)
    expected = {
        name: value if op == "If" else np.stack([value, value]) for name, value in net.expected.items()
    }

    export_c(model, output=tmp_path / "out")

    found = verify_program(tmp_path / "out", "cc -O1 -w")
    assert found.passed, found.problem
    results = {name: np.zeros_like(value) for name, value in expected.items()}
    library = build_library(tmp_path / "out", ("cc", "-std=c99", "-O1", "-w"))
    made = run_library(library, list(net.inputs.values()), results)
    for name, value in expected.items():
        np.testing.assert_allclose(made[name], value, rtol=1e-5, atol=2e-6, err_msg=name)
