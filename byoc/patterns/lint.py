"""What is wrong with the lines of a pattern: between them, and held against ONNX's operators."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from byoc.errors import nearest
from byoc.patterns import operators as known
from byoc.patterns.syntax import ANY, PatternNode


def flow(nodes: Sequence[PatternNode], returned: Sequence[str] | None) -> Iterator[str]:
    """Yield what is wrong between the lines; `returned` are the names of the `return`, if any."""
    made = [name for node in nodes for name in node.outputs if name]
    last = nodes[-1].line
    outputs = [name for name in nodes[-1].outputs if name] if returned is None else returned
    read = {operand.name for node in nodes for operand in node.operands}
    written = {operand.name for node in nodes for operand in node.operands if operand.value is None}
    keys = [node.output for node in nodes]
    before: set[str] = set()
    for node in nodes:
        place = f"line {node.line}"
        for other in keys:
            if other.startswith(f"{node.output}_"):  # `c_x` of one and `c` of the other meet in names
                yield f"{place}: the name '{node.output}' is the beginning of '{other}'"
        own: set[str] = set()
        for name in filter(None, node.outputs):
            if name in before | own:
                yield f"{place}: '{name}' is made twice"
            elif name not in read and name not in outputs:
                ending = (
                    "only the last line makes the output" if returned is None else "it is not returned"
                )
                yield f"{place}: nothing reads '{name}', and {ending}"
            own.add(name)
        yield from _operands(node, before, made, written)
        yield from _kept(node, {*made, *written})
        before |= own
    for position, name in enumerate(returned or ()):
        if name not in made:
            yield f"return: no line makes '{name}'{nearest(name, made)}"
        elif name in (returned or ())[:position]:
            yield f"return: '{name}' is there twice"
    yield from (f"line {node.line}: {problem}" for node in nodes for problem in _optional(node))
    if len(nodes) > 1 and all(node.optional for node in nodes) and last:
        yield "at least one line must not be optional"
    yield from _apart(nodes)


def _operands(
    node: PatternNode, before: set[str], made: Sequence[str], written: set[str]
) -> Iterator[str]:
    place = f"line {node.line}"
    for operand in node.operands:
        name = operand.name
        if operand.value is not None:
            if name in made or name in written:
                yield f"{place}: the name '{name}' is kept for a literal"
        elif name not in before and name in made:
            yield f"{place}: '{name}' is read before it is made"
        elif operand.optional and name in made:
            yield f"{place}: '{name}?' is made by a line, so it cannot be left out"
        elif operand.constant and name in made:
            yield f"{place}: '{name}!' is made by a line, so it is no constant"


def _kept(node: PatternNode, names: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each name that a line needs for what has none in the pattern."""
    for name in sorted(names):
        found = re.fullmatch(rf"{node.output}_(output_)?(0|[1-9][0-9]{{0,8}})", name)
        if found is None:
            continue
        if found[1]:
            yield f"line {node.line}: the name '{name}' is kept for an output of the line"
        elif node.more and int(found[2]) >= len(node.operands):
            yield f"line {node.line}: the name '{name}' is kept for a further operand"


def _optional(node: PatternNode) -> Iterator[str]:
    if not node.optional:
        return
    if len(node.outputs) > 1:
        yield "an optional line makes one output"
    first = next(iter(node.operands), None)
    if first is None or first.value is not None or first.optional:
        yield "the first operand of an optional line takes its place: it needs a name, and no '?'"


def _apart(nodes: Sequence[PatternNode]) -> Iterator[str]:
    """Yield a sentence for each line that no name ties to the last one."""
    names: Mapping[int, set[str]] = {
        i: {*filter(None, node.outputs), *(o.name for o in node.operands if o.value is None)}
        for i, node in enumerate(nodes)
    }
    reached, pending = set(names[len(nodes) - 1]), set(range(len(nodes) - 1))
    while joined := {i for i in pending if names[i] & reached}:
        pending -= joined
        reached.update(*(names[i] for i in joined))
    for i in sorted(pending):
        yield f"line {nodes[i].line}: '{nodes[i].output}' has nothing to do with the last line"


def operators(nodes: Sequence[PatternNode]) -> Iterator[str]:
    """Yield what the operators of the lines do not have."""
    for node in nodes:
        place = f"line {node.line}"
        for problem in (*_names(node), *_counts(node), *_attributes(node), *_constant(node)):
            yield f"{place}: {problem}"


def _names(node: PatternNode) -> Iterator[str]:
    if ANY in node.ops and len(node.ops) > 1:
        yield "'*' stands for any operator, so there are no others beside it"
    for position, op in enumerate(node.ops):
        if op in node.ops[:position]:
            yield f"'{op}' is there twice"
        elif op not in known.names() and op != ANY and "." not in op:  # other domains are taken on trust
            standard = [name for name in known.names() if "." not in name]
            yield f"ONNX has no operator '{op}'{nearest(op, standard)}"
        elif known.has_bodies(op):
            yield f"{op} has bodies, and no pattern matches a node that has some"
        elif op == "Constant":
            yield "a Constant is never matched: write a name with '!', or its value"


def _counts(node: PatternNode) -> Iterator[str]:
    bounds = {op: known.operand_counts(op) for op in node.ops}
    if node.more and ANY not in node.ops and all(b is not None and b[1] < 100 for b in bounds.values()):
        spare = max(b[1] for b in bounds.values() if b is not None) - len(node.operands)
        if spare <= 0:
            yield f"'...': {' and '.join(node.ops)} can have no further operands"
    most_of_all = max((b[1] if b is not None else 2**31 for b in bounds.values()), default=0)
    for op, bound in bounds.items():
        if bound is None:
            continue
        least, most = bound
        beyond = node.operands[most:]
        if len(node.operands) < least and not node.more:
            yield (
                f"the number of operands of {op} is {len(node.operands)}, at least {least} is possible"
            )
        elif any(not operand.optional for operand in beyond) or len(node.operands) > most_of_all:
            yield f"the number of operands of {op} is {len(node.operands)}, at most {most} is possible"
    for op in node.ops:
        possible = known.output_count(op)
        if possible is not None and len(node.outputs) > possible:
            yield f"the number of outputs of {op} is {len(node.outputs)}, at most {possible} is possible"


def _attributes(node: PatternNode) -> Iterator[str]:
    seen = set()
    for test in node.attributes:
        if test.name in seen:
            yield f"{test.name} is there twice"
        seen.add(test.name)
        of_ops = [known.attributes(op) for op in node.ops]
        if ANY in node.ops or any(names is None or test.name in names for names in of_ops):
            continue
        there = {name for names in of_ops for name in names or ()}
        verb = "has" if len(node.ops) == 1 else "have"
        yield f"{' and '.join(node.ops)} {verb} no attribute '{test.name}'{nearest(test.name, there)}"


def _constant(node: PatternNode) -> Iterator[str]:
    if not node.operands or node.more or any(map(known.is_random, node.ops)):
        return
    if all(operand.constant and not operand.optional for operand in node.operands):
        yield "all operands are constants, and what is known before the model runs is never matched"
