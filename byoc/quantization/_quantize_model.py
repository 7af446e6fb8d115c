"""Quantization of the units of a float model that their targets then take.

The quantized model is annotated and grouped as in the pipeline; units that are refused there return to
floating point, and this repeats until none is refused.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError, Verdict, suggest_nearest
from byoc.model import GraphIndex, Model, get_node_name, is_qdq_node, unshare_dequantize
from byoc.patterns import group_units
from byoc.planning import WIDE
from byoc.quantization._biases import join_biases
from byoc.quantization._calibrators import EIGHT_BITS, GivenQuantization, Ranges
from byoc.quantization._candidates import (
    QuantizationCandidate,
    TargetRequirements,
    find_candidates,
    find_formal_name,
    find_node_names,
    find_unit_names,
)
from byoc.quantization._insert_nodes import (
    ConstantStore,
    QuantizationScheme,
    SchemedUnits,
    choose_scheme,
    find_quantized_outputs,
    insert_quantization,
)
from byoc.quantization._prepare_model import (
    PER_CHANNEL,
    SIXTEEN_BITS,
    fold_affine_nodes,
    fuse_activations,
    upgrade_ir,
    upgrade_opset,
)
from byoc.rules import Annotator, Target

_MAX_NAMES = 3  # in a sentence


@dataclass(frozen=True, eq=False)
class QuantizedModel:
    """A quantized model.

    `floats` is the float model it was made from, prepared (`prepare_floats`). `units` are the quantized
    units by name, each with the names of its nodes. `channels` are the tensors with a scale for each
    channel. `quantizer` is what decided on the units.
    """

    model: Model
    floats: Model
    units: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    channels: tuple[str, ...]
    quantizer: "_Quantizer"


@dataclass(frozen=True, eq=False)
class WideUnits:
    """Units that are quantized in 16 bits, unlike the rest, and the ranges for that.

    `tensors` are made in 16 bits by units that read 8; their ranges are among those for the rest.
    """

    names: frozenset[str]
    ranges: Ranges
    tensors: frozenset[str] = frozenset()


def quantize(  # noqa: PLR0913, PLR0917 - one for each thing that is decided
    model: Model,
    targets: Sequence[Target],
    ranges: Ranges,
    dtype: str | None = None,
    exclude: Collection[str] = (),
    wide: WideUnits | None = None,
    like: QuantizedModel | None = None,
) -> QuantizedModel:
    """Return a model with every unit that the targets take quantized, given the ranges of its tensors.

    `dtype` is that of activations, by default the first in the target's file; `wide` units have another.
    `exclude` names units or nodes that stay in floating point, as do those in the bodies of If, Loop and
    Scan. The scheme is that of each target's file; if several targets take a unit, the first one's
    applies.

    The targets are not asked again what they take where a model is quantized `like` an earlier one, of
    the same nodes and other numbers, with the same `dtype`, `exclude` and names of `wide`. What they
    refuse because of a number alone is then in integers all the same.

    Raises InputError if a target does not have the dtype, a name in `exclude` does not exist, ranges
    contradict one another, or the operator set cannot be raised to the version that the scheme needs.
    """
    if like is not None and like.quantizer.given is model:
        floats = like.floats
    else:
        floats = prepare_floats(model, targets, dtype, ranges)
        if wide is not None and (wide.names or wide.tensors):
            floats = upgrade_opset(floats, SIXTEEN_BITS)
    integer = [target for target in targets if target.has_quantized_rules]
    forms = [_UnitForm(dtype, ranges, wide=frozenset() if wide is None else wide.tensors)]
    if wide is not None:
        forms.append(_UnitForm(WIDE, wide.ranges, wide.names))
    done = _Quantizer(model, floats, integer, forms, frozenset(exclude))
    alike = None if like is None else done.repeat(like.quantizer)
    return done.quantize() if alike is None else alike.build()


def prepare_floats(
    model: Model, targets: Sequence[Target], dtype: str | None = None, ranges: Ranges | None = None
) -> Model:
    """Return a model that computes the same, prepared to be quantized; a prepared one as it is.

    Its operator set is the one that the scheme needs, what is affine is folded into the linear operators
    beside it, and decomposed activations are the single operators that a target takes quantized. Given
    `ranges` stay those of the tensors that are left.

    Raises InputError if a target does not have the dtype, or the operator set cannot be raised.
    """
    wishes = [TargetRequirements(target) for target in targets if target.has_quantized_rules]
    for requirement in wishes:
        _check_dtype(requirement.target, dtype)
    tensors = {} if ranges is None else ranges.tensors
    least = SIXTEEN_BITS if _needs_sixteen_bits(wishes, tensors.values(), dtype) else PER_CHANNEL
    raised = upgrade_opset(upgrade_ir(model), least)
    operators = {name for requirement in wishes for name in requirement.find_ops()}
    # First the activations: the Add of a hard sigmoid could go into the convolution before it.
    fused = fuse_activations(raised, operators)
    # Ranges that are given are those of the tensors that are there.
    if ranges is None and all({"Gemm", "MatMul"} <= each.find_ops().keys() for each in wishes):
        fused = join_biases(fused)
    return fold_affine_nodes(fused, through_sums=ranges is None)


def _check_dtype(target: Target, dtype: str | None) -> None:
    part = target.rules.quantization.activations
    allowed = (part.dtype if part else None) or ()
    if dtype is not None and allowed and dtype not in allowed:
        location = target.locate("quantization.activations.dtype")
        raise InputError(
            f"{target.source}: {location}: {dtype} is not supported; supported: {', '.join(allowed)}"
        )


def _needs_sixteen_bits(
    wishes: Sequence[TargetRequirements], entries: Iterable[object], dtype: str | None
) -> bool:
    """Return whether a dtype other than 8 bits will be used."""
    used = {entry.dtype for entry in entries if isinstance(entry, GivenQuantization)}
    if dtype is not None:
        used.add(dtype)
    for requirement in wishes:
        scheme = requirement.target.rules.quantization
        for part in (scheme.activations if dtype is None else None, scheme.weights):
            used.update((part.dtype or ())[:1] if part else ())
    return not used.issubset(EIGHT_BITS)


@dataclass(eq=False)
class _UnitForm:
    """The type of the activations of some units, and the ranges for it; by default of all others.

    The `wide` tensors among them have 16 bits in any case.
    """

    dtype: str | None
    ranges: Ranges
    names: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()


@dataclass(eq=False)
class _Quantizer:
    """The state of the decision which units are quantized.

    `floats` is the `given` model, prepared. `excluded_nodes` are those that each target does not get, by
    its name; `reasons` say why, by unit. The first of the `forms` is that of all units that no other
    names. `units` and `parts`, the same with their schemes, are there once it is decided.
    """

    given: Model
    floats: Model
    targets: Sequence[Target]
    forms: Sequence[_UnitForm]
    exclude: frozenset[str]
    excluded_nodes: dict[str, set[int]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    units: Sequence[QuantizationCandidate] = ()
    parts: Sequence[SchemedUnits] = ()

    @property
    def index(self) -> GraphIndex:
        """The index of the float model."""
        return self.floats.index

    def quantize(self) -> QuantizedModel:
        """Decide which units are quantized, and return the model."""
        excluded = self._find_excluded()
        self.excluded_nodes = {target.name: set(excluded) for target in self.targets}
        store = ConstantStore(self.index, self.floats.folder)
        while True:
            self.units = self._find_units()
            self.parts = [self._choose_scheme(store, form) for form in self.forms]
            if self._refuse({k: v for part in self.parts for k, v in part.schemes.refused.items()}):
                continue
            reasons, nodes = find_refusals(self.floats, self.targets, self.parts, self._list_given())
            merged = [
                self._merge_channels(form, part, nodes)
                for form, part in zip(self.forms, self.parts, strict=True)
            ]
            if not any(merged) and not self._refuse(reasons, nodes):
                return self.build()

    def repeat(self, other: "_Quantizer") -> "_Quantizer | None":
        """Return the same with the units that another quantizer decided on, None where it cannot.

        That is where nodes are others, or a tensor has no range here. A tensor that has one scale there
        has one here.
        """
        if not _has_same_nodes(self.index, other.index) or self._find_missing(other.units):
            return None
        forms = []
        for form, old in zip(self.forms, other.forms, strict=True):
            channels = form.ranges.channels
            kept = {name: channels[name] for name in old.ranges.channels if name in channels}
            forms.append(replace(form, ranges=replace(form.ranges, channels=kept)))
        store = ConstantStore(self.index, self.floats.folder)
        if self.floats is other.floats:  # its scales of weights serve again
            store = other.parts[0].store
        made = replace(self, forms=forms, units=other.units, reasons=dict(other.reasons))
        made.parts = [made._choose_scheme(store, form) for form in forms]
        return None if any(part.schemes.refused for part in made.parts) else made

    def build(self) -> QuantizedModel:
        """Return the model; notes mention only nodes with the user's own names."""
        done, _ = insert_quantization(self.floats, self.parts)
        known = set(map(get_node_name, self.given.index.nodes))
        names = {unit.name: find_node_names(self.index, unit.unit) for unit in self.units}
        reasons = {name: reason for name, reason in self.reasons.items() if name in known}
        channels = tuple(
            name
            for form, part in zip(self.forms, self.parts, strict=True)
            for name in form.ranges.channels
            if _has_channels(part.schemes, name)
        )
        notes = tuple(_format_notes(reasons, names))
        return QuantizedModel(done, self.floats, names, notes, channels, self)

    def _choose_scheme(self, store: ConstantStore, form: _UnitForm) -> SchemedUnits:
        """Return the units of a form with their scheme."""
        own = [unit for unit in self.units if unit.requirements.dtype == form.dtype]
        ranges = form.ranges
        store = replace(store, shifts=ranges.shifts, weights=ranges.weights)  # the rest is shared
        schemes = choose_scheme(store, own, ranges, form.dtype, form.wide)
        return SchemedUnits(own, schemes, store)

    def _find_excluded(self) -> set[int]:
        found: set[int] = set()
        known = {node.name for node in self.index.nodes} - {""}
        matched: set[str] = set()
        for target in self.targets:
            for unit in find_candidates(self.index, TargetRequirements(target), ())[0]:
                unit_names = find_unit_names(self.index, unit.unit)
                known |= unit_names
                if not unit_names.isdisjoint(self.exclude):
                    matched |= unit_names & self.exclude
                    found.update(unit.unit.nodes)
        found |= {n for n, node in enumerate(self.index.nodes) if node.name in self.exclude}
        wrong = sorted(self.exclude - known)
        if wrong:
            hint = suggest_nearest(wrong[0], known)
            raise InputError(f"exclude: there is no unit and no node '{wrong[0]}'{hint}")
        return found

    def _find_units(self) -> list[QuantizationCandidate]:
        """Return the candidates that have ranges; each node is in at most one of them."""
        while True:
            units: list[QuantizationCandidate] = []
            taken: set[int] = set()
            for target in self.targets:
                out = self.excluded_nodes[target.name] | taken
                found, never = find_candidates(self.index, TargetRequirements(target), out)
                for number, why in never.items():
                    self.reasons.setdefault(get_node_name(self.index.nodes[number]), why)
                units += [
                    replace(unit, requirements=TargetRequirements(target, self._find_form(unit).dtype))
                    for unit in found
                ]
                taken.update(number for unit in found for number in unit.unit.nodes)
            if not self._refuse(self._find_missing(units), units=units):
                return units

    def _find_missing(self, units: Sequence[QuantizationCandidate]) -> dict[str, str]:
        """Return the units of which a tensor has no range, with that reason."""
        missing: dict[str, str] = {}
        for unit in units:
            tensors = self._find_form(unit).ranges.tensors
            for name in (*unit.reads, *unit.makes):
                if name not in tensors:
                    missing.setdefault(unit.name, f"'{name}' has no range")
        return missing

    def _find_form(self, unit: QuantizationCandidate) -> _UnitForm:
        """Return the form of a unit."""
        first, *others = self.forms
        names = find_unit_names(self.index, unit.unit) if others else set()
        return next((form for form in others if not names.isdisjoint(form.names)), first)

    def _refuse(
        self,
        reasons: Mapping[str, str],
        nodes: Mapping[str, Collection[int]] | None = None,
        units: Sequence[QuantizationCandidate] = (),
    ) -> bool:
        """Exclude units, or only their given `nodes`, with reasons; return whether any were.

        The `units` are those that were decided on last, unless others are given.
        """
        for unit in units or self.units:
            if unit.name in reasons:
                refused = (nodes or {}).get(unit.name, ())
                excluded = self.excluded_nodes[unit.requirements.target.name]
                excluded.update(refused or unit.unit.nodes)
                names = [get_node_name(self.index.nodes[number]) for number in refused] or [unit.name]
                self.reasons.update(dict.fromkeys(names, reasons[unit.name]))
        return bool(reasons)

    def _list_given(self) -> set[str]:
        """Return the tensors whose quantization the user gave."""
        return {
            name
            for form in self.forms
            for name, entry in form.ranges.tensors.items()
            if isinstance(entry, GivenQuantization)
        }

    def _merge_channels(
        self, form: _UnitForm, part: SchemedUnits, nodes: Mapping[str, Collection[int]]
    ) -> bool:
        """Give the tensors of refused nodes one scale where each channel has one; return if any had."""
        refused = {number for numbers in nodes.values() for number in numbers}
        names = {
            name
            for number in refused
            for name in (*self.index.nodes[number].input, *self.index.nodes[number].output)
            if name in form.ranges.channels and _has_channels(part.schemes, name)
        }
        kept = {name: each for name, each in form.ranges.channels.items() if name not in names}
        form.ranges = replace(form.ranges, channels=kept)
        return bool(names)


def _has_same_nodes(one: GraphIndex, other: GraphIndex) -> bool:
    """Return whether two graphs have the same nodes, but for the constants that these read."""
    if one is other:
        return True
    return len(one.nodes) == len(other.nodes) and all(
        node.op_type == twin.op_type and node.output == twin.output
        for node, twin in zip(one.nodes, other.nodes, strict=True)
    )


def _has_channels(schemes: QuantizationScheme, name: str) -> bool:
    """Return whether a tensor has a scale for each channel."""
    params = schemes.activations.get(name)
    return params is not None and params.axis is not None


def _format_notes(reasons: Mapping[str, str], units: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return a sentence for each reason to leave units in floating point."""
    inside = {*units, *(name for names in units.values() for name in names)}
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if name not in inside:
            by_reason.setdefault(reason, []).append(name)
    notes = []
    for reason, names in by_reason.items():
        shown = ", ".join(names[:_MAX_NAMES])
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        notes.append(f"not quantized: {shown}{more}: {reason}")
    return notes


# The refusal of quantized units by their targets: the quantized model is annotated and grouped.

_OTHER_UNITS = "its operators would be other units"


def find_refusals(
    floats: Model, targets: Sequence[Target], parts: Sequence[SchemedUnits], given: Collection[str]
) -> tuple[dict[str, str], dict[str, Collection[int]]]:
    """Return the reasons for units that targets refuse once quantized, and the refused nodes.

    `given` are the tensors whose scales the user gave. Both mappings are by the names of units.
    """
    trial, renamed = insert_quantization(floats, parts, whole=False)
    units = [unit for part in parts for unit in part.units]
    index = unshare_dequantize(trial).index
    reasons: dict[str, str] = {}
    nodes: dict[str, Collection[int]] = {}
    for target in targets:
        annotator = Annotator(target, index)
        marks = [annotator.annotate_node(number) for number in range(len(index.nodes))]
        unit_of = {
            number: unit for unit in group_units(index, target.patterns, marks) for number in unit.nodes
        }
        for unit in units:
            if unit.requirements.target is not target:
                continue
            core = {
                index.producers[name] for name in find_quantized_outputs(floats.index, unit, renamed)
            }
            refused = [number for number in sorted(core) if not marks[number].accepts_quantized]
            found = unit_of[min(core)]
            inside = {number for number in found.nodes if not is_qdq_node(index.nodes[number])}
            if found.verdict and inside == core and found.kind == "qdq" and not refused:
                continue
            of_node = dict(zip(sorted(core), sorted(unit.unit.nodes), strict=True))
            if refused:
                reason = _describe_node_refusal(annotator, refused[0], marks[refused[0]].verdict)
                reasons[unit.name] = reason + _describe_given_scales(
                    floats.index, of_node[refused[0]], reason, given
                )
            else:
                verdicts = (unit_of[number].verdict for number in sorted(core))
                reasons[unit.name] = next((str(no) for no in verdicts if not no), _OTHER_UNITS)
            nodes[unit.name] = [of_node[number] for number in refused]
    return reasons, nodes


def _describe_given_scales(index: GraphIndex, number: int, reason: str, tensors: Collection[str]) -> str:
    """Return a remark on the user-given scales of tensors that a reason mentions, in brackets."""
    node = index.nodes[number]
    uses = [(False, *use) for use in enumerate(node.input)]
    uses += [(True, *use) for use in enumerate(node.output)]
    remarks: dict[str, None] = {}
    for out, position, name in uses:
        formal = find_formal_name(index, node, position, out=out)
        if name in tensors and formal and re.search(rf"\b{re.escape(formal)}\b", reason):
            remarks[f"{formal} is '{name}', whose scale was given"] = None
    return f" ({'; '.join(remarks)})" if remarks else ""


def _describe_node_refusal(annotator: Annotator, number: int, verdict: Verdict) -> str:
    """Return why no rule for quantized operators takes a node."""
    if not verdict:
        advices = dict.fromkeys(cause.advice for cause in verdict.causes if cause.advice)
        return f"{verdict} ({'; '.join(advices)})" if advices else str(verdict)
    refused = (one for one in annotator.list_attempts(number) if one.fits and one.objections)
    first = next(refused, None)
    if first is None:
        return _OTHER_UNITS
    remarks = "; ".join(
        f"{each.text} ({each.advice})" if each.advice else each.text for each in first.objections
    )
    return f"{annotator.index.nodes[number].op_type}: {remarks}"
