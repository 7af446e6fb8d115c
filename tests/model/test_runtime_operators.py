"""Operators that only onnxruntime registers: accepted where it is installed, named to the user."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, parse
from helpers.warm_processes import WarmProcesses

from byoc.errors import InputError
from byoc.model import (
    GraphCuts,
    OutlineGroup,
    RegionCut,
    outline,
    prepare_model,
    state_function_defaults,
)
from byoc.onnxrt import open_session, run_session

pytest.importorskip("onnxruntime")

NORM = "SimplifiedLayerNormalization <epsilon: float = 1e-5>"
PLAIN = f"g (float[1,4] x, float[4] s) => (float[1,4] y) {{ y = {NORM} (x, s) }}"


def contrib(text: str, opset: int = 17) -> onnx.ModelProto:
    """Return a model that imports com.microsoft, too."""
    model = parse(text, opset=opset)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return model


def test_an_operator_in_the_domain_of_onnx_is_accepted_and_named() -> None:
    source = parse(PLAIN)
    before = source.SerializeToString()
    model = prepare_model(source, "test")
    assert model.notes == (
        "not ONNX's, but an operator of onnxruntime: SimplifiedLayerNormalization (1)",
    )
    assert source.SerializeToString() == before
    assert model.proto.graph.node[0].domain == ""
    x = np.array([[3, 4, 0, 0]], np.float32)
    values = run_session(open_session(model.proto), {"x": x, "s": np.ones(4, np.float32)})
    assert values["y"] == pytest.approx(x / 2.5, rel=1e-5)


def test_operators_in_bodies_and_functions_are_accepted_and_counted() -> None:
    model = contrib(
        "g (bool c, float[1,4] x, float[4] s) => (float[1,4] y) { "
        f"t = own.norm (x, s)\n u = com.microsoft.FastGelu (t)\n"
        f"y = If (c) <then_branch = a () => (float[1,4] p) {{ p = {NORM} (u, s) }}, "
        "else_branch = b () => (float[1,4] q) { q = com.microsoft.FastGelu (u) }> }"
    )
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    node = onnx.helper.make_node("SimplifiedLayerNormalization", ["a", "b"], ["c"])
    imports = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("own", "norm", ["a", "b"], ["c"], [node], imports))
    (note,) = prepare_model(model, "test").notes
    assert note.endswith("SimplifiedLayerNormalization (2), com.microsoft.FastGelu (2)")


def test_other_findings_of_the_checker_stay_errors() -> None:
    text = f"g (float[1,4] x, float[4] s) => (float[1,4] y) {{ t = {NORM} (x, s)\n y = OP (t) }}"
    unknown = parse(text.replace("OP", "Reluu"))
    with pytest.raises(InputError, match="not valid ONNX: No Op registered for Reluu"):
        prepare_model(unknown, "test")
    wrong = parse(text.replace("OP", "Softmax <axes = 1>"))
    with pytest.raises(InputError, match="not valid ONNX: Unrecognized attribute: axes"):
        prepare_model(wrong, "test")


# onnxruntime 1.32 ends the process where it loads such a function without `stash_type`.
IN_A_FUNCTION = """
import onnx, sys
import numpy as np
import byoc
model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[1, 4] x, float[4] s) => (float[1, 4] y) { t = own.outer (x, s) y = Relu (t) }
<domain: "own", opset_import: ["" : 17, "own" : 1]> outer (x, s) => (y) { y = own.norm (x, s) }
<domain: "own", opset_import: ["" : 17]>
norm (x, s) => (y) { y = SimplifiedLayerNormalization <epsilon: float = 1e-5> (x, s) }''')
before = model.SerializeToString()
result = byoc.partition(model, sys.argv[1], output=sys.argv[2], strategy="all-supported")
assert model.SerializeToString() == before
print(len(result.plan.regions), result.verification.passed, result.verification.judge or "onnxruntime")
found = byoc.load(sys.argv[2])({"x": np.array([[3, -4, 0, 0]], np.float32), "s": np.ones(4, np.float32)})
print(found["y"].astype(np.float64).round(4).tolist())
"""


def test_a_function_with_such_a_node_does_not_end_the_process(
    tmp_path: Path, warm_processes: WarmProcesses
) -> None:
    row = [sys.executable, "-c", IN_A_FUNCTION, str(VANILLA), str(tmp_path / "b")]
    ran = warm_processes.run(row)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "1 True onnxruntime\n[[1.2, 0.0, 0.0, 0.0]]\n"


def test_defaults_are_stated_in_functions_alone_and_in_a_copy() -> None:
    text = f"g (float[1,4] x, float[4] s) => (float[1,4] y) {{ t = {NORM} (x, s) y = own.norm (t, s) }}"
    model = parse(text)
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    assert state_function_defaults(model) is model
    given = onnx.helper.make_node("SimplifiedLayerNormalization", ["a", "b"], ["c"], epsilon=0.5)
    imports = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("own", "norm", ["a", "b"], ["c"], [given], imports))
    before = model.SerializeToString()
    stated = state_function_defaults(model)
    assert model.SerializeToString() == before
    assert stated.graph == model.graph
    found = {a.name: onnx.helper.get_attribute_value(a) for a in stated.functions[0].node[0].attribute}
    assert found == {"epsilon": 0.5, "axis": -1, "stash_type": 1}
    assert state_function_defaults(stated) is stated


def test_a_region_with_such_nodes_runs_as_a_function() -> None:
    text = (
        "g (float[1,4] x, float[4] s) => (float[1,4] y) { "
        f"t = {NORM} (x, s)\n u = com.microsoft.QuickGelu <alpha: float = 1.5> (t)\n y = Relu (u) }}"
    )
    model = prepare_model(contrib(text), "test")
    groups = tuple(OutlineGroup((number,)) for number in range(len(model.index.nodes)))
    result = outline(GraphCuts(model.index, (RegionCut("r", "byoc.any", groups),)))
    again = prepare_model(result, "test")
    assert [node.op_type for node in again.proto.graph.node] == ["r"]
    inputs = {"x": np.array([[3, -4, 1, 0]], np.float32), "s": np.ones(4, np.float32)}
    expected = run_session(open_session(model.proto), inputs)["y"]
    assert run_session(open_session(again.proto), inputs)["y"] == pytest.approx(expected, abs=1e-6)


def test_without_onnxruntime_the_operator_and_what_to_install_are_named() -> None:
    code = f"""
import sys; sys.modules["onnxruntime"] = None
import onnx; from byoc.model import prepare_model; from byoc.errors import InputError
text = '<ir_version: 8, opset_import: ["" : 17]> {PLAIN}'
try: prepare_model(onnx.parser.parse_model(text), "m")
except InputError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "m: ONNX's operator set 17 has no operator of SimplifiedLayerNormalization 'y'; onnxruntime may "
        "have it: onnxruntime is not installed (pip install onnxruntime)"
    )
