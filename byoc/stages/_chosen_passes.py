"""The passes of a run: those that the options name, and those of the targets' rule files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from byoc.errors import InputError
from byoc.options import list_names
from byoc.passes import (
    MODEL_SCOPE,
    REGION_SCOPE,
    PassProcess,
    load_passes,
    load_region_pass,
)

if TYPE_CHECKING:
    from byoc.codegen import Isolation
    from byoc.options import Options
    from byoc.passes import LoadedPass
    from byoc.rules import Target


@dataclass(frozen=True)
class ChosenPasses:
    """The passes of a run: those for the model, those for the regions of each target by its name."""

    model: tuple[LoadedPass, ...] = ()
    regions: Mapping[str, tuple[LoadedPass, ...]] = field(default_factory=dict)
    process: PassProcess | None = None


def choose_passes(options: Options, targets: Sequence[Target]) -> ChosenPasses:
    """Load the passes that the options and the rule files name.

    Those of a target's rule file come before the user's; one that both name has the user's options.
    Raises InputError when a pass cannot be loaded or does not take an option.
    """
    asked = load_passes(list_names(options.passes), options.pass_options or {})
    own = tuple(each for each in asked if each.scope == REGION_SCOPE)
    regions = {target.name: (*_load_of_target(target, own), *own) for target in targets}
    return ChosenPasses(
        tuple(each for each in asked if each.scope == MODEL_SCOPE),
        {name: passes for name, passes in regions.items() if passes},
        _choose_process(options.isolation),
    )


def _load_of_target(target: Target, own: Sequence[LoadedPass]) -> list[LoadedPass]:
    found, names = [], {each.name for each in own}
    for name, given in target.rules.passes.items():
        if name in names:
            continue
        try:
            found.append(load_region_pass(name, given))
        except InputError as error:
            raise InputError(f"{target.source}: {target.locate(f'passes.{name}')}: {error}") from None
    return found


def _choose_process(isolation: Isolation | None) -> PassProcess | None:
    if isolation is None:
        return None
    return PassProcess(isolation.find_limit("compile"), isolation.environment)
