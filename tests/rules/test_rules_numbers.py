"""Numbers and names from anywhere: infinite, huge, NaN, not quite a float32; true and false are none."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from helpers.ruling import check_types, lint, rules, verdict
from helpers.support import parse
from onnx import numpy_helper

from byoc.errors import InputError
from byoc.model import list_plain_elements, prepare_model
from byoc.rules import annotate_graph, load_rules

HUGE = "9" * 400
HEAD = {"target": "t", "cost_model": "dla", "dtype": "any"}


def complaints(op: str, **keys: str) -> list[str]:
    more = {key: yaml.safe_load(value) for key, value in keys.items()}
    content = {**HEAD, "ops": [yaml.safe_load(op)], **more}
    return check_types(content) + lint(content)


@pytest.mark.parametrize(
    "op",
    [
        "{op: Add, tensors: {A: {dims: {0: {min: .inf}}}}}",
        "{op: Add, tensors: {A: {dims: {each: {max: -.inf}}}}}",
        "{op: Add, tensors: {A: {elements: {min: .inf}}}}",
        "{op: Add, tensors: {B: {value: {min: .nan}}}}",
        "{op: Add, opset: {min: 1.0e+999}}",
        "{op: Add, opset: {max: -.inf}}",
        "{op: Elu, attributes: {alpha: {min: .inf}}}",
        "{op: Elu, attributes: {alpha: {one_of: [1, .nan]}}}",
        f"{{op: Elu, attributes: {{alpha: {{one_of: {HUGE}}}}}}}",
        f"{{op: Elu, attributes: {{alpha: {{min: {HUGE}}}}}}}",
        f"{{op: Add, tensors: {{A: {{bytes: {{min: {HUGE}}}}}}}}}",
        f"{{op: Add, tensors: {{A: {{bytes: {{max: {HUGE}GiB}}}}}}}}",
        f"{{op: Add, tensors: {{A: {{rank: {HUGE}}}}}}}",
        f"{{op: Add, tensors: {{A: {{dims: {{0: {{multiple_of: {HUGE}}}}}}}}}}}",
        f"{{op: Add, tensors: {{A: {{dims: {{{HUGE}: 1}}}}}}}}",
        f"{{op: Add, tensors: {{A: {{dims: {{'{HUGE}': 1}}}}}}}}",
        '{op: Add, tensors: {A: {dims: {0: {equals: "B[1]\\n"}}}}}',
        f"{{op: Add, tensors: {{A: {{dims: {{0: {{equals: 'B[{'9' * 5000}]'}}}}}}}}}}",
        "{op: Add, tensors: {A: {rank: true}}}",
        "{op: Add, tensors: {A: {dims: {0: true}}}}",
        "{op: Add, tensors: {A: {dims: {0: {multiple_of: true}}}}}",
        "{op: Add, tensors: {A: {bytes: {max: true}}}}",
        "{op: Add, opset: {min: true}}",
        "{op: Softmax, attributes: {axis: {one_of: true}}}",
        "{op: Softmax, attributes: {axis: {max: true}}}",
        "{op: Conv, attributes: {pads: {each: {one_of: [0, false]}}}}",
        "{op: Conv, attributes: {pads: {each: {one_of: same}}}}",
        "{op: Conv, attributes: {pads: {length: true}}}",
    ],
)
def test_what_is_no_number_here(op: str) -> None:
    problems = complaints(op)
    assert len(problems) == 1
    assert len(problems[0]) < 300


@pytest.mark.parametrize(
    "memory", [f"'{HUGE}GiB'", f"'{HUGE}.5'", ".inf", HUGE, "9223372036854775807GiB"]
)
def test_memory_that_nothing_has(memory: str) -> None:
    assert len(complaints("{op: Add}", limits=f"{{memory: {memory}}}")) == 1


def test_dtypes_of_the_scheme() -> None:
    scheme = "{activations: {dtype: int99}, weights: {dtype: [int8, itn8]}}"
    assert [
        problem.partition(" (")[0].partition(";")[0]
        for problem in complaints("{op: Add}", quantization=scheme)
    ] == [
        "quantization.activations.dtype: no such data type 'int99'",
        "quantization.weights.dtype: no such data type 'itn8'",
    ]


def test_messages_quote_the_beginning_of_what_is_long(tmp_path: Path) -> None:
    long = "n" * 5000
    path = tmp_path / "r.yaml"
    head = yaml.safe_dump(HEAD)
    for text in (
        f"{head}ops: [{{op: {long}}}]\n{long}: 1\n",
        f"{head}ops: [{{op: Add, dtype: {long}, check: {long}, where: {long}, opset: {{{long}: 1}}}}]\n",
        f"{head}ops: [{{op: Add, level: {long}, attributes: {{{long}: {{one_of: {long}}}}}}}]\n",
        f"{head}ops: [{{op: Add}}]\ncomposites: [{{library: {long}}}, {{name: a, pattern: {long}}}]\n",
        f"{head}ops: [{{op: Add}}]\nhost: {{names: ['({long}'], ops: [{long}]}}\n",
        f"extends: {long}\n",
        f"extends: '{'n/' * 3000}'\n",
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as raised:
            load_rules(str(path))
        assert max(map(len, str(raised.value).splitlines())) < 1_300
        assert all(line.startswith(str(path)) for line in str(raised.value).splitlines())


def test_names_that_no_file_can_have() -> None:
    with pytest.raises(InputError, match=r"^n+\.\.\.: no such file and no installed rule file"):
        load_rules("n" * 5000)


def constants(value: object, dtype: str, op: str) -> str:
    text = f"g ({dtype}[4] a) => ({dtype}[4] y) <{dtype} c = {{1}}> {{ y = Mul(a, c) }}"
    model = parse(text)
    made = np.array(value).astype(
        onnx.helper.tensor_dtype_to_np_dtype(model.graph.initializer[0].data_type)
    )
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(made, "c"))
    marks = annotate_graph(
        prepare_model(model, "test").index, rules(f"[{{op: Mul, {op}}}]", dtype="any")
    )
    return str(marks[-1].verdict)


@pytest.mark.parametrize("limits", ["min: 0", "max: 1", "min: 0, max: 1"])
def test_nan_is_within_no_limits(limits: str) -> None:
    nan = float("nan")
    assert "NaN" in constants(nan, "float", f"tensors: {{B: {{value: {{{limits}}}}}}}")
    elu = "g (float[4] a) => (float[4] y) { y = Elu <alpha = nan> (a) }"
    assert "NaN" in verdict(elu, f"[{{op: Elu, attributes: {{alpha: {{{limits}}}}}}}]")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float", "double"])
@pytest.mark.parametrize("value", [0.1, 0.3, 1.0, -2.5, 0.0, 5.625, 1024.0])
def test_a_decimal_is_what_it_is_in_the_tensors_type(dtype: str, value: float) -> None:
    for limits in (f"one_of: {value}", f"min: {value}, max: {value}"):
        assert constants(value, dtype, f"tensors: {{B: {{value: {{{limits}}}}}}}") == "yes"
    assert constants(value, dtype, f"where: 'B.value[0] == {value}'") == "yes"


def test_elements_beyond_decimals() -> None:
    for kind in (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT16):
        made = np.array([np.nan, np.inf, -1.75, 0.0]).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        assert np.array_equal(list_plain_elements(made), made.astype(np.float64), equal_nan=True)


def test_true_is_no_one() -> None:
    assert "supported: True" in constants(1.0, "float", "tensors: {B: {value: {one_of: true}}}")
    made = "g (bool[4] a) => (bool[4] y) <bool c = {1}> { y = And (a, c) }"
    assert verdict(made, "[{op: And, tensors: {B: {value: {one_of: true}}}}]", dtype="any") == "yes"
    assert verdict(made, "[{op: And, tensors: {B: {value: {one_of: 1}}}}]", dtype="any") != "yes"


@pytest.mark.parametrize(
    "where",
    ["type(A.rank) == int", "A.shape.all(op, op > 0) && op == 'Add'", "name != '.all(A,' && A.rank > 0"],
)
def test_conditions_that_are_right(where: str) -> None:
    assert complaints(f'{{op: Add, where: "{where}"}}') == []


def test_whole_numbers_beyond_the_digits_of_their_type() -> None:
    assert list_plain_elements(np.array([65504.0, 0.1], np.float16)) == [65504.0, 0.1]
    assert list_plain_elements(np.array([123456792.0, 0.1], np.float32)) == [123456792.0, 0.1]
