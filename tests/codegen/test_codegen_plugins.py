"""Finding codegens: what is installed, what is not one, what does not load, whose fault it is."""

from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from helpers import vendors
from helpers.cutting import UNLIKE, cut
from helpers.support import Ran, parse, without_location

from byoc.codegen import Codegen, Executable, find_codegen
from byoc.errors import InputError


def test_the_reference_is_a_codegen_and_runs_here() -> None:
    found = find_codegen("reference")
    assert isinstance(found, Codegen)
    assert isinstance(found, Executable)
    assert found.name == "reference"


def test_an_unknown_name_gives_the_installed_ones_and_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        find_codegen("referense")
    told, _, installed = str(caught.value).partition("; installed: ")
    assert told == "referense: no such codegen (did you mean reference?)"
    assert "reference" in installed.split(", ")


def test_a_class_without_compile_is_no_codegen(monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, stub=type("Stub", (), {"name": "stub"}))
    with pytest.raises(InputError, match=r"^codegen 'stub' of .* is not one: it needs a `name` and"):
        find_codegen("stub")


def test_a_class_without_a_name_is_no_codegen(monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, stub=type("Stub", (), {"compile": lambda *_: None}))
    with pytest.raises(InputError, match="is not one: it needs a `name`"):
        find_codegen("stub")


def test_a_constructor_that_raises_names_the_codegen(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no licence server")

    vendors.install(monkeypatch, broken=broken)
    with pytest.raises(InputError) as caught:
        find_codegen("broken")
    assert without_location(str(caught.value)) == (
        "codegen 'broken' of an unknown distribution cannot be loaded: OSError: no licence server"
    )


def test_a_codegen_answers_to_the_name_it_is_installed_under(monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, acme=vendors.compiles(None, name="Acme NPU"))
    with pytest.raises(InputError, match=r"'acme' of .* calls itself 'Acme NPU'"):
        find_codegen("acme")


def _distribution(folder: Path, name: str, entry: str, source: str) -> None:
    info = folder / f"{name}-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
    (info / "entry_points.txt").write_text(f"[byoc.codegens]\n{entry}\n")
    (folder / f"{name}.py").write_text(source)


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a distribution whose codegen works, and another whose module does not import."""
    folder = tmp_path / "site"
    folder.mkdir()
    _distribution(
        folder,
        "acmenpu",
        "acme = acmenpu:Acme",
        "from byoc.codegen import Artifact\n"
        "class Acme:\n"
        "    name = 'acme'\n"
        "    def compile(self, region, options):\n"
        "        return Artifact({'acme.bin': region.name.encode()})\n",
    )
    _distribution(folder, "fallen", "fallen = fallen:Down", "import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(folder)
    return "acme"


def test_an_installed_distribution_is_found_and_used(acme: str, tmp_path: Path) -> None:
    cut(parse(UNLIKE), tmp_path / "b", codegen=acme)
    assert (tmp_path / "b/artifacts/dla_1/acme.bin").read_bytes() == b"dla_1"


def test_a_module_that_does_not_import_names_its_distribution(acme: str) -> None:
    with pytest.raises(InputError) as caught:
        find_codegen("fallen")
    assert without_location(str(caught.value)) == (
        "codegen 'fallen' of fallen 2.5 cannot be loaded: "
        "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"
    )


def test_a_broken_one_does_not_take_the_others_down(acme: str, byoc: Callable[..., Ran]) -> None:
    ran = byoc("codegens")
    assert ran.code == 0
    rows = {line.split()[0]: line for line in ran.out.splitlines() if line.strip()}
    assert "acmenpu 2.5" in rows["acme"]
    assert rows["acme"].split()[-1] == "no"
    assert "cannot be loaded: ModuleNotFoundError" in rows["fallen"]
    assert rows["reference"].split()[-1] == "yes"


def test_only_the_codegen_asked_for_is_imported(acme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    real = EntryPoint.load

    def load(self: EntryPoint) -> object:
        loaded.append(self.name)
        return real(self)

    monkeypatch.setattr(EntryPoint, "load", load)
    find_codegen("reference")
    assert loaded == ["reference"]
