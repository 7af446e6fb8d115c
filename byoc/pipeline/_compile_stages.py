"""Writing and compiling regions, and the search for what a compiler refuses without naming a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from byoc import bundle
from byoc._dataclasses import dataclass, field, replace
from byoc.bundle import (
    Bundle,
    Consent,
    HostEntry,
    build_manifest,
    compile_bundle,
    describe_variant,
    write_context_model,
    write_decisions,
    write_genai_files,
    write_models,
)
from byoc.codegen import (
    NOTE,
    CompileError,
    RefusedError,
    find_identical,
)
from byoc.console import format_count
from byoc.errors import shorten_text
from byoc.model import find_boundary
from byoc.numerics import merge_groups
from byoc.onnxrt import computes_in_integers, describe_machine, find_inexact_kernels, has_runtime
from byoc.pipeline._ask_stage import compile_alone
from byoc.pipeline._outlining import cut_regions
from byoc.pipeline._planning_stages import RegionRewriter
from byoc.pipeline._state import (
    Compiled,
    Emitting,
    Planned,
    Written,
    take,
)
from byoc.pipeline._verify_stage import attach_samples
from byoc.reporting import make_decision_document, make_report
from byoc.support import Note, collect_rarely, report_step, resolve_path
from byoc.verification import NotVerified

if TYPE_CHECKING:
    from byoc.bundle import RegionCompiler, RegionEntry, VariantEntry
    from byoc.codegen import Refusal, Region
    from byoc.patterns import Unit
    from byoc.planning import Plan, PlannedRegion


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


# The search for what a compiler refuses in a region of which it names no node.
#
# Parts of the region are compiled, halves first, until single units are known to be refused, or the most
# nodes that are taken. The rest of the region is planned again, and only what was found stays away.

_MOST_COMPILES = 12  # for a region: both halves of 64 units, six times
_MAX_NAMES = 3  # of nodes in a sentence


def search_refusals(
    states: Sequence[Planned],
    refusals: Sequence[Refusal],
    compilers: Mapping[str, RegionCompiler],
) -> list[Refusal]:
    """Return refusals with the nodes, or the most nodes, that parts of the regions show to be at fault.

    `compilers` are those of the regions, by name. A refusal that names nodes, is of a size, or may pass
    stays as it is, and so does one of which no part is taken.
    """
    found = []
    memory: dict[RegionCompiler, KnownParts] = {}
    with TemporaryDirectory(prefix="byoc-") as folder:
        for number, refusal in enumerate(refusals):
            state, region = _find_region(states, refusal.region)
            if refusal.nodes or refusal.too_large or not refusal.lasting or not _may_search(region):
                found.append(refusal)
                continue
            compiler = compilers[refusal.region]
            known = memory.setdefault(compiler, KnownParts(compiler))
            own = Path(folder) / str(number)
            own.mkdir()
            found.append(PartSearch(state, region, known, own).search(refusal))
        for compiler in memory:
            compiler.index_added()  # while the files of the parts are there
    return found


def _find_region(states: Sequence[Planned], name: str) -> tuple[Planned, PlannedRegion]:
    return next(
        (state, region) for state in states for region in state.plan.regions if region.name == name
    )


def _may_search(region: PlannedRegion) -> bool:
    """Return whether parts of a region may be taken, as far as can be said beforehand.

    Where the rules ask for fixed sizes, and a tensor at the boundary has none, the parts lack them, too.
    """
    if region.target.rules.shapes == "static":
        names = (*region.interface.inputs, *region.interface.outputs)
        kinds = map(region.index.types.get, names)
        if any(kind is None or kind.elements is None for kind in kinds):
            return False
    return len(region.units) > 1


@dataclass(frozen=True, eq=False)
class KnownParts:
    """The parts that a compiler was given, and whether it took them."""

    compiler: RegionCompiler
    taken: dict[str, bool] = field(default_factory=dict)
    """by name"""
    regions: list[Region] = field(default_factory=list)

    def find(self, region: Region) -> bool | None:
        """Return whether a region that is the same but for names is taken, None if none was tried."""
        return self.taken.get(find_identical([*self.regions, region]).get(region.name, ""))

    def compile(self, region: Region) -> bool:
        """Return whether the compiler takes a region, as it says now or said before."""
        try:
            compile_alone(self.compiler, region)
            self.taken[region.name] = True
        except CompileError as error:
            if not error.lasting:
                raise _StoppedError(str(error)) from None
            self.taken[region.name] = False
        self.regions.append(region)
        return self.taken[region.name]


class _StoppedError(Exception):
    """There are no more compiles for a region."""


@dataclass(eq=False)
class PartSearch:
    """The search in one region, whose units are in topological order; its parts are runs of them.

    A run of an order in which producers come first waits for nothing outside that waits for it, so that
    it can be a region of its own.
    """

    state: Planned
    region: PlannedRegion
    known: KnownParts
    folder: Path
    compiles: int = 0
    refused: set[int] = field(default_factory=set)
    """units that are to stay away"""
    causes: list[str] = field(default_factory=list)
    """what was found, as ends of a sentence"""
    most: int = 0
    """the most nodes that are taken, 0 where their number is not at fault"""
    _runs: dict[tuple[int, int], bool] = field(default_factory=dict)
    _open: tuple[int, int] | None = None
    """the shortest run that is known to be refused, of which the cause is not found"""

    @property
    def units(self) -> Sequence[Unit]:
        """The units of the region."""
        return self.region.units

    def search(self, refusal: Refusal) -> Refusal:
        """Return the refusal with what is at fault."""
        report_step(f"search what is refused in {self.region.name}")
        try:
            self._explore(0, len(self.units))
        except _StoppedError:
            self._give_up()
        tried = f"{format_count(len(self._runs), 'part')} of it compiled"
        if not any(self._runs.values()):
            return replace(refusal, tried=f"{tried}, and none is taken")
        tried = f"{tried}: {', '.join(dict.fromkeys(self.causes))}"
        if self.refused:
            names = tuple(self._name(unit) for unit in sorted(self.refused))
            return replace(refusal, nodes=names, tried=tried)
        return replace(refusal, most=self.most, tried=tried)

    def _give_up(self) -> None:
        """Keep what is known to be taken where there are no more compiles."""
        if self._open is None:
            return
        low, high = self._open
        inside = [run for run, taken in self._runs.items() if taken and low <= run[0] < run[1] <= high]
        if inside and not self.refused:
            self._limit(max(self._count_nodes(*run) for run in inside))
        else:
            self.refused |= {*range(low, high)}
            self.causes.append(f"one of {self._list(range(low, high))} is refused")

    def _explore(self, low: int, high: int) -> None:
        """Find what is at fault in a run that is known to be refused."""
        self._open = low, high
        if high - low == 1:
            self.refused |= self._find_alike(low)
            self.causes.append(f"{self._list([low])} is refused alone")
            self._open = None
            return
        middle = self._find_middle(low, high)
        first = self._is_taken(low, middle)
        if not first:
            self._explore(low, middle)
            if not self.refused.isdisjoint(range(middle, high)):
                return  # what is refused is there, too; the rest shows when it is planned again
        if not self._is_taken(middle, high):
            self._explore(middle, high)
        elif first:
            self._find_joint_cause(low, middle, high)

    def _find_joint_cause(self, low: int, middle: int, high: int) -> None:
        """Find what is at fault in a run of two halves that are both taken.

        The shortest refused run from its beginning is found by bisection, and the shortest of these that
        ends there. If that cannot begin later, and one of as many units beside it is refused, too, there
        are too many nodes; else its last unit stays away.
        """
        taken, end = middle, high
        while end - taken > 1:
            between = (taken + end) // 2
            if self._is_taken(low, between):
                taken = between
            else:
                end = between
                self._narrow(low, between)
        begin, later = low, middle
        while later - begin > 1:
            between = (begin + later) // 2
            if self._is_taken(between, end):
                later = between
            else:
                begin = between
                self._narrow(between, end)
        pair = end - begin == 2
        if begin == low and self._is_refused_beside(begin, end, pair):
            self._limit(self._count_nodes(low, end - 1))
        else:
            self.refused |= self._find_alike(end - 1, begin) if pair else {end - 1}
            self.causes.append(f"{self._list([begin, end - 1])} are refused together")
        self._open = None

    def _is_refused_beside(self, begin: int, end: int, otherwise_not: bool) -> bool:
        """Return whether a run of as many units beside one is refused; where none is, as is said."""
        if end < len(self.units):
            return not self._is_taken(begin + 1, end + 1)
        if begin > 0:
            return not self._is_taken(begin - 1, end - 1)
        return not otherwise_not

    def _narrow(self, low: int, high: int) -> None:
        """Note that a run is known to be refused."""
        self._open = low, high

    def _limit(self, nodes: int) -> None:
        self.most = min(nodes, self.most or nodes)
        self.causes.append(f"more than {format_count(nodes, 'node')} are refused")

    def _find_middle(self, low: int, high: int) -> int:
        """Return the unit at which a run has about half of its nodes on each side."""
        half = self._count_nodes(low, high) / 2
        inner = range(low + 1, high)
        return min(inner, key=lambda middle: abs(self._count_nodes(low, middle) - half))

    def _count_nodes(self, low: int, high: int) -> int:
        return sum(len(unit.nodes) for unit in self.units[low:high])

    # Units that are refused as others are.

    def _find_alike(self, number: int, before: int | None = None) -> set[int]:
        """Return the units that are as one of them, and stand behind one that is as another."""
        signs = [self._sign(unit) for unit in self.units]
        distance = 0 if before is None else number - before
        return {
            other
            for other in range(distance, len(signs))
            if signs[other] == signs[number] and signs[other - distance] == signs[number - distance]
        }

    def _sign(self, unit: Unit) -> tuple[object, ...]:
        """Return the view that a compiler has of a unit alone: operators, attributes, types."""
        index = self.region.index
        kinds = tuple(index.node_kinds[node] for node in unit.nodes)
        names = [
            name for node in unit.nodes for name in (*index.node_inputs[node], *index.node_outputs[node])
        ]
        return kinds, tuple(str(index.types.get(name)) for name in names)

    def _name(self, number: int) -> str:
        nodes = (self.region.index.nodes[node] for node in self.units[number].nodes)
        return next(filter(None, (name for node in nodes for name in (node.name, *node.output))), "")

    def _list(self, units: Sequence[int]) -> str:
        names = [f"'{self._name(unit)}'" for unit in units]
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        return " and ".join(names) if len(names) == 2 else ", ".join(names[:_MAX_NAMES]) + more

    # Parts as regions.

    def _is_taken(self, low: int, high: int) -> bool:
        """Return whether the compiler takes a run. Raises _StoppedError after the last compile."""
        if (low, high) not in self._runs:
            pieces = self._find_pieces(low, high)
            self._runs[low, high] = all(
                self._compile(f"{self.region.name}_{low}_{high}_{number}", piece)
                for number, piece in enumerate(pieces)
            )
        return self._runs[low, high]

    def _find_pieces(self, low: int, high: int) -> Iterator[tuple[Unit, ...]]:
        """Yield the regions that a run is: one, or what is connected where the target wants that."""
        run = self.units[low:high]
        if self.region.target.rules.regions != "connected":
            yield tuple(run)
            return
        index = self.region.index
        first: dict[str, int] = {}
        links: list[tuple[int, int]] = []
        for number, unit in enumerate(run):
            for node in unit.nodes:
                names = (*index.reads[node], *filter(None, index.node_outputs[node]))
                data = (name for name in names if not index.is_constant(name))
                links += [(first.setdefault(name, number), number) for name in data]
        groups = merge_groups(len(run), links)
        for group in dict.fromkeys(groups):
            yield tuple(unit for unit, own in zip(run, groups, strict=True) if own == group)

    def _compile(self, name: str, units: tuple[Unit, ...]) -> bool:
        try:
            part = self._write(name, units)
        except CompileError:  # a pass refuses it
            return False
        known = self.known.find(part)
        if known is not None:
            return known
        if self.compiles == _MOST_COMPILES:
            raise _StoppedError
        self.compiles += 1
        return self.known.compile(part)

    def _write(self, name: str, units: tuple[Unit, ...]) -> Region:
        """Write some units as a region, by passes as it would be compiled."""
        state, index = self.state, self.region.index
        nodes = sorted(node for unit in units for node in unit.nodes)
        planned = replace(self.region, name=name, units=units, interface=find_boundary(index, nodes))
        folder = self.folder / name
        folder.mkdir()
        converted = cut_regions(state.plan.root.index, [planned], state.model.folder)
        with bundle.WeightFile(folder) as weights:
            proto = bundle.move_weights(converted.proto, state.model.folder, weights)
            written = bundle.write_regions(folder, proto, [planned], converted.values, converted.origins)
            rewriter = RegionRewriter(state.setup.passes, state.plan.targets, weights, compare=False)
            (part,) = rewriter.rewrite(written)
        return part
