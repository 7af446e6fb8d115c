"""What codegens say of themselves, asked in a worker process, which they may kill."""

import json
from collections.abc import Callable

import pytest
from helpers import vendors
from helpers.support import Ran
from helpers.wrecking import Wreck

from byoc.codegen import (
    CodegenDescription,
    Codegens,
    Isolation,
    describe_codegens,
    find_codegen,
)
from byoc.errors import InputError
from byoc.support import list_options

OURS = ("c", "dla", "ethos_u", "iree", "openvino", "ort_ep", "qnn", "reference", "rknn", "tvm")


def test_a_description_is_the_same_from_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    there = describe_codegens(OURS)
    vendors.forbid_processes(monkeypatch)
    here = describe_codegens(OURS)
    assert there == here
    found = there["dla"]
    assert isinstance(found, CodegenDescription)
    options = list_options(find_codegen("dla").Options)  # type: ignore[attr-defined]
    assert [each.name for each in found.options or ()] == [each.name for each in options]
    assert [each.default for each in found.options or ()] == [each.default for each in options]


@pytest.mark.parametrize("way", ["segv", "abort", "exit", "garbage"])
def test_one_that_kills_its_process_does_not_take_the_others_along(
    way: str, wreck: Wreck, byoc: Callable[..., Ran]
) -> None:
    wreck(f"import {way}")
    reasons = {
        "segv": "its process was killed by SIGSEGV in import",
        "abort": "its process was killed by SIGABRT in import",
        "exit": "its process ended with exit code 7 in import",
        "garbage": "its process gave an answer to import that cannot be read",
    }
    reason = f"codegen wrecker cannot be loaded: {reasons[way]}"
    ran = byoc("codegens", "wrecker")
    assert (ran.code, ran.out, ran.err) == (1, "", f"byoc: {reason}\n")
    if way != "segv":
        return
    ran = byoc("codegens", "--format", "json")
    assert ran.code == 0
    rows = {row["name"]: row for row in json.loads(ran.out)}
    assert rows["wrecker"]["problem"] == reason
    assert rows["wrecker-together"]["executable"] is None
    assert {rows[name]["executable"] for name in OURS} == {True}
    assert {rows[name]["problem"] for name in OURS} == {""}


def test_what_a_codegen_prints_is_no_result(wreck: Wreck, byoc: Callable[..., Ran]) -> None:
    wreck("import print")
    assert json.loads(byoc("codegens", "wrecker", "--format", "json").out)["name"] == "wrecker"


def test_an_error_of_several_lines_has_them_in_a_worker_too() -> None:
    sentences = []
    for isolation in (None, Isolation()):
        codegens = Codegens(isolation)
        with pytest.raises(InputError) as caught:
            codegens.find("nothing")
        sentences.append(caught.value.lines)
        codegens.close()
    assert sentences[0] == sentences[1]
