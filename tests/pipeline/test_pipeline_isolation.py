"""Bundles whose codegens run in processes of their own: partitioned, run, verified, narrowed."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cutting import UNLIKE, cut, ramp
from helpers.failing import on_devices, working
from helpers.support import VANILLA, Ran, copy_vanilla, parse, without_location
from helpers.wrecking import Wreck

import byoc as library
from byoc.errors import InputError

pytestmark = pytest.mark.usefixtures("numbered_regions")


@pytest.mark.parametrize("what", ["load segv", "run segv", "load raise", "run garbage"])
def test_what_dies_goes_back_to_the_host_and_the_bundle_works(
    what: str, wreck: Wreck, tmp_path: Path
) -> None:
    wreck(what)
    result = working(parse(UNLIKE), tmp_path / "b", codegen="wrecker", isolate=True)
    assert on_devices(result) == {"a": "host", "b": "host", "y": "host"}
    method = what.split(maxsplit=1)[0]
    reasons = {
        "load segv": "its process was killed by SIGSEGV in load",
        "run segv": "its process was killed by SIGSEGV in run",
        "load raise": "loading failed with ZeroDivisionError: integer division or modulo by zero",
        "run garbage": f"its process gave an answer to {method} that cannot be read",
    }
    found = [
        (each.region, without_location(each.reason), each.failed) for each in result.report.refusals
    ]
    assert found == [("dla_0", reasons[what], True)] * 2


def test_the_verbs_say_one_sentence(
    wreck: Wreck, tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(UNLIKE), "net.onnx")
    command = ["partition", "net.onnx", "--rules", VANILLA, "-o", "b", "--codegen", "wrecker"]
    assert byoc(*command, "--strategy", "all-supported").code == 0
    died = "codegen wrecker: {}its process was killed by SIGSEGV in {}\n"
    wreck("run segv")
    ran = byoc("run", "b", "--inputs", "random", "--isolate")
    assert (ran.code, ran.out, ran.err) == (1, "", "byoc: dla_0: " + died.format("", "run"))
    wreck("load segv")
    ran = byoc("run", "b", "--inputs", "random", "--isolate")
    assert (ran.code, ran.out, ran.err) == (1, "", "byoc: " + died.format("dla_0: ", "load"))
    ran = byoc("verify", "b", "--isolate")
    told = "byoc: the bundle does not run: " + died.format("dla_0: ", "load")
    assert (ran.code, ran.out, ran.err) == (1, "", told)
    wreck("run hang")
    ran = byoc("run", "b", "--inputs", "random", "--call-timeout", "2")
    told = "byoc: dla_0: codegen wrecker: run took longer than 2 s and was stopped\n"
    assert (ran.code, ran.out, ran.err) == (1, "", told)
    wreck("compile segv wrong")
    ran = byoc("verify", "b", "--isolate", "--bisect")
    assert ran.code == 1
    told = "region dla_0 cannot be tried again: its process was killed by SIGSEGV in compile"
    assert told in ran.out.splitlines()
    wreck("compile print wrong")
    fault = library.bisect("b", "dla_1", isolate=True)
    assert (fault.op, fault.operations) == ("Add", ("y",))


def test_a_session_computes_the_same_and_survives(wreck: Wreck, tmp_path: Path) -> None:
    cut(parse(UNLIKE), tmp_path / "b", codegen="wrecker")
    inputs = [{"x": ramp(1, 4) + number} for number in range(8)]
    here = library.load(tmp_path / "b", isolate=False)
    there = library.load(tmp_path / "b", isolate=True)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(there, inputs))
    for given, outputs in zip(inputs, made, strict=True):
        np.testing.assert_array_equal(outputs["y"], here(given)["y"])
    wreck("run abort")
    with pytest.raises(
        InputError, match=r"^dla_0: codegen wrecker: its process was killed by SIGABRT in"
    ):
        there(inputs[0])
    wreck("")
    np.testing.assert_array_equal(there(inputs[1])["y"], here(inputs[1])["y"])


# What `partition` says of a plug-in that dies in each of its methods: the exit code, and the sentence.
ENDS = {
    "import": (1, "byoc: codegen wrecker-together cannot be loaded: {}"),
    "create": (1, "byoc: codegen wrecker-together cannot be loaded: {}"),
    "options": (1, "byoc: codegen wrecker-together: {}"),
    "compile": (5, "Codegen wrecker-together failed: dla_0: {}"),
    "compile_all": (0, ""),
    "cache_key": (5, "Codegen wrecker-together failed: dla_0: {}"),
    "compatible": (5, "Codegen wrecker-together failed: dla_0: {}"),
    "load": (5, "Codegen wrecker-together failed: dla_0: {}"),
    "run": (5, "Codegen wrecker-together failed: dla_0: {}"),
    "context": (1, "byoc: --emit epcontext: codegen wrecker-together: dla_0: {}"),
    "release": (0, ""),
}


@pytest.mark.parametrize("method", ENDS)
def test_no_method_takes_partition_along(
    method: str,
    wreck: Wreck,
    tmp_path: Path,
    byoc: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(UNLIKE), "net.onnx")
    command = ["partition", "net.onnx", "--rules", VANILLA, "-o", "b", "--codegen", "wrecker-together"]
    command += ["--isolate", "--strategy", "all-supported"]
    wreck(f"{method} segv")
    ran = byoc(*command, *(["--emit", "epcontext"] if method == "context" else []))
    code, sentence = ENDS[method]
    shown = {"create": "import", "cache_key": "describe compiler"}.get(method, method)
    said = sentence.format(f"its process was killed by SIGSEGV in {shown}")
    assert ran.code == code
    if code == 1:
        assert (ran.out, ran.err, Path("b").exists()) == ("", f"{said}\n", False)
        return
    assert ran.err == ""
    assert ran.out.startswith(said)
    wreck("")
    assert byoc("verify", "b").code == 0


def test_options_in_a_rule_file_are_read_in_a_process_of_its_own(
    wreck: Wreck, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        f"extends: {copy_vanilla(tmp_path)}\ncodegen: wrecker\ncodegen_options: {{level: 3}}\n"
    )
    assert byoc("rules", "check", file).code == 0
    wreck("import segv")
    ran = byoc("rules", "check", file)
    died = "codegen wrecker cannot be loaded: its process was killed by SIGSEGV in import"
    assert (ran.code, ran.out, ran.err) == (1, f"{file}: {died}\n", "")
