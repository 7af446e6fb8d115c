"""The explanation as data: the output of `byoc explain --format json`, from which the text is made."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from byoc.model import GraphIndex, get_node_name, get_operator_name
from byoc.patterns import NearMiss, find_near_misses
from byoc.reporting._explanation import Explanation, GraphExplanation, RefusedNode
from byoc.reporting._relaxation_gains import compute_gains
from byoc.rules import Attempt, Objection

_EXAMPLES = 3


def make_explanation_document(explanation: Explanation, details: bool = False) -> dict[str, Any]:
    """Convert an explanation to data; compute is given as a share of all operations of the model.

    Keys: model, target, rules, nodes (asked, taken, refused), compute (operations, refused), refused,
    relax, composites, and with `details` a row for every node asked about.
    """
    total = explanation.operations
    refused = len(explanation.refusals)
    result: dict[str, Any] = {
        "model": explanation.model.source,
        "target": explanation.target.name,
        "rules": explanation.target.source,
        "nodes": {
            "asked": len(explanation.asked),
            "taken": len(explanation.asked) - refused,
            "refused": refused,
        },
        "compute": {"operations": total, "refused": _fraction(explanation.refused_operations, total)},
        "refused": _refusal_rows(explanation.refusals, total),
        "relax": [
            {
                "place": gain.location,
                "operators": dict(gain.operators),
                "nodes": gain.nodes,
                "compute": _fraction(gain.operations, total),
            }
            for gain in compute_gains(explanation)
        ],
        "composites": _composite_rows(explanation),
    }
    if details:
        result["details"] = _node_rows(explanation)
    return result


def _fraction(operations: float, total: float) -> float:
    return operations / total if total else 0.0


def _refusal_rows(refusals: Iterable[RefusedNode], total: float) -> list[dict[str, Any]]:
    """Return a row for each set of reasons, regardless of the values in them, the most compute first."""
    groups: dict[tuple[str, ...], list[RefusedNode]] = {}
    for refusal in refusals:
        key = (reason.location or _without_names(reason.text) for reason in refusal.reasons)
        groups.setdefault(tuple(key), []).append(refusal)
    rows = [
        {
            "nodes": len(members),
            "compute": _fraction(sum(m.operations for m in members), total),
            "operators": dict(Counter(m.op for m in members).most_common()),
            "reasons": _shared_reasons(members),
            "examples": [member.name for member in members[:_EXAMPLES]],
        }
        for members in groups.values()
    ]
    return sorted(rows, key=lambda row: (-row["compute"], -row["nodes"], str(row["reasons"])))


def _without_names(text: str) -> str:
    """Remove the quoted names from a sentence."""
    return re.sub(r"'[^']*'", "''", text)


def _shared_reasons(members: Sequence[RefusedNode]) -> list[dict[str, Any]]:
    """Return the reasons that some nodes share, each in its commonest wording."""
    reasons = []
    for position, reason in enumerate(members[0].reasons):
        full = [member.reasons[position].text for member in members]
        # The row names the operators anyway.
        short = [text.removeprefix(f"{m.op} ") for m, text in zip(members, full, strict=True)]
        several_ops = len({member.op for member in members}) > 1
        texts = Counter(short if several_ops and len(set(short)) == 1 else full)
        text = texts.most_common(1)[0][0]
        reasons.append({"place": reason.location, "text": text, "others": len(texts) - 1})
    return reasons


def _composite_rows(explanation: Explanation) -> list[dict[str, Any]]:
    misses: dict[str, dict[str, list[NearMiss]]] = {}
    for miss in (miss for graph in explanation.graphs for miss in graph.near_misses):
        alike = misses.setdefault(miss.pattern, {})
        alike.setdefault(re.sub(r"\d+", "0", _without_names(miss.reason)), []).append(miss)
    return [
        {
            "name": name,
            "found": found,
            "nearly": [
                {"nodes": len(same), "reason": same[0].reason}
                for same in sorted(misses.get(name, {}).values(), key=len, reverse=True)
            ],
        }
        for name, found in explanation.composites.items()
    ]


def _node_rows(explanation: Explanation) -> list[dict[str, Any]]:
    """Return a row for every node asked about: its types, and the rules that accept or refuse it."""
    refused = {(id(refusal.index), refusal.number): refusal for refusal in explanation.refusals}
    rows = []
    for graph, number in explanation.asked:
        refusal = refused.get((id(graph.index), number))
        unit = graph.unit_of[number]
        node = graph.index.nodes[number]
        rows.append(
            {
                "node": get_node_name(node),
                "graph": graph.graph_path,
                "operator": get_operator_name(node),
                "compute": _fraction(graph.operations[number], explanation.operations),
                "inputs": [_describe_tensor(graph.index, name) for name in node.input],
                "outputs": [_describe_tensor(graph.index, name) for name in node.output],
                "taken": refusal is None,
                "rule": "" if refusal else graph.marks[number].rule,
                "composite": unit.composite,
                "tried": [_attempt_document(attempt) for attempt in refusal.attempts] if refusal else [],
                "reasons": [_objection_document(reason) for reason in refusal.reasons]
                if refusal
                else [],
                "nearly": [
                    {"composite": miss.pattern, "reason": miss.reason}
                    for miss in _near_misses_at(explanation, graph, number)
                ],
            }
        )
    return rows


def _near_misses_at(explanation: Explanation, graph: GraphExplanation, number: int) -> list[NearMiss]:
    """Return the near misses of composites at a node; all of them if only this node was asked about."""
    if len(explanation.asked) == 1:
        return find_near_misses(graph.index, explanation.target.patterns, graph.marks, number)
    return [miss for miss in graph.near_misses if number in miss.nodes]


def _describe_tensor(index: GraphIndex, name: str) -> str:
    """Describe a tensor: for instance `x float32[1, 3, 224, 224]`."""
    if not name:
        return "(left out)"
    constant = " constant" if index.is_constant(name) else ""
    return f"{name} {index.types.get(name) or 'of an unknown type'}{constant}"


def _attempt_document(attempt: Attempt) -> dict[str, Any]:
    return {"rule": attempt.rule, "objections": [_objection_document(o) for o in attempt.objections]}


def _objection_document(objection: Objection) -> dict[str, str]:
    return {"place": objection.location, "text": objection.text}
