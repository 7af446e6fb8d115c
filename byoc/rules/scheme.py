"""The file's quantization scheme, which applies to rules with `quantized: true` unless they say more.

The scheme gives the most that the accelerator supports: if weights may have a scale for each channel, a
single scale is accepted, too, and if zero points need not be 0, they may be.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from byoc.graph.outer import Outer
from byoc.graph.values import constant_value
from byoc.rules.objections import Kind, Objection, unknown
from byoc.rules.quantized import outer, quantization_objections
from byoc.rules.schema import Quantization, QuantizedRule, QuantizedTensors, TensorRule
from byoc.rules.view import Use, View

_BIAS = "int32"


@dataclass(frozen=True, eq=False)
class Scheme:
    """A quantization scheme; `place` maps a location in the merged rules to one in a file."""

    quantization: Quantization
    place: Callable[[str], str]

    def dtypes(self, use: Use, view: View) -> tuple[str, Sequence[str]] | None:
        """Return the dtypes that the scheme allows for a tensor, with their location, None if all."""
        if outer(view.index, use) is None:
            return None
        role, part = self._part(use, view)
        return (f"{self.place(f'quantization.{role}')}.dtype", part.dtype) if part.dtype else None

    def objections(self, use: Use, rule: TensorRule | None, view: View) -> Iterator[Objection]:
        """Yield the objections of the scheme to a tensor's quantization, where its rule has none."""
        if outer(view.index, use) is None:
            return
        role, part = self._part(use, view)
        own = rule.quantized.model_fields_set if rule and rule.quantized else frozenset()
        if part.symmetric and "symmetric" not in own:
            yield from self._held(f"quantization.{role}", QuantizedRule(symmetric=True), use, view)
        if part.per_channel is False and "per_channel" not in own:
            yield from self._held(f"quantization.{role}", QuantizedRule(per_channel=False), use, view)
        if self.quantization.scales == "power_of_two" and "power_of_two" not in own:
            yield from self._held("quantization.scales", QuantizedRule(power_of_two=True), use, view)

    def between(self, view: View) -> Iterator[Objection]:
        """Yield the objections to different scales of a node's inputs and output, where one is required.

        Constants count if they are quantized, as an input of Concat may be.
        """
        ops = self.quantization.same_scale or ()
        if view.op not in ops:
            return
        place = self.place("quantization.same_scale")
        found = [(use, outer(view.index, use)) for use in view.uses]
        known = [(use, one) for use, one in found if one is not None]
        for use, one in known[1:]:
            first, other = known[0]
            name, other_name = _told(first, known), _told(use, known)
            for what, mine, theirs in (
                ("scale", other.scale, one.scale),
                ("zero point", other.zero_point, one.zero_point),
            ):
                same = _same(view, mine, theirs)
                if same is None:
                    yield unknown(place, f"whether {name} and {other_name} have one {what}")
                elif not same:
                    yield Objection(place, f"{name} and {other_name} must have the same {what}")
            if one.kind is not None and other.kind is not None and one.kind.dtype != other.kind.dtype:
                dtypes = f"{name} is {other.kind.dtype} and {other_name} is {one.kind.dtype}"
                yield Objection(place, f"{dtypes}, and must be the same", Kind.DTYPE)

    def _held(self, key: str, rule: QuantizedRule, use: Use, view: View) -> Iterator[Objection]:
        place = self.place(key)
        for objection in quantization_objections(place, use, rule, view.index):
            at = place if key.endswith(".scales") else objection.place
            yield Objection(at, objection.text, objection.kind)

    def _part(self, use: Use, view: View) -> tuple[str, QuantizedTensors]:
        role = role_of(use, view)
        return role, getattr(self.quantization, role) or QuantizedTensors()


def role_of(use: Use, view: View) -> str:
    """Return the role of a quantized tensor: `activations`, `weights` or `bias`.

    A tensor that is computed is an activation. A constant is a bias if it is int32, or has one dimension
    and another constant of the node has more.
    """
    index = view.index
    if use.output or not index.is_constant(use.tensor):
        return "activations"
    found = outer(index, use)
    if found is not None and found.kind is not None and found.kind.dtype == _BIAS:
        return "bias"
    others = (other.tensor for other in view.uses if not other.output and other.tensor != use.tensor)
    ranks = [_rank(view, other) for other in others if index.is_constant(other)]
    return "bias" if _rank(view, use.tensor) == 1 and max(ranks, default=0) > 1 else "weights"


def _told(use: Use, known: Sequence[tuple[Use, Outer]]) -> str:
    """Return a name for a tensor in messages: its formal name, or its own if that is not unique."""
    alike = [other for other, _ in known if other.formal == use.formal]
    return f"'{use.tensor}'" if len(alike) > 1 else use.formal


def _same(view: View, one: str, other: str) -> bool | None:
    """Return whether two scales or zero points are equal, None if that is not known."""
    if one == other:
        return True
    values = [constant_value(view.index, name) if name else np.zeros(()) for name in (one, other)]
    if values[0] is None or values[1] is None:
        return None
    return bool(np.array_equal(values[0].reshape(-1), values[1].reshape(-1)))


def _rank(view: View, tensor: str) -> int:
    known = view.index.types.get(tensor)
    return len(known.shape) if known and known.shape is not None else 0
