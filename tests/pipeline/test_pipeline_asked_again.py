"""What codegens are asked once a region was refused: never the same twice, several regions at once."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from byoc.codegens.reference import Reference
from helpers import vendors
from helpers.cutting import UNLIKE, cut
from helpers.failing import on_devices, working
from helpers.faulty import REASON, faulty  # noqa: F401 - a fixture
from helpers.support import parse

from byoc.codegen import Artifact, CompileError, Executor, NoOptions, Region, ResourceError
from byoc.errors import MissingRuntimeError


@pytest.mark.usefixtures("faulty")
def test_a_region_that_stays_the_same_is_not_compiled_again(tmp_path: Path) -> None:
    model = parse("""
    g (float[1, 4] x) => (float[1, 4] y) {
      a = Add(x, x)
      b = Sigmoid(a)
      c = Relu(b)
      d = Relu(c)
      e = Sigmoid(d)
      y = Mul(e, e)
    }
    """)
    log = tmp_path / "log"
    options = {"fault": "names the first", "op": "Relu", "log": str(log)}
    (tmp_path / "out").mkdir()
    result = working(model, tmp_path / "out/b", codegen_options=options)
    assert on_devices(result) == {**dict.fromkeys("bcde", "host"), "a": "dla", "y": "dla"}
    assert log.read_text().splitlines() == ["Add", "Relu Relu", "Mul", "Relu"]
    manifest = json.loads((tmp_path / "out/b/manifest.json").read_text())
    assert [region["name"] for region in manifest["variants"][0]["regions"]] == ["dla_0", "dla_1"]


def _together(answer: Callable[[Sequence[Region]], Any]) -> tuple[type, list[str]]:
    asked: list[str] = []

    class All(Reference):
        name = "all"

        def compile(self, region: Region, options: NoOptions) -> Artifact:
            asked.append(region.name)
            answer([region])
            return Artifact()

        def compile_all(self, regions: Sequence[Region], options: NoOptions) -> Mapping[str, Artifact]:
            asked.append(" ".join(region.name for region in regions))
            made: Mapping[str, Artifact] = answer(regions)
            return made

    return All, asked


def _made(regions: Sequence[Region]) -> dict[str, Artifact]:
    return {region.name: Artifact() for region in regions}


def _no_relu(regions: Sequence[Region]) -> dict[str, Artifact]:
    if any(node.op_type == "Relu" for region in regions for node in region.nodes):
        raise CompileError("one of them has a Relu")
    return _made(regions)


def _not_node_a(regions: Sequence[Region]) -> dict[str, Artifact]:
    if any("a" in node.output for region in regions for node in region.nodes):
        raise CompileError("not this one", ["a"])
    return _made(regions)


def _not_two(regions: Sequence[Region]) -> dict[str, Artifact]:
    if len(regions) > 1:
        raise ResourceError("too many")
    return _made(regions)


def _one_is_nothing(regions: Sequence[Region]) -> dict[str, Any]:
    return {region.name: None if region.nodes[0].op_type == "Relu" else Artifact() for region in regions}


@pytest.mark.parametrize(
    ("answer", "calls", "refused"),
    [
        (_no_relu, ["dla_0 dla_1", "dla_0", "dla_1"], ["a"]),
        (_not_node_a, ["dla_0 dla_1", "dla_0"], ["a"]),
        (_not_two, ["dla_0 dla_1", "dla_0", "dla_1"], None),
        (_one_is_nothing, ["dla_0 dla_1", "dla_0"], ["a"]),
    ],
)
def test_a_compile_of_several_regions_fails(
    answer: Any,
    calls: list[str],
    refused: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, asked = _together(answer)
    vendors.install(monkeypatch, all=kind)
    result = working(parse(UNLIKE), tmp_path / "b", codegen="all")
    assert asked == calls
    assert [[*refusal.nodes] for refusal in result.report.refusals] == ([refused] if refused else [])


def test_an_artifact_that_bears_its_regions_name_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Named(Reference):
        name = "named"

        def compile(self, region: Region, options: NoOptions) -> Artifact:
            asked.append(f"{region.name} {region.nodes[0].op_type}")
            if region.nodes[0].op_type == "Relu":
                raise CompileError("no")
            return Artifact({"code": f"for {region.name}".encode()})

        def load(self, region: Region, artifact: Artifact) -> Executor:
            assert artifact.files["code"] == f"for {region.name}".encode()
            return super().load(region, artifact)

    vendors.install(monkeypatch, named=Named)
    working(parse(UNLIKE), tmp_path / "b", codegen="named")
    assert asked == ["dla_0 Relu", "dla_1 Add", "dla_0 Add"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MissingRuntimeError("pip install it")])
def test_what_is_no_failure_of_a_region_ends_the_run(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(region: Region) -> Any:
        raise error

    vendors.install(monkeypatch, odd=vendors.compiles(stops))
    with pytest.raises(type(error)):
        cut(parse(UNLIKE), tmp_path / "b", strict=False, codegen="odd")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("faulty")
def test_the_traceback_is_there_for_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BYOC_DEBUG", "1")
    for fault, isolate in (("raises", False), ("raises", True), ("load", False)):
        options = {"fault": fault, "op": "Relu"}
        cut(
            parse(UNLIKE),
            tmp_path / "b",
            **{"strict": False, "codegen": "faulty", "codegen_options": options, "isolate": isolate},
        )
        told = capfd.readouterr().err
        assert "Traceback" in told
        assert ("ZeroDivisionError" if fault == "raises" else "OSError: no such device") in told


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("segv", "its process was killed by SIGSEGV in compile"),
        ("names", REASON),
        ("text", "the content of 'a' is str, not bytes"),
        ("path", "'../a' is not a plain file name for an artifact"),
        ("all is well", None),
    ],
)
@pytest.mark.usefixtures("faulty")
def test_several_regions_in_one_process(fault: str, reason: str | None, tmp_path: Path) -> None:
    result = working(
        parse(UNLIKE),
        tmp_path / "b",
        codegen="faulty-together",
        isolate=True,
        codegen_options={"fault": fault, "op": "Relu"},
    )
    refused = [(refusal.reason, [*refusal.nodes]) for refusal in result.report.refusals]
    assert refused == ([(reason, ["a"])] if reason else [])
