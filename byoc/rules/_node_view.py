"""A node as rules see it, and objections: what a rule asks for and the node does not meet.

An objection names its location in the rule file.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cached_property
from itertools import islice
from math import ceil, isnan
from typing import Any

from onnx import NodeProto

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import Cause, CauseKind
from byoc.model import (
    Dim,
    GraphIndex,
    TensorType,
    collect_tensor_facts,
    filter_plain,
    floor_divide_dims,
    get_input_quantization,
    get_output_quantization,
    is_dim_at_least,
    is_onnx,
    list_dim_names,
    multiply_dims,
)
from byoc.model.schemas import FormalParameter, OperatorSchema
from byoc.rules._schema_values import AttributeRule, Bounds, ElementRule, SizeBounds
from byoc.support import format_short

FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class TensorUse:
    """A tensor that a node reads or makes: its formal name and type, its side, its own name."""

    formal: str
    type_str: str
    is_output: bool
    tensor: str


@dataclass(frozen=True, eq=False)
class RuleView:
    """A node of a graph; `schema` is None for an operator that has none.

    With `compute_dtype`, float32 tensors are treated as that type, unless the operator supports only
    float32. Without `with_values` the facts have no values of constants, which it can take long to
    compute: no rule for the operator reads them.
    """

    index: GraphIndex
    number: int
    node: NodeProto
    op: str
    schema: OperatorSchema | None
    compute_dtype: str | None = None
    with_values: bool = True

    def get_type(self, use: TensorUse) -> TensorType | None:
        """Return the type of a tensor as rules see it, None if it is not known."""
        known = self.index.types.get(use.tensor)
        if known is None or known.dtype != FLOAT32 or not self._supports_dtype(use, self.compute_dtype):
            return known
        return replace(known, dtype=self.compute_dtype or known.dtype)

    def _supports_dtype(self, use: TensorUse, dtype: str | None) -> bool:
        if dtype is None or self.schema is None:
            return dtype is not None
        return dtype in self.schema.get_allowed_dtypes(use.type_str)

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes with all defaults."""
        return self.index.get_attributes(self.node)

    @cached_property
    def uses(self) -> tuple[TensorUse, ...]:
        """The tensors of the node, inputs first; without a schema their formal names are positions."""
        found = self.schema
        inputs = self._make_uses(self.node.input, found.inputs if found else (), output=False)
        outputs = self._make_uses(self.node.output, found.outputs if found else (), output=True)
        return (*inputs, *outputs)

    def _make_uses(
        self, tensors: Any, formals: tuple[FormalParameter, ...], *, output: bool
    ) -> Iterator[TensorUse]:
        side = "output" if output else "input"
        for position, tensor in enumerate(tensors):
            if not tensor or not self.index.is_used(tensor):
                continue
            if formals:
                formal = formals[min(position, len(formals) - 1)]  # the last may be variadic
                yield TensorUse(formal.name, formal.type_str, output, tensor)
            else:
                yield TensorUse(f"{side} {position}", "", output, tensor)

    @cached_property
    def is_quantized(self) -> bool:
        """Whether DequantizeLinear makes an input, or QuantizeLinear reads an output."""
        return any(
            (get_output_quantization if use.is_output else get_input_quantization)(
                self.index, use.tensor
            )
            is not None
            for use in self.uses
        )

    def find_tensor(self, formal: str) -> str | None:
        """Return the first tensor with a formal name, None if it is omitted."""
        return next((use.tensor for use in self.uses if use.formal == formal), None)

    def list_dims(self, formals: Collection[str]) -> list[Dim]:
        """Return the extents of the tensors with some formal names."""
        shapes = (self.index.get_shape(use.tensor) for use in self.uses if use.formal in formals)
        return [dim for shape in shapes for dim in shape or ()]

    @cached_property
    def result_type(self) -> TensorType | None:
        """The type of the first output."""
        return self.index.types.get(self.node.output[0]) if self.node.output else None

    @cached_property
    def facts(self) -> "NodeFacts":
        """The facts for check functions."""
        return NodeFacts(self)

    @cached_property
    def ranged_facts(self) -> "NodeFacts":
        """The facts for conditions, which must hold for whole ranges of open dimensions."""
        return NodeFacts(self, ranged=True)


class NodeFacts(Mapping[str, Any]):
    """The facts of a node, computed on demand.

    Keys: op, domain, opset, name, attr, and the formal parameters: a mapping as `collect_tensor_facts`
    returns, a list of them for a variadic parameter.
    """

    def __init__(self, view: RuleView, *, ranged: bool = False) -> None:
        """Wrap a node; nothing is looked up yet."""
        self._view = view
        self._ranged = ranged
        self._known: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        """Return a fact. Raises KeyError when there is none of the name."""
        if key not in self._known:
            self._known[key] = self._make_fact(key)
        return self._known[key]

    def __contains__(self, key: object) -> bool:
        """Return whether there is a fact of the name."""
        return key in NODE_FACTS or key in self._formals

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the facts."""
        yield from (*NODE_FACTS, *self._formals)

    def __len__(self) -> int:
        """Return the number of facts."""
        return len(NODE_FACTS) + len(self._formals)

    @property
    def _formals(self) -> Mapping[str, FormalParameter]:
        found = self._view.schema
        return found.formals if found else {}

    def _make_fact(self, key: str) -> Any:
        view = self._view
        if key in self._formals:
            return self._make_tensor_facts(self._formals[key])
        if key == "attr":
            return filter_plain(view.attributes)
        if key == "op":
            return view.node.op_type
        if key == "domain":
            return "" if is_onnx(view.node) else view.node.domain
        if key == "opset":
            return view.index.get_opset(view.node)
        if key == "name":
            return view.node.name
        raise KeyError(key)

    def _make_tensor_facts(self, formal: FormalParameter) -> Any:
        uses = self._view.uses
        found = [self._describe_use(use) for use in uses if use.formal == formal.name]
        if formal.variadic:
            return found
        return found[0] if found else {"given": False}

    def _describe_use(self, use: TensorUse) -> dict[str, Any]:
        view = self._view
        kind = view.get_type(use)
        return collect_tensor_facts(
            view.index, use.tensor, kind, ranged=self._ranged, with_value=view.with_values
        )


NODE_FACTS = ("op", "domain", "opset", "name", "attr")
"""The keys of the facts that nodes of all operators have."""


# Objections: constraints on numbers and attributes that a node does not meet, with their locations.


class ObjectionKind(IntEnum):
    """The kind of an objection, the most severe first."""

    OPERATOR = 0
    OPSET = 1
    DTYPE = 2
    TENSOR = 3
    ATTRIBUTE = 4
    UNKNOWN = 5


@dataclass(frozen=True, slots=True)
class Objection:
    """A constraint that a node does not meet.

    `location` is its location in the rule file, `ops[0].attributes.kernel_shape.each.max`, with the
    name of the file if inherited (`dla.yaml: ops[0]...`), empty if no constraint is to blame; `text` is
    the sentence. Where it is that a type is not known, `origin` says behind what, and what settles it.
    `value` and `allowed` are what the node has and what is supported, `flags` the flags of the command
    line that settle it, `names` the nodes and tensors that the sentence quotes, `cause` the kind of
    cause where the kind of objection does not tell, `advice` what settles it besides flags.
    """

    location: str
    text: str
    kind: ObjectionKind = field(default=ObjectionKind.TENSOR, compare=False)
    origin: str = ""
    value: str = field(default="", compare=False)
    allowed: str = field(default="", compare=False)
    flags: tuple[str, ...] = field(default=(), compare=False)
    names: tuple[str, ...] = field(default=(), compare=False)
    cause: CauseKind | None = field(default=None, compare=False)
    advice: str = field(default="", compare=False)

    @property
    def is_about_dtype(self) -> bool:
        """Whether a tensor has another dtype than is supported."""
        return self.kind is ObjectionKind.DTYPE

    @property
    def reason(self) -> str:
        """The sentence for users: the origin, which many nodes share, or what the constraint says."""
        return self.origin or self.text

    def make_cause(self, operator: str = "", *, named: bool = False) -> Cause:
        """Return the objection as the cause of a node's refusal; `named` puts the operator in front."""
        kind = self.cause
        if kind is None and self.kind is ObjectionKind.UNKNOWN:
            kind = CauseKind.SIZE if self.flags else CauseKind.TYPE
        if kind is None:
            kind = CauseKind.CONSTRAINT if self.location else CauseKind.OTHER
        text = f"{operator}: {self.text}" if named and not self.origin else self.reason
        return Cause(
            kind=kind,
            text=text,
            operator=operator,
            constraint="" if self.origin else self.location,
            value=self.value,
            allowed=self.allowed,
            flags=self.flags,
            names=self.names,
            advice=self.advice,
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """A rule tried on a node: no objections if it accepts the node, else all, most severe first.

    `rule` is the location of the rule, empty if there was none to try. `fits` tells whether the rule is
    for such a node: one with `quantized: true` for a node next to DequantizeLinear or QuantizeLinear,
    any other for a node that is not.
    """

    rule: str
    objections: tuple[Objection, ...]
    fits: bool = field(default=True, compare=False)


def make_unknown(place: str, subject: str, *dims: Dim) -> Objection:
    """Make the objection that something must be known to apply a constraint.

    `dims` are the extents that it depends on: the text says how to give those that are open.
    """
    return object_to_open(place, f"{subject} is not known", *dims)


def object_to_open(place: str, sentence: str, *dims: Dim) -> Objection:
    """Make the objection of a sentence that sizes of open dimensions settle, which it says, too."""
    flags = list_size_flags(*dims)
    given = f" ({' '.join(flags)})" if flags else ""
    return Objection(place, f"{sentence}{given}", ObjectionKind.UNKNOWN, flags=flags)


def list_size_flags(*dims: Dim) -> tuple[str, ...]:
    """Return `--dim N=SIZE` for each open dimension that extents depend on, if these have names."""
    names = sorted({name for dim in dims if isinstance(dim, str) for name in list_dim_names(dim)})
    return tuple(f"--dim {format_short(name)}=SIZE" for name in names if name.isidentifier())


def is_for_want_of_sizes(cause: Cause) -> bool:
    """Return whether a node is refused since something is open or unknown.

    Sizes of open dimensions may settle it, and those of some do not.
    """
    return cause.kind in {CauseKind.SIZE, CauseKind.TYPE}


def is_multiple(extent: Dim, number: int | None) -> bool:
    """Return whether an extent is a multiple of a number, whatever its names turn out to be."""
    return number is None or (
        extent is not None and multiply_dims(floor_divide_dims(extent, number), number) == extent
    )


def is_at_least(extent: Dim, least: float | None) -> bool:
    """Return whether an extent has a least size, whatever its names turn out to be."""
    return least is None or is_dim_at_least(extent, ceil(least))


def sort_objections(objections: Iterable[Objection]) -> tuple[Objection, ...]:
    """Return objections without repetitions, most severe first."""
    # A variadic input can fail many times for one reason.
    return tuple(sorted(dict.fromkeys(objections), key=lambda objection: objection.kind))


def rate_attempt(attempt: Attempt) -> tuple[bool, int, int]:
    """Return a key that sorts attempts, the nearest first.

    Attempts that fit precede others, then those with fewer objections, then with less severe ones.
    """
    kinds = [objection.kind for objection in attempt.objections]
    return not attempt.fits, len(kinds), -min(kinds, default=ObjectionKind.UNKNOWN)


def check_attribute(place: str, name: str, value: Any, rule: AttributeRule) -> Iterator[Objection]:
    """Yield the objections to the value of an attribute, which is None if it has none."""
    if rule.absent is not None and (value is None) != rule.absent:
        text = f"{name} must be absent" if rule.absent else f"{name} must be given"
        yield Objection(f"{place}.absent", text, ObjectionKind.ATTRIBUTE)
    if value is None or rule.absent:
        return
    yield from check_value(place, name, value, rule, ObjectionKind.ATTRIBUTE)
    keys = [key for key in ("length", "each") if getattr(rule, key) is not None]
    if keys and not isinstance(value, list):  # possible in a rule for any operator
        yield Objection(
            f"{place}.{keys[0]}",
            f"{name} is {_format_value(value)}, not a list",
            ObjectionKind.ATTRIBUTE,
        )
        return
    if rule.length is not None and len(value) not in rule.length:
        allowed = format_list(rule.length)
        text = f"{name} has {len(value)} elements; supported: {allowed}"
        length = str(len(value))
        yield Objection(f"{place}.length", text, ObjectionKind.ATTRIBUTE, value=length, allowed=allowed)
    if rule.each is not None:
        yield from islice(_check_elements(f"{place}.each", name, value, rule.each), 1)  # one is enough


def _check_elements(place: str, name: str, values: Any, rule: ElementRule) -> Iterator[Objection]:
    for position, value in enumerate(values):
        yield from check_value(place, f"{name}[{position}]", value, rule, ObjectionKind.ATTRIBUTE)


def check_value(
    place: str, name: str, value: Any, rule: ElementRule | AttributeRule, kind: ObjectionKind
) -> Iterator[Objection]:
    """Yield the objections to a single value."""
    if rule.one_of is not None and not any(equals_allowed(value, one) for one in rule.one_of):
        yield object_to_choice(f"{place}.one_of", name, _format_value(value), rule.one_of, kind)
    yield from check_bounds(place, name, value, rule, kind)


def check_bounds(
    place: str, name: str, value: Any, rule: Bounds | SizeBounds, kind: ObjectionKind
) -> Iterator[Objection]:
    """Yield the objections of a minimum and a maximum to a value."""
    low, high = rule.min, rule.max
    if low is None and high is None:
        return
    is_number = isinstance(value, (int, float))  # Cast's `to` was text before opset 6
    if not is_number or isnan(value):
        first = "max" if low is None else "min"
        text = "is not a number (NaN)" if is_number else f"is {_format_value(value)}, not a number"
        yield Objection(f"{place}.{first}", f"{name} {text}", kind)
        return
    for key, word, limit in (("min", "at least", low), ("max", "at most", high)):
        if limit is not None and (value < limit if key == "min" else value > limit):
            allowed = f"{word} {format_limit(limit)}"
            text = f"{name} is {value}, {allowed} is supported"
            yield Objection(f"{place}.{key}", text, kind, value=str(value), allowed=allowed)


def run_check_function(name: str, check: Callable[..., object], facts: Mapping[str, Any]) -> str:
    """Call a check function, and return its reason, empty if it has none.

    A function that raises, as on facts that are not known, or returns no text is a reason, too.
    """
    try:
        reason = check(facts)
    except Exception as error:  # code of others can fail in any way
        return f"check {name} failed with {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    if reason is not None and not isinstance(reason, str):
        return f"check {name} gave {type(reason).__name__}, not a text"
    return reason or ""


def object_to_choice(
    place: str, name: str, value: str, choices: Any, kind: ObjectionKind = ObjectionKind.TENSOR
) -> Objection:
    """Make the objection that a value is none of those that are supported."""
    allowed = format_list(choices)
    return Objection(
        place, f"{name} is {value}; supported: {allowed}", kind, value=value, allowed=allowed
    )


def _format_value(value: Any) -> str:
    """Return a value for messages; anything but a number, text or list by its type."""
    if not isinstance(value, (int, float, str, list)):
        return f"a {type(value).__name__}"
    return format_short(value)


def equals_allowed(value: Any, one: Any) -> bool:
    """Return whether a value equals one in a rule; true does not equal 1."""
    return bool(value == one) and isinstance(value, bool) == isinstance(one, bool)


def format_limit(number: float) -> str:
    """Format a limit as a person writes it: 11 and 2.5, and 1048576 in full."""
    return str(int(number)) if number == int(number) and abs(number) < 1e15 else f"{number:g}"


def format_list(values: Any) -> str:
    """Format values for messages, with commas."""
    return ", ".join(map(format_short, values))
