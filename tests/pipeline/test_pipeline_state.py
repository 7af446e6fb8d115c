"""Pairs of state that are declared, on the command line or in a rule file, and kept by sessions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.support import parse
from numpy.typing import NDArray

import byoc
from byoc.errors import InputError
from byoc.model import match_state_patterns

RULES = "target: npu\ncost_model: openvino-cpu\ncodegen: reference\ndtype: any\nops: [{op: '*'}]\n"
# A recurrent cell of two memories, whose names say nothing.
CELL = """cell (float[2, 4] x, float[2, 4] h_0, float[2, 4] h_1) =>
  (float[2, 4] y, float[2, 4] g_0, float[2, 4] g_1) {
    a = Add(x, h_0)
    g_0 = Tanh(a)
    b = Sub(x, h_1)
    g_1 = Sigmoid(b)
    y = Mul(g_0, g_1)
}"""


def run_cell(steps: NDArray[np.float32]) -> list[Any]:
    first = second = np.zeros((2, 4), np.float32)
    made = []
    for x in steps:
        first, second = np.tanh(x + first), 1 / (1 + np.exp(second - x))
        made.append(first * second)
    return made


def write(folder: Path, more: str = "", **options: Any) -> byoc.Result:
    folder.mkdir(exist_ok=True)
    (folder / "npu.yaml").write_text(RULES + more)
    options.setdefault("strategy", "all-supported")
    return byoc.partition(parse(CELL), folder / "npu.yaml", output=folder / "b", **options)


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ("", {"state": {"h_0": "g_0", "h_1": "g_1"}}),
        ("state_pairs: {'h_*': 'g_*'}\n", {}),
        ("state_pairs: {h_0: g_0, 'h*': 'g*'}\nstate: kept\n", {}),
        ("state_pairs: {'h_*': 'g_*', 'mem_*': 'out_*'}\n", {"strategy": "exact"}),
    ],
)
def test_a_session_keeps_the_state_that_is_declared(
    more: str, options: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, more, **options)
    assert byoc.inspect(tmp_path / "b")["state"] == {"h_0": "g_0", "h_1": "g_1"}
    session = byoc.open_stateful(byoc.load(tmp_path / "b"))
    assert session.inputs == ("x",)
    steps = np.random.default_rng(0).standard_normal((5, 2, 4), np.float32)
    for x, expected in zip(steps, run_cell(steps), strict=True):
        np.testing.assert_allclose(session({"x": x})["y"], expected, atol=1e-6)


def test_nobody_sees_the_state_where_it_is_not_declared(tmp_path: Path) -> None:
    write(tmp_path)
    assert byoc.inspect(tmp_path / "b")["state"] == {}
    with pytest.raises(InputError, match="no input takes what an output gave; name the pairs"):
        byoc.open_stateful(byoc.load(tmp_path / "b"))
    session = byoc.open_stateful(byoc.load(tmp_path / "b"), {"h_0": "g_0", "h_1": "g_1"})
    assert session.inputs == ("x",)


def test_what_is_found_holds_beside_what_a_rule_file_declares(tmp_path: Path) -> None:
    rules = tmp_path / "npu.yaml"
    rules.write_text(RULES + "state_pairs: {past_key_values.0.key: present.2.key}\n")
    byoc.partition("zoo:decoder_int4", rules, output=tmp_path / "b", verify=False)
    found = byoc.inspect(tmp_path / "b")["state"]
    assert found["past_key_values.0.key"] == "present.2.key"
    assert found["past_key_values.1.value"] == "present.1.value"
    assert "past_key_values.2.key" not in found  # its output is declared for another


def test_patterns_stand_for_one_text_in_both_names() -> None:
    model = parse(CELL)
    assert match_state_patterns({"h_*": "g_*"}, model) == {"h_0": "g_0", "h_1": "g_1"}
    assert match_state_patterns({"*_0": "g_*"}, model) == {}
    assert match_state_patterns({"h_1": "g_0", "h_*": "g_*"}, model) == {"h_0": "g_0", "h_1": "g_0"}
    assert match_state_patterns({"h_0*0": "g_0*"}, model) == {}


@pytest.mark.parametrize(
    ("more", "options", "reason"),
    [
        ("state_pairs: {'h_*': g_0}\n", {}, r"state_pairs: 'h_\*: g_0' must have one `\*` in both"),
        ("state_pairs: {h_0: g_0, h_1: g_0}\n", {}, "output 'g_0' is the state of two inputs"),
        ("", {"state": {"h_0": "g_9"}}, "no output 'g_9'"),
    ],
)
def test_pairs_that_cannot_be_are_refused(
    more: str, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=reason):
        write(tmp_path, more, **options)
    assert not (tmp_path / "b").exists()
