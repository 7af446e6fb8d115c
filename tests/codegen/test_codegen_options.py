"""A codegen's options: read from text, refused at the door, from rule file and command line, shown."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from helpers import vendors
from helpers.cutting import DEVICE_ONLY, cut
from helpers.support import Ran, parse
from hypothesis import given
from hypothesis import strategies as st

from byoc.bundle import open_bundle
from byoc.codegen import (
    ABILITIES,
    Artifact,
    Bytes,
    Region,
    find_codegen,
    format_options,
    read_options,
)
from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.support import list_options


class Memory(Enum):
    SRAM = "sram"
    DRAM = "dram"


@dataclass(frozen=True)
class Options:
    """All kinds of fields."""

    name: str = "npu"
    tiles: int = field(default=4, metadata={"help": "How many tiles to use."})
    share: float = 0.5
    fast: bool = False
    speed: Literal["low", "high"] = "low"
    memory: Memory = Memory.SRAM
    limit: int | None = None
    room: Bytes = 4096
    spare: Annotated[Bytes | None, ["room for more"]] = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.tiles < 1:
            raise ValueError(f"tiles is {self.tiles}, and must be at least 1")


class Tuned:
    """Compiles what it was told. And more."""

    name = "tuned"
    Options = Options

    def compile(self, region: Region, options: Options) -> Artifact:
        assert type(options) is Options
        return Artifact(metadata=format_options(options))

    def compatible(self, region: Region, artifact: Artifact) -> Any:
        raise NotImplementedError


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, tuned=Tuned)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("name", "", ""),
        ("name", "none", "none"),
        ("tiles", "-0x10", None),
        ("tiles", "12", 12),
        ("share", "1e-3", 0.001),
        ("share", "inf", inf),
        ("fast", "Yes", True),
        ("fast", "0", False),
        ("speed", "high", "high"),
        ("memory", "dram", Memory.DRAM),
        ("limit", "7", 7),
        ("room", "131072", 131072),
        ("room", "128KiB", 131072),
        ("room", " 2 MB ", 2_000_000),
        ("spare", "1GiB", 1 << 30),
        ("spare", "none", None),
        ("limit", "None", None),
    ],
)
def test_values_are_read_by_the_kind_of_their_field(name: str, text: str, value: Any) -> None:
    if (name, value) == ("tiles", None):
        with pytest.raises(InputError):
            read_options(Options, {name: text})
        return
    found = read_options(Options, {name: text})
    assert getattr(found, name) == value
    assert type(getattr(found, name)) is type(value)
    assert asdict(found) == {**asdict(Options()), name: value}


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"tile": "3"}, "has no option 'tile' (did you mean tiles?); it has: name, tiles, share, "),
        ({"tiles": "many"}, "takes as option 'tiles' a whole number, not 'many'"),
        ({"tiles": "1.5"}, "takes as option 'tiles' a whole number, not '1.5'"),
        ({"share": "nan"}, "takes as option 'share' a number, not 'nan'"),
        ({"fast": "maybe"}, "takes as option 'fast' true or false, not 'maybe'"),
        (
            {"speed": "hihg"},
            "takes as option 'speed' one of low, high (did you mean high?), not 'hihg'",
        ),
        ({"memory": "SRAM"}, "takes as option 'memory' one of sram, dram (did you mean sram?), not"),
        ({"limit": "all"}, "takes as option 'limit' a whole number, or none, not 'all'"),
        ({"room": "128kb"}, "takes as option 'room' bytes, such as 131072 or 128KiB, not '128kb'"),
        ({"room": "-1"}, "takes as option 'room' bytes, such as 131072 or 128KiB, not '-1'"),
        ({"room": "0.5MiB"}, "takes as option 'room' bytes, such as 131072 or 128KiB, not '0.5MiB'"),
        ({"tiles": "0"}, "refuses its options: tiles is 0, and must be at least 1"),
        ({"tiles": "x" * 1000}, "takes as option 'tiles' a whole number, not 'xxxxxxx"),
    ],
)
def test_what_is_wrong_is_a_sentence_that_names_codegen_and_option(
    told: Mapping[str, str], sentence: str, tuned: None, tmp_path: Path
) -> None:
    seen: list[str] = []
    with pytest.raises(InputError) as caught:
        cut(
            parse(DEVICE_ONLY),
            tmp_path / "b",
            codegen="tuned",
            codegen_options=told,
            progress=seen.append,
        )
    message = str(caught.value)
    assert message.startswith(f"codegen tuned {sentence}")
    assert len(message) < 250
    assert seen == []  # before anything was loaded or planned
    assert list(tmp_path.iterdir()) == []


def test_all_that_is_wrong_is_said_at_once() -> None:
    @dataclass(frozen=True)
    class Needed:
        licence: str
        level: int = 1

    with pytest.raises(InputError) as caught:
        read_options(Needed, {"level": "top", "x": "1"})
    assert str(caught.value) == (
        "takes as option 'level' a whole number, not 'top'; "
        "has no option 'x'; it has: licence, level; needs the option 'licence'"
    )
    assert read_options(Needed, {"licence": "A"}) == Needed("A")


@given(
    st.builds(
        Options,
        name=st.text(),
        tiles=st.integers(min_value=1),
        share=st.floats(allow_nan=False),
        fast=st.booleans(),
        speed=st.sampled_from(["low", "high"]),
        memory=st.sampled_from(Memory),
        limit=st.none() | st.integers(),
        room=st.integers(0, 10**18 - 1),
    )
)
def test_written_options_are_read_again(options: Options) -> None:
    assert read_options(Options, format_options(options)) == options


@dataclass(frozen=True)
class Nested:
    sizes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Unknown:
    size: "NoSuchType" = 0  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (dict, "cannot be used: its `Options` is not a dataclass"),
        (Nested, "cannot be used: its option 'sizes' is a list[int], which cannot be given as text"),
        (Unknown, "cannot be used: its `Options` cannot be read: NameError: name 'NoSuchType' is not"),
    ],
)
def test_options_that_cannot_be_are_the_fault_of_the_codegen(
    options: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = vendors.compiles(None)
    odd.Options = options  # type: ignore[attr-defined]
    vendors.install(monkeypatch, odd=odd)
    with pytest.raises(InputError) as caught:
        find_codegen("odd")
    assert str(caught.value).startswith(f"codegen 'odd' of an unknown distribution {sentence}")


def rules(folder: Path, name: str = "acme", **more: Any) -> str:
    """Write a rule file, and return its path."""
    content = {
        "target": name,
        "codegen": "tuned",
        "cost_model": "dla",
        "dtype": "float32",
        "ops": [{"op": ["Relu", "Add"]}],
        **more,
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return str(path)


def _told(folder: Path, files: Any, **options: Any) -> list[Mapping[str, str]]:
    partition(
        parse(DEVICE_ONLY),
        files,
        output=folder / "b",
        strategy="all-supported",
        verify=False,
        **options,
    )
    return [region.artifact_metadata for region in open_bundle(folder / "b").manifest.regions]


def test_the_command_line_wins_over_the_rule_file(tuned: None, tmp_path: Path) -> None:
    file = rules(tmp_path, codegen_options={"tiles": 2, "fast": True, "share": 0.25, "limit": "none"})
    options = {"tiles": "8", "speed": "low", "acme:speed": "high"}
    (told,) = _told(tmp_path, file, codegen_options=options)
    assert told == {
        **{"name": "npu", "tiles": "8", "share": "0.25", "fast": "true", "speed": "high"},
        **{"memory": "sram", "limit": "none", "room": "4096", "spare": "none"},
    }


def test_each_target_has_options_of_its_own(tuned: None, tmp_path: Path) -> None:
    files = [rules(tmp_path, "one", codegen_options={"tiles": 2}), rules(tmp_path, "two")]
    with pytest.raises(
        InputError, match=r"^codegen option tow:tiles: no such target \(did you mean two"
    ):
        _told(tmp_path, files, codegen_options={"tow:tiles": "3"})
    with pytest.raises(InputError, match=r"^codegen tuned takes as option 'tiles' a whole number"):
        _told(tmp_path, files, codegen_options={"two:tiles": "x"})
    (told,) = _told(tmp_path, files, codegen_options={"two:tiles": "3", "one:tiles": "5"})
    assert told["tiles"] == "5"  # all of it is on the first


def test_options_of_the_file_are_for_its_own_codegen(tuned: None, tmp_path: Path) -> None:
    file = rules(tmp_path, codegen_options={"tiles": 2})
    (told,) = _told(tmp_path, file, codegen="reference")
    assert told == {}


def test_wrong_options_in_a_rule_file_are_told_with_their_place(
    tuned: None, tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = rules(tmp_path, "base", codegen_options={"tile": 2, "tiles": 3})
    file = tmp_path / "over.yaml"
    file.write_text('{"extends": "base.yaml", "codegen_options": {"fast": "never", "tiles": 5}}')
    expected = [
        f"{file}: base.yaml: codegen_options.tile: codegen tuned has no option 'tile' "
        "(did you mean tiles?); it has: name, tiles, share, fast, speed, memory, limit, room, spare",
        f"{file}: codegen_options.fast: codegen tuned takes as option 'fast' true or false, not 'never'",
    ]
    vendors.forbid_processes(monkeypatch)
    ran = byoc("rules", "check", file)
    assert (ran.code, ran.out.splitlines()) == (1, expected)
    with pytest.raises(InputError) as caught:
        _told(tmp_path, str(file))
    assert str(caught.value).splitlines() == expected
    assert byoc("rules", "check", base).out.count("\n") == 1


def test_what_a_file_says_of_the_options_replaces_key_by_key(tuned: None, tmp_path: Path) -> None:
    rules(tmp_path, "base", codegen_options={"tiles": 2, "speed": "high"})
    file = tmp_path / "over.yaml"
    file.write_text('{"extends": "base.yaml", "codegen_options": {"tiles": 3}}')
    (told,) = _told(tmp_path, str(file))
    assert (told["tiles"], told["speed"]) == ("3", "high")
    file.write_text('{"extends": "base.yaml", "codegen": "reference"}')
    (told,) = _told(tmp_path, str(file))  # the options were those of another codegen
    assert told == {}


@pytest.mark.parametrize("value", ["[1]", "{a: 1}", "null"])
def test_an_option_in_a_rule_file_is_a_single_value(value: str, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"extends: dla\ncodegen_options: {{tiles: {value}}}\n")
    with pytest.raises(InputError, match=r"t\.yaml: codegen_options\.tiles: expected text$"):
        partition(parse(DEVICE_ONLY), file)


def test_a_codegen_without_options_gets_the_texts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vendors.install(monkeypatch, tables=vendors.Tables)
    cut(parse(DEVICE_ONLY), tmp_path / "b", codegen="tables", codegen_options={"any": "thing"})
    (entry,) = open_bundle(tmp_path / "b").manifest.regions
    assert entry.artifact_metadata["any"] == "thing"


def test_the_command_line_shows_a_codegen(
    tuned: None,
    byoc: Callable[..., Ran],
    golden: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vendors.forbid_processes(monkeypatch)
    golden("codegens/tuned.txt", "\n".join(map(str.rstrip, byoc("codegens", "tuned").out.splitlines())))
    shown = json.loads(byoc("codegens", "tuned", "--format", "json").out)
    options = shown.pop("options")
    assert shown == {
        **{"name": "tuned", "description": "Compiles what it was told", "api": 4},
        **{"distribution": None, "version": None, "interpreter": None, "native": False},
        "abilities": ["stamped"],
    }
    assert [option["option"] for option in options] == [option.name for option in list_options(Options)]
    assert [each["takes"] for each in options if each["option"] in {"room", "spare"}] == [
        "bytes, such as 131072 or 128KiB",
        "bytes, such as 131072 or 128KiB, or none",
    ]
    assert options[1] == {
        **{"option": "tiles", "takes": "a whole number", "default": "4"},
        **{"help": "How many tiles to use.", "executes": False, "at_load": False},
    }


def test_a_codegen_that_is_shown_may_read_its_options_itself(
    monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    vendors.install(monkeypatch, tables=vendors.Tables)
    vendors.forbid_processes(monkeypatch)
    assert "options: any, it reads them itself" in byoc("codegens", "tables").out
    assert "options: none" in byoc("codegens", "reference").out
    ran = byoc("codegens", "tabels")
    assert ran.code == 1
    assert "tabels: no such codegen (did you mean tables?)" in ran.err


def test_options_are_checked_without_an_output_too(tuned: None) -> None:
    with pytest.raises(InputError, match=r"^codegen tuned has no option 'tile'"):
        cut(parse(DEVICE_ONLY), codegen="tuned", codegen_options={"tile": "1"})


def test_profiling_reads_the_options_of_command_line_and_rule_file(
    tuned: None, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "costs.yaml"
    model.write_bytes(parse(DEVICE_ONLY).SerializeToString())
    asked = ("profile", model, "-o", out, "--device", "tuned", "--no-isolate")
    ran = byoc(*asked, "--codegen-option", "tile=1")
    assert (ran.code, out.exists()) == (1, False)
    assert ran.err.startswith("byoc: codegen tuned has no option 'tile' (did you mean tiles?)")
    file = rules(tmp_path, codegen_options={"tiles": "x"})
    assert f"{file}: codegen_options.tiles: codegen tuned takes" in byoc(*asked, "--rules", file).err


def test_the_help_explains_every_ability(byoc: Callable[..., Ran]) -> None:
    shown = byoc("codegens", "--help").out
    assert [ability for ability in ABILITIES if f'"{ability}"' not in shown] == []
