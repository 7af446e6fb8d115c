"""Random models by random rules through the command line compute what they do whole."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import BAD, DIFFERENT, CommandLine, compare, make_case, write_case
from evaluators import run_plain
from helpers.support import parse, sample_cases
from moved_values import explain_by_moves
from onnx import TensorProto

# Those that found something: a sequence beside a limit on memory, a Transpose of a constant in a layout,
# outputs that are sequences, tensors without elements, ranks that the branches of an If decide.
FOUND = (23, 187, 241, 788, 1983)
GRAPHS = range(2000)


@pytest.fixture(name="cli", scope="module")
def start_command_line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    started = CommandLine(tmp_path_factory.mktemp("home"))
    yield started
    started.close()


@pytest.mark.parametrize("number", sample_cases(GRAPHS, *FOUND, every=250))
def test_a_bundle_computes_what_its_model_does(number: int, cli: CommandLine, tmp_path: Path) -> None:
    found = compare(cli, 2, number, tmp_path)
    assert found.outcome not in BAD, found.why


def test_a_case_is_the_same_each_time(tmp_path: Path) -> None:
    first, second = make_case(3, 4), make_case(3, 4)
    assert first.model == second.model
    assert (first.rules, first.options) == (second.rules, second.options)
    assert write_case(first, tmp_path)[:2] == ["partition", "m.onnx"]
    assert make_case(3, 5).model != first.model


def test_a_wrong_output_is_a_finding(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_wrongly(*given: object) -> list[object]:
        return [value + 1 for value in run_plain(*given)]  # type: ignore[arg-type, operator]

    monkeypatch.setattr("command_line.run_plain", run_wrongly)
    monkeypatch.setattr("command_line.run_reference", run_wrongly)
    text = "(float[2, 3] x) => (float[2, 3] y) { a = Relu(x) y = Neg(a) }"
    case = make_case(2, 0)
    case.model, case.inputs = parse(f"g {text}"), {"x": np.ones((2, 3), np.float32)}
    case.types = dict.fromkeys("xay", TensorProto.FLOAT)
    case.options = ["--strategy", "all-supported"]
    case.rules = [{"target": "t", "codegen": "reference", "dtype": "any", "ops": [{"op": "*"}]}]
    monkeypatch.setattr("command_line.make_case", lambda seed, number: case)
    found = compare(cli, 2, 0, tmp_path)
    assert found.outcome == DIFFERENT
    assert "instead of" in found.why


def test_a_step_is_explained_by_values_beside_it_and_nothing_else() -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Mul(x, x) y = Round(a) }")
    inputs = {"x": np.array([np.sqrt(0.5), 3.0], np.float32)}
    types = dict.fromkeys("xay", TensorProto.FLOAT)
    (expected,) = run_plain(model, inputs)
    other = expected.copy()
    other[0] = 1 - other[0]
    assert explain_by_moves(model, inputs, types, "y", expected, other)
    other[1] += 3
    assert not explain_by_moves(model, inputs, types, "y", expected, other)
