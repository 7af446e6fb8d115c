"""Emitted functions are run when a program is made: wrong ones are refused, right ones are kept."""

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.c_libraries import build_library, run_library
from helpers.support import parse
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from byoc.errors import InputError
from byoc.standalone import _node_calls, _program_graph, _proof, export_c, verify_program

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

NET = """net (float[2, 5] x, int64[3] i) => (float[2, 5] y, float[2, 3] z) {
    s = Softplus(x)
    y = LeakyRelu<alpha = 0.25>(s)
    z = Gather<axis = 1>(x, i)
}"""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        # Off by a part in a thousand, wrong on NaN alone, behind the end, and a crash.
        (
            r"log1pf\(",
            "1.001f * log1pf(",
            r"Softplus 's' has no function in C: .* is wrong: on .* off by",
        ),
        (r"return log1pf", "return a != a ? 0 : log1pf", "Softplus 's'.*on NaN its result loses NaN"),
        (
            r"(output\[i0\]\[i1\] = data)",
            r"output[2][i1] = 1; \1",
            "Gather 'z'.*it writes behind an operand",
        ),
        (
            r"(output\[i0\]\[i1\] = data)",
            r"*(volatile int *)0 = 1; \1",
            "Gather 'z'.*it ends with SIGSEGV",
        ),
    ],
)
def test_a_wrong_function_is_refused_by_name(
    right: str, wrong: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend = _node_calls.mend_emx_source

    def spoil(source: str) -> str:
        return re.sub(right, wrong, mend(source))

    monkeypatch.setattr(_node_calls, "mend_emx_source", spoil)

    with pytest.raises(InputError, match=said):
        export_c(parse(NET), output=tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_a_long_recurrence_is_no_chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 steps with weights of a variance of 1 nothing is left but how they were rounded."""
    weights = "float[1, 96, 8] w, float[1, 96, 32] r"
    net = f"""net (float[300, 1, 8] x, {weights}) => (float[300, 1, 1, 32] y) {{
        y = GRU<hidden_size = 32, linear_before_reset = 1>(x, w, r)
    }}"""
    assert export_c(parse(net), output=tmp_path / "out").proven == 1

    mend = _node_calls.mend_emx_source
    gate = ("R_gate[h] * recur", "(0.01f + 0.99f * R_gate[h]) * recur")
    monkeypatch.setattr(_node_calls, "mend_emx_source", lambda source: mend(source).replace(*gate))
    with pytest.raises(InputError, match=r"GRU 'y'.* on realistic values its result is off by"):
        export_c(parse(net), output=tmp_path / "out")


def test_what_was_right_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    run = _proof._try_function
    monkeypatch.setattr(
        _proof, "_try_function", lambda *given: (tried.append(given[2].name), run(*given))[1]
    )

    for net in (NET, NET, NET.replace("0.25", "0.125")):
        assert export_c(parse(net), output=tmp_path / "out").proven == 3

    assert tried == ["node0_softplus", "node1_leakyrelu", "node2_gather", "node1_leakyrelu"]


def test_without_a_compiler_nothing_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_proof, "_describe_compiler", lambda: "")

    made = export_c(parse(NET), output=tmp_path / "out")

    assert made.proven == 0
    assert made.not_proven == "there is no C compiler 'cc' here"


def test_a_function_that_does_not_end_is_stopped_and_not_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend = _node_calls.mend_emx_source
    body = r"(output\[i0\]\[i1\] = data)"

    def spoil(source: str) -> str:
        return re.sub(body, r"for (volatile int on = 1; on;) {} \1", mend(source))

    monkeypatch.setattr(_node_calls, "mend_emx_source", spoil)
    monkeypatch.setattr(_proof, "_MOST_SECONDS", 0.5)

    for _ in range(2):  # nothing is kept of it
        made = export_c(parse(NET), output=tmp_path / "out")
        assert made.proven == 2
        assert made.not_proven == "a function of Gather has not ended after 0.5 s"


def test_a_function_of_a_hundred_operands_is_proven(tmp_path: Path) -> None:
    names = [f"x{number}" for number in range(100)]
    given = ", ".join(f"int64[2] {name}" for name in names)
    net = f"net ({given}) => (int64[200] y) {{ y = Concat<axis = 0>({', '.join(names)}) }}"

    made = export_c(parse(net), output=tmp_path / "out")

    assert (made.proven, made.not_proven) == (1, "")


RESIZE = """net (float[1, 2, 5, 4] x) => (float[1, 2, 3, 7] y) <float[4] s = {{1.0, 1.0, 0.77, 1.9}}> {{
    r0 = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , s)
    {between}
    y = Relu(r{last})
}}"""


@pytest.mark.parametrize("last", [0, 64])
def test_the_sample_of_a_program_is_that_of_the_definition_where_onnxruntime_is_overruled(
    last: int, tmp_path: Path
) -> None:
    """It computes such a Resize otherwise; onnx.reference runs that node alone, in large graphs too."""
    between = "\n".join(f"r{n + 1} = Neg(r{n})" for n in range(last))
    for turn in ("at first", "from the cache"):
        made = export_c(parse(RESIZE.format(between=between, last=last)), output=tmp_path / turn)
        assert made.overruled == ()
        assert verify_program(tmp_path / turn).passed


def test_a_program_is_not_judged_where_the_definition_cannot_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_program_graph.ProgramGraph, "follow_definition", lambda *_: None)

    made = export_c(parse(RESIZE.format(between="", last=0)), output=tmp_path / "out")

    assert made.overruled == ("Resize",)
    assert not verify_program(tmp_path / "out").passed


def list_resizes() -> Iterator[tuple[dict[str, object], str, list[float]]]:
    """Yield the attributes of each form of Resize, and its scales or sizes by the name of the input."""
    scales = ([1.0, 1.0, 0.6, 1.7], [1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 0.5, 0.4])
    given = [*(("scales", each) for each in scales), ("sizes", [1, 2, 9, 3])]
    for coordinates, (kind, values) in itertools.product(COORDINATES, given):
        if coordinates == "tf_crop_and_resize" and values[2] not in (2.0, 9):
            continue  # the reference takes lengths with a fraction, where ONNX has whole ones
        own: dict[str, object] = {"coordinate_transformation_mode": coordinates}
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            yield own | {"mode": "nearest", "nearest_mode": rounding}, kind, values
        for smooth in (0, 1):
            yield own | {"mode": "linear", "antialias": smooth}, kind, values
            for outside in (0, 1):
                cubic = {"mode": "cubic", "antialias": smooth, "exclude_outside": outside}
                yield own | cubic, kind, values
        yield own | {"mode": "cubic", "cubic_coeff_a": -0.5}, kind, values
    for policy, mode in itertools.product(("not_larger", "not_smaller"), ("nearest", "linear", "cubic")):
        for axes, sizes in (([2, 3], [9, 5]), ([3, 2], [3, 4])):
            yield {"mode": mode, "keep_aspect_ratio_policy": policy, "axes": axes}, "sizes", [*sizes]


COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
    "tf_crop_and_resize",
)
REGION = np.array([0, 0, 0.125, 0.25, 1, 1, 0.75, 1.125], np.float32)


@pytest.mark.parametrize(
    ("first", "every"),
    [(0, 11), *(pytest.param(first, 8, marks=pytest.mark.thorough) for first in range(8))],
)
def test_forms_of_resize_are_those_of_the_definition(first: int, every: int, tmp_path: Path) -> None:
    """Side by side in one model, each an output, judged by onnx.reference and by byoc verify."""
    nodes, stored, outputs = [], {"region": REGION}, []
    for number, (own, kind, values) in enumerate(itertools.islice(list_resizes(), first, None, every)):
        attributes = dict(own)
        is_cropped = own.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        if is_cropped:
            attributes["extrapolation_value"] = 7.5
        dtype = np.float32 if kind == "scales" else np.int64
        stored[f"{kind}_{number}"] = np.array(values, dtype)
        given = ["x", "region" if is_cropped else "", *([""] if kind == "sizes" else [])]
        node = helper.make_node("Resize", [*given, f"{kind}_{number}"], [f"y{number}"], **attributes)
        nodes.append(node)
        outputs.append(onnx.ValueInfoProto(name=f"y{number}"))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 5, 7])],
        outputs,
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 7)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    for value, wanted in zip(model.graph.output, expected, strict=True):
        kind = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, wanted.shape)
        value.type.CopyFrom(kind)

    made = export_c(model, output=tmp_path / "out")

    assert made.overruled == ()
    found = verify_program(tmp_path / "out", "cc -O1 -w")
    assert found.passed, found.problem
    library = build_library(tmp_path / "out", ("cc", "-O1", "-w"))
    names = [value.name for value in model.graph.output]
    results = {name: np.zeros(y.shape, np.float32) for name, y in zip(names, expected, strict=True)}
    got = run_library(library, [x], results)
    for node, name, wanted in zip(nodes, names, expected, strict=True):
        np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=2e-5, err_msg=str(node))
