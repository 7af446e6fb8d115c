"""Descriptions of codegens: abilities, options, and the class attributes that byoc reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from byoc.codegen._abilities import ABILITIES, list_abilities, list_recovery_options
from byoc.codegen._interface import API_VERSION
from byoc.codegen.byoc_worker.link import BrokenMessageError
from byoc.support import OptionDescription, get_first_sentence, list_options

if TYPE_CHECKING:
    from byoc.codegen._interface import Codegen

_FLAGS = (
    "open_shapes",
    "recompiles",
    "native",
    "calibrates",
    "model_driver",
    "refers_to_weights",
)


@dataclass(frozen=True)
class CodegenDescription:
    """The description of a codegen, from its class and its documentation.

    `summary` is the first sentence of its documentation, `api` the version of the interface, `abilities`
    are keys of `ABILITIES`. `options` is None where it reads its options itself. The others are class
    attributes: `open_shapes` (executors take other extents than declared), `recompiles` (`load` itself
    handles an artifact that does not fit), `native` (`load` executes what an artifact holds),
    `calibrates` (`compile` reads `Region.samples`), `model_driver` (byoc makes a driver of models) and
    `refers_to_weights` (artifacts depend on where constants lie).
    `recovery_options` are those to compile a region with that was computed wrong, in order.
    `interpreter` is the Python that runs it where that is another one.
    """

    summary: str
    api: int
    abilities: tuple[str, ...]
    options: tuple[OptionDescription, ...] | None
    open_shapes: bool
    recompiles: bool
    native: bool
    calibrates: bool = False
    model_driver: bool = False
    refers_to_weights: bool = False
    recovery_options: tuple[dict[str, str], ...] = ()
    interpreter: str = ""

    @property
    def executing_options(self) -> list[str]:
        """The names of the options whose values are executed."""
        return [option.name for option in self.options or () if option.executes]


def describe_codegen(codegen: Codegen) -> CodegenDescription:
    """Describe a codegen of this process."""
    listed = describe_options(getattr(codegen, "Options", None))
    flags: dict[str, Any] = {name: bool(getattr(codegen, name, False)) for name in _FLAGS}
    return CodegenDescription(
        get_first_sentence(type(codegen)),
        int(getattr(codegen, "api", API_VERSION)),
        list_abilities(codegen),
        listed,
        recovery_options=tuple(map(dict, list_recovery_options(codegen))),
        **flags,
    )


def describe_options(options: type | None) -> tuple[OptionDescription, ...] | None:
    """Describe a codegen's dataclass of options, None where it has not got any."""
    return None if options is None else tuple(map(_without_parser, list_options(options)))


def write_description(codegen: Codegen) -> Mapping[str, Any]:
    """Describe a codegen of this process, as JSON."""
    return asdict(describe_codegen(codegen))


def read_description(content: Any) -> CodegenDescription:
    """Read what `write_description` gave in a worker process. Raises BrokenMessageError."""
    try:
        found = _get_reader().validate_json(json.dumps(content), strict=True)
    except (ValidationError, ValueError):
        raise BrokenMessageError("a description is missing") from None
    if not set(found.abilities) <= ABILITIES.keys():
        raise BrokenMessageError("it has an ability that there is not")
    return found


@cache
def _get_reader() -> TypeAdapter[CodegenDescription]:
    return TypeAdapter(CodegenDescription)


def _without_parser(option: OptionDescription) -> OptionDescription:
    return OptionDescription(option.name, option.kind, option.default, option.help, option.executes)
