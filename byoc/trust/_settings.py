"""The settings of a user: `$XDG_CONFIG_HOME/byoc/settings.yaml`.

They say which programs byoc starts for the user, so they are read from this file alone: a rule file, a
model or a bundle names a codegen, and never an interpreter.
"""

import os
import re
from pathlib import Path

from pydantic import Field, field_validator

from byoc.errors import InputError
from byoc.support import CODEGENS, StrictModel, find_user_folder, list_installed, read_yaml
from byoc.trust._machine_key import read_own_file

_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class InterpreterSettings(StrictModel):
    """A codegen that runs in another Python.

    `python` is the absolute path of the interpreter, `module` the codegen's class in it, as
    `package.module:Class`, and `environment` has further environment variables of its process.
    """

    python: str
    module: str
    environment: dict[str, str] = Field(default_factory=dict)

    @field_validator("python")
    @classmethod
    def _check_python(cls, text: str) -> str:
        """Return the path with the home folder written out."""
        path = os.path.expanduser(text)  # noqa: PTH111 - a link stays what it is: venvs depend on it
        if not os.path.isabs(path):  # noqa: PTH117
            raise ValueError(f"'{text}' is not an absolute path")
        return path

    @field_validator("module")
    @classmethod
    def _check_module(cls, text: str) -> str:
        if not _CLASS.fullmatch(text):
            raise ValueError(f"'{text}' does not name a class, as package.module:Class does")
        return text

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, variables: dict[str, str]) -> dict[str, str]:
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"'{name}' cannot be an environment variable")
        return variables


class Settings(StrictModel):
    """A user's settings: the codegens that run in another Python, by name."""

    codegens: dict[str, InterpreterSettings] = Field(default_factory=dict)


def get_settings_file() -> Path:
    """Return the path of the file; it need not exist. Raises InputError without a home folder."""
    return find_user_folder("XDG_CONFIG_HOME") / "settings.yaml"


def read_settings() -> Settings:
    """Return the user's settings, empty ones where there is no file.

    Raises InputError for mistakes in the file, and for a file that others may write.
    """
    path = get_settings_file()
    content = read_own_file(path, secret=False)
    return read_yaml(path, Settings) if content else Settings()


def find_interpreter(codegen: str) -> InterpreterSettings | None:
    """Return the settings of a codegen that runs in another Python, None for one that does not.

    Raises InputError as `read_settings` does, and where a codegen of this name is installed as well.
    """
    found = read_settings().codegens.get(codegen)
    if found is not None and codegen in list_installed(CODEGENS):
        raise InputError(
            f"{get_settings_file()}: codegens.{codegen}: a codegen of this name is installed, too: "
            "give this one another name, or take the entry point out of that package and install it "
            "again"
        )
    return found


def list_codegens() -> list[str]:
    """Return the names of the codegens that are there, installed or in the settings, sorted."""
    return sorted({*list_installed(CODEGENS), *read_settings().codegens})
