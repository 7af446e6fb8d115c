"""The stages behind the compilers: what they estimate, which inputs may be padded, and the bundle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from byoc._dataclasses import dataclass, field, replace
from byoc.bundle import (
    Bundle,
    EstimateReport,
    MemoryUse,
    describe_padding,
    describe_split,
    sign_folder,
    write_manifest,
)
from byoc.codegen import (
    SRAM,
    SRAM_LIMIT,
    CodegenFailedError,
    CompileError,
    Cycles,
    can_estimate,
    estimate_region,
)
from byoc.console import format_quantity
from byoc.errors import InputError, MissingRuntimeError
from byoc.model import find_state_pairs
from byoc.padding import MOST_ROWS, PaddingDecision, RowSplit, decide_padding, find_row_split
from byoc.pipeline._planning_stages import Annotate, Group
from byoc.pipeline._preparation_stages import load_original
from byoc.pipeline._results import Each
from byoc.pipeline._state import (
    Compiled,
    CompilerFigures,
    Estimated,
    Packed,
    Padded,
    Prepared,
    Resolved,
    Verified,
    take,
)
from byoc.planning import predict_at
from byoc.reporting import describe_chosen_sizes, make_report
from byoc.samples import model_samples
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
    from byoc.bundle import PaddingEntry, RegionCompiler, RegionEntry, RowSplitEntry
    from byoc.codegen import Artifact, Region
    from byoc.model import Model
    from byoc.padding import PaddingRule
    from byoc.planning import Plan


@dataclass(frozen=True)
class Estimate:
    """Ask the compilers, as far as they can say, what the compiled regions take: seconds, and memory."""

    def run(self, state: Compiled) -> Estimated:
        """Return the state with the estimates; the plan gets notes on them."""
        found = estimate_regions(state.bundle, state.setup.compilers)
        asked = state.request.options.ask in {"costs", "both"}
        plan = add_estimate_notes(state.plan, found, asked)
        sram, notes = find_sram(state.bundle.variant.regions)
        plan = replace(plan, notes=(*plan.notes, *notes))
        figures = CompilerFigures(found.by_region, sram)
        return Estimated(**take(Compiled, replace(state, plan=plan)), figures=figures)


@dataclass(frozen=True)
class Pack:
    """Write the reports, the manifest and its signature, the last of the bundle's files."""

    def run(self, states: Sequence[Padded]) -> list[Packed]:
        """Return the states with the reason why the bundle is not signed."""
        with collect_rarely():
            return self._pack(states)

    def _pack(self, states: Sequence[Padded]) -> list[Packed]:
        reports = [
            make_report(
                state.plan,
                state.verification,
                estimates=state.figures.estimates,
                sram=state.figures.sram,
            )
            for state in states
        ]
        first = states[0]  # all have the same options, folder and weights
        manifest = first.bundle.manifest
        variants = tuple(
            variant.model_copy(
                update={
                    "report": report,
                    "padding": _describe_padding(state),
                    "split": _describe_split(state),
                }
            )
            for variant, report, state in zip(manifest.variants, reports, states, strict=True)
        )
        first.weights.originals.remove_references()
        digest = write_manifest(first.weights.folder, manifest.model_copy(update={"variants": variants}))
        not_signed = sign_folder(first.weights.folder, digest, first.request.options.sign)
        return [Packed(**take(Padded, state), not_signed=not_signed) for state in states]


def _describe_padding(state: Padded) -> PaddingEntry | None:
    found = state.padding
    if found is None or (found.split is not None and found.rule is None):
        return None
    return describe_padding(found)


def _describe_split(state: Padded) -> RowSplitEntry | None:
    split = None if state.padding is None else state.padding.split
    return None if split is None else describe_split(split)


# The compilers' own estimates of the regions that they compiled.

_SRAM = (SRAM, SRAM_LIMIT)
_BYTES = re.compile("[0-9]{1,15}")
_DISAGREEMENT = 1.25  # a ratio of predicted and estimated seconds; a smaller one is not worth a note


@dataclass(frozen=True, eq=False)
class RegionEstimates:
    """The estimates by region name, and notes on codegens that failed to give one."""

    by_region: Mapping[str, EstimateReport] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


def estimate_regions(bundle: Bundle, compilers: Mapping[str, RegionCompiler]) -> RegionEstimates:
    """Ask the compilers of targets, as far as they can estimate, about the regions of a bundle."""
    if not any(can_estimate(compiler.codegen) for compiler in compilers.values()):
        return RegionEstimates()
    found: dict[str, EstimateReport] = {}
    asked: dict[str, EstimateReport | None] = {}
    notes: list[Note] = []
    twins = bundle.identical_regions
    for name, region, artifact in bundle.regions():
        compiler, first = compilers[region.target], twins.get(region.name, region.name)
        if first not in asked and can_estimate(compiler.codegen):
            own = region if first == region.name else bundle.open_compiled(first)[1]
            asked[first] = None
            try:
                asked[first] = _estimate(compiler, own, artifact)
            except (CodegenFailedError, MissingRuntimeError) as error:
                text = f"codegen {name} failed to estimate {region.name}: {error}"
                notes.append(Note("warning", text))
            except CompileError:  # it does not say
                continue
        estimate = asked.get(first)
        if estimate is not None:
            found[region.name] = estimate
    return RegionEstimates(found, tuple(notes))


def _estimate(compiler: RegionCompiler, region: Region, artifact: Artifact) -> EstimateReport:
    assert can_estimate(compiler.codegen)
    made = estimate_region(compiler.codegen, region, compiler.parsed_options, artifact)
    if isinstance(made, Cycles):
        return EstimateReport(seconds=made.seconds, cycles=made.count, hertz=made.hertz)
    return EstimateReport(seconds=made)


def find_sram(entries: Iterable[RegionEntry]) -> tuple[dict[str, MemoryUse], list[Note]]:
    """Return the memory on the chip that regions use, by name, as their artifacts' metadata say.

    There is a note for each text there that is no number of bytes; its region is left out.
    """
    found: dict[str, MemoryUse] = {}
    notes: list[Note] = []
    for entry in entries:
        texts = {key: entry.artifact_metadata[key] for key in _SRAM if key in entry.artifact_metadata}
        wrong = [f"`{key}` is {text!r:.60}" for key, text in texts.items() if not _BYTES.fullmatch(text)]
        if wrong:
            said = f"codegen {entry.codegen}: {entry.name}: the metadata {' and '.join(wrong)}"
            notes.append(Note("warning", f"{said}, not a whole number of bytes; it is not reported"))
        elif SRAM in texts:
            limit = texts.get(SRAM_LIMIT)
            used = int(texts[SRAM])
            found[entry.name] = MemoryUse(used=used, limit=None if limit is None else int(limit))
    return found, notes


def add_estimate_notes(plan: Plan, estimates: RegionEstimates, asked: bool) -> Plan:
    """Return a plan with the notes, and one for each target whose compiler disagrees with its costs.

    Where compilers were `asked` before placing, the plan is by their seconds, and there is no such note.
    """
    notes = [*estimates.notes]
    for target in plan.targets if not asked else ():
        pairs = [
            (region.trips * region.seconds, region.trips * estimates.by_region[region.name].seconds)
            for region in plan.regions
            if region.target is target and region.name in estimates.by_region
        ]
        predicted, estimated = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0)
        if estimated > _DISAGREEMENT * predicted or predicted > _DISAGREEMENT * estimated:
            text = (
                f"the compiler estimates {format_quantity(estimated, 's')} for the regions of "
                f"{target.name}, predicted are {format_quantity(predicted, 's')}; "
                "--ask costs places by its seconds"
            )
            notes.append(Note("note", text))
    return replace(plan, notes=(*plan.notes, *notes)) if notes else plan


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
            fixed = _pad_shorter(_find_split(found[0], found[1]), found[1])
            found[:2] = _renew_notes(fixed, found[1])
        return found


@dataclass(frozen=True)
class _FindPadding:
    """Decide for one variant; `opened` has the models with open dimensions that were loaded before.

    Inputs are padded from the size `least` on.
    """

    opened: dict[tuple[tuple[str, str], ...], Model] = field(default_factory=dict)
    least: int = 1

    def run(self, state: Verified) -> Padded:
        """Return the state with what may be padded, and its verification complete."""
        if state.loaded.static_rule is not None:
            return self._check_static(state, state.loaded.static_rule)
        variant = state.request.variant
        if not state.request.options.pad or not variant.name or variant.automatic:
            return _finish(state, None)  # an automatic variant's other sizes have one of their own
        found = self.find(state)
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

    def find(self, state: Verified) -> Padded:
        """Return the state with what may be padded, whatever its variant is called."""
        report_step("find padding")
        with collect_rarely():
            decision = decide_padding(
                lambda fixed: self._open(state, fixed), read_sizes(state.request.variant.dims)
            )
        if decision.rule is not None and self.least > 1:
            decision = replace(decision, rule=replace(decision.rule, least=self.least))
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


def _find_split(fixed: Padded, opened: Padded) -> Padded:
    """Return the variant of chosen sizes, with a batch in several calls where that is right and faster.

    The batch is the only dimension of size 1, or the only one.
    """
    sizes = read_sizes(fixed.request.variant.dims)
    single = [name for name, size in sizes.items() if size == 1] or [*sizes]
    if len(single) != 1 or fixed.plan.lowered is not None or not fixed.plan.regions:
        return fixed
    name, size = single[0], sizes[single[0]]
    others = {other: extent for other, extent in sizes.items() if other != name}
    at_most = _predict_open(opened, {**sizes, name: MOST_ROWS})
    if size >= MOST_ROWS or not ceil(MOST_ROWS / size) * fixed.plan.cost.total < at_most:
        return fixed
    how = RowSplit(name, MOST_ROWS, {}, {}, size).how
    report_step("find rows")
    with collect_rarely():
        split = find_row_split(lambda dims: load_at(fixed, {**others, **dims}), name)
    if isinstance(split, str):
        return _tell(fixed, f"a larger {name} is not run {how}: {split}")
    split = replace(split, size=size)
    if isinstance(fixed.verification, Verification):
        try:
            larger = load_at(fixed, {**others, name: 2 * size + 1})
            checked = verify_split(fixed.bundle, split, larger)
            reason = describe_failure(checked)
        except (InputError, MissingRuntimeError, NotVerifiableError) as error:
            reason = f"it could not be verified: {error}"
        if reason:
            return _tell(fixed, f"a larger {name} is not run {how}: {reason}")
        fixed = replace(fixed, verification=add_padded(fixed.verification, checked))
    return replace(fixed, padding=PaddingDecision(split=split))


def _renew_notes(fixed: Padded, opened: Padded) -> tuple[Padded, Padded]:
    """Return both variants; their notes on chosen sizes say what else runs on the first."""
    plans, planned = (fixed.plan, opened.plan), opened.loaded.original.planned
    before = describe_chosen_sizes(*plans, planned)
    after = describe_chosen_sizes(*plans, planned, fixed.padding)
    told = [
        replace(plan, notes=tuple(new if note == old else note for note in plan.notes))
        for plan, old, new in zip(plans, before, after, strict=True)
    ]
    return replace(fixed, plan=told[0]), replace(opened, plan=told[1])


def _pad_shorter(fixed: Padded, opened: Padded) -> Padded:
    """Return the variant of chosen sizes with the padding of inputs that it is faster for, if it may be.

    One dimension may be shorter, such as a length. A state that goes from call to call is not padded.
    """
    lengths = [name for name, size in read_sizes(fixed.request.variant.dims).items() if size > 1]
    has_state = fixed.settings.state or find_state_pairs(fixed.loaded.original.structure)
    if len(lengths) != 1 or not fixed.plan.regions or has_state:
        return fixed
    name = lengths[0]
    least = _find_break_even(fixed, opened, name)
    if least is None:
        return fixed
    size = read_sizes(fixed.request.variant.dims)[name]
    found = _FindPadding(least=least).find(replace(fixed, padding=None))
    decision = found.padding
    if decision is None or decision.rule is None:
        why = "" if decision is None else decision.refusals.get(name, "")
        told = f"a smaller {name} than {size} is not padded: {why}"
        return _tell(fixed, told) if why else fixed
    split = None if fixed.padding is None else fixed.padding.split
    return replace(found, padding=replace(decision, split=split))


def _find_break_even(fixed: Padded, opened: Padded, name: str) -> int | None:
    """Return the least size from which on the open plan is predicted to take longer; None if none is."""
    sizes = read_sizes(fixed.request.variant.dims)
    if any(graph.host_seconds[0] for graph in opened.plan.root.walk()):
        return None  # some of it is not known

    def is_faster(size: int) -> bool:
        return not fixed.plan.cost.total < _predict_open(opened, {**sizes, name: size})

    if not is_faster(1):
        return 1
    low, high = 1, sizes[name]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_faster(middle) else (low, middle)
    return high if high < sizes[name] else None


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
