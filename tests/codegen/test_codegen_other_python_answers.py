"""Answers of another Python and descriptions are checked: nonsense cannot be read."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.support import parse
from hypothesis import example, given
from hypothesis import strategies as st

from byoc.codegen import (
    CodegenDescription,
    Isolation,
    find_codegen,
    read_region,
)
from byoc.codegen._compiler_identity import describe_codegen, read_description
from byoc.codegen._other_python import OtherPythonCodegen, OtherPythonProgram
from byoc.codegen.byoc_worker.link import BrokenMessageError, SharedMemory
from byoc.support.trust import InterpreterSettings

INTERPRETER = InterpreterSettings(python="/opt/python", module="a:A")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


OPTION = {
    "name": "speed",
    "type": "int",
    "choices": [],
    "optional": False,
    "required": False,
    "default": 3,
    "help": "",
    "executes": False,
}


ANSWER = {
    "summary": "Computes",
    "api": 2,
    "abilities": ["executable"],
    "options": [OPTION],
    "flags": {"open_shapes": False, "recompiles": False, "native": True},
    "recovery_options": [{"speed": "1"}],
    "interpreter": "Python 3.8.18, numpy 1.24.4",
}


QUESTION = {"region": 1, "method": "operations", "arguments": {"fold": True}}


def _read(answer: Any) -> Any:
    codegen = OtherPythonCodegen("a", Isolation(), INTERPRETER)
    try:
        return codegen._read_import(answer, None)  # type: ignore[arg-type]
    except BrokenMessageError:
        return None


def test_a_description_is_read() -> None:
    found = _read(ANSWER)
    assert (found.abilities, found.native, found.api) == (("executable",), True, 2)
    assert [(each.name, each.default) for each in found.options] == [("speed", "3")]
    assert found.recovery_options == ({"speed": "1"},)


@given(JSON)
def test_any_answer_to_an_import_is_a_description_or_unreadable(answer: Any) -> None:
    assert _read(answer) is None


@example("flags", [1])
@given(st.sampled_from(sorted(ANSWER)), JSON)
def test_a_description_with_one_part_changed(key: str, value: Any) -> None:
    found = _read({**ANSWER, key: value})
    assert found is None or isinstance(found, CodegenDescription)


@given(st.sampled_from(sorted(OPTION)), JSON)
def test_a_description_of_an_option_with_one_part_changed(key: str, value: Any) -> None:
    found = _read({**ANSWER, "options": [{**OPTION, key: value}]})
    assert found is None or isinstance(found, CodegenDescription)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[OtherPythonProgram, SharedMemory]:
    """Return a program that was asked to compile a region, its number 1."""
    path: Path = tmp_path_factory.mktemp("region") / "r.onnx"
    onnx.save(parse("g (float[4] x) => (float[4] y) { y = Relu(x) }"), path)
    program = OtherPythonProgram("a", INTERPRETER)
    program.write_request(1, "compile", {"region": read_region(path, "a_0", "a"), "options": {}})
    return program, SharedMemory.create()


def _answer(asked: tuple[OtherPythonProgram, SharedMemory], question: Any) -> Any:
    program, memory = asked
    try:
        return json.loads(program.answer_question(question, memory))
    except BrokenMessageError:
        return None


def test_a_question_is_answered(asked: tuple[OtherPythonProgram, SharedMemory]) -> None:
    ((kind, attributes),) = [each["record"] for each in _answer(asked, QUESTION)["value"]["tuple"]]
    assert (kind, attributes["op"], "node" in attributes) == ("Operation", "Relu", False)


@given(JSON)
def test_any_question_is_answered_or_unreadable(
    asked: tuple[OtherPythonProgram, SharedMemory], question: Any
) -> None:
    assert _answer(asked, question) is None


@given(
    st.sampled_from(["operations", "type", "constant", "samples", "arena", "save", "load", "__class__"]),
    st.dictionaries(st.sampled_from(["fold", "name", "alignment", "opset", "x"]), JSON, max_size=2),
)
def test_questions_with_any_arguments_are_answered(
    asked: tuple[OtherPythonProgram, SharedMemory], method: str, arguments: dict[str, Any]
) -> None:
    found = _answer(asked, {"region": 1, "method": method, "arguments": arguments})
    if method in {"load", "__class__"}:
        assert found is None
    else:
        assert found.keys() <= {"value", "failure"}


@pytest.mark.parametrize(
    "change",
    [
        {"abilities": ["flying"]},
        {"abilities": "oracle"},
        {"api": "1"},
        {"native": 0},
        {"options": [{"name": "x"}]},
        {"summary": None},
    ],
)
def test_what_is_no_description_is_refused(change: dict[str, object]) -> None:
    right = {
        **{"summary": "x", "api": 1, "abilities": ["oracle"], "options": None},
        **{"open_shapes": False, "recompiles": True, "native": False},
    }
    assert read_description(right) == CodegenDescription(
        "x", 1, ("oracle",), None, open_shapes=False, recompiles=True, native=False
    )
    assert describe_codegen(find_codegen("reference")).abilities[0] == "executable"
    for wrong in ({**right, **change}, None, [], "x"):
        with pytest.raises(BrokenMessageError):
            read_description(wrong)
