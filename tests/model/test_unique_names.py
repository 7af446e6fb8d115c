"""Names made unique when a model is read: of bodies, functions and nodes, in time that is linear."""

from collections import Counter

import numpy as np
import onnx
import pytest
from helpers.nested_models import list_defined, make_nested, share_names
from helpers.support import count_calls, parse, sample_cases
from onnx import AttributeProto, FunctionProto, GraphProto, helper

from byoc.errors import InputError
from byoc.model import get_stated_attributes, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations

X = np.array([1, 2], np.float32)

SCAN = """g (float[4,2] x, float[2] s0) => (float[2] y, float[4,2] z) {
    v = Exp(x)
    y, z = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] v) => (float[2] so, float[2] vo) {
        so = Add(s, v)
        vo = Tanh(so)
    }> (s0, v)
}"""

LOOP = """g (int64 n, bool c, float[2] x) => (float[2] z) {
    z = Loop(n, c, x) <body = b (int64 n, bool c, float[2] x) => (bool c, float[2] z) {
        z = Add(x, x)
    }>
}"""

STORED = """g (bool c, float[2] x) => (float[2] z, float[2] q) <float[2] w = {1, 2}> {
    q = Add(x, w)
    z = If (c) <
        then_branch = t () => (float[2] o) <float[2] w = {10, 20}> { o = Mul(x, w) },
        else_branch = e () => (float[2] o) { o = Neg(x) }
    >
}"""

MADE = """g (bool c, float[2] x) => (float[2] z, float[2] v) {
    v = Exp(x)
    z = If (c) <
        then_branch = t () => (float[2] z) { v = Neg(x)\n z = Mul(v, x) },
        else_branch = e () => (float[2] z) { z = Sub(v, x) }
    >
}"""

LATER = """g (bool c, float[2] x) => (float[2] z) {
    y = If (c) <
        then_branch = t () => (float[2] o) { z = Neg(x)\n o = Mul(z, x) },
        else_branch = e () => (float[2] z) { z = Sub(x, x) }
    >
    z = Exp(y)
}"""

NESTED = """g (bool c, int64 n, float[2] x) => (float[2] z) {
    v = Exp(x)
    z = If (c) <
        then_branch = t () => (float[2] o) {
            o = Loop (n, c, x) <body = b (int64 i, bool k, float[2] v) => (bool k, float[2] x) {
                x = If (k) <
                    then_branch = u () => (float[2] o) { o = Add(v, v) },
                    else_branch = w () => (float[2] v) { v = Neg(x) }
                >
            }>
        },
        else_branch = e () => (float[2] o) { o = Sub(v, x) }
    >
}"""

FUNCTION = """g (bool c, int64 n, float[2] x) => (float[2] z) { z = own.f(c, n, x) }
<opset_import: ["": 21], domain: "own"> f (c, n, x) => (z) {
    v = Exp(x)
    z = Loop (n, c, v) <body = b (int64 n, bool c, float[2] v) => (bool c, float[2] z) { z = Add(v, x) }>
}"""

SHARED = """g (bool c, float[2] x) => (float[2] z) <float[2] w = {1, 2}> {
    z = If (c) <
        then_branch = t () => (float[2] o) <float[2] w = {10, 20}> { o = Mul(x, w) },
        else_branch = e () => (float[2] o) { o = Sub(x, w) }
    >
}"""

YES, NO, THREE = np.array(True), np.array(False), np.array(3)


def read(text: str) -> onnx.ModelProto:
    """Return a model that may call functions of the domain `own`."""
    head = '<ir_version: 10, opset_import: ["": 21, "own": 1]>\n' if "own." in text else ""
    return onnx.parser.parse_model(head + text) if head else parse(text, ir=10, opset=21)


def find_names_twice(
    scope: GraphProto | FunctionProto, around: frozenset[str] = frozenset()
) -> list[str]:
    """Return the names of values that a graph around has, too, and those of nodes that two have."""
    own = {name for name in list_defined(scope) if name}
    nodes = Counter(node.name for node in scope.node if node.name)
    found = [*(own & around), *(name for name, count in nodes.items() if count > 1)]
    for node in scope.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                found += find_names_twice(attribute.g, around | own)
    return found


@pytest.mark.parametrize(
    ("text", "feed", "right"),
    [
        (SCAN, {"x": np.zeros((4, 2), np.float32), "s0": X}, {"y": X + 4}),
        (LOOP, {"n": THREE, "c": YES, "x": X}, {"z": 8 * X}),
        (STORED, {"c": YES, "x": X}, {"z": [10, 40], "q": [2, 4]}),
        (MADE, {"c": YES, "x": X}, {"z": -X * X, "v": np.exp(X)}),
        (MADE, {"c": NO, "x": X}, {"z": np.exp(X) - X, "v": np.exp(X)}),
        (LATER, {"c": YES, "x": X}, {"z": np.exp(-X * X)}),
        (NESTED, {"c": YES, "n": THREE, "x": X}, {"z": 8 * X}),
        (NESTED, {"c": NO, "n": THREE, "x": X}, {"z": np.exp(X) - X}),
        (FUNCTION, {"c": YES, "n": THREE, "x": X}, {"z": np.exp(X) + 3 * X}),
    ],
)
def test_a_body_reads_the_innermost_value_of_a_name(
    text: str, feed: dict[str, np.ndarray], right: dict[str, np.ndarray]
) -> None:
    model = read(text)
    before = model.SerializeToString()
    found = prepare_model(model, "test").proto
    assert model.SerializeToString() == before
    assert not [name for scope in (found.graph, *found.functions) for name in find_names_twice(scope)]
    assert [v.name for v in found.graph.input] == [v.name for v in model.graph.input]
    assert [v.name for v in found.graph.output] == [v.name for v in model.graph.output]
    assert [list(n.output) for n in found.graph.node] == [list(n.output) for n in model.graph.node]
    with without_optimizations():
        made = run_session(open_session(found), feed)
    for name, value in right.items():
        np.testing.assert_allclose(made[name], value, rtol=1e-6)


def test_a_stored_tensor_that_runtimes_read_differently_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError) as caught:
        prepare_model(read(SHARED), "m.onnx")
    assert str(caught.value) == (
        "m.onnx: If 'z' has an initializer 'w' in its body 't', and its body 'e' reads a 'w' of the "
        "graph around: runtimes disagree on which of the two the first one reads; name them apart"
    )


def test_nodes_of_one_name_are_named_after_their_outputs() -> None:
    model = read(
        """g (bool c, float[2] x) => (float[2] y) {
            [Conv] a = Neg(x)
            [Conv] other = If (c) <
                then_branch = t () => (float[2] o) { [Conv] u = Neg(a)\n [Conv] o = Exp(u) },
                else_branch = e () => (float[2] o) { [Conv] o = Neg(a) }
            >
            [other] d = Neg(other)
            e = Neg(d)
            [Conv] y = Neg(e)
        }"""
    )
    found = prepare_model(model, "test").proto.graph
    assert [node.name for node in found.node] == ["a", "other_1", "other", "", "y"]
    branches = [
        [node.name for node in body.node] for body in get_stated_attributes(found.node[1]).values()
    ]
    assert sorted(branches) == [["Conv"], ["u", "o"]]
    open_session(prepare_model(model, "test").proto)  # onnxruntime refuses nodes of one name


@pytest.mark.parametrize("domain", ["", "ai.onnx.ml", "com.microsoft"])
def test_a_function_with_the_name_of_an_operator_does_not_count(domain: str) -> None:
    name, right = {
        "": ("Relu", [0, 2]),
        "ai.onnx.ml": ("Binarizer", [0, 1]),
        "com.microsoft": ("QuickGelu", [-0.84579474, 1.9356586]),
    }[domain]
    attributes = {"alpha": 1.702} if domain == "com.microsoft" else {}
    given, made = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 2]) for n in "xy")
    node = helper.make_node(name, ["x"], ["y"], domain=domain, **attributes)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)] if domain else []
    imports = imports or [helper.make_opsetid("", 21)]
    inside = helper.make_node("Neg", ["x"], ["y"])
    own = helper.make_function(
        domain, name, ["x"], ["y"], [inside], [helper.make_opsetid("", 21)], ["alpha"]
    )
    model = helper.make_model(
        helper.make_graph([node], "g", [given], [made]),
        opset_imports=imports,
        ir_version=10,
        functions=[own],
    )
    feed = {"x": np.array([[-1 if name == "Relu" else 0, 2]], np.float32)}
    if domain == "com.microsoft":
        feed = {"x": np.array([[-1.0, 2]], np.float32)}
        right = [float(v / (1 + np.exp(-1.702 * v))) for v in (-1.0, 2.0)]
    read = prepare_model(model, "test")
    assert not read.proto.functions
    shown = f"{domain}.{name}" if domain else name
    assert any(f"own function '{shown}' has the name of an operator" in note for note in read.notes)
    with without_optimizations():
        plain, ours = (run_session(open_session(each), feed)["y"] for each in (model, read.proto))
    np.testing.assert_array_equal(ours, plain)
    np.testing.assert_allclose(ours, [right], rtol=1e-5)


def test_functions_of_other_names_stay() -> None:
    text = """g (float[2] x) => (float[2] z) { z = own.Relu(x) }
        <opset_import: ["": 21], domain: "own"> Relu (x) => (z) { z = Neg(x) }"""
    found = prepare_model(read(text), "test")
    assert len(found.proto.functions) == 1
    assert not found.notes


def test_a_model_in_which_nothing_is_to_be_done_is_not_copied() -> None:
    for text in (
        "g (float[2] x) => (float[2] z) { [a] y = Neg(x)\n [b] z = Neg(y) }",
        # branches may use the same names, and so may their nodes
        """g (bool c, float[2] x) => (float[2] z) { [a] z = If (c) <
            then_branch = t () => (float[2] o) { [a] v = Neg(x)\n o = Neg(v) },
            else_branch = e () => (float[2] o) { [a] v = Exp(x)\n o = Neg(v) }
        > }""",
        FUNCTION.replace(
            "int64 n, bool c, float[2] v) => (bool c, float[2] z) { z = Add(v, x)",
            "int64 i, bool k, float[2] u) => (bool k, float[2] o) { o = Add(u, x)",
        ),
    ):
        model = read(text)
        loaded = prepare_model(model, "m")
        assert (loaded.proto, loaded.notes) == (model, ())
        assert loaded.proto is model


def test_the_work_grows_with_the_model_and_no_more() -> None:
    def make(count: int) -> onnx.ModelProto:
        branches = [
            f"""y{i} = If (c) <then_branch = t () => (float[2] o) {{ [n] v = Neg(x)\n [n] o = Neg(v) }},
                 else_branch = e () => (float[2] o) {{ [n] v = Exp(x)\n [n] o = Neg(v) }}>"""
            for i in range(count)
        ]
        lines = "\n".join(["v = Neg(x)", "o = Neg(v)", *branches])
        return read(f"g (bool c, float[2] x) => (float[2] y0) {{ {lines} }}")

    def count(size: int, most: int) -> int:
        model = make(size)
        return count_calls(lambda: prepare_model(model, "m"), most)

    assert count(400, 10**6) < 9 * count(50, 10**6)


@pytest.mark.parametrize("seed", sample_cases(range(200), every=10))
def test_random_models_compute_what_they_did_with_names_of_their_own(seed: int) -> None:
    model = make_nested(seed)
    shared = share_names(model, seed, odd=seed % 3 == 0)
    found = prepare_model(shared, "test").proto
    assert not [name for scope in (found.graph, *found.functions) for name in find_names_twice(scope)]
    generator = np.random.default_rng(seed)
    feed = {
        "m": generator.normal(size=(2, 3)).astype(np.float32),
        "r": generator.normal(size=3).astype(np.float32),
        "c": YES,
        "n": THREE,
    }
    with without_optimizations():
        right = run_session(open_session(model), feed)
        made = run_session(open_session(found), feed)
    for name, value in right.items():
        np.testing.assert_array_equal(made[name], value)
