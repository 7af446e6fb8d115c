"""The stage that finds out which dimensions of the variants may be smaller, by padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING

from byoc.errors import InputError, MissingRuntimeError
from byoc.padding import MOST_ROWS, PaddingDecision, RowSplit, decide_padding, find_row_split
from byoc.planning import predict_at
from byoc.reporting import describe_chosen_sizes
from byoc.samples import model_samples
from byoc.stages._planning_stages import Annotate, Group
from byoc.stages._preparation_stages import load_original
from byoc.stages._results import Each
from byoc.stages._state import Padded, Prepared, Resolved, Verified, take
from byoc.support import Note, collect_rarely, report_step
from byoc.verification import (
    NotVerifiableError,
    Verification,
    add_padded,
    describe_failure,
    verify_independence,
    verify_padding,
    verify_split,
)

if TYPE_CHECKING:
    from byoc.model import Model
    from byoc.padding import PaddingRule


@dataclass(frozen=True)
class FindPadding:
    """Decide which dimensions of each variant may be smaller, and verify that; leave out what fails.

    Where the bundle is not verified, the proof is all there is. It is about the model with these
    dimensions open, which several variants may have in common.
    """

    def run(self, states: Sequence[Verified]) -> list[Padded]:
        """Return the states with what may be padded; verifications get the outputs on padded inputs.

        Raises InputError where caches got a fixed length, and that is not proven or fails.
        """
        found = Each(_FindPadding()).run(states)
        if states[0].request.variant.automatic and states[0].request.options.pad:
            found[:2] = _find_split(found[0], found[1])
        return found


@dataclass(frozen=True)
class _FindPadding:
    """Decide for one variant; `opened` has the models with open dimensions that were loaded before."""

    opened: dict[tuple[tuple[str, str], ...], Model] = field(default_factory=dict)

    def run(self, state: Verified) -> Padded:
        """Return the state with what may be padded, and its verification complete."""
        if state.loaded.static_rule is not None:
            return self._check_static(state, state.loaded.static_rule)
        variant = state.request.variant
        if not state.request.options.pad or not variant.name or variant.automatic:
            return _finish(state, None)  # an automatic variant's other sizes have one of their own
        found = self._find(state)
        told = "" if found.padding is None else found.padding.describe()
        if not told:
            return found
        may = "may" if found.padding is not None and found.padding.rule is not None else "cannot"
        note = Note("note", f"inputs {may} be padded: {told}")
        return replace(found, plan=replace(found.plan, notes=(*found.plan.notes, note)))

    def _check_static(self, state: Verified, rule: PaddingRule) -> Padded:
        """Verify a model whose caches got a fixed length against the user's."""
        report_step("verify caches of a fixed length")
        reason = _find_objection(state, rule)
        if not reason and isinstance(state.verification, Verification):
            padded = _verify(state, rule)
            reason = describe_failure(padded)
            state = replace(state, verification=add_padded(state.verification, padded))
        if reason:
            raise InputError(f"its caches cannot have a fixed length: {reason}")
        decision = PaddingDecision(rule)
        note = Note("note", f"caches have a fixed length: {decision.describe()}")
        plan = replace(state.plan, notes=(*state.plan.notes, note))
        return _finish(replace(state, plan=plan), decision)

    def _find(self, state: Verified) -> Padded:
        report_step("find padding")
        with collect_rarely():
            decision = decide_padding(
                lambda fixed: self._open(state, fixed), read_sizes(state.request.variant.dims)
            )
        rule = decision.rule
        if rule is not None and (objection := _find_objection(state, rule)):
            return _finish(state, _refuse(decision, rule, objection))
        if rule is None or not isinstance(state.verification, Verification):
            return _finish(state, decision)
        try:
            padded = _verify(state, rule)
            reason = describe_failure(padded)
        except (InputError, MissingRuntimeError, NotVerifiableError) as error:
            reason = f"it could not be verified: {error}"
        if reason:
            return _finish(state, _refuse(decision, rule, reason))
        verification = add_padded(state.verification, padded)
        return _finish(replace(state, verification=verification), decision)

    def _open(self, state: Verified, sizes: Mapping[str, int | str]) -> Model:
        """Return the original of a variant as `load_at` does, loaded once."""
        dims = list_dims(state, sizes)
        key = tuple(sorted((name, str(said)) for name, said in dims.items()))
        if key not in self.opened:
            self.opened[key] = load_original(state.request, dims)
        return self.opened[key]


def _find_split(fixed: Padded, opened: Padded) -> tuple[Padded, Padded]:
    """Return both variants, the first with a batch in several calls where that is right and faster.

    The batch is the only dimension of size 1, or the only one.
    """
    sizes = read_sizes(fixed.request.variant.dims)
    single = [name for name, size in sizes.items() if size == 1] or [*sizes]
    if len(single) != 1 or fixed.plan.lowered is not None or not fixed.plan.regions:
        return fixed, opened
    name, size = single[0], sizes[single[0]]
    others = {other: extent for other, extent in sizes.items() if other != name}
    at_most = _predict_open(opened, {**sizes, name: MOST_ROWS})
    if size >= MOST_ROWS or not ceil(MOST_ROWS / size) * fixed.plan.cost.total < at_most:
        return fixed, opened
    how = RowSplit(name, MOST_ROWS, {}, {}, size).how
    report_step("find rows")
    with collect_rarely():
        split = find_row_split(lambda dims: load_at(fixed, {**others, **dims}), name)
    if isinstance(split, str):
        return _tell(fixed, f"a larger {name} is not run {how}: {split}"), opened
    split = replace(split, size=size)
    if isinstance(fixed.verification, Verification):
        try:
            larger = load_at(fixed, {**others, name: 2 * size + 1})
            checked = verify_split(fixed.bundle, split, larger)
            reason = describe_failure(checked)
        except (InputError, MissingRuntimeError, NotVerifiableError) as error:
            reason = f"it could not be verified: {error}"
        if reason:
            return _tell(fixed, f"a larger {name} is not run {how}: {reason}"), opened
        fixed = replace(fixed, verification=add_padded(fixed.verification, checked))
    plans = fixed.plan, opened.plan
    before = describe_chosen_sizes(*plans)
    after = describe_chosen_sizes(*plans, split)
    told = [
        replace(plan, notes=tuple(new if note == old else note for note in plan.notes))
        for plan, old, new in zip(plans, before, after, strict=True)
    ]
    fixed = replace(fixed, padding=PaddingDecision(split=split), plan=told[0])
    return fixed, replace(opened, plan=told[1])


def _predict_open(opened: Padded, sizes: Mapping[str, int]) -> float:
    """Return the predicted seconds of the open plan at some sizes."""
    grouped = Group().run(Annotate().run(Prepared(**take(Prepared, opened))))
    root = opened.plan.root
    pairs = zip(root.index.walk(), grouped.index.walk(), strict=True)
    units = {id(old): grouped.units[id(new)] for old, new in pairs if id(new) in grouped.units}
    return predict_at(root, opened.settings, units, sizes).seconds


def _tell(state: Padded, text: str) -> Padded:
    notes = (*state.plan.notes, Note("note", text))
    return replace(state, plan=replace(state.plan, notes=notes))


def _finish(state: Verified, padding: PaddingDecision | None) -> Padded:
    return Padded(**take(Verified, state), padding=padding)


def _find_objection(state: Verified, rule: PaddingRule) -> str:
    """Return why a proof does not hold for what regions compute in, empty where it does."""
    if state.plan.lowered is None or not rule.reads_values:
        return ""
    return f"its proof rests on values, and regions compute in {state.plan.lowered.dtype}"


def read_sizes(dims: Mapping[str, int | str]) -> dict[str, int]:
    """Return the dimensions that are given as sizes, not as relations or ranges."""
    return {name: int(said) for name, said in dims.items() if str(said).strip().isdecimal()}


def load_at(state: Resolved, sizes: Mapping[str, int | str]) -> Model:
    """Return the original of a variant with some dimensions as given; its other sizes stay open."""
    return load_original(state.request, list_dims(state, sizes))


def list_dims(state: Resolved, sizes: Mapping[str, int | str]) -> dict[str, int | str]:
    """Return the given dimensions of a variant's model, its sizes replaced by those that are given."""
    own = {
        name: said
        for name, said in state.request.variant.dims.items()
        if name not in read_sizes(state.request.variant.dims)
    }
    return {**(state.request.options.dims or {}), **own, **sizes}


def _verify(state: Verified, rule: PaddingRule) -> Verification:
    fixed = read_sizes(state.request.variant.dims)
    if state.plan.lowered is not None:
        return verify_independence(state.bundle, rule, model_samples(state.loaded.original))
    return verify_padding(state.bundle, rule, lambda sizes: load_at(state, {**fixed, **sizes}))


def _refuse(decision: PaddingDecision, rule: PaddingRule, reason: str) -> PaddingDecision:
    return PaddingDecision(None, {**decision.refusals, **dict.fromkeys(rule.dims, reason)})
