"""The stages from the plan to the bundle: write, compile, ask what compilers estimate, pack."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from byoc.bundle import (
    Bundle,
    Consent,
    EstimateReport,
    HostEntry,
    MemoryUse,
    build_manifest,
    compile_bundle,
    describe_padding,
    describe_split,
    describe_variant,
    sign_folder,
    write_context_model,
    write_decisions,
    write_genai_files,
    write_manifest,
    write_models,
)
from byoc.codegen import (
    NOTE,
    SRAM,
    SRAM_LIMIT,
    CodegenFailedError,
    CompileError,
    Cycles,
    RefusedError,
    can_estimate,
    estimate_region,
)
from byoc.errors import MissingRuntimeError, shorten_text
from byoc.onnxrt import computes_in_integers, describe_machine, find_inexact_kernels, has_runtime
from byoc.reporting import format_quantity, make_decision_document, make_report
from byoc.stages._planning_stages import RegionRewriter
from byoc.stages._refusal_search import search_refusals
from byoc.stages._state import (
    Compiled,
    CompilerFigures,
    Emitting,
    Estimated,
    Packed,
    Padded,
    Planned,
    Written,
    take,
)
from byoc.stages._verify_stage import attach_samples
from byoc.support import Note, collect_rarely, resolve_path
from byoc.verification import NotVerified

if TYPE_CHECKING:
    from byoc.bundle import PaddingEntry, RegionCompiler, RegionEntry, RowSplitEntry, VariantEntry
    from byoc.codegen import Artifact, Region
    from byoc.planning import Plan

_SHOWN = 3  # names of regions in a note
_MAX_NOTE = 300  # characters of a note of a codegen


@dataclass(frozen=True)
class Write:
    """Write weights and models into the folder; rewrite the regions by passes.

    Raises RefusedError for the regions at which a pass fails.
    """

    def run(self, state: Emitting) -> Written:
        """Return the state with the regions; the plan gets the effects of passes."""
        plan, verify = state.plan, state.request.options.verify
        rewriter = RegionRewriter(state.setup.passes, plan.targets, state.weights, verify)
        with collect_rarely():
            written = write_models(plan, state.weights.folder, state.weights)
        regions = rewriter.rewrite(written)
        plan = replace(plan, passes=(*plan.passes, *rewriter.effects))
        shared = state.weights.originals.describe()
        if shared:
            plan = replace(plan, notes=(*plan.notes, Note("note", shared)))
        return Written(**take(Emitting, replace(state, plan=plan)), regions=regions)


@dataclass(frozen=True)
class Compile:
    """Compile the regions of all variants, and write what else a bundle holds into the folder.

    Raises RefusedError for the regions that codegens refuse, with what parts of them show; with
    `strict`, CompileError for the first.
    """

    def run(self, states: Sequence[Written]) -> list[Compiled]:
        """Return the states with the bundle, not verified yet; plans get the codegens' notes."""
        first = states[0]  # all have the same request but for the variant, setup and weights
        folder, setup, loaded = first.weights.folder, first.setup, first.loaded
        options = first.request.options
        with TemporaryDirectory(prefix="byoc-") as samples:
            regions: list[Region] = []
            chosen: dict[str, RegionCompiler] = {}
            for state in states:
                attempts, compilers = dict(_count_attempts(state)), state.setup.compilers
                for region in attach_samples(state.regions, state, Path(samples)):
                    regions.append(region)
                    chosen[region.name] = compilers[region.target].choose(attempts.get(region.name, 0))
            try:
                entries = compile_bundle(folder, regions, chosen, options.strict, options.jobs)
            except RefusedError as error:
                raise RefusedError(search_refusals(states, error.refusals, chosen)) from error
        states = [replace(state, plan=_add_codegen_notes(state, entries)) for state in states]
        variants = [_describe_variant(state, entries) for state in states]
        if options.emit is not None:
            for state, variant in zip(states, variants, strict=True):
                codegens = {name: each.codegen for name, each in state.setup.compilers.items()}
                write_context_model(folder, variant, entries, codegens)
        for state, variant in zip(states, variants, strict=True):
            contracts = {entry.name: entry.boundary_contracts for entry in variant.regions}
            decisions = make_decision_document(state.plan, contracts)
            write_decisions(folder, decisions, state.request.variant)
        if loaded.genai is not None:
            assert setup.output is not None
            models = {state.request.variant.name: state.loaded.original for state in states}
            write_genai_files(folder, loaded.genai, resolve_path(setup.output), models)
        references = first.weights.originals.references
        bundle = Bundle(
            folder,
            build_manifest(
                folder, [state.plan for state in states], variants, references, _describe_host(states)
            ),
            codegens=first.request.codegens,
            consent=Consent(trust=True),
            just_compiled=True,
        )
        return [
            Compiled(**take(Emitting, state), bundle=bundle.choose(state.request.variant.name))
            for state in states
        ]


def _count_attempts(state: Planned) -> Iterator[tuple[str, int]]:
    """Yield the regions of a state with the number of options to recover with that they need."""
    limits = state.findings.history.limits
    for graph in state.plan.root.walk():
        for region in graph.regions:
            yield region.name, limits.count_attempts(region, graph.path)


def _describe_host(states: Sequence[Planned]) -> HostEntry:
    """Return the host's mode, with its wrong kernels where the model computes in integers."""
    mode = states[0].request.options.host_mode
    if not has_runtime() or not any(computes_in_integers(state.plan.proto) for state in states):
        return HostEntry(mode=mode)
    return HostEntry(mode=mode, machine=describe_machine(), inexact=find_inexact_kernels())


def _add_codegen_notes(state: Written, entries: Sequence[RegionEntry]) -> Plan:
    """Return a state's plan with what codegens say of its regions in their artifacts' metadata."""
    own = {region.name for region in state.regions}
    names: dict[str, list[str]] = {}
    for entry in entries:
        text = entry.artifact_metadata.get(NOTE, "")
        if text and entry.name in own:
            names.setdefault(shorten_text(" ".join(text.split()), _MAX_NOTE), []).append(entry.name)
    notes = [Note("note", f"{_list_names(found)}: {text}") for text, found in names.items()]
    notes += _describe_refit(state)
    return replace(state.plan, notes=(*state.plan.notes, *notes))


def _describe_refit(state: Written) -> Iterator[Note]:
    """Yield a note on the regions that have an earlier artifact with other weights, and on the rest."""
    path = state.request.options.refit
    if path is None:
        return
    found = [each.earlier for each in state.setup.compilers.values() if each.earlier is not None]
    refitted = set[str]().union(*(each.refitted for each in found))
    own = [region.name for region in state.regions]
    taken = [name for name in own if name in refitted]
    compiled = [name for name in own if name not in refitted]
    parts = [f"{_list_names(taken)} with other weights" if taken else "nothing"]
    parts += [f"{_list_names(compiled)} had to be compiled" if compiled else "nothing was compiled"]
    yield Note("note", f"taken from {path}: {', and '.join(parts)}")


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _describe_variant(state: Written, entries: Sequence[RegionEntry]) -> VariantEntry:
    """Return the manifest's entry for a variant, which is not verified yet."""
    own = {region.name for region in state.regions}
    report = make_report(state.plan, NotVerified("the bundle is not complete yet"))
    return describe_variant(state.plan, tuple(e for e in entries if e.name in own), report)


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
