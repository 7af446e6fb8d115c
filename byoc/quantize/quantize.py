"""Concluded quantization: a float model with DequantizeLinear and QuantizeLinear of ours around units.

Only what a target then takes stays quantized: the quantized model is annotated and grouped as the
pipeline does it, and what that refuses is left in floating point, until nothing is refused any more.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from byoc.errors import InputError, nearest
from byoc.graph.index import GraphIndex
from byoc.graph.load import Model
from byoc.graph.unshare import unshared
from byoc.patterns.group import group
from byoc.patterns.qdq import is_border
from byoc.patterns.unit import Unit
from byoc.quantize.fold import folded
from byoc.quantize.insert import inserted, renamed_units
from byoc.quantize.opset import PER_CHANNEL, SIXTEEN_BITS, modern, raised
from byoc.quantize.ranges import Given, Range, Ranges
from byoc.quantize.schemes import Schemes, Store, schemes_of
from byoc.quantize.units import Candidate, candidates, named, node_names
from byoc.quantize.wanted import Wishes, formal_name
from byoc.rules.annotate import Annotator
from byoc.rules.load import Target
from byoc.verdict import Verdict

_EIGHT_BITS = frozenset({"int8", "uint8"})
_MOST_NAMES = 3
_OTHER_UNITS = "its operators would be other units"


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantized model.

    `floats` is the same model before: of the same operator set, BatchNormalization folded. `units` are
    what was quantized, by name, each with the names of its nodes.
    """

    model: Model
    floats: Model
    units: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


def quantize(
    model: Model,
    targets: Sequence[Target],
    ranges: Ranges,
    dtype: str | None = None,
    exclude: Collection[str] = (),
) -> Quantized:
    """Return a model with all that the targets take quantized in quantized form, at the ranges given.

    `dtype` is that of activations, the first that a target's file has unless given. `exclude` names
    units or nodes that stay in floating point, as do those in the bodies of If, Loop and Scan. The
    scheme is that of each target's file; where several take a unit, the first has it.

    Raises InputError when a target does not have the dtype, nothing is named so to be excluded, ranges
    contradict one another, or the operator set cannot be raised to what the scheme needs.
    """
    wishes = [Wishes(target) for target in targets if target.quantized]
    for wish in wishes:
        _check_dtype(wish.target, dtype)
    least = SIXTEEN_BITS if _sixteen(wishes, ranges, dtype) else PER_CHANNEL
    floats = folded(raised(modern(model), least))
    done = _Quantizing(floats, wishes, ranges, dtype, frozenset(exclude))
    return done.quantize({_name(model.index, number) for number in range(len(model.index.nodes))})


def _check_dtype(target: Target, dtype: str | None) -> None:
    part = target.rules.quantization.activations
    allowed = (part.dtype if part else None) or ()
    if dtype is not None and allowed and dtype not in allowed:
        place = target.place("quantization.activations.dtype")
        raise InputError(
            f"{target.source}: {place}: {dtype} is not supported; supported: {', '.join(allowed)}"
        )


def _sixteen(wishes: Sequence[Wishes], ranges: Ranges, dtype: str | None) -> bool:
    """Return whether something will be quantized that is not of 8 bits."""
    used = {entry.dtype for entry in ranges.tensors.values() if isinstance(entry, Given)}
    if dtype is not None:
        used.add(dtype)
    for wish in wishes:
        scheme = wish.target.rules.quantization
        for part in (scheme.activations if dtype is None else None, scheme.weights):
            used.update((part.dtype or ())[:1] if part else ())
    return not used <= _EIGHT_BITS


@dataclass(eq=False)
class _Quantizing:
    """A model while it is decided what of it is quantized.

    `out` has the nodes that a target does not get, by the target's place; `reasons` why, by unit.
    """

    floats: Model
    wishes: Sequence[Wishes]
    ranges: Ranges
    dtype: str | None
    exclude: frozenset[str]
    out: list[set[int]] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def index(self) -> GraphIndex:
        """The index of the float model."""
        return self.floats.index

    def quantize(self, known: Collection[str]) -> Quantized:
        """Return the quantized model; notes speak of nodes with a `known` name alone, the user's own."""
        self.out = [set(self._excluded()) for _ in self.wishes]
        store = Store(self.index, self.floats.folder)
        while True:
            units = self._units()
            schemes = schemes_of(store, units, self.ranges, self.dtype)
            if self._refuse(units, schemes.refused):
                continue
            if self._refuse(units, *self._refusals(store, units, schemes)):
                continue
            break
        done, _ = inserted(self.floats, store, units, schemes)
        names = {unit.name: node_names(self.index, unit.unit) for unit in units}
        reasons = {name: reason for name, reason in self.reasons.items() if name in known}
        return Quantized(done, self.floats, names, tuple(_notes(reasons, names)))

    def _excluded(self) -> set[int]:
        found: set[int] = set()
        known = {node.name for node in self.index.nodes} - {""}
        matched: set[str] = set()
        for wish in self.wishes:
            for unit in candidates(self.index, wish, ())[0]:
                called = named(self.index, unit.unit)
                known |= called
                if not called.isdisjoint(self.exclude):
                    matched |= called & self.exclude
                    found.update(unit.unit.nodes)
        for number, node in enumerate(self.index.nodes):
            if node.name in self.exclude:
                found.add(number)
        wrong = sorted(self.exclude - known)
        if wrong:
            hint = nearest(wrong[0], known)
            raise InputError(f"exclude: there is no unit and no node '{wrong[0]}'{hint}")
        return found

    def _units(self) -> list[Candidate]:
        """Return the candidates that have ranges; a node is in one for one target."""
        while True:
            units: list[Candidate] = []
            taken: set[int] = set()
            for out, wish in zip(self.out, self.wishes, strict=True):
                found, never = candidates(self.index, wish, out | taken)
                for number, why in never.items():
                    self.reasons.setdefault(_name(self.index, number), why)
                units += found
                taken.update(number for unit in found for number in unit.unit.nodes)
            missing = {unit.name: why for unit in units if (why := self._missing(unit))}
            if not self._refuse(units, missing):
                return units

    def _missing(self, unit: Candidate) -> str:
        """Return which tensor of a unit has no range, empty when all have one."""
        for name in (*unit.reads, *unit.makes):
            if not isinstance(self.ranges.tensors.get(name), (Range, Given)):
                return f"'{name}' has no range"
        return ""

    def _refuse(
        self,
        units: Sequence[Candidate],
        reasons: Mapping[str, str],
        nodes: Mapping[str, Collection[int]] | None = None,
    ) -> bool:
        """Leave out units, or `nodes` of them alone, for some reasons; return whether there were any."""
        for unit in units:
            if unit.name in reasons:
                place = next(i for i, wish in enumerate(self.wishes) if wish is unit.wishes)
                refused = (nodes or {}).get(unit.name, ())
                self.out[place].update(refused or unit.unit.nodes)
                names = [_name(self.index, number) for number in refused] or [unit.name]
                self.reasons.update(dict.fromkeys(names, reasons[unit.name]))
        return bool(reasons)

    def _refusals(
        self, store: Store, units: Sequence[Candidate], schemes: Schemes
    ) -> tuple[dict[str, str], dict[str, Collection[int]]]:
        """Return which units their target does not take once quantized, why, and which nodes."""
        trial, renamed = inserted(self.floats, store, units, schemes, whole=False)
        index = unshared(trial).index
        reasons: dict[str, str] = {}
        nodes: dict[str, Collection[int]] = {}
        for wish in self.wishes:
            annotator = Annotator(wish.target, index)
            marks = [annotator.mark(number) for number in range(len(index.nodes))]
            unit_of = {
                number: unit
                for unit in group(index, wish.target.patterns, marks)
                for number in unit.nodes
            }
            for unit in units:
                if unit.wishes is not wish:
                    continue
                core = {index.producer[name] for name in renamed_units(self.index, unit, renamed)}
                refused = [number for number in sorted(core) if not marks[number].quantized]
                found = unit_of[min(core)]
                inside = {number for number in found.nodes if not is_border(index.nodes[number])}
                if found.verdict and inside == core and found.kind == "qdq" and not refused:
                    continue
                of_node = dict(zip(sorted(core), sorted(unit.unit.nodes), strict=True))
                if refused:
                    said = _quantized_refusal(annotator, refused[0], marks[refused[0]].verdict)
                    reasons[unit.name] = said + self._given(of_node[refused[0]], said)
                else:
                    reasons[unit.name] = _unit_refusal(unit_of[number] for number in sorted(core))
                nodes[unit.name] = [of_node[number] for number in refused]
        return reasons, nodes

    def _given(self, number: int, said: str) -> str:
        """Return which tensors that a reason speaks of have a scale of the user's own, in brackets."""
        node = self.index.nodes[number]
        uses = [(False, *use) for use in enumerate(node.input)]
        uses += [(True, *use) for use in enumerate(node.output)]
        told: dict[str, None] = {}
        for out, position, name in uses:
            formal = formal_name(self.index, node, position, out=out)
            given = isinstance(self.ranges.tensors.get(name), Given)
            if given and formal and re.search(rf"\b{re.escape(formal)}\b", said):
                told[f"{formal} is '{name}', whose scale was given"] = None
        return f" ({'; '.join(told)})" if told else ""


def _quantized_refusal(annotator: Annotator, number: int, verdict: Verdict) -> str:
    """Return why no rule for quantized operators takes a node, which one for floats may take."""
    if not verdict:
        return str(verdict)
    refused = (one for one in annotator.attempts(number) if one.fits and one.objections)
    first = next(refused, None)
    if first is None:
        return _OTHER_UNITS
    told = "; ".join(objection.text for objection in first.objections)
    return f"{annotator.index.nodes[number].op_type}: {told}"


def _unit_refusal(units: Iterator[Unit]) -> str:
    """Return why operators are not the unit that they are in floating point."""
    reasons = (str(unit.verdict) for unit in units if not unit.verdict)
    return next(reasons, _OTHER_UNITS)


def _name(index: GraphIndex, number: int) -> str:
    node = index.nodes[number]
    return node.name or node.output[0]


def _notes(reasons: Mapping[str, str], units: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return a sentence for each reason to leave units in floating point."""
    inside = {*units, *(name for names in units.values() for name in names)}
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if name not in inside:
            by_reason.setdefault(reason, []).append(name)
    notes = []
    for reason, names in by_reason.items():
        told = ", ".join(names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        notes.append(f"not quantized: {told}{more}: {reason}")
    return notes
