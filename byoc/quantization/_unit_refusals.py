"""The refusal of quantized units by their targets: the quantized model is annotated and grouped."""

import re
from collections.abc import Collection, Sequence

from byoc.errors import Verdict
from byoc.model import GraphIndex, Model, is_qdq_node, unshare_dequantize
from byoc.patterns import group_units
from byoc.quantization._candidates import find_formal_name
from byoc.quantization._insert_nodes import (
    SchemedUnits,
    find_quantized_outputs,
    insert_quantization,
)
from byoc.rules import Annotator, Target

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
        return str(verdict)
    refused = (one for one in annotator.list_attempts(number) if one.fits and one.objections)
    first = next(refused, None)
    if first is None:
        return _OTHER_UNITS
    remarks = "; ".join(objection.text for objection in first.objections)
    return f"{annotator.index.nodes[number].op_type}: {remarks}"
