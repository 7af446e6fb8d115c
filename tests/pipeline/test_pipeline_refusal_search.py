"""What a compiler refuses without naming a node: parts are compiled until the cause is known."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from byoc.codegens.reference import Reference
from helpers import vendors
from helpers.cutting import ramp, same_as_original
from helpers.failing import on_devices, rules, working
from helpers.faulty import faulty  # noqa: F401 - a fixture
from helpers.support import parse

from byoc.codegen import Artifact, CompileError, Executor, Region
from byoc.pipeline import Result, partition

MOST = 12  # compiles in a search, as docs/codegen.md says


def chain(*operators: str) -> onnx.ModelProto:
    """Return a model of operators of one input, each reading what the one before it makes."""
    names = ["x", *(f"t{number}" for number in range(1, len(operators))), "y"]
    lines = "\n".join(
        f"{made} = {operator}({read})"
        for operator, (read, made) in zip(operators, pairwise(names), strict=True)
    )
    return parse(f"g (float[1, 4] x) => (float[1, 4] y) {{\n{lines}\n}}")


@pytest.fixture
def vendor(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a bundle with a compiler of its own, and what that was given."""

    def emit(
        model: onnx.ModelProto,
        output: Path,
        refuses: Callable[[Region], bool],
        *,
        crash: bool = False,
        more: str = "",
        given: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> tuple[Result, list[list[str]]]:
        compiled: list[list[str]] = []

        class Vendor:
            name = "vendor"
            version = "1"

            def compile(self, region: Region, options: Any) -> Artifact:
                compiled.append([node.op_type for node in region.load().graph.node])
                if refuses(region):
                    if crash:
                        raise ZeroDivisionError("division by zero")
                    raise CompileError("internal error 7")
                return Artifact({"code": b"1"})

            def load(self, region: Region, artifact: Artifact) -> Executor:
                return Reference().load(region, artifact)

        vendors.install(monkeypatch, vendor=Vendor)
        folder = tmp_path_factory.mktemp("rules")
        file = rules(folder, "npu", "Neg", "Abs", "Relu", "Add", "Sqrt", "Exp", "Compress", more=more)
        result = partition(
            model, file, output=output, strategy="all-supported", codegen="vendor", **options
        )
        assert result.verification is not None
        assert result.verification.passed
        same_as_original(model, output, given or {"x": ramp(1, 4)})
        return result, compiled

    return emit


def operators(region: Region) -> list[str]:
    return [node.op_type for node in region.load().graph.node]


@pytest.mark.parametrize("length", [2, 3, 8, 13, 40])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("crash", [False, True])
def test_one_operator_is_isolated(
    vendor: Any, tmp_path: Path, length: int, where: str, crash: bool
) -> None:
    place = {"first": 0, "middle": length // 2, "last": length - 1}[where]
    names = ["Neg", "Abs"] * length
    names[place] = "Exp"
    result, given = vendor(
        chain(*names[:length]), tmp_path / "b", lambda region: "Exp" in operators(region), crash=crash
    )

    on = on_devices(result)
    assert sum(device == "host" for device in on.values()) == 1
    (refusal,) = result.report.refusals
    assert len(refusal.nodes) == 1
    assert refusal.failed == crash
    assert "is refused alone" in refusal.tried
    assert refusal.nodes[0] in refusal.tried
    # the region, its parts, and the two regions that are left
    assert len(given) <= 1 + MOST + 2


def test_alike_ones_are_found_with_one(vendor: Any, tmp_path: Path) -> None:
    result, _ = vendor(
        chain(*["Neg", "Exp", "Abs", "Abs"] * 5), tmp_path / "b", lambda each: "Exp" in operators(each)
    )
    on = on_devices(result)
    assert sum(device == "host" for device in on.values()) == 5
    (refusal,) = result.report.refusals
    assert len(refusal.nodes) == 5


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7])
def test_too_many_nodes(vendor: Any, tmp_path: Path, most: int) -> None:
    result, given = vendor(
        chain(*["Neg", "Abs"] * 4), tmp_path / "b", lambda each: len(operators(each)) > most
    )

    assert {*on_devices(result).values()} == {"npu"}
    assert max(region.nodes for region in result.report.regions) == most
    if most == 4:
        assert [region.nodes for region in result.report.regions] == [4, 4]
    refusals = result.report.refusals
    assert [refusal.split for refusal in refusals][-1] == most
    assert f"more than {most} node" in refusals[-1].tried
    for refusal in refusals:
        assert refusal.nodes == ()
    assert len(given) <= len(refusals) * (1 + MOST) + len(result.report.regions)


@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_pair_of_neighbours(vendor: Any, tmp_path: Path, place: int) -> None:
    names = ["Neg", "Abs"] * 4
    names[place : place + 2] = ["Exp", "Sqrt"]

    def refuses(region: Region) -> bool:
        return ("Exp", "Sqrt") in pairwise(operators(region))

    result, given = vendor(chain(*names), tmp_path / "b", refuses)
    on = on_devices(result)
    assert sum(device == "host" for device in on.values()) == 1
    (refusal,) = result.report.refusals
    assert len(refusal.nodes) == 1
    assert "are refused together" in refusal.tried
    assert len(given) <= 1 + MOST + 2


def test_equal_pairs_are_found_with_one(vendor: Any, tmp_path: Path) -> None:
    def refuses(region: Region) -> bool:
        return ("Exp", "Sqrt") in pairwise(operators(region))

    result, _ = vendor(chain(*["Abs", "Exp", "Sqrt", "Neg"] * 4, "Sqrt"), tmp_path / "b", refuses)
    on = on_devices(result)
    assert sum(device == "host" for device in on.values()) == 4


@pytest.mark.parametrize("length", [2, 8, 40])
@pytest.mark.parametrize("crash", [False, True])
def test_a_compiler_that_refuses_all(vendor: Any, tmp_path: Path, length: int, crash: bool) -> None:
    names = ["Neg", "Abs", "Relu", "Exp", "Sqrt"] * length
    result, given = vendor(chain(*names[:length]), tmp_path / "b", lambda _: True, crash=crash)

    assert {*on_devices(result).values()} == {"host"}
    (refusal,) = result.report.refusals
    assert len(refusal.nodes) == length
    assert refusal.tried.endswith("none is taken")
    assert len(given) <= 1 + MOST


def test_a_size_of_a_tensor(vendor: Any, tmp_path: Path) -> None:
    """A compiler with room for so many elements of a tensor inside: the one at fault goes."""
    text = """g (float[1, 4] x) => (float[1, 4] y) {
        a = Neg(x) b = Abs(a)
        w = Constant <value = float[3, 4] {1,2,3,4,5,6,7,8,9,1,2,3}> ()
        c = Add(b, w) e = ReduceMax <axes = [0], keepdims = 1> (c) y = Abs(e)
    }"""

    def refuses(region: Region) -> bool:
        graph = region.load().graph
        return any(
            len(value.type.tensor_type.shape.dim) and value.type.tensor_type.shape.dim[0].dim_value > 1
            for value in (*graph.output, *graph.value_info)
        )

    result, given = vendor(parse(text), tmp_path / "b", refuses)
    on = on_devices(result)
    assert on == {"a": "npu", "b": "npu", "c": "host", "e": "host", "y": "npu"}
    assert len(given) <= 1 + MOST + 2


def test_a_size_of_all_weights(vendor: Any, tmp_path: Path) -> None:
    """The more parts there are the less is in each, and all of them are kept."""
    lines = "\n".join(
        f"w{n} = Constant <value = float[4] {{1,2,3,{n}}}> () t{n + 1} = Add(t{n}, w{n})"
        for n in range(8)
    )
    model = parse(f"g (float[1, 4] x) => (float[1, 4] t8) {{ t0 = Neg(x)\n{lines}\n}}")
    result, _ = vendor(model, tmp_path / "b", lambda each: operators(each).count("Add") > 3)

    on = on_devices(result)
    assert sum(device == "npu" for device in on.values()) >= 8
    assert all(refusal.tried for refusal in result.report.refusals)


@pytest.mark.usefixtures("faulty")
def test_what_was_found_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run with the same cache compiles nothing."""
    model = parse(
        "g (float[1, 4] x) => (float[1, 4] y) "
        "{ a = Add(x, x) b = Add(a, x) c = Relu(b) d = Add(c, x) y = Add(d, a) }"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = tmp_path / "log"
    options = {"fault": "refuses", "op": "Relu", "log": str(log)}
    placed = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        result = working(model, tmp_path / name / "b", codegen_options=options, cache=True)
        placed.append(on_devices(result))
        (refusal,) = result.report.refusals
        assert refusal.nodes == ("c",)
        if name == "one":
            assert 4 <= len(log.read_text().splitlines()) <= 1 + MOST + 2
            log.unlink()
    assert placed[0] == placed[1] == {"a": "dla", "b": "dla", "c": "host", "d": "dla", "y": "dla"}
    assert not log.exists()


def test_equal_regions_are_searched_once(vendor: Any, tmp_path: Path) -> None:
    block = ["Neg", "Abs", "Exp", "Abs"]
    model = chain(*block, "Sigmoid", *block, "Sigmoid", *block)
    _, alone = vendor(chain(*block, "Sigmoid"), tmp_path / "a", lambda r: "Exp" in operators(r))
    many, given = vendor(model, tmp_path / "b", lambda r: "Exp" in operators(r))

    assert sum(device == "host" for device in on_devices(many).values()) == 3 + 2
    searched = [each for each in given if "Exp" in each]
    assert len(searched) <= len([each for each in alone if "Exp" in each]) + 2


def test_a_region_in_a_body(vendor: Any, tmp_path: Path) -> None:
    text = """g (float[1, 4] x, int64 n, bool c) => (float[1, 4] y) {
        y = Loop <body = l (int64 i, bool k, float[1, 4] p) => (bool m, float[1, 4] q)
            { m = Identity(k) a = Neg(p) b = Exp(a) d = Abs(b) q = Neg(d) }> (n, c, x)
    }"""
    given = {"x": ramp(1, 4), "n": np.array(3), "c": np.array(True)}
    result, _ = vendor(
        parse(text), tmp_path / "b", lambda region: "Exp" in operators(region), given=given
    )
    on = on_devices(result)
    assert on["b"] == "host"
    assert on["a"] == on["d"] == on["q"] == "npu"


@pytest.mark.parametrize(("more", "searched"), [("shapes: static\n", False), ("", True)])
def test_open_sizes_are_not_searched_where_rules_want_fixed_ones(
    vendor: Any, tmp_path: Path, more: str, searched: bool
) -> None:
    """No part of such a region has the sizes that the rules ask for."""
    model = parse("""g (float[1, 4] x, bool[4] k) => (float[N] y) {
        a = Neg(x) b = Abs(a) y = Compress(b, k)
    }""")
    given = {"x": ramp(1, 4), "k": np.array([True, False, True, True])}
    result, compiled = vendor(
        model, tmp_path / "b", lambda each: "Compress" in operators(each), more=more, given=given
    )

    assert bool(result.report.refusals[0].tried) == searched
    assert on_devices(result)["a"] == ("npu" if searched else "host")
    assert (len(compiled) > 1) == searched
