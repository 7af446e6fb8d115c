"""No file of a stranger's chooses what is executed: neither a manifest nor a rule file."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from forging import turn_into_native
from helpers import vendors
from helpers.cutting import DEVICE_ONLY, cut, ramp
from helpers.support import Ran, copy_vanilla, parse

import byoc
from byoc.codegen import (
    YES,
    Artifact,
    Executor,
    Region,
    Verdict,
    drop_executing_options,
    find_codegen,
    read_options,
    read_stored_options,
    refuse,
)
from byoc.errors import InputError


@dataclass(frozen=True)
class ToolOptions:
    tool: str = field(default="mine", metadata={"executes": True, "help": "the command"})
    level: int = 1


class Tool:
    """Calls a command that an option names, and its own artifacts fit nowhere else."""

    name = "tool"
    Options = ToolOptions
    version = "1"
    called: ClassVar[list[ToolOptions]]

    def compile(self, region: Region, options: ToolOptions) -> Artifact:
        self.called.append(options)
        return Artifact(metadata={"version": self.version})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        return lambda inputs: {"y": np.maximum(2 * inputs["x"], 0)}

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        return YES if artifact.metadata["version"] == self.version else refuse("another version")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> type[Tool]:
    class Installed(Tool):
        called: ClassVar[list[ToolOptions]] = []

    vendors.install(monkeypatch, tool=Installed)
    return Installed


def test_the_metadata_of_an_artifact_names_no_compiler(tmp_path: Path) -> None:
    bundle, mark = tmp_path / "b", tmp_path / "ran"
    cut(parse(DEVICE_ONLY), bundle)
    turn_into_native(bundle, tmp_path / "loaded", cc=f"sh -c 'touch {mark}' --")

    with suppress(InputError):
        byoc.load(bundle)

    assert not mark.exists()


def test_the_metadata_of_an_artifact_names_no_flags(tmp_path: Path) -> None:
    bundle, mark = tmp_path / "b", tmp_path / "ran"
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\ntouch {mark}\nexec "$@"\n')
    wrapper.chmod(0o755)
    cut(parse(DEVICE_ONLY), bundle)
    turn_into_native(bundle, tmp_path / "loaded", cflags=f"-wrapper {wrapper}")

    with suppress(InputError):
        byoc.load(bundle)

    assert not mark.exists()


def test_what_does_not_fit_is_compiled_anew_without_the_bundles_commands(
    tool: type[Tool], tmp_path: Path
) -> None:
    cut(parse(DEVICE_ONLY), tmp_path / "b", codegen="tool", codegen_options={"tool": "a", "level": "2"})
    assert tool.called == [ToolOptions("a", 2)]
    tool.version = "2"

    found = byoc.load(tmp_path / "b")({"x": ramp(1, 4)})

    np.testing.assert_array_equal(found["y"], np.maximum(2 * ramp(1, 4), 0))
    assert tool.called[1:] == [ToolOptions("mine", 2)]


@pytest.mark.parametrize("name", ["cc", "cflags"])
def test_a_rule_file_names_no_compiler(name: str, tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"extends: {copy_vanilla(tmp_path)}\ncodegen: c\ncodegen_options: {{{name}: -O1}}\n")
    sentence = (
        f"{file}: codegen_options.{name}: codegen c takes '{name}' from the user alone, since it may "
        f"run any command: --codegen-option {name}=..., or codegen_options in Python"
    )

    checked = byoc("rules", "check", file)
    ran = byoc("partition", "zoo:squeezenet", "--rules", file, "-o", tmp_path / "b")

    assert (checked.code, checked.out) == (1, f"{sentence}\n")
    assert (ran.code, ran.err) == (1, f"byoc: {sentence}\n")


def test_a_rule_files_other_options_and_the_users_own_are_taken(
    tool: type[Tool], tmp_path: Path
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"extends: {copy_vanilla(tmp_path)}\ncodegen: tool\ncodegen_options: {{level: 3}}\n")

    byoc.partition(
        parse(DEVICE_ONLY),
        file,
        output=tmp_path / "b",
        strategy="all-supported",
        codegen_options={"tool": "yours"},
    )

    assert tool.called == [ToolOptions("yours", 3)]


def test_stored_options_that_execute_have_their_defaults() -> None:
    assert read_stored_options(ToolOptions, {"tool": "theirs", "level": "7"}) == ToolOptions("mine", 7)
    older = {"tool": "theirs"}  # of a codegen that had no level yet
    assert read_stored_options(ToolOptions, older) == ToolOptions("mine", ToolOptions().level)
    assert drop_executing_options(Tool(), {"tool": "theirs", "level": "7"}) == {"level": "7"}
    assert drop_executing_options(vendors.Tables(), {"any": "thing"}) == {"any": "thing"}


def test_the_user_names_the_compiler_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = find_codegen("c")
    monkeypatch.setenv("BYOC_CC", "my-cc --quiet")
    monkeypatch.setenv("BYOC_CFLAGS", "-O3")
    assert vars(read_options(kind.Options, {})) == {"cc": "my-cc --quiet", "cflags": "-O3"}
    assert vars(read_options(kind.Options, {"cc": "clang"})) == {"cc": "clang", "cflags": "-O3"}
    monkeypatch.setenv("BYOC_CC", " ")
    with pytest.raises(InputError, match="refuses its options: cc is empty, but must name a compiler"):
        read_options(kind.Options, {})


def test_the_command_line_says_which_options_execute(byoc: Callable[..., Ran]) -> None:
    shown = json.loads(byoc("codegens", "c", "--format", "json").out)
    assert [each["option"] for each in shown["options"] if each["executes"]] == ["cc", "cflags"]
    others = json.loads(byoc("codegens", "dla", "--format", "json").out)
    assert not any(each["executes"] for each in others["options"])
    assert "executes" in byoc("codegens", "c").out
    assert "executes" not in byoc("codegens", "dla").out
