"""Tensors that must have one scale: found by union-find over what the units read and make.

Views and concatenations give out what they read, so that one scale for both is exact; other operators
have one scale for all where the target asks for it (`quantization.same_scale`). The range of a class is
the union of the ranges of its tensors; what the user gave outright wins.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto

from byoc.errors import InputError
from byoc.graph.index import GraphIndex
from byoc.graph.unshare import is_float
from byoc.graph.walk import is_onnx
from byoc.quantize.numbers import Form, Params, params_of
from byoc.quantize.operators import CLAMPS, VIEWS
from byoc.quantize.ranges import Given, Range
from byoc.quantize.units import Candidate
from byoc.quantize.wanted import Wanted


@dataclass(eq=False)
class Classes:
    """Tensors, and which of them have one scale; constants of these operators are in them, too."""

    parent: dict[str, str] = field(default_factory=dict)

    def root(self, name: str) -> str:
        """Return the tensor that stands for a tensor's class."""
        while self.parent.setdefault(name, name) != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def join(self, names: Iterable[str]) -> None:
        """Let tensors be of one class."""
        first, *others = map(self.root, names)
        for other in others:
            self.parent[self.root(other)] = self.root(first)


def classes_of(index: GraphIndex, units: Sequence[Candidate]) -> Classes:
    """Return which tensors have one scale where some units are quantized."""
    found = Classes()
    for unit in units:
        inner = {name for number in unit.unit.nodes for name in index.nodes[number].output}
        for number in unit.unit.nodes:
            names = list(_alike(index, index.nodes[number], unit, inner))
            if names:
                found.join(names)
    return found


def is_alike(node: NodeProto, unit: Candidate) -> bool:
    """Return whether what a node reads and makes has one scale, constants that it reads included."""
    concat = is_onnx(node) and node.op_type == "Concat"
    return concat or unit.wishes.same_scale(node)


def _alike(index: GraphIndex, node: NodeProto, unit: Candidate, inner: set[str]) -> Iterator[str]:
    floats = [name for name in (*node.input, *node.output) if name and is_float(index, name)]
    if is_alike(node, unit):
        yield from floats
    elif not is_onnx(node):
        return
    elif node.op_type in VIEWS or (node.op_type in CLAMPS and node.input[0] in inner):
        yield node.input[0]
        yield from (name for name in node.output if name in floats)


def form_of(wants: Sequence[Wanted], dtype: str | None) -> Form:
    """Return a form that suits as many uses as can be: the first one's data type that all have."""
    first = wants[0].dtypes
    common = [one for one in first if all(one in want.dtypes for want in wants)] or list(first)
    chosen = dtype if dtype is not None else common[0]
    return Form(chosen, any(w.symmetric for w in wants), any(w.power_of_two for w in wants))


def params_of_class(known: Mapping[str, Range | Given], form: Form) -> tuple[Params | None, str]:
    """Return the quantization of a class from what is known of its tensors, or why there is none.

    Raises InputError when the user gave two of them different scales.
    """
    given = {name: entry for name, entry in known.items() if isinstance(entry, Given)}
    if given:
        (first, entry), *others = given.items()
        for name, other in others:
            if other != entry:
                raise InputError(
                    f"calibration: '{first}' and '{name}' must have one scale and zero point, "
                    "and different ones are given"
                )
        return params_given(entry), ""
    ranges = [entry for entry in known.values() if isinstance(entry, Range)]
    low, high = min(r.low for r in ranges), max(r.high for r in ranges)
    params = params_of(low, high, form)
    name = next(iter(known))
    return params, "" if params else f"'{name}' is below 0, which {form.dtype} with zero point 0 is not"


def params_given(given: Given) -> Params:
    """Return what a user gave outright."""
    scale, points = np.asarray(given.scale, np.float32), np.asarray(given.zero_point, np.int64)
    if given.axis is None:
        return Params(scale.reshape(()), points.reshape(()), given.dtype)
    return Params(scale, points, given.dtype, given.axis)
