"""The stage that chooses sizes for a model with open dimensions where accelerators need some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from byoc.errors import InputError, list_causes
from byoc.model import Variant
from byoc.onnxrt import has_runtime, open_session, run_session, without_optimizations
from byoc.placement import CHEAPER_ON_HOST
from byoc.planning import find_sizes
from byoc.reporting import count_offloaded, describe_chosen_sizes
from byoc.rules import is_for_want_of_sizes
from byoc.samples import fits_types, model_samples
from byoc.stages._state import Planned, Prepared, Resolved, take
from byoc.support import Note, report_step

if TYPE_CHECKING:
    from byoc.model import Model
    from byoc.planning import GraphPlan
    from byoc.stages._chain import Stage

FIXED, OPEN = "fixed", "open"
"""The names of the variants: one has the sizes that byoc chose, and the other takes every size."""


@dataclass(frozen=True)
class ChooseSizes:
    """Make two variants of a model that rules refuse for its open dimensions, where that pays.

    The first has the sizes that plans count with, and the second stays open, for all other sizes. There
    is one open plan as before where nodes are refused for other reasons, where sizes are not worth it,
    and where the model cannot have these. `prepare` and `plan` are the stages that a variant
    goes through; `resolved` is the state that the model was prepared from.
    """

    resolved: Resolved
    prepare: Stage[Resolved, Prepared]
    plan: Stage[Prepared, Planned]

    def run(self, state: Prepared) -> list[Prepared]:
        """Return the states of the variants, planned where they had to be; raises as `plan` does."""
        if not state.request.options.may_choose_sizes or not _can_have_sizes(state):
            return [state]
        opened = self.plan.run(state)
        if not wants_sizes(opened.plan.root):
            return [opened]
        report_step("choose sizes")
        try:
            fixed = self._plan_fixed(opened)
        except InputError as error:
            sizes = ", ".join(f"{name} = {size}" for name, size in _get_sizes(state).items())
            note = Note("note", f"it stays open, since it cannot be planned for {sizes}: {error}")
            return [replace(opened, plan=replace(opened.plan, notes=(*opened.plan.notes, note)))]
        if not is_worth_sizes(fixed.plan.root, opened.plan.root):
            return [opened]
        return [fixed, _name_open(opened)]

    def _plan_fixed(self, opened: Planned) -> Planned:
        """Return the variant with sizes, verified on those of the user's samples that have them."""
        variant = Variant(FIXED, _get_sizes(opened), automatic=True)
        request = replace(self.resolved.request, variant=variant)
        prepared = self.prepare.run(replace(self.resolved, request=request))
        if request.options.output is not None and request.options.verify:
            _require_run(prepared.loaded.original)
        types = prepared.loaded.original.index.types
        samples = [each for each in opened.loaded.samples if fits_types(each.inputs, types)]
        loaded = replace(prepared.loaded, samples=samples)
        return self.plan.run(replace(prepared, loaded=loaded))


def _require_run(model: Model) -> None:
    """Raise InputError where plain onnxruntime, if it is there, does not run a model."""
    if not has_runtime():
        return
    with without_optimizations():
        session = open_session(model.proto, model.folder)
    run_session(session, model_samples(model))


def _get_sizes(state: Prepared) -> dict[str, int]:
    return find_sizes(state.loaded.original, state.settings.state)


def _can_have_sizes(state: Prepared) -> bool:
    """Return whether sizes may be chosen; of onnxruntime-genai's folders and variants see `byoc.zoo`."""
    return bool(_get_sizes(state)) and state.loaded.genai is None


def wants_sizes(root: GraphPlan) -> bool:
    """Return whether a plan has nodes on the host since something is open or unknown."""
    causes = (
        cause
        for graph in root.walk()
        for _, verdict in graph.host_units
        for cause in list_causes(verdict)
    )
    return any(map(is_for_want_of_sizes, causes))


def is_worth_sizes(fixed: GraphPlan, opened: GraphPlan) -> bool:
    """Return whether a plan with chosen sizes is better than the open one at the same sizes.

    Where the strategy weighs costs, and no shape of the open model is unknown, the predicted costs of
    both decide, and else the number of nodes on accelerators.
    """
    one, other = fixed.placement, opened.placement
    is_known = not any(graph.host_seconds[0] for graph in opened.walk())
    if one.why_host == other.why_host == CHEAPER_ON_HOST and one.measure is other.measure and is_known:
        return one.value < other.value * (1 - _ROUNDING)
    return count_offloaded(fixed) > count_offloaded(opened)


# More than the rounding errors of a few sums.
_ROUNDING = 2.0**-40


def _name_open(state: Planned) -> Prepared:
    """Return the open state as a variant; it is planned again where regions are to have its name."""
    variant = Variant(OPEN, automatic=True)
    named = replace(state, request=replace(state.request, variant=variant))
    if state.plan.regions:
        return Prepared(**take(Prepared, named)).restore_whole()
    return replace(named, plan=replace(named.plan, variant=variant))


def add_size_notes(states: Sequence[Planned]) -> Sequence[Planned]:
    """Return the states with a note in each plan on the sizes that byoc chose, if it did."""
    if not states[0].request.variant.automatic:
        return states
    fixed, opened = (state.plan for state in states)
    notes = describe_chosen_sizes(fixed, opened, states[1].loaded.original.planned)
    return [
        replace(state, plan=replace(state.plan, notes=(note, *state.plan.notes)))
        for state, note in zip(states, notes, strict=True)
    ]
