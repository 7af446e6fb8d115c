"""Quantization of the units of a float model that their targets then take.

The quantized model is annotated and grouped as in the pipeline; units that are refused there return to
floating point, and this repeats until none is refused.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from byoc.errors import InputError, Verdict, suggest_nearest
from byoc.model import GraphIndex, Model, get_node_name, is_qdq_node, unshare_dequantize
from byoc.patterns import group_units
from byoc.quantization._candidates import (
    QuantizationCandidate,
    TargetRequirements,
    find_candidates,
    find_formal_name,
    find_node_names,
    find_unit_names,
)
from byoc.quantization._fused_activations import fuse_activations
from byoc.quantization._insert_nodes import find_quantized_outputs, insert_quantization
from byoc.quantization._prepare_model import (
    PER_CHANNEL,
    SIXTEEN_BITS,
    fold_affine_nodes,
    upgrade_ir,
    upgrade_opset,
)
from byoc.quantization._ranges import GivenQuantization, Ranges
from byoc.quantization._scheme import ConstantStore, QuantizationScheme, choose_scheme
from byoc.rules import Annotator, Target

_EIGHT_BITS = frozenset({"int8", "uint8"})
_MAX_NAMES = 3
_OTHER_UNITS = "its operators would be other units"


@dataclass(frozen=True, eq=False)
class QuantizedModel:
    """A quantized model.

    `floats` is the float model it was made from, prepared (`prepare_floats`). `units` are the quantized
    units by name, each with the names of its nodes. `channels` are the tensors with a scale for each
    channel.
    """

    model: Model
    floats: Model
    units: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    channels: tuple[str, ...] = ()


def quantize(
    model: Model,
    targets: Sequence[Target],
    ranges: Ranges,
    dtype: str | None = None,
    exclude: Collection[str] = (),
) -> QuantizedModel:
    """Return a model with every unit that the targets take quantized, given the ranges of its tensors.

    `dtype` is that of activations, by default the first in the target's file. `exclude` names units or
    nodes that stay in floating point, as do those in the bodies of If, Loop and Scan. The scheme is that
    of each target's file; if several targets take a unit, the first one's applies.

    Raises InputError if a target does not have the dtype, a name in `exclude` does not exist, ranges
    contradict one another, or the operator set cannot be raised to the version that the scheme needs.
    """
    wishes = [TargetRequirements(target, dtype) for target in targets if target.has_quantized_rules]
    floats = prepare_floats(model, targets, dtype, ranges)
    done = _Quantizer(floats, wishes, ranges, dtype, frozenset(exclude))
    return done.quantize(set(map(get_node_name, model.index.nodes)))


def prepare_floats(
    model: Model, targets: Sequence[Target], dtype: str | None = None, ranges: Ranges | None = None
) -> Model:
    """Return a model that computes the same, prepared to be quantized; a prepared one as it is.

    Its operator set is the one that the scheme needs, what is affine is folded into the linear operators
    before it, and decomposed activations are the single operators that a target takes quantized.

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
    return fold_affine_nodes(fuse_activations(raised, operators))


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
    return not used <= _EIGHT_BITS


@dataclass(eq=False)
class _Quantizer:
    """The state of the decision which units are quantized.

    `excluded_nodes` are those that each target does not get; `reasons` say why, by unit.
    """

    floats: Model
    requirements: Sequence[TargetRequirements]
    ranges: Ranges
    dtype: str | None
    exclude: frozenset[str]
    excluded_nodes: dict[TargetRequirements, set[int]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def index(self) -> GraphIndex:
        """The index of the float model."""
        return self.floats.index

    def quantize(self, known: Collection[str]) -> QuantizedModel:
        """Return the quantized model; notes mention only nodes with a `known` name, the user's own."""
        excluded = self._find_excluded()
        self.excluded_nodes = {requirement: set(excluded) for requirement in self.requirements}
        store = ConstantStore(self.index, self.floats.folder, self.ranges.shifts)
        while True:
            units = self._find_units()
            schemes = choose_scheme(store, units, self.ranges, self.dtype)
            if self._refuse(units, schemes.refused):
                continue
            reasons, nodes = self._find_refusals(store, units, schemes)
            if self._merge_channels(schemes, nodes):
                continue
            if not self._refuse(units, reasons, nodes):
                break
        done, _ = insert_quantization(self.floats, store, units, schemes)
        names = {unit.name: find_node_names(self.index, unit.unit) for unit in units}
        reasons = {name: reason for name, reason in self.reasons.items() if name in known}
        channels = tuple(name for name in self.ranges.channels if _has_channels(schemes, name))
        notes = tuple(_format_notes(reasons, names))
        return QuantizedModel(done, self.floats, names, notes, channels)

    def _find_excluded(self) -> set[int]:
        found: set[int] = set()
        known = {node.name for node in self.index.nodes} - {""}
        matched: set[str] = set()
        for requirement in self.requirements:
            for unit in find_candidates(self.index, requirement, ())[0]:
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
            for requirement in self.requirements:
                out = self.excluded_nodes[requirement] | taken
                found, never = find_candidates(self.index, requirement, out)
                for number, why in never.items():
                    self.reasons.setdefault(get_node_name(self.index.nodes[number]), why)
                units += found
                taken.update(number for unit in found for number in unit.unit.nodes)
            missing: dict[str, str] = {}
            for unit in units:
                for name in (*unit.reads, *unit.makes):
                    if name not in self.ranges.tensors:
                        missing.setdefault(unit.name, f"'{name}' has no range")
            if not self._refuse(units, missing):
                return units

    def _refuse(
        self,
        units: Sequence[QuantizationCandidate],
        reasons: Mapping[str, str],
        nodes: Mapping[str, Collection[int]] | None = None,
    ) -> bool:
        """Exclude units, or only their given `nodes`, with reasons; return whether any were."""
        for unit in units:
            if unit.name in reasons:
                refused = (nodes or {}).get(unit.name, ())
                self.excluded_nodes[unit.requirements].update(refused or unit.unit.nodes)
                names = [get_node_name(self.index.nodes[number]) for number in refused] or [unit.name]
                self.reasons.update(dict.fromkeys(names, reasons[unit.name]))
        return bool(reasons)

    def _merge_channels(self, schemes: QuantizationScheme, nodes: Mapping[str, Collection[int]]) -> bool:
        """Give the tensors of refused nodes one scale where each channel has one; return if any had."""
        refused = {number for numbers in nodes.values() for number in numbers}
        names = {
            name
            for number in refused
            for name in (*self.index.nodes[number].input, *self.index.nodes[number].output)
            if name in self.ranges.channels and _has_channels(schemes, name)
        }
        kept = {name: each for name, each in self.ranges.channels.items() if name not in names}
        self.ranges = replace(self.ranges, channels=kept)
        return bool(names)

    def _find_refusals(
        self, store: ConstantStore, units: Sequence[QuantizationCandidate], schemes: QuantizationScheme
    ) -> tuple[dict[str, str], dict[str, Collection[int]]]:
        """Return the reasons for units that targets refuse once quantized, and the refused nodes."""
        trial, renamed = insert_quantization(self.floats, store, units, schemes, whole=False)
        index = unshare_dequantize(trial).index
        reasons: dict[str, str] = {}
        nodes: dict[str, Collection[int]] = {}
        for requirement in self.requirements:
            annotator = Annotator(requirement.target, index)
            marks = [annotator.annotate_node(number) for number in range(len(index.nodes))]
            unit_of = {
                number: unit
                for unit in group_units(index, requirement.target.patterns, marks)
                for number in unit.nodes
            }
            for unit in units:
                if unit.requirements is not requirement:
                    continue
                core = {
                    index.producers[name] for name in find_quantized_outputs(self.index, unit, renamed)
                }
                refused = [number for number in sorted(core) if not marks[number].accepts_quantized]
                found = unit_of[min(core)]
                inside = {number for number in found.nodes if not is_qdq_node(index.nodes[number])}
                if found.verdict and inside == core and found.kind == "qdq" and not refused:
                    continue
                of_node = dict(zip(sorted(core), sorted(unit.unit.nodes), strict=True))
                if refused:
                    reason = _describe_node_refusal(annotator, refused[0], marks[refused[0]].verdict)
                    reasons[unit.name] = reason + self._describe_given_scales(
                        of_node[refused[0]], reason
                    )
                else:
                    verdicts = (unit_of[number].verdict for number in sorted(core))
                    reasons[unit.name] = next((str(no) for no in verdicts if not no), _OTHER_UNITS)
                nodes[unit.name] = [of_node[number] for number in refused]
        return reasons, nodes

    def _describe_given_scales(self, number: int, reason: str) -> str:
        """Return a remark on the user-given scales of tensors that a reason mentions, in brackets."""
        node = self.index.nodes[number]
        uses = [(False, *use) for use in enumerate(node.input)]
        uses += [(True, *use) for use in enumerate(node.output)]
        remarks: dict[str, None] = {}
        for out, position, name in uses:
            formal = find_formal_name(self.index, node, position, out=out)
            given = isinstance(self.ranges.tensors.get(name), GivenQuantization)
            if given and formal and re.search(rf"\b{re.escape(formal)}\b", reason):
                remarks[f"{formal} is '{name}', whose scale was given"] = None
        return f" ({'; '.join(remarks)})" if remarks else ""


def _has_channels(schemes: QuantizationScheme, name: str) -> bool:
    """Return whether a tensor has a scale for each channel."""
    params = schemes.activations.get(name)
    return params is not None and params.axis is not None


def _describe_node_refusal(annotator: Annotator, number: int, verdict: Verdict) -> str:
    """Return why no rule for quantized operators takes a node."""
    if not verdict:
        return str(verdict)
    refused = (one for one in annotator.list_attempts(number) if one.fits and one.objections)
    first = next(refused, None)
    if first is None:
        return _OTHER_UNITS
    remarks = "; ".join(objection.text for objection in first.objections)
    return f"{annotator.index.nodes[number].op_type}: {remarks}"


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
