"""Checks of nodes that ONNX's checker lets pass although no runtime executes them."""

import re
from collections.abc import Iterable, Sequence, Set

from onnx import AttributeProto, ModelProto, NodeProto

from byoc.errors import InputError, shorten_text
from byoc.model._node_kinds import list_distinct_nodes
from byoc.model._walk import describe_node, is_onnx, walk_nodes

_TERM = re.compile(r"[A-Za-z]*(?:\.\.\.[A-Za-z]*)?")
_ELLIPSIS = "..."
_MAX_CHARACTERS_SHOWN = 80  # of a name in a sentence
# onnxruntime divides by it; a negative one it takes where there are no channels.
_GROUPED = frozenset(
    {"Conv", "ConvInteger", "ConvTranspose", "DeformConv", "FusedConv", "NhwcConv", "NhwcFusedConv"}
    | {"QLinearConv"}
)
_CHECKED = _GROUPED | {"Einsum"}
_POSITIVE_GROUP = frozenset({"ConvTranspose", "DeformConv"})


def check_nodes(model: ModelProto, distinct: Sequence[NodeProto] | None = None) -> None:
    """Raise InputError for a node that no runtime executes, in bodies and functions, too.

    `distinct` has one node of each kind of the main graph, where they are known (`list_distinct_nodes`).
    That is a convolution of no groups, and an Einsum whose equation is wrong by itself or has another
    number of operands than the node. ONNX's inference does not return from some equations.
    """
    functions = {(f.domain, f.name) for f in model.functions}
    inside = [node for each in model.functions for node in walk_nodes(each.node)]
    passed_on = _find_attributes_for_equations(inside)
    own = list_distinct_nodes(model.graph.node) if distinct is None else distinct
    for node in (*own, *inside):
        if node.op_type not in _CHECKED and (node.domain, node.op_type) not in functions:
            continue
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if is_onnx(node) and node.op_type == "Einsum" and "equation" in attributes:
            given = attributes["equation"]
            if not given.ref_attr_name:
                _require(node, find_equation_problem(_read_text(given), [None] * len(node.input)))
        elif node.op_type in _GROUPED and (node.domain, node.op_type) not in functions:
            _require(node, _find_group_problem(node.op_type, attributes.get("group")))
        elif (node.domain, node.op_type) in functions:
            for name in passed_on & attributes.keys():
                _require(node, _find_term_problem(_read_text(attributes[name])))
    for function in model.functions:
        for attribute in function.attribute_proto:
            problem = _find_term_problem(_read_text(attribute)) if attribute.name in passed_on else ""
            if problem:
                raise InputError(f"function '{function.name}': {problem}")


def find_equation_problem(equation: str, ranks: Sequence[int | None]) -> str:
    """Describe the mistake in an Einsum, as the end of a sentence; empty if there is none.

    `ranks` has the number of dimensions of each input, None where it is not known. What is wrong here is
    so by the operator's definition in ONNX, whose inference the runtimes share.
    """
    left, _, right = equation.replace(" ", "").partition("->")
    terms, shown = left.split(","), _quote(equation)
    problem = _find_term_problem(equation)
    if problem:
        return problem
    if len(terms) != len(ranks):
        counts = f"{_count(len(terms), 'operand')} for {_count(len(ranks), 'input')}"
        return f"its equation {shown} has {counts}"
    missing = sorted(set(re.findall("[A-Za-z]", right)) - set(left))
    if missing:
        return f"its equation {shown} has '{missing[0]}' in the output, which no input has"
    spread: dict[int, int] = {}
    for position, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        letters = len(term.replace(_ELLIPSIS, ""))
        if rank is None or not left:
            continue
        if _ELLIPSIS in term and rank >= letters:
            spread[position] = rank - letters
        elif rank != letters:
            given = f"{_count(rank, 'dimension')}, not {_count(letters, 'letter')}"
            return f"its equation {shown} does not fit input {position}, which has {given}"
    if len(set(spread.values())) > 1:
        counts = ", ".join(f"{count} of input {position}" for position, count in spread.items())
        return f"the ellipses of its equation {shown} stand for different dimensions: {counts}"
    return ""


def _find_term_problem(equation: str) -> str:
    """Describe the first operand of an equation that is not letters and one ellipsis; else empty."""
    for term in equation.replace(" ", "").partition("->")[0].split(","):
        if not _TERM.fullmatch(term):
            operand, shown = _quote(term), _quote(equation)
            return f"the operand {operand} of its equation {shown} is not letters and one ellipsis"
    return ""


def _find_group_problem(op: str, group: AttributeProto | None) -> str:
    if group is None or group.ref_attr_name or group.type != AttributeProto.INT:
        return ""
    wrong = group.i == 0 or (group.i < 0 and op in _POSITIVE_GROUP)
    return f"its group is {group.i}, and has to be at least 1" if wrong else ""


def _find_attributes_for_equations(inside: Sequence[NodeProto]) -> set[str]:
    """Return the names of attributes that functions pass on to an equation, directly or by calls.

    `inside` are the nodes of all functions.
    """
    einsums = (node for node in inside if node.op_type == "Einsum")
    found = _list_references(einsums, {"equation"})
    while found:
        more = _list_references(inside, found)
        if more <= found:
            break
        found |= more
    return found


def _list_references(nodes: Iterable[NodeProto], names: Set[str]) -> set[str]:
    """Return the attributes of functions that nodes have as attributes of some names."""
    attributes = (attribute for node in nodes for attribute in node.attribute)
    return {a.ref_attr_name for a in attributes if a.ref_attr_name and a.name in names}


def _require(node: NodeProto, problem: str) -> None:
    if problem:
        raise InputError(f"{describe_node(node)}: {problem}")


def _read_text(attribute: AttributeProto) -> str:
    return attribute.s.decode("utf-8", "replace")


def _quote(text: str) -> str:
    return f"'{shorten_text(text, _MAX_CHARACTERS_SHOWN)}'"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)
