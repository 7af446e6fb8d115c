"""Variants whose caches get a fixed length, where the model makes them longer by a Concat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from byoc import padding
from byoc.errors import InputError
from byoc.model import find_state_pairs, make_variable
from byoc.options import list_names
from byoc.stages._state import LoadedModel
from byoc.support import report_step
from byoc.zoo import load_model, name_source

if TYPE_CHECKING:
    from byoc.model import Model
    from byoc.planning import PlanSettings
    from byoc.stages._state import Request


def load_original(request: Request, dims: Mapping[str, int | str], without_heavy: bool = False) -> Model:
    """Load the model that the options name at some dimensions, its variable constants as inputs.

    `without_heavy` is as in `byoc.zoo.load_model`. Raises InputError as that and `make_variable` do.
    """
    model = load_model(request.source, dims, request.options.shapes, without_heavy)
    return make_variable(model, list_names(request.options.variable))


def load_static(request: Request, settings: PlanSettings) -> tuple[PlanSettings, LoadedModel | None]:
    """Return settings with the caches as state, and the model with caches of one length.

    That is their length before and after a call; the model is None for a variant whose past has none.
    Raises InputError for a model that cannot be brought into that form, with the reason.
    """
    report_step("give caches a fixed length")
    common, own = request.options.dims or {}, request.variant.dims
    try:
        whole = load_original(request, common, without_heavy=True)
        past, total, rows = padding.find_growing_dims(whole)
        pairs = {pair.past: pair.present for pair in find_state_pairs(whole.structure)}
        settings = replace(settings, state=settings.state or pairs)
        length = _read_length(own, past, total)
        if not length:
            return settings, None
        others = {name: said for name, said in own.items() if name not in {past, total}}
        relation = {total: f"{past} + {rows}"} if total and total not in common else {}
        opened = load_original(request, {**common, **others, **relation})
        static = padding.make_static(opened, past, total, length)
        decision = padding.decide_padding(static.load, {padding.CACHE_LENGTH: length})
        if decision.rule is None:
            raise InputError("; ".join(decision.refusals.values()))
    except InputError as error:
        what = f"{name_source(request.source)}: its caches cannot have a fixed length"
        raise InputError(f"{what}: {error}") from error
    original = static.load({padding.CACHE_LENGTH: length})
    return settings, LoadedModel(original, static.complete_rule(decision.rule))


def _read_length(dims: Mapping[str, int | str], past: str, total: str) -> int:
    """Return the length of the cache of a variant, 0 for no past. Raises InputError for none."""
    found = {name: str(dims[name]).strip() for name in (past, total) if name in dims}
    if not found.get(past, "").isdecimal():
        raise InputError(f"the variant does not say how long they are: {past}=LENGTH")
    length = int(found[past])
    if length and total in found and found[total] != found[past]:
        raise InputError(
            f"{past} is {length} and {total} is {found[total]}, but both are the length of the cache"
        )
    return length
