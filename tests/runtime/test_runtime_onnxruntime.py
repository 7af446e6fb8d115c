"""The only door to onnxruntime, open and shut."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cutting import CHAIN, HOST_ONLY, cut, ramp
from helpers.support import parse

import byoc
from byoc.errors import InputError, MissingRuntimeError
from byoc.onnxrt import (
    bind_session,
    has_runtime,
    open_session,
    run_session,
    sharing_process,
    with_memory_returned,
)
from byoc.support import return_free_memory

SENTENCE = "onnxruntime is not installed (pip install onnxruntime)"


@pytest.fixture
def no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


def test_it_is_there() -> None:
    assert has_runtime()


def test_a_model_that_onnxruntime_refuses_is_one_sentence() -> None:
    wrong = parse("g (float[1, 4] x) => (float[1, 4] y) { y = NoSuchOperator(x) }")
    with pytest.raises(InputError, match=r"^onnxruntime cannot load the model: .*NoSuchOp") as caught:
        open_session(wrong)
    assert "\n" not in str(caught.value)


def test_a_run_that_onnxruntime_refuses_is_one_sentence() -> None:
    session = open_session(parse(HOST_ONLY))
    with pytest.raises(InputError, match=r"^onnxruntime cannot run the model: ") as caught:
        run_session(session, {"x": ramp(2, 2)})
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_runtime")
def test_without_it_partition_writes_and_says_that_nothing_was_verified(tmp_path: Path) -> None:
    assert not has_runtime()
    result = cut(parse(CHAIN), tmp_path / "b")
    assert result.verification is None
    assert result.report.not_verified == SENTENCE
    onnx.checker.check_model(str(tmp_path / "b/model.onnx"))


@pytest.mark.usefixtures("no_runtime")
@pytest.mark.parametrize("text", [CHAIN, HOST_ONLY])
def test_without_it_a_bundle_does_not_load(text: str, tmp_path: Path) -> None:
    cut(parse(text), tmp_path / "b")
    with pytest.raises(MissingRuntimeError) as caught:
        byoc.load(tmp_path / "b")
    assert str(caught.value) == SENTENCE


def test_sessions_that_share_a_process_keep_no_memory_for_themselves() -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }")
    alone = open_session(model)
    with sharing_process(3):
        together = open_session(model)
    found = [each.get_session_options().enable_cpu_mem_arena for each in (alone, together)]
    assert found == [True, False]


def test_memory_is_returned_behind_each_run_of_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    returned = []
    monkeypatch.setattr("byoc.onnxrt._onnxruntime.return_free_memory", lambda: returned.append(1))
    session = open_session(parse("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }"))
    x, y = ramp(1, 4), np.empty((1, 4), np.float32)
    bound = bind_session(session, {"x": x}, {"y": y})
    assert bound is not None
    with with_memory_returned():
        run_session(session, {"x": x})
        bound({})
    bound({})
    run_session(session, {"x": x})
    assert len(returned) == 2
    return_free_memory()  # of this machine's C library: nothing fails


@pytest.mark.usefixtures("no_runtime")
def test_without_it_nothing_but_running_is_missed() -> None:
    assert byoc.load_model(parse(CHAIN)).index.inputs == ["x"]
    assert len(cut(parse(CHAIN)).plan.regions) == 2


def test_without_it_everything_imports() -> None:
    script = (
        "import sys; sys.modules['onnxruntime'] = None; "
        "import byoc, byoc.cli, byoc.codegens.reference; print(byoc.load_model('zoo:squeezenet').name)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        check=False,
        text=True,
        timeout=1200,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "squeezenet\n", "")
