"""Checks of the lines of a pattern: names and data flow between lines, and ONNX's operators."""

import re
import sys
from collections.abc import Collection, Iterator, Sequence

from byoc.errors import suggest_nearest
from byoc.model import RANDOM_OPERATORS
from byoc.patterns import _operator_schemas as known
from byoc.patterns._pattern_syntax import ANY_OPERATOR, PatternLine
from byoc.schemas import describe_unknown_operator


def find_flow_problems(nodes: Sequence[PatternLine], returned: Sequence[str] | None) -> Iterator[str]:
    """Yield the mistakes in the names of a pattern: made twice, never read, read before they are made.

    `returned` has the names of the `return` line, None if there is none.
    """
    made = [name for node in nodes for name in node.outputs if name]
    operand_names = {o.name for node in nodes for o in node.operands if o.value is None}
    made_before: set[str] = set()
    for node in nodes:
        yield from _output_problems(node, nodes, returned, made_before)
        yield from _operand_problems(node, made_before, made, operand_names)
        yield from _reserved_name_problems(node, {*made, *operand_names})
        made_before.update(filter(None, node.outputs))
    for position, name in enumerate(returned or ()):
        if name not in made:
            yield f"return: no line makes '{name}'{suggest_nearest(name, made)}"
        elif name in (returned or ())[:position]:
            yield f"return: '{name}' is there twice"
    yield from (
        f"line {node.line_number}: {problem}"
        for node in nodes
        for problem in _optional_line_problems(node)
    )
    if len(nodes) > 1 and all(node.optional for node in nodes):
        yield "at least one line must not be optional"
    yield from _unconnected_line_problems(nodes)


def _output_problems(
    node: PatternLine,
    nodes: Sequence[PatternLine],
    returned: Sequence[str] | None,
    made_before: Collection[str],
) -> Iterator[str]:
    """Yield the mistakes in the outputs of a line."""
    read = {operand.name for each in nodes for operand in each.operands}
    leaving = nodes[-1].outputs if returned is None else returned
    for other in nodes:
        if other.output.startswith(f"{node.output}_"):  # attributes would clash: `c_x` of `c`, and `c_x`
            yield (
                f"line {node.line_number}: the name '{node.output}' is the beginning of '{other.output}'"
            )
    for position, name in enumerate(node.outputs):
        if not name:
            continue
        if name in made_before or name in node.outputs[:position]:
            yield f"line {node.line_number}: '{name}' is made twice"
        elif name not in read and name not in leaving:
            ending = "only the last line makes the output" if returned is None else "it is not returned"
            yield f"line {node.line_number}: nothing reads '{name}', and {ending}"


def _operand_problems(
    node: PatternLine, made_before: Collection[str], made: Sequence[str], operand_names: Collection[str]
) -> Iterator[str]:
    """Yield the mistakes in the operands of a line."""
    prefix = f"line {node.line_number}"
    for operand in node.operands:
        name = operand.name
        if operand.value is not None:
            if name in made or name in operand_names:
                yield f"{prefix}: the name '{name}' is kept for a literal"
        elif name not in made:
            continue
        elif name not in made_before:
            yield f"{prefix}: '{name}' is read before it is made"
        elif operand.optional:
            yield f"{prefix}: '{name}?' is made by a line, so it cannot be left out"
        elif operand.constant:
            yield f"{prefix}: '{name}!' is made by a line, so it is not a constant"


def _reserved_name_problems(node: PatternLine, names: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each name that is reserved for an unnamed output or operand of a line."""
    for name in sorted(names):
        found = re.fullmatch(rf"{node.output}_(output_)?(0|[1-9][0-9]{{0,8}})", name)
        if found is None:
            continue
        if found[1]:
            yield f"line {node.line_number}: the name '{name}' is kept for an output of the line"
        elif node.allows_more and int(found[2]) >= len(node.operands):
            yield f"line {node.line_number}: the name '{name}' is kept for a further operand"


def _optional_line_problems(node: PatternLine) -> Iterator[str]:
    if not node.optional:
        return
    if len(node.outputs) > 1:
        yield "an optional line makes one output"
    first = next(iter(node.operands), None)
    if first is None or first.value is not None or first.optional:
        yield "the first operand of an optional line takes its place: it needs a name, and no '?'"


def _unconnected_line_problems(nodes: Sequence[PatternLine]) -> Iterator[str]:
    """Yield a sentence for each line that no name connects to the last one."""
    names = [
        {*filter(None, node.outputs), *(o.name for o in node.operands if o.value is None)}
        for node in nodes
    ]
    reached, pending = names[-1], set(range(len(nodes) - 1))
    while joined := {i for i in pending if names[i] & reached}:
        pending -= joined
        reached = reached.union(*(names[i] for i in joined))
    for i in sorted(pending):
        yield f"line {nodes[i].line_number}: '{nodes[i].output}' is not connected to the last line"


def find_operator_problems(nodes: Sequence[PatternLine]) -> Iterator[str]:
    """Yield the mistakes in operators, and in their operands, outputs and attributes."""
    for node in nodes:
        for problem in (
            *_operator_name_problems(node),
            *_operand_count_problems(node),
            *_attribute_problems(node),
            *_constant_line_problems(node),
        ):
            yield f"line {node.line_number}: {problem}"


def _operator_name_problems(node: PatternLine) -> Iterator[str]:
    if ANY_OPERATOR in node.ops and len(node.ops) > 1:
        yield "'*' stands for any operator, so there are no others beside it"
    for position, op in enumerate(node.ops):
        if op in node.ops[:position]:
            yield f"'{op}' is there twice"
        elif op != ANY_OPERATOR and (problem := describe_unknown_operator(op)):
            yield problem
        elif op in known.OPERATORS_WITH_BODIES:
            yield f"{op} has bodies, and no pattern matches a node that has some"
        elif op == "Constant":
            yield "a Constant is never matched: write a name with '!', or its value"


def _operand_count_problems(node: PatternLine) -> Iterator[str]:
    count = len(node.operands)
    limits = {op: known.operand_counts(op) for op in node.ops}
    most_of_all = max((most for _, most in filter(None, limits.values())), default=0)
    if None in limits.values():
        most_of_all = sys.maxsize
    if node.allows_more and count >= most_of_all:
        yield f"'...': {' and '.join(node.ops)} can have no further operands"
    for op, limit in limits.items():
        if limit is None:
            continue
        least, most = limit
        beyond = node.operands[most:]
        if count < least and not node.allows_more:
            yield f"the number of operands of {op} is {count}, at least {least} is possible"
        elif any(not operand.optional for operand in beyond) or count > most_of_all:
            yield f"the number of operands of {op} is {count}, at most {most} is possible"
    for op in node.ops:
        possible = known.output_count(op)
        if possible is not None and len(node.outputs) > possible:
            yield f"the number of outputs of {op} is {len(node.outputs)}, at most {possible} is possible"


def _attribute_problems(node: PatternLine) -> Iterator[str]:
    seen = set()
    for test in node.attributes:
        if test.name in seen:
            yield f"{test.name} is there twice"
        seen.add(test.name)
        of_ops = [known.attribute_names(op) for op in node.ops]
        if ANY_OPERATOR in node.ops or any(names is None or test.name in names for names in of_ops):
            continue
        possible = {name for names in of_ops for name in names or ()}
        verb = "has" if len(node.ops) == 1 else "have"
        yield (
            f"{' and '.join(node.ops)} {verb} no attribute "
            f"'{test.name}'{suggest_nearest(test.name, possible)}"
        )


def _constant_line_problems(node: PatternLine) -> Iterator[str]:
    if not node.operands or node.allows_more or not RANDOM_OPERATORS.isdisjoint(node.ops):
        return
    if all(operand.constant and not operand.optional for operand in node.operands):
        yield "all operands are constants, and what is known before the model runs is never matched"
