"""Alignment: which tensors of the unpadded run are the beginning of those of the padded run.

A tensor is *aligned* when its value in the unpadded run is, element by element, the one at the same
indices in the padded run: what padding adds stands behind it along the padded axes. It is the *same*
when both runs have one value. The analysis goes through the nodes in order and applies a rule for each
operator (`ALIGNMENT_RULES`); what no rule understands is not aligned, unless everything it reads is the
same. Values that depend on the sizes themselves, such as that of a Shape, are *sized*: rules take them
where they know what they mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from byoc.model import RANDOM_OPERATORS, get_operator_name
from byoc.padding._alignment_view import AlignmentRule, AlignmentView
from byoc.padding._matrix_alignment import MATRIX_RULES
from byoc.padding._movement_alignment import MOVEMENT_RULES
from byoc.padding._padded_graph import ILL_FORMED, Assumptions, NotAlignedError, PaddedGraph
from byoc.padding._reduction_alignment import REDUCTION_RULES
from byoc.padding._row_alignment import ROW_RULES
from byoc.padding._value_bounds import ValueBounds

ALIGNMENT_RULES: Mapping[str, AlignmentRule] = {
    **ROW_RULES,
    **MATRIX_RULES,
    **MOVEMENT_RULES,
    **REDUCTION_RULES,
}
"""Operator, as rule files spell it, to the rule that raises NotAlignedError unless it is aligned."""


@dataclass(frozen=True)
class Misalignment:
    """The first cause why an output is not aligned: the node, empty for none, and the reason."""

    node: str
    reason: str
    by_value: bool = False

    def __str__(self) -> str:
        """Return it as a clause."""
        return f"{self.node}: {self.reason}" if self.node else self.reason


@dataclass(eq=False)
class Alignment:
    """The alignment of a graph's tensors under some assumptions.

    Of those that are given, `assumptions` are the ones on inputs whose bounds a rule asked for: without
    the others the alignment is the same.

    `same` and `sized` are tensors as the module describes them. `causes` has the first cause of each
    tensor that is not aligned. A tensor in none of the three is aligned.
    """

    graph: PaddedGraph
    assumptions: Assumptions
    same: set[str] = field(default_factory=set)
    sized: set[str] = field(default_factory=set)
    causes: dict[str, Misalignment] = field(default_factory=dict)
    bounds: ValueBounds = field(init=False)

    def __post_init__(self) -> None:
        """Go through the graph."""
        graph = self.graph
        self.bounds = ValueBounds(graph, self.assumptions, self.same, self.sized)
        self.same.update(graph.index.constant_names)
        for name in graph.index.inputs:
            shape = graph.get_shape(name)
            if shape is None:
                reason = f"the shape of the input '{name}' is not known"
                self.causes[name] = Misalignment("", reason)
            elif not any(map(graph.is_padded, shape)):
                self.same.add(name)
        for number in range(len(graph.index.nodes)):
            if number not in graph.index.constant_nodes:
                self._judge(number)
        self.assumptions = self.assumptions.select(self.bounds.inputs)

    def find_cause(self) -> Misalignment | None:
        """Return why a graph output is not aligned, None where all are."""
        for name in self.graph.index.outputs:
            cause = self.causes.get(name)
            if cause is None and name in self.sized:
                cause = Misalignment("", f"the output '{name}' says what the sizes are")
            if cause is not None:
                return cause
        return None

    def _judge(self, number: int) -> None:
        """Enter the outputs of a node among the same, the sized or the causes, or nowhere: aligned."""
        index = self.graph.index
        node, outputs = index.nodes[number], [n for n in index.node_outputs[number] if n]
        reads = index.reads[number]
        # Dropout is random in training mode alone, which is an input.
        if node.op_type in RANDOM_OPERATORS and node.op_type != "Dropout":
            self._refuse(number, outputs, "its values are random")
            return
        left = []
        for name in outputs:
            known = self.graph.find_elements(name)
            if known is None:
                left.append(name)
            elif any(self.graph.is_padded(dim) for dim in known):
                self.sized.add(name)
            else:
                self.same.add(name)
        if not left:
            return
        if self.same.issuperset(reads):
            self.same.update(left)
            return
        for name in reads:
            if name in self.causes:
                self.causes.update(dict.fromkeys(left, self.causes[name]))
                return
        self._apply_rule(number, left)

    def _apply_rule(self, number: int, outputs: list[str]) -> None:
        operator = get_operator_name(self.graph.index.nodes[number])
        rule = ALIGNMENT_RULES.get(operator)
        try:
            if rule is None:
                raise NotAlignedError("what it makes of padding is not known")
            view = AlignmentView(self.graph, number, self.bounds, self.same, self.sized)
            rule(view)
            view.check_outputs(outputs)
        except NotAlignedError as error:
            self._refuse(number, outputs, str(error), error.by_value)
            return
        except ILL_FORMED as error:
            self._refuse(number, outputs, f"it is not understood ({error})")
            return
        except RecursionError:
            self._refuse(number, outputs, "bounds of its values are too far to find")
            return
        self.bounds.proven.add(number)

    def _refuse(self, number: int, outputs: list[str], reason: str, by_value: bool = False) -> None:
        node = self.graph.index.nodes[number]
        shown = f"{node.op_type} '{node.name or node.output[0]}'"
        cause = Misalignment(shown, reason, by_value)
        self.causes.update(dict.fromkeys(outputs, cause))
