"""The pass that drops guards against NaN where there is none.

PyTorch's exporter writes an attention with a mask as Where(IsNaN(p), 0, p) with p = Softmax(x): a row
that is masked altogether would be NaN. On targets without these operators it cuts each
attention in three.
Where no run makes NaN, the guard gives what it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from byoc.model.ranges import FiniteValues
from byoc.passes._cleaning import CleanPass
from byoc.passes._simplify import GraphEdits


@dataclass(frozen=True)
class DropNanGuards(CleanPass):
    """Drop a Where(IsNaN(p), c, p) whose p is proven to be no NaN in any run, whatever the inputs are.

    Proofs begin at token ids and weights, and follow layers: a normalization bounds what it makes, and a
    Softmax has numbers where each row of its mask shows an element. Of a float input nothing is known.
    """

    name: ClassVar[str] = "drop-nan-guards"
    operators: ClassVar[frozenset[str]] = frozenset({"Where"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Drop the guards of the main graph that do nothing."""
        index = edits.index
        if index.outer is not None:
            return
        values = FiniteValues(index, edits.folder)
        for number in numbers:
            guarded = _find_guarded(edits, number)
            made = index.node_outputs[number][0]
            if guarded and values.is_finite(guarded) and edits.bypass(number, guarded, made):
                edits.drop_parameters([index.node_inputs[number][0]])


def _find_guarded(edits: GraphEdits, number: int) -> str:
    """Return the tensor whose NaN a Where replaces, of the same shape; empty for any other Where."""
    index = edits.index
    condition, otherwise, guarded = index.node_inputs[number]
    maker = index.producers.get(edits.find_root(condition))
    if maker is not None and index.node_kinds[maker].operator == "Not":
        guarded = otherwise
        maker = index.producers.get(edits.find_root(index.node_inputs[maker][0]))
    if maker is None or index.node_kinds[maker].operator != "IsNaN":
        return ""
    tested = edits.find_root(index.node_inputs[maker][0])
    shape = index.get_shape(guarded)
    is_same = tested == edits.find_root(guarded) and shape is not None
    return tested if is_same and shape == index.get_shape(index.node_outputs[number][0]) else ""
