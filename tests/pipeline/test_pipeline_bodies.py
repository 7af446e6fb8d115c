"""Regions inside the bodies of If, Loop and Scan: formed, their trips counted, run by their codegen."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, parse
from test_pipeline_regressions import COSTS

import byoc
from byoc.codegen import find_codegen
from byoc.model import GraphIndex
from byoc.verification import run_plain

LOOP = """g (float[2] x, int64 n) => (float[2] y, float[k, 2] all)
    <bool yes = {1}, float[2] one = {1, 1}> {
    a = Relu(x)
    y, all = Loop (n, yes, a) <body = b (int64 i, bool c, float[2] v)
            => (bool d, float[2] w, float[2] s) {
        d = Identity(c)
        p = Add(v, one)
        q = Sin(p)
        r = Add(q, a)
        w = Relu(r)
        s = Mul(w, one)
    }>
}"""

IF = """g (float[2] x, bool c) => (float[2] y) {
    a = Relu(x)
    i = If (c) <
        then_branch = t () => (float[2] u) { t0 = Sin(a)\n t1 = Add(t0, x)\n u = Relu(t1) },
        else_branch = e () => (float[2] v) { e0 = Sin(x)\n v = Mul(e0, a) }
    >
    y = Relu(i)
}"""

SCAN = """g (float[2] x, float[3, 2] m) => (float[2] y, float[2, 3] all) {
    y, all = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1],
                   body = b (float[2] v, float[2] row) => (float[2] w, float[2] s) {
        p = Add(v, row)
        q = Sin(p)
        w = Relu(q)
        s = Mul(w, x)
    }> (x, m)
}"""

NESTED = """g (float[2] x, int64 n, bool c) => (float[2] y) <bool yes = {1}> {
    y = Loop (n, yes, x) <body = b (int64 i, bool k, float[2] v) => (bool d, float[2] w) {
        d = Identity(k)
        p = Add(v, x)
        w = If (c) <
            then_branch = t () => (float[2] u) { t0 = Sin(p)\n t1 = Add(t0, v)\n u = Relu(t1) },
            else_branch = e () => (float[2] z) { e0 = Mul(p, x)\n z = Relu(e0) }
        >
    }>
}"""

X = np.array([0.5, -1.25], np.float32)
FEEDS = {
    LOOP: [{"x": X, "n": np.array(n)} for n in (0, 1, 5)],
    IF: [{"x": X, "c": np.array(c)} for c in (True, False)],
    SCAN: [{"x": X, "m": np.arange(6, dtype=np.float32).reshape(3, 2)}],
    NESTED: [{"x": X, "n": np.array(n), "c": np.array(c)} for n in (0, 4) for c in (True, False)],
}


def cut(model: onnx.ModelProto, folder: Path, **options: object) -> byoc.Result:
    """Cut a model for an accelerator that takes Relu, Add and Mul, and no control flow."""
    (folder / "near.yaml").write_text(COSTS, encoding="utf-8")
    (folder / "some.yaml").write_text(
        f"target: npu\ncost_model: {folder / 'near.yaml'}\ndtype: float32\n"
        "ops: [{op: [Relu, Add, Mul]}]\n",
        encoding="utf-8",
    )
    arguments: dict[str, object] = {"strategy": "all-supported", **options}
    return byoc.partition(model, folder / "some.yaml", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", FEEDS, ids=["loop", "if", "scan", "nested"])
def test_regions_form_inside_and_compute_the_same(text: str, tmp_path: Path) -> None:
    model = parse(text)

    result = cut(model, tmp_path, output=tmp_path / "b")

    inside = [graph for graph in result.plan.root.walk() if graph.index.body is not None]
    assert inside
    assert all(graph.regions for graph in inside)
    onnx.checker.check_model(result.model, full_check=True)
    session = byoc.load(tmp_path / "b")
    prepared = byoc.load_model(model)
    for feed in FEEDS[text]:
        expected = run_plain(model, prepared, feed)
        for got in (session(feed), run_plain(result.model, prepared, feed)):
            for name, value in expected.items():
                assert np.array_equal(got[name], value), (name, feed)


def test_the_regions_inside_are_run_by_their_codegen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    kind = type(find_codegen("reference"))
    before = kind.load

    def counted(self: object, region: byoc.Session, artifact: object) -> object:
        run = before(self, region, artifact)
        name = region.name  # type: ignore[attr-defined]
        return lambda inputs: (runs.append(name), run(inputs))[1]

    monkeypatch.setattr(kind, "load", counted)
    result = cut(parse(LOOP), tmp_path, output=tmp_path / "b", verify=False)
    byoc.load(tmp_path / "b")({"x": X, "n": np.array(5)})

    outside = [region.name for region in result.plan.root.regions]
    inside = [region.name for region in result.plan.regions if region.name not in outside]
    assert sorted(runs) == sorted(outside + inside * 5)


def test_trips_are_counted() -> None:
    known = parse(
        LOOP.replace("int64 n) =>", "int64 m) =>").replace("<bool yes", "<int64 n = {7}, bool yes")
    )
    one = byoc.partition(known, VANILLA, strategy="host-only").report
    rough = byoc.partition(parse(LOOP), VANILLA, strategy="host-only").report
    given = byoc.partition(parse(LOOP), VANILLA, strategy="host-only", trips={"y": 7}).report

    assert not any("trips" in note.text for note in one.notes)
    assert "Loop 'y' counts as 8 trips, as their number is not known" in map(str, rough.notes)
    # Five nodes of the body (an Identity is free), at the overhead of the host each, are what one trip
    # more costs, and the few bytes that they move.
    trip = rough.predicted.seconds - one.predicted.seconds
    assert trip == pytest.approx(5 * 2e-6, rel=1e-2)
    assert one.predicted.host_only == pytest.approx(one.predicted.seconds)
    assert given.predicted.to_json() == pytest.approx(one.predicted.to_json())


def test_both_branches_count_half(tmp_path: Path) -> None:
    result = cut(parse(IF), tmp_path)

    halves = [region.trips for region in result.report.regions]
    assert sorted(halves) == [0.5, 0.5, 1, 1]
    assert result.report.nodes.total == 3 + 3 + 2


def test_tvm_15211_an_if_between_regions(tmp_path: Path) -> None:
    """Regions on the condition's side and in the branches must not wait for one another."""
    text = IF.replace("(float[2] x, bool c)", "(float[2] x, float[1] k)").replace(
        "a = Relu(x)", "a = Relu(x)\n k0 = Relu(k)\n c = Cast <to = 9> (k0)"
    )
    cut(parse(text), tmp_path, output=tmp_path / "b")
    session = byoc.load(tmp_path / "b")
    model = byoc.load_model(parse(text))
    for condition in (0, 1):
        feed = {"x": X, "k": np.array([condition], np.float32)}
        assert np.array_equal(session(feed)["y"], run_plain(parse(text), model, feed)["y"])


def test_onnxruntime_31978_a_composite_inside_a_loop(tmp_path: Path) -> None:
    """A fused operator in a body, with weights from around it, is read back and computes."""
    text = """g (float[1, 2, 4, 4] x, int64 n) => (float[1, 2, 4, 4] y)
        <bool yes = {1}, float[2, 2, 1, 1] w = {0.5, -1, 2, 0.25}, float[2] b = {1, -1}> {
        y = Loop (n, yes, x) <body = l (int64 i, bool c, float[1, 2, 4, 4] v)
                => (bool d, float[1, 2, 4, 4] u) {
            d = Identity(c)
            p = Conv <kernel_shape = [1, 1]> (v, w, b)
            u = Relu(p)
        }>
    }"""
    result = byoc.partition(parse(text), VANILLA, strategy="all-supported", output=tmp_path / "b")

    assert result.report.regions[0].composites == {"conv_relu": 1}
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)
    feed = {"x": x, "n": np.array(3)}
    expected = run_plain(parse(text), byoc.load_model(parse(text)), feed)["y"]
    assert np.allclose(byoc.load(tmp_path / "b")(feed)["y"], expected, rtol=1e-6)


def test_indices_know_what_is_around_them() -> None:
    model = parse(LOOP)
    main = GraphIndex.of_model(model)
    (body,) = (index for index in main.walk() if index.body is not None)

    assert body.outer is main
    assert list(body.inputs) == ["i", "c", "v"]
    assert list(body.captured_names) == ["a"]
    assert body.is_constant("one")
    assert not body.is_constant("a")
    assert str(body.types["one"]) == "float32[2]"


def test_a_body_may_use_a_name_again(tmp_path: Path) -> None:
    """What a body calls `w` is its own, though a constant around it is called so, too."""
    text = """g (float[2] x, int64 n) => (float[2] y) <bool yes = {1}, float[2] one = {1, 1}> {
        y = Loop (n, yes, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u) {
            d = Identity(c)
            q = Sin(v)
            p = Add(q, v)
            u = Relu(p)
        }>
    }"""
    model = parse(text)
    model.graph.initializer.add().CopyFrom(onnx.numpy_helper.from_array(X * 9, "p"))
    main = GraphIndex.of_model(model)
    (body,) = (index for index in main.walk() if index.body is not None)

    assert not body.is_constant("p")
    assert body.constant_nodes == frozenset()
    assert list(body.captured_names) == []


def test_a_shape_that_only_the_file_knows_is_not_enforced(tmp_path: Path) -> None:
    """Inference cannot tell the rank of such a Reshape, and what the file says of it is wrong."""
    text = """g (float[2, 3] x, int64[k] s) => (float[2, 3] y) {
        a = Relu(x)
        r = Reshape(a, s)
        y = Relu(r)
    }"""
    model = parse(text)
    result = cut(model, tmp_path, output=tmp_path / "b", verify=False)

    assert result.report.regions[-1].outputs[0].shape == (2, 3)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = byoc.load(tmp_path / "b")({"x": x, "s": np.array([6])})
    assert got["y"].shape == (6,)


def test_a_scan_whose_body_says_no_types(tmp_path: Path) -> None:
    """ONNX lets a body leave out the types of its inputs and outputs: its node's inputs say them."""
    model = parse(SCAN)
    (scan,) = (node for node in model.graph.node if node.op_type == "Scan")
    (body,) = (attribute.g for attribute in scan.attribute if attribute.HasField("g"))
    for value in (*body.input, *body.output):
        value.ClearField("type")
    assert not body.input[0].HasField("type")

    cut(model, tmp_path, output=tmp_path / "b")

    (feed,) = FEEDS[SCAN]
    expected = run_plain(parse(SCAN), byoc.load_model(parse(SCAN)), feed)
    got = byoc.load(tmp_path / "b")(feed)
    assert all(np.array_equal(got[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"nope": 5}, "g: trips of 'nope': no such node; with bodies: y"),
        ({"x": 5}, "g: trips of 'x': no such node; with bodies: y"),
        ({"y": -1}, "g: trips of 'y': -1 is not a number of times"),
        ({"y": "a"}, "trips: {'y': 'a'} is not a mapping of text to a number or None"),
        ({"y": float("nan")}, "g: trips of 'y': nan is not a number of times"),
    ],
)
def test_trips_that_cannot_be(given: dict[str, float], sentence: str) -> None:
    with pytest.raises(byoc.InputError) as caught:
        byoc.partition(parse(LOOP), VANILLA, trips=given)
    assert str(caught.value) == sentence


def test_a_loop_that_may_stop_sooner_is_estimated() -> None:
    text = LOOP.replace("int64 n) =>", "int64 m) =>").replace("<bool yes", "<int64 n = {1024}, bool yes")
    early = text.replace("d = Identity(c)", "k = ReduceMax <keepdims = 0> (v)\n d = Cast <to = 9> (k)")

    known, rough = (
        byoc.partition(parse(t), VANILLA, strategy="host-only").report for t in (text, early)
    )

    assert not any("trips" in note.text for note in known.notes)
    assert "Loop 'y' counts as 8 trips, as their number is not known" in map(str, rough.notes)
    assert known.predicted.seconds > 50 * rough.predicted.seconds


def test_the_parts_of_the_prediction_add_up(tmp_path: Path) -> None:
    predicted = cut(parse(LOOP), tmp_path, trips={"y": 10}).report.predicted
    inside = cut(parse(LOOP), tmp_path, trips={"y": 20}).report.predicted

    for report in (predicted, inside):
        parts = report.execution + report.transfer + report.launch
        assert report.seconds == pytest.approx(parts)
        assert report.execution > 0


def test_the_table_says_where_a_region_is(tmp_path: Path) -> None:
    regions = cut(parse(NESTED), tmp_path).report.regions

    inside = {"y/body", "y/body/w/then_branch", "y/body/w/else_branch"}
    assert {region.graph for region in regions} == inside


def test_no_trips_and_no_shape_stated(tmp_path: Path) -> None:
    """A Loop that never runs gives an empty stack of the right rank, whatever its body says of it."""
    model = parse(
        """g (float[2] x, int64 n) => (float[k, 2] y) <bool yes = {1}> {
            all = Loop (n, yes) <body = b (int64 i, bool c) => (bool d, float[2] s) {
                d = Identity(c)
                r = Relu(x)
                q = Sin(r)
                s = Relu(q)
            }>
            y = Relu(all)
        }"""
    )
    model.graph.node[0].attribute[0].g.output[1].type.tensor_type.ClearField("shape")
    cut(model, tmp_path, output=tmp_path / "b", verify=False)

    session = byoc.load(tmp_path / "b")
    assert session({"x": X, "n": np.array(0)})["y"].shape == (0, 2)
    assert session({"x": X, "n": np.array(3)})["y"].shape == (3, 2)


def test_a_body_that_gives_one_value_twice(tmp_path: Path) -> None:
    model = parse(
        """g (float[2] x, int64 n) => (float[2] y, float[k, 2] all) <bool yes = {1}> {
            y, all = Loop (n, yes, x) <body = b (int64 i, bool c, float[2] v)
                    => (bool d, float[2] u, float[2] u) {
                d = Identity(c)
                q = Sin(v)
                u = Relu(q)
            }>
        }"""
    )
    cut(model, tmp_path, output=tmp_path / "b", verify=False)
    got = byoc.load(tmp_path / "b")({"x": X, "n": np.array(2)})

    once = np.maximum(np.sin(X), 0)
    twice = np.maximum(np.sin(once), 0)
    assert np.allclose(got["y"], twice, rtol=1e-6)
    assert np.allclose(got["all"], [once, twice], rtol=1e-6)


def test_scanned_inputs_of_other_lengths(tmp_path: Path) -> None:
    text = SCAN.replace("float[3, 2] m)", "float[m, 2] m, float[k, 2] o)").replace(
        "num_scan_inputs = 1, scan_input_directions = [1]", "num_scan_inputs = 2"
    )
    text = text.replace("float[2] row)", "float[2] row, float[2] other)").replace("(x, m)", "(x, m, o)")
    text = text.replace("p = Add(v, row)", "p0 = Add(v, row)\n p = Add(p0, other)")
    cut(parse(text), tmp_path, output=tmp_path / "b", verify=False)
    rows = np.ones((3, 2), np.float32)

    with pytest.raises(byoc.InputError, match="what is scanned differs in length: 2, 3"):
        byoc.load(tmp_path / "b")({"x": X, "m": rows, "o": rows[:2]})
