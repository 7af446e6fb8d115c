"""Plug-ins that cannot be used are told in one sentence: another version, no codegen at all."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import DEVICE_ONLY, cut
from helpers.support import parse

from byoc.codegen import (
    API_VERSION,
    YES,
    Artifact,
    CodegenDescription,
    CodegenFailedError,
    Cycles,
    Executor,
    Region,
    Verdict,
    ask_verdicts,
    can_estimate,
    describe_codegens,
    estimate_region,
    find_codegen,
    read_region,
    refuse,
)
from byoc.errors import InputError

WHO = "codegen 'odd' of an unknown distribution"


class Plain:
    name = "odd"

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        return Artifact()


class Abstract(Plain, ABC):
    @abstractmethod
    def target(self) -> str: ...


class Stops(Plain):
    def __init__(self) -> None:
        """Leave, as scripts do."""
        raise SystemExit("no licence")


class Lengthy(Plain):
    def __init__(self) -> None:
        """Fail with more than a line."""
        raise OSError("no licence\nserver")


class Short(Plain):
    def compile(self, region: Region) -> Artifact:  # type: ignore[override]
        return Artifact()


class Newer(Plain):
    api = API_VERSION + 1

    def __init__(self, session: object) -> None:
        """Want what only a newer byoc gives."""


class AsProperty(Plain):
    @property
    def api(self) -> int:
        return API_VERSION + 1


def versioned(version: Any) -> type:
    """Return a codegen class that speaks a version."""
    return type("Versioned", (Plain,), {"api": version})


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (
            Newer,
            f"speaks version {API_VERSION + 1} of the codegen interface and this byoc no newer one than "
            f"{API_VERSION}: install a newer onnx-byoc, or an older version of it",
        ),
        (
            AsProperty,
            f"speaks version {API_VERSION + 1} of the codegen interface and this byoc no newer",
        ),
        (
            versioned(0),
            "speaks version 0 of the codegen interface, which this byoc does not: the oldest",
        ),
        (versioned("1"), "is not one: its `api` is '1', and not the number of a version"),
        (versioned(True), "is not one: its `api` is True, and not the number of a version"),
        (type("NoName", (), {"compile": Plain.compile}), "is not one: it needs a `name` and a method"),
        (type("NoCompile", (), {"name": "odd"}), "is not one: it needs a `name` and a method `compile("),
        (type("Value", (), {"name": "odd", "compile": 3}), "is not one: it needs a `name` and a method"),
        (Short, "is not one: its `compile` does not take (region, options)"),
        (Abstract, "cannot be loaded: TypeError: Can't instantiate abstract class Abstract "),
        (Stops, "cannot be loaded: SystemExit: no licence"),
        (Lengthy, "cannot be loaded: OSError: no licence server"),
        (Plain(), "cannot be loaded: TypeError: 'Plain' object is not callable"),
        (None, "cannot be loaded: TypeError: 'NoneType' object is not callable"),
    ],
)
def test_what_is_no_codegen_is_a_sentence(
    kind: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, odd=kind)
    with pytest.raises(InputError) as caught:
        find_codegen("odd")
    assert str(caught.value).startswith(f"{WHO} {sentence}")
    assert len(str(caught.value).splitlines()) == 1


def _plain() -> Plain:
    return Plain()


@pytest.mark.parametrize("kind", [Plain, *map(versioned, range(1, API_VERSION + 1)), _plain])
def test_one_without_a_version_works(kind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vendors.install(monkeypatch, odd=kind)
    cut(parse(DEVICE_ONLY), tmp_path / "b", codegen="odd")
    assert (tmp_path / "b" / "manifest.json").is_file()


class OfVersion1(Plain):
    """A plug-in written for version 1, with a method of its own that has the name of an ability."""

    api = 1

    def load(self, region: Region, artifact: Artifact) -> Executor:
        raise NotImplementedError

    def estimate(self) -> str:
        return "quite long"


class OfVersion2(OfVersion1):
    api = 2


@pytest.mark.parametrize(
    ("kind", "abilities"),
    [(OfVersion1, ("executable",)), (OfVersion2, ("executable", "estimate"))],
)
def test_abilities_of_a_later_version_are_not_seen_in_an_older_plug_in(
    kind: type, abilities: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, odd=kind)
    found = find_codegen("odd")
    vendors.forbid_processes(monkeypatch)
    described = describe_codegens(["odd"])["odd"]
    assert isinstance(described, CodegenDescription)
    assert described.abilities == abilities
    assert can_estimate(found) == ("estimate" in abilities)


class TakesModelAlone(Plain):
    def check(self, model: onnx.ModelProto) -> list[Verdict]:
        return [YES for _ in model.graph.node]


class TakesOptions(Plain):
    def check(self, model: onnx.ModelProto, options: Any) -> list[Verdict]:
        return [refuse(str(options)) for _ in model.graph.node]


@pytest.mark.parametrize(
    ("kind", "version", "handed"),
    [
        (TakesModelAlone, None, False),
        (TakesModelAlone, 1, False),
        (TakesModelAlone, 2, False),
        (TakesOptions, None, True),
        (TakesOptions, 3, True),
    ],
)
def test_check_gets_options_where_its_version_has_them(
    kind: type, version: int | None, handed: bool
) -> None:
    codegen = kind() if version is None else type("Versioned", (kind,), {"api": version})()
    verdicts = ask_verdicts(codegen, parse(DEVICE_ONLY), {"arch": "73"})
    assert {str(each) for each in verdicts} == ({"{'arch': '73'}"} if handed else {"yes"})


def test_a_check_of_version_3_without_options_is_its_own_fault() -> None:
    codegen: Any = type("Versioned", (TakesModelAlone,), {"api": 3})()
    with pytest.raises(TypeError, match="3 were given"):
        ask_verdicts(codegen, parse(DEVICE_ONLY), {})


ANSWERS: list[tuple[Any, float | Cycles | None]] = [
    (0.25, 0.25),
    (np.float32(0.5), 0.5),
    (3, 3.0),
    (Cycles(2000, 1e6), Cycles(2000.0, 1e6)),
    *((wrong, None) for wrong in (0, -1.0, float("inf"), float("nan"), True, "1", None)),
    *((Cycles(*wrong), None) for wrong in ((0, 1e6), (1e6, 0), (1e300, 1e-300), ("1", 1))),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("given", "expected"), ANSWERS)
def test_estimates_are_seconds_or_cycles(
    given: Any, expected: float | Cycles | None, tmp_path: Path
) -> None:
    class Estimates(Plain):
        def estimate(self, region: Region, options: Any, artifact: Artifact) -> float | Cycles:
            assert artifact.metadata == {"of": region.name}
            return cast(float, given)

    onnx.save(parse(DEVICE_ONLY), tmp_path / "r.onnx")
    region = read_region(tmp_path / "r.onnx", "dla_0", "dla")
    artifact = Artifact({}, {"of": "dla_0"})
    if expected is None:
        with pytest.raises(
            CodegenFailedError, match=r"^estimate gave .*, not seconds above 0 or Cycles"
        ):
            estimate_region(Estimates(), region, {}, artifact)
    else:
        assert estimate_region(Estimates(), region, {}, artifact) == expected
    assert Cycles(2000, 1e6).seconds == 0.002


def test_one_told_to_stop_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> None:
        raise SystemExit(143)  # as the command line leaves on SIGTERM

    vendors.install(monkeypatch, odd=stopped)
    with pytest.raises(SystemExit):
        find_codegen("odd")
