"""Nodes in parts: refused whole, taken in parts where that costs less, and never a worse plan."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from accelerators import Files, everywhere, notes
from helpers.support import parse, sample_cases
from onnx import helper

from byoc.model import PART_KEY, get_metadata
from byoc.pipeline import Result, partition
from byoc.planning import find_parts, save_placement

sys.path.insert(0, str(Path(__file__).parents[1] / "onnx_suite"))
sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from suite import Case, collect
from test_function_bodies import DEFINED

PRIMITIVES = (
    *("MatMul", "Add", "Sub", "Mul", "Div", "Erf", "Sqrt", "ReduceMean", "Reshape", "Neg", "Exp"),
    *("Max", "Min", "Where", "Less"),
)
# Slow enough that what is taken goes, whatever it is.
SLOW_HOST = {"peak": "1.0e+7", "more": "overhead: 1.0e-6\n"}
DEAR_LINK = "link: {bandwidth: 1.0e+3, latency: 1.0}\n"

BLOCK = """
block (float[8, 16] x, float[16, 16] w) => (float[8, 16] y) {
    a = MatMul(x, w)
    [act] b = Gelu(a)
    c = MatMul(b, w)
    s = Constant <value = float[16] {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}> ()
    [norm] y = LayerNormalization(c, s)
}
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def plan(
    files: Files,
    model: onnx.ModelProto,
    *more: str,
    strategy: str = "exact",
    target: str = "vx",
    **options: object,
) -> Result:
    """Plan a model for an accelerator of primitives, and a slow host."""
    host = files.costs("slow", **SLOW_HOST)
    rules = files.rules(target, *PRIMITIVES, more="".join(more))
    return partition(model, rules, strategy=strategy, host_cost_model=host, **options)


def run(model: onnx.ModelProto, **given: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, given))


def draw(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return inputs for a model, floats around zero."""
    generator = np.random.default_rng(7)
    found = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value or 3 for dim in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        found[value.name] = (generator.normal(size=shape) * 2).astype(dtype)
    return found


def assert_same(result: Result, model: onnx.ModelProto, rtol: float = 1e-4) -> None:
    given = draw(model)
    for got, want in zip(run(result.model, **given), run(model, **given), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=rtol)


def wholes(result: Result) -> set[str]:
    return {*find_parts(result.plan.root)}


def test_a_network_of_refused_operators_is_one_region(files: Files) -> None:
    model = parse(BLOCK, opset=20)
    result = plan(files, model)

    assert [{*everywhere(result).values()}] == [{"vx"}]
    assert len(result.plan.regions) == 1
    assert wholes(result) == {"act", "norm"}
    said = [note for note in notes(result) if "in parts" in note]
    assert said == [
        "placed in parts, since no accelerator takes them whole: Gelu (1), "
        "LayerNormalization (1): 'act', 'norm'"
    ]
    assert_same(result, model)


def test_what_stays_on_the_host_stays_whole(files: Files) -> None:
    """The same bytes as with nothing to take apart, and no more on the host than before."""
    model = parse(BLOCK, opset=20)
    dear = files.costs("dear", more=DEAR_LINK)
    each = [
        partition(model, files.rules("vx", *PRIMITIVES, costs=dear, more=more))
        for more in ("", "keep: [Gelu, LayerNormalization]\n")
    ]

    assert {*everywhere(each[0]).values()} == {"host"}
    assert wholes(each[0]) == set()
    assert each[0].model.SerializeToString() == each[1].model.SerializeToString()


@pytest.mark.parametrize("latency", ["1.0e-9", "1.0e-6", "1.0e-5", "1.0e-4", "1.0e-3"])
@pytest.mark.parametrize("launch", ["0.0", "1.0e-5", "1.0e-3"])
def test_a_plan_is_never_worse(files: Files, latency: str, launch: str) -> None:
    """Where one of two refused nodes pays in parts it alone is taken apart."""
    text = """
    g (float[4, 4] x, float[64, 64] v) => (float[4, 4] y, float[64, 64] z) {
        [small] y = Gelu(x)
        m = MatMul(v, v)
        [large] g = Gelu(m)
        z = MatMul(g, v)
    }"""
    link = f"link: {{bandwidth: 1.0e+9, latency: {latency}}}\n"
    costs = files.costs("link", launch=launch, more=link)
    model = parse(text, opset=20)
    host = files.costs("slow", peak="1.0e+9", more="overhead: 1.0e-6\n")
    each = [
        partition(model, files.rules("vx", *PRIMITIVES, costs=costs, more=more), host_cost_model=host)
        for more in ("", "keep: Gelu\n")
    ]
    best, whole = (result.plan.root.placement.cost.total for result in each)

    assert best <= whole
    assert (best < whole) == bool(wholes(each[0]))
    for parts in find_parts(each[0].plan.root).values():
        assert any(parts)
    assert_same(each[0], model)


def test_both_are_chosen_apart(files: Files) -> None:
    """The first Gelu is far from all that is offloaded, the second between two MatMuls."""
    text = """
    g (float[64, 64] v, float[256, 256] x) => (float[64, 64] z, float[256, 256] y) {
        m = MatMul(v, v)
        [near] g = Gelu(m)
        z = MatMul(g, v)
        [far] y = Gelu(x)
    }"""
    link = "link: {bandwidth: 1.0e+8, latency: 1.0e-6}\n"
    model = parse(text, opset=20)
    host = files.costs("slow", peak="1.0e+9", more="overhead: 1.0e-6\n")
    rules = files.rules("vx", *PRIMITIVES, costs=files.costs("link", more=link))
    result = partition(model, rules, host_cost_model=host)

    assert wholes(result) == {"near"}
    assert everywhere(result)["y"] == "host"
    assert_same(result, model)


@pytest.mark.parametrize(
    "more",
    ["keep: Gelu\n", "host: {ops: Gelu}\n", "host: {names: act}\n", "host: {after: {ops: Gelu}}\n"],
)
def test_rules_keep_operators_whole(files: Files, more: str) -> None:
    result = plan(files, parse(BLOCK, opset=20), more)
    assert "act" not in wholes(result)
    assert everywhere(result)["b"] == "host"


def test_one_of_several_targets_keeps_it_whole(files: Files) -> None:
    host = files.costs("slow", **SLOW_HOST)
    rules = [
        files.rules("one", *PRIMITIVES),
        files.rules("two", "MatMul", "Neg", more="keep: [LayerNormalization]\n"),
    ]
    result = partition(parse(BLOCK, opset=20), rules, host_cost_model=host)
    assert wholes(result) == {"act"}


def test_functions_of_the_model(files: Files) -> None:
    """Nested ones, with attributes, overloads, bodies, absent inputs and unread outputs."""
    text = """
    <ir_version: 10, opset_import: ["" : 20, "own" : 1]>
    g (float[4, 4] x, bool c) => (float[4, 4] y) {
        a = Neg(x)
        [outer] b, s = own.outer <by = 2.0> (a, , c)
        [plain] d = own.inner:second (b)
        y = Neg(d)
    }
    <opset_import: ["" : 20, "own" : 1], domain: "own">
    outer <by: float> (a, absent, go) => (r, unread) {
        [inside] i = own.inner <by: float = @by> (a)
        r = Gelu(i)
        unread = Identity(i)
    }
    <opset_import: ["" : 20], domain: "own">
    inner <by: float = 3.0> (a) => (r) {
        f = Constant <value_float: float = @by> ()
        m = Mul(a, f)
        r = Add(m, a)
    }
    <opset_import: ["" : 20], domain: "own", overload: "second">
    inner (a) => (r) { m = Exp(a) r = Div(m, m) }
    """
    model = onnx.parser.parse_model(text)
    result = plan(files, model)

    assert wholes(result) == {"outer", "plain"}
    assert {*everywhere(result).values()} == {"vx"}
    assert len(result.plan.regions) == 1


def test_nodes_in_bodies(files: Files) -> None:
    text = """
    g (float[4, 4] x, bool c, int64 n) => (float[4, 4] y, float[4, 4] z, float[4, 4] last) {
        [choice] y = If <then_branch = t () => (float[4, 4] u) { m = Neg(x) [act] u = Gelu(m) },
                         else_branch = e () => (float[4, 4] v) { v = Neg(x) }> (c)
        [rounds] z = Loop <body = l (int64 i, bool k, float[4, 4] p) => (bool m, float[4, 4] q)
            { m = Identity(k) r = Neg(p) [act2] s = Gelu(r) q = Neg(s) }> (n, c, x)
        last = Neg(z)
    }"""
    model = parse(text, opset=20)
    result = plan(files, model)

    assert wholes(result) == {"choice/then_branch/act", "rounds/body/act2"}
    given = {"x": draw(model)["x"], "n": np.array(3)}
    for c in (True, False):
        want = run(model, **given, c=np.array(c))
        for got, each in zip(run(result.model, **given, c=np.array(c)), want, strict=True):
            np.testing.assert_allclose(got, each, rtol=1e-4, atol=1e-5)


def test_names_do_not_clash(files: Files) -> None:
    """Tensors and nodes of the model have the names that parts would get."""
    text = """
    g (float[4, 4] x) => (float[4, 4] y) {
        ["act/Erf"] "b/Half" = Neg(x)
        ["act/Mul"] "b/Two" = Neg("b/Half")
        [act] b = Gelu("b/Two")
        [act2] "b/XSqrt" = Gelu(b)
        y = Neg("b/XSqrt")
    }"""
    model = parse(text, opset=20)
    result = plan(files, model)

    assert wholes(result) == {"act", "act2"}
    nodes = result.plan.root.index.nodes
    made = [name for node in nodes for name in node.output]
    assert len({*made}) == len(made)
    assert len({node.name for node in nodes if node.name}) == sum(bool(node.name) for node in nodes)
    assert all(
        node.name.startswith(f"{get_metadata(node, PART_KEY)}/")
        for node in nodes
        if get_metadata(node, PART_KEY)
    )
    assert_same(result, model)


def test_regions_have_the_names_that_they_had(files: Files) -> None:
    """A region in which nothing is taken apart keeps its name where another node is."""
    text = """
    g (float[4, 4] x, float[8, 8] w) => (float[4, 4] y, float[8, 8] z) {
        a = Neg(x) b = Exp(a) y = Tanh(b)
        m = MatMul(w, w) [act] h = Gelu(m) z = MatMul(h, w)
    }"""
    model = parse(text, opset=20)
    each = [plan(files, model, more) for more in ("", "keep: Gelu\n")]
    names = [{region.name for region in result.plan.regions} for result in each]
    assert len(names[0] & names[1]) == 1
    assert wholes(each[0]) == {"act"}


def test_a_saved_placement_comes_back(files: Files, tmp_path: Path) -> None:
    model = parse(BLOCK, opset=20)
    first = plan(files, model)
    save_placement(first.plan, tmp_path / "p.yaml")
    again = plan(files, model, placement=tmp_path / "p.yaml")
    assert everywhere(again) == everywhere(first)


@pytest.mark.parametrize("dtype", ["float", "float16", "int8"])
def test_types(files: Files, dtype: str) -> None:
    text = f"g ({dtype}[4, 4] x) => ({dtype}[4, 4] y) {{ a = Neg(x) [act] b = Relu(a) y = Neg(b) }}"
    model = parse(text, opset=20)
    result = plan(files, model)
    assert wholes(result) == {"act"}
    assert_same(result, model, rtol=1e-3)


def list_cases() -> list[Case]:
    """Return ONNX's own tests of one node that has a function body."""
    return [
        case
        for case in collect(costly=False)
        if case.kind == "node"
        and len(case.model.graph.node) == 1
        and case.model.graph.node[0].op_type in DEFINED.keys() - {"SequenceMap", "Range"}
    ]


@pytest.mark.parametrize(
    "case", sample_cases(list_cases(), every=23), ids=lambda case: getattr(case, "name", "")
)
def test_onnx_operators_in_parts(files: Files, case: Case) -> None:
    """All of ONNX's operators with a body, for an accelerator of all operators without one."""
    others = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    others -= {*DEFINED, "If", "Loop", "Scan"}
    rules = files.rules("vx", *sorted(others))
    host = files.costs("slow", peak="1.0e+5", more="overhead: 1.0e-6\n")
    result = partition(case.model, rules, strategy="all-supported", host_cost_model=host)
    if not wholes(result):
        pytest.skip("it stays whole")
    given, expected = case.data_sets[0]
    if any(
        value.dtype.isbuiltin != 1 for value in map(np.asarray, (*given.values(), *expected.values()))
    ):
        pytest.skip("onnxruntime takes no such arrays")
    try:
        got = run(result.model, **given)
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        pytest.skip(str(error))
    for found, want in zip(got, expected.values(), strict=True):
        coarse = np.asarray(want).dtype.itemsize < 4
        np.testing.assert_allclose(
            np.asarray(found, np.float64),
            np.asarray(want, np.float64),
            rtol=1e-2 if coarse else 1e-3,
            atol=2e-3 if coarse else 1e-5,
        )


def test_a_variance_does_not_cancel(files: Files) -> None:
    """The mean of squares less the square of the mean would have no digit right here."""
    text = """g (float[4, 64] x) => (float[4, 64] y) {
        s = Constant <value_floats = [1.0]> () a = Neg(x) [norm] b = LayerNormalization(a, s) y = Neg(b)
    }"""
    model = parse(text, opset=20)
    result = plan(files, model)
    assert wholes(result) == {"norm"}

    x = (np.random.default_rng(3).normal(size=(4, 64)) + 5000).astype(np.float32)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    (got,) = run(result.model, x=x)
    np.testing.assert_allclose(got, exact, atol=1e-2)  # x itself has 11 bits behind the point


def test_a_part_without_a_price_is_told(files: Files) -> None:
    """The plan stays as it is, and says which nodes might have been placed in parts, and why not."""
    model = parse(BLOCK, opset=20)
    table = files.folder / "table.yaml"
    product = "{op: MatMul, types: 'float32[8, 16], float32[16, 16] -> float32[8, 16]', seconds: 1.0e-6}"
    table.write_text(
        f"kind: table\nname: table\nlink: {{bandwidth: 1.0e+12}}\nentries:\n- {product}\n", "utf-8"
    )
    host = files.costs("slow", **SLOW_HOST)
    path = files.rules("vx", *PRIMITIVES, costs=str(table))
    options = {"strategy": "exact", "host_cost_model": host, "unknown_costs": "refuse"}
    result = partition(model, path, **options)
    assert not wholes(result)
    (said,) = (note for note in notes(result) if "in parts" in note)
    assert "nodes stay whole, since they cannot be placed in parts" in said
    assert "Gelu (1)" in said
    assert "'act'" in said
    assert "cost" in said.split("'norm'")[-1]
