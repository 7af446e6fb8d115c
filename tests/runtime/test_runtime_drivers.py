"""The drivers of a bundle's regions: which libraries they are, and why there are none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import vendors
from helpers.cutting import CHAIN, HOST_ONLY, UNLIKE, cut
from helpers.support import parse

from byoc.bundle import open_bundle
from byoc.codegen import Artifact, DriverSources, NoOptions, Region
from byoc.errors import InputError
from byoc.runtime import RegionDrivers, load_with_provider, use_drivers


class Silent:
    """A codegen without a driver."""

    name = "silent"
    api = 2
    Options = NoOptions

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        return Artifact({"code": b"0"})


class Modelled(Silent):
    """A codegen whose drivers are made of the models of a bundle."""

    name = "modelled"
    model_driver = True


class Driven(Silent):
    """A codegen with a driver of its own, whose source does not compile."""

    name = "driven"

    def driver(self) -> DriverSources:
        return DriverSources("driven", (Path("none.c"),))


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    vendors.install(monkeypatch, silent=Silent, modelled=Modelled, driven=Driven)
    return tmp_path / "b"


def write(folder: Path, codegen: str, text: str = UNLIKE, **options: Any) -> None:
    cut(parse(text), folder, codegen=codegen, verify=False, isolate=False, cache=False, **options)


@pytest.mark.parametrize(
    ("codegen", "given", "said"),
    [
        ("silent", {}, "region dla_0: codegen silent has no driver that runs its regions in C"),
        (
            "modelled",
            {},
            "region dla_0: a driver of codegen modelled is made of the bundle: make one (byoc "
            "make-driver), and name it (--driver modelled=FILE)",
        ),
        (
            "silent",
            {"other": "other.so"},
            "a driver of codegen other is given, but its regions are of silent",
        ),
        (
            "silent",
            {"silent": "silent.so", "other": "other.so"},
            "a driver of codegen other is given, but its regions are of silent",
        ),
    ],
)
def test_codegens_without_drivers_are_named(
    codegen: str, given: Mapping[str, str], said: str, folder: Path
) -> None:
    write(folder, codegen)
    bundle = open_bundle(folder)
    with use_drivers(given), pytest.raises(InputError) as caught:
        _ = RegionDrivers(bundle).libraries
    assert str(caught.value) == f"{bundle.display_path}: {said}"


@pytest.mark.parametrize("codegen", ["silent", "modelled", "driven"])
def test_a_library_that_is_given_goes_before_one_that_would_be_built(codegen: str, folder: Path) -> None:
    write(folder, codegen)
    bundle = open_bundle(folder)
    with use_drivers({codegen: "some/library.so"}):
        assert RegionDrivers(bundle).libraries == {codegen: Path("some/library.so")}
        with use_drivers({codegen: "other.so"}):
            assert RegionDrivers(bundle).libraries == {codegen: Path("other.so")}
        assert RegionDrivers(bundle).libraries == {codegen: Path("some/library.so")}
    with pytest.raises(InputError):
        _ = RegionDrivers(bundle).libraries


def test_a_bundle_without_regions_has_no_drivers(folder: Path) -> None:
    write(folder, "silent", HOST_ONLY)
    bundle = open_bundle(folder)
    assert RegionDrivers(bundle).libraries == {}
    with use_drivers({"silent": "a.so"}), pytest.raises(InputError) as caught:
        _ = RegionDrivers(bundle).libraries
    assert str(caught.value).endswith("a driver of codegen silent is given, but its regions are of none")


def test_only_what_was_written_for_it_is_loaded_with_the_provider(folder: Path) -> None:
    write(folder, "silent", CHAIN)
    bundle = open_bundle(folder)
    with pytest.raises(InputError) as caught:
        load_with_provider(bundle)
    assert str(caught.value) == (
        f"{bundle.display_path}: it has no model_ctx.onnx, which ort-plugin runs: partition the model "
        "with --emit epcontext"
    )
