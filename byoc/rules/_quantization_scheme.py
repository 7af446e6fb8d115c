"""Constraints on quantization: scales, zero points, dtypes, and conversions on the device.

The scheme gives the most that the accelerator supports: if weights may have a scale for each channel, a
single scale is accepted, too, and if zero points need not be 0, they may be.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from byoc._dataclasses import dataclass
from byoc.errors import CauseKind
from byoc.model import (
    FLOAT_DTYPES,
    GraphIndex,
    TensorQuantization,
    find_constant_value,
    get_constant_value,
    get_input_quantization,
    get_output_quantization,
    is_dequantize,
    is_inserted,
    is_qdq_node,
    is_quantize,
)
from byoc.rules._node_view import (
    Objection,
    ObjectionKind,
    RuleView,
    TensorUse,
    format_list,
    make_unknown,
)
from byoc.rules._rule_schema import TensorRule
from byoc.rules._schema_values import Quantization, QuantizedRule, QuantizedTensors


def get_quantization(index: GraphIndex, use: TensorUse) -> TensorQuantization | None:
    """Return the quantization of a tensor, None if it is not quantized.

    An input is quantized if a DequantizeLinear makes it, an output if only QuantizeLinear nodes read it.
    """
    return (get_output_quantization if use.is_output else get_input_quantization)(index, use.tensor)


def is_unquantized_float(index: GraphIndex, use: TensorUse) -> bool:
    """Return whether a tensor's dtype is a float; to be asked of tensors without quantization alone."""
    return index.get_dtype(use.tensor) in FLOAT_DTYPES


def check_quantization(
    place: str, use: TensorUse, rule: QuantizedRule, view: RuleView
) -> Iterator[Objection]:
    """Yield the objections to a tensor's quantization; floats inside a composite have none."""
    name, index = use.formal, view.index
    found = get_quantization(index, use)
    if found is None:
        if not is_unquantized_float(index, use) or index.is_constant(use.tensor):
            yield Objection(place, f"{name} is not quantized", cause=CauseKind.QUANTIZATION)
        return
    yield from _check_scales(place, name, found, rule, index)
    if rule.symmetric is not None:
        points = find_constant_value(index, found.zero_point) if found.zero_point else np.zeros(1)
        if points is None:
            yield make_unknown(f"{place}.symmetric", f"the zero point of {name}")
        elif bool(np.any(points)) == rule.symmetric:
            negation = "" if rule.symmetric else "not "
            yield Objection(f"{place}.symmetric", f"the zero point of {name} must {negation}be 0")
    if rule.power_of_two is not None:
        scales = find_constant_value(index, found.scale)
        if scales is None:
            yield make_unknown(f"{place}.power_of_two", f"the scale of {name}")
        elif bool(np.all(np.frexp(scales)[0] == 0.5)) != rule.power_of_two:
            text = f"must {'' if rule.power_of_two else 'not '}be a power of two"
            yield Objection(f"{place}.power_of_two", f"the scale of {name} {text}")
    if rule.same_as is not None:
        yield from _check_same_as(f"{place}.same_as", use, found, rule.same_as, view)


def _check_scales(
    place: str, name: str, found: TensorQuantization, rule: QuantizedRule, index: GraphIndex
) -> Iterator[Objection]:
    """Yield the objections to how many scales there are, and along which axis."""
    if rule.per_channel is None and rule.axis is None:
        return
    known = index.types.get(found.scale)
    count = known.elements if known else None
    if known is None or count is None:
        key = "per_channel" if rule.axis is None else "axis"
        yield make_unknown(f"{place}.{key}", f"the number of scales of {name}")
        return
    if rule.per_channel is not None and (count > 1) != rule.per_channel:
        text = "one scale for all channels" if count == 1 else "a scale for each channel"
        yield Objection(f"{place}.per_channel", f"{name} has {text}, which is not supported")
    if rule.axis is None or count == 1:
        return
    kind = found.quantized_type
    rank = None if kind is None or kind.shape is None else len(kind.shape)
    if len(known.shape or ()) != 1:
        yield Objection(f"{place}.axis", f"{name} has scales for blocks, which are not supported")
    elif rank is None:
        yield make_unknown(f"{place}.axis", f"the rank of {name}")
    elif found.axis not in {axis + rank if axis < 0 else axis for axis in rule.axis}:
        text = f"{name} has its scales along axis {found.axis}"
        yield Objection(f"{place}.axis", f"{text}; supported: {format_list(rule.axis)}")


def _check_same_as(
    place: str, use: TensorUse, found: TensorQuantization, formal: str, view: RuleView
) -> Iterator[Objection]:
    """Yield the objections to a tensor whose scale and zero point must be those of all of a name."""
    others = [other for other in view.uses if other.formal == formal]
    if not others:
        yield Objection(place, f"{use.formal} must have the scale of {formal}, which is absent")
    for other in others:
        quantization = get_quantization(view.index, other)
        if quantization is None:
            yield Objection(
                place, f"{use.formal} must have the scale of {formal}, which is not quantized"
            )
        else:
            names = formal, use.formal
            yield from _compare_quantizations(place, names, (quantization, found), view)


def _compare_quantizations(
    place: str,
    names: tuple[str, str],
    pair: tuple[TensorQuantization, TensorQuantization],
    view: RuleView,
) -> Iterator[Objection]:
    """Yield the objections to a pair of tensors of different scale, zero point or stored dtype."""
    one, other = pair
    for what, mine, theirs in (
        ("scale", one.scale, other.scale),
        ("zero point", one.zero_point, other.zero_point),
    ):
        same = _have_same_values(view, mine, theirs)
        if same is None:
            yield make_unknown(place, f"whether {names[0]} and {names[1]} have one {what}")
        elif not same:
            yield Objection(place, f"{names[0]} and {names[1]} must have the same {what}")
    kinds = one.quantized_type, other.quantized_type
    if kinds[0] is not None and kinds[1] is not None and kinds[0].dtype != kinds[1].dtype:
        dtypes = f"{names[0]} is {kinds[0].dtype} and {names[1]} is {kinds[1].dtype}"
        yield Objection(place, f"{dtypes}, and must be the same", ObjectionKind.DTYPE)


_BIAS_DTYPE = "int32"


@dataclass(frozen=True, eq=False)
class SchemeChecker:
    """A quantization scheme; `locate` maps a location in the merged rules to one in a file."""

    quantization: Quantization
    locate: Callable[[str], str]

    def find_dtypes(self, use: TensorUse, view: RuleView) -> tuple[str, Sequence[str]] | None:
        """Return the dtypes that the scheme allows for a tensor, with their location, None if all."""
        if get_quantization(view.index, use) is None:
            return None
        role, part = self._find_part(use, view)
        return (f"{self.locate(f'quantization.{role}')}.dtype", part.dtype) if part.dtype else None

    def check_tensor(
        self, use: TensorUse, rule: TensorRule | None, view: RuleView
    ) -> Iterator[Objection]:
        """Yield the objections of the scheme to a tensor's quantization, where its rule has none."""
        if get_quantization(view.index, use) is None:
            return
        role, part = self._find_part(use, view)
        own = rule.quantized.model_fields_set if rule and rule.quantized else frozenset()
        if part.symmetric and "symmetric" not in own:
            yield from self._check_rule(f"quantization.{role}", QuantizedRule(symmetric=True), use, view)
        if part.per_channel is False and "per_channel" not in own:
            yield from self._check_rule(
                f"quantization.{role}", QuantizedRule(per_channel=False), use, view
            )
        if self.quantization.scales == "power_of_two" and "power_of_two" not in own:
            yield from self._check_rule(
                "quantization.scales", QuantizedRule(power_of_two=True), use, view
            )

    def check_same_scale(self, view: RuleView) -> Iterator[Objection]:
        """Yield the objections to different scales of a node's inputs and output, where one is required.

        Constants count if they are quantized, as an input of Concat may be.
        """
        ops = self.quantization.same_scale or ()
        if view.op not in ops:
            return
        place = self.locate("quantization.same_scale")
        found = [(use, get_quantization(view.index, use)) for use in view.uses]
        known = [(use, one) for use, one in found if one is not None]
        for use, one in known[1:]:
            first, other = known[0]
            names = _get_display_name(first, known), _get_display_name(use, known)
            yield from _compare_quantizations(place, names, (other, one), view)

    def _check_rule(
        self, key: str, rule: QuantizedRule, use: TensorUse, view: RuleView
    ) -> Iterator[Objection]:
        place = self.locate(key)
        for objection in check_quantization(place, use, rule, view):
            at = place if key.endswith(".scales") else objection.location
            yield Objection(at, objection.text, objection.kind)

    def _find_part(self, use: TensorUse, view: RuleView) -> tuple[str, QuantizedTensors]:
        role = get_role(use, view)
        return role, getattr(self.quantization, role) or QuantizedTensors()


def get_role(use: TensorUse, view: RuleView) -> str:
    """Return the role of a quantized tensor: `activations`, `weights` or `bias`.

    A tensor that is computed is an activation. A constant is a bias if it is int32, or has one dimension
    and another constant of the node has more.
    """
    index = view.index
    if use.is_output or not index.is_constant(use.tensor):
        return "activations"
    found = get_quantization(index, use)
    if (
        found is not None
        and found.quantized_type is not None
        and found.quantized_type.dtype == _BIAS_DTYPE
    ):
        return "bias"
    others = (other.tensor for other in view.uses if not other.is_output and other.tensor != use.tensor)
    ranks = [index.get_rank(other) or 0 for other in others if index.is_constant(other)]
    return "bias" if index.get_rank(use.tensor) == 1 and max(ranks, default=0) > 1 else "weights"


def _get_display_name(use: TensorUse, known: Sequence[tuple[TensorUse, TensorQuantization]]) -> str:
    """Return a name for a tensor in messages: its formal name, or its own if that is not unique."""
    alike = [other for other, _ in known if other.formal == use.formal]
    return f"'{use.tensor}'" if len(alike) > 1 else use.formal


def _have_same_values(view: RuleView, one: str, other: str) -> bool | None:
    """Return whether two scales or zero points are equal, None if that is not known."""
    if one == other:
        return True
    values = [get_constant_value(view.index, name) if name else np.zeros(()) for name in (one, other)]
    if values[0] is None or values[1] is None:
        return None
    return bool(np.array_equal(values[0].reshape(-1), values[1].reshape(-1)))


def converts_at_boundary(index: GraphIndex, number: int, quantized: Callable[[int], bool]) -> bool:
    """Return whether a node quantizes an input or dequantizes an output of a quantized group.

    `quantized` tells whether a rule accepts a node between DequantizeLinear and QuantizeLinear. Scale
    and zero point must be constants. Nodes that byoc inserted are not units of their own: the boundary
    stage places them (`byoc.boundary.convert._cast_regions`).
    """
    node = index.nodes[number]
    if is_inserted(node) or not all(index.is_constant(name) for name in node.input[1:] if name):
        return False
    if is_quantize(node):
        return any(quantized(reader) for reader in _find_readers(index, number))
    return is_dequantize(node) and any(quantized(maker) for maker in _find_makers(index, number))


def converts_between_operators(
    index: GraphIndex,
    number: int,
    quantized: Callable[[int], bool],
    plain: Callable[[int], bool],
) -> bool:
    """Return whether a node converts from a quantized operator to one in floating point, or back.

    `quantized` and `plain` tell whether a rule accepts a node so. Scale, of which there is one, and zero
    point must be constants.
    """
    node = index.nodes[number]
    if not all(index.is_constant(name) for name in node.input[1:] if name):
        return False
    scale = index.types.get(node.input[1]) if is_qdq_node(node) else None
    if scale is None or scale.elements != 1:
        return False
    if is_quantize(node):
        maker = index.producers.get(node.input[0])
        readers = _find_readers(index, number)
        return maker is not None and plain(maker) and any(map(quantized, readers))
    (made,) = node.output
    numbers = index.consumers.get(made, ())
    inside = bool(numbers) and made not in index.outputs
    return inside and all(map(plain, numbers)) and any(map(quantized, _find_makers(index, number)))


def _find_readers(index: GraphIndex, number: int) -> Iterator[int]:
    """Yield the nodes that read what a QuantizeLinear makes through a DequantizeLinear."""
    (name,) = index.nodes[number].output
    for reader in index.consumers.get(name, ()):
        node = index.nodes[reader]
        if is_dequantize(node) and node.input[0] == name:
            (made,) = node.output
            yield from index.consumers.get(made, ())


def _find_makers(index: GraphIndex, number: int) -> Iterator[int]:
    """Yield the node behind the QuantizeLinear whose output a DequantizeLinear reads."""
    maker = index.producers.get(index.nodes[number].input[0])
    if maker is not None and is_quantize(index.nodes[maker]):
        source = index.producers.get(index.nodes[maker].input[0])
        if source is not None:
            yield source
