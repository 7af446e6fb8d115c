"""The rule file for OpenVINO's CPU plug-in, held to OpenVINO; `run.py` beside this file asks more."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from agreement import judge
from helpers.asking import Answer, Data, Question
from helpers.one_node_models import OneNode, attribute_tests, light_nodes, operator_tests
from helpers.rule_agreement import Judged, goal_missed, refusal, table
from helpers.support import LIGHT, parse, sample_cases
from onnx import helper
from onnxruntime_nodes import contrib_nodes
from oracle import ask, openvino_version

from byoc.onnxrt import has_runtime
from byoc.rules import load_rules

pytestmark = [
    pytest.mark.openvino,
    pytest.mark.skipif(not openvino_version(), reason="openvino is not installed"),
    pytest.mark.skipif(not has_runtime(), reason="onnxruntime is not installed"),
]

RELU = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
DET = "g (float[2,2] x) => (float y) { y = Det(x) }"
X = np.array([-1.0, 2.0], np.float32)


def question(text: str, x: np.ndarray, y: object) -> Question:
    data = Data({"x": x}, {"y": np.asarray(y, np.float32)}, 1e-3, 1e-7)
    return Question(parse(text).SerializeToString(), (data,))


SMALL = ("densenet121", "inception_v2", "resnet50", "shufflenet", "squeezenet")
SMALLEST = ("shufflenet", "squeezenet")


@pytest.mark.parametrize(
    ("every", "models"),
    sample_cases([(3, LIGHT), (12, SMALL), (30, SMALLEST), (90, SMALLEST)], (90, SMALLEST)),
)
def test_the_rule_file_agrees_with_openvino(
    every: int, models: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    own = [*operator_tests(every), *attribute_tests(3 * every), *light_nodes(every, models)]
    # run.py asks for all
    sample = [*own, *contrib_nodes()]
    judged = judge(sample, load_rules("openvino-cpu"))

    with capsys.disabled():
        print("", *table(judged, "OpenVINO"), sep="\n")  # noqa: T201 - the figures are what this is about
    assert len(judged) > 3000 // every
    assert sum(bool(one.answer) for one in judged) > 2400 // every
    assert goal_missed(judged) == ""


def test_answers_come_in_order_and_one_that_is_lost_does_not_matter() -> None:
    right, wrong, unread = (
        question(RELU, X, [0, 2]),
        question(RELU, X, [0, 3]),
        question(DET, np.eye(2, dtype=np.float32), 1),
    )

    kinds = [answer.kind for answer in ask([right, wrong, unread, Question(b"no model", ()), right])]

    assert kinds == ["takes", "wrong numbers", "refuses", "refuses", "takes"]


def test_what_hangs_is_given_up_and_the_next_is_answered() -> None:
    one = question(RELU, X, [0, 2])

    (late,) = ask([one], workers=1, patience=0.0)

    assert late == Answer("crash", "no answer in 0 s")
    assert [bool(answer) for answer in ask([one, one], workers=1)] == [True, True]


class Fatal(bytes):
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (3,)


def test_a_crash_is_an_answer_and_the_next_is_answered() -> None:
    one = question(RELU, X, [0, 2])

    answers = list(ask([one, Question(Fatal(), ()), one], workers=1))

    assert answers == [Answer("takes"), Answer("crash", "the process ended with 3"), Answer("takes")]


def there_and_back(dtype: str) -> tuple[Question, Question]:
    """Return questions of casts between a type that numpy has not and float32."""
    number = onnx.TensorProto.DataType.Value(dtype.upper())
    numbers = np.array([[1, 2, 3], [4, 5, 7]]).astype(helper.tensor_dtype_to_np_dtype(number))
    text = f"g ({dtype}[2,3] x) => (float[2,3] y) {{ y = Cast<to = 1>(x) }}"
    back = f"g (float[2,3] x) => ({dtype}[2,3] y) {{ y = Cast<to = {number}>(x) }}"
    plain = numbers.astype(np.float32)

    there = Question(
        parse(text, 10, 21).SerializeToString(), (Data({"x": numbers}, {"y": plain}, 0, 0),)
    )
    here = Question(parse(back, 10, 21).SerializeToString(), (Data({"x": plain}, {"y": numbers}, 0, 0),))

    return there, here


def test_types_that_numpy_has_not_reach_openvino_and_come_back() -> None:
    questions = [q for dtype in ("bfloat16", "int4", "uint4") for q in there_and_back(dtype)]

    assert list(ask(questions, workers=1)) == [Answer("takes")] * 6


def test_a_false_accept_and_too_many_false_refusals_miss_the_goal() -> None:
    case = OneNode("relu", "test", parse(RELU), question(RELU, X, [0, 2]))
    accept, refused = Judged(case, Answer("crash"), ""), Judged(case, Answer("takes"), "not today")
    agreed = Judged(case, Answer("takes"), "")

    assert goal_missed([agreed, accept]) == "1 false accepts: relu"
    assert goal_missed([agreed] * 99 + [refused]) == ""
    assert goal_missed([agreed] * 98 + [refused]) == "1 false refusals of 99"
    lines = list(table([agreed, accept, refused], "OpenVINO"))
    assert "false accepts: 1 of 1 (100.00%)" in lines
    assert "false refusals: 1 of 2 (50.00%)" in lines
    assert "       relu (test): not today" in lines


def test_a_file_that_takes_everything_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_text("target: any\ncost_model: dla\ndtype: any\nops: [{op: '*'}]\n", encoding="utf-8")
    cases = [
        OneNode("det", "test", parse(DET), question(DET, np.eye(2, dtype=np.float32), 1)),
        OneNode("relu", "test", parse(RELU), question(RELU, X, [0, 2])),
    ]

    judged = judge(cases, load_rules(str(path)), workers=1)

    assert goal_missed(judged) == "1 false accepts: det"


def test_the_rule_file_is_asked_about_the_node() -> None:
    target = load_rules("openvino-cpu")
    relu, det = (OneNode("one", "test", parse(text), Question(b"", ())) for text in (RELU, DET))

    assert refusal(relu, target) == ""
    assert refusal(det, target) == "Det is not among the operators of openvino-cpu"
