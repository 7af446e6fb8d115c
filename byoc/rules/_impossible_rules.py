"""Rules that no node can meet, by the schemas of their operators: types, ranks, inputs, attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from math import ceil, floor, inf
from typing import Any

import onnx
from onnx import TypeProto, helper
from onnx.shape_inference import InferenceError

from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, build_node
from byoc.model.schemas import FormalParameter, OperatorSchema, find_schemas
from byoc.patterns import ANY_OPERATOR
from byoc.rules._composite_library import make_patterns
from byoc.rules._rule_loading import Target, split_generation
from byoc.rules._rule_schema import OpRule, TensorRule
from byoc.rules._schema_values import (
    ANY_DTYPE,
    EACH_DIM,
    AttributeRule,
    Bounds,
    CountRule,
    ElementRule,
)
from byoc.support import ANNOTATIONS, find_file, find_line

FLOATS = frozenset({"float32", "float16", "float64", "bfloat16"})
_MOST_RANK = 8  # a rule that names no rank is tried at those that accelerators have
_MOST_COMBINATIONS = 1_024  # of ranks of several tensors, which are tried one by one
# Of the tensors that no rule speaks of, since ONNX judges a rank where it knows those beside it.
_MOST_FREE, _MOST_FREE_RANK = 2, 5
_ONES = -1  # every dimension is 1, as some operators want it
_FEW = 6  # dtypes that a sentence lists
# What ONNX's documentation allows as texts; its schemas do not have them.
_TEXTS: Mapping[str, Mapping[str, str]] = {
    **{
        op: {"auto_pad": "NOTSET SAME_UPPER SAME_LOWER VALID"}
        for op in (
            *("Conv", "ConvTranspose", "QLinearConv", "ConvInteger"),
            *("MaxPool", "AveragePool", "LpPool"),
        )
    },
    **{op: {"direction": "forward reverse bidirectional"} for op in ("LSTM", "GRU", "RNN")},
    **{op: {"reduction": "none add mul max min"} for op in ("ScatterElements", "ScatterND")},
    "BitShift": {"direction": "LEFT RIGHT"},
    "DepthToSpace": {"mode": "DCR CRD"},
    "Gelu": {"approximate": "none tanh"},
    "GridSample": {
        "mode": "bilinear nearest bicubic linear cubic",
        "padding_mode": "zeros border reflection",
    },
    "Pad": {"mode": "constant reflect edge wrap"},
    "Resize": {
        "mode": "nearest linear cubic",
        "coordinate_transformation_mode": "half_pixel half_pixel_symmetric pytorch_half_pixel "
        "align_corners asymmetric tf_half_pixel_for_nn tf_crop_and_resize",
        "nearest_mode": "round_prefer_floor round_prefer_ceil floor ceil",
        "keep_aspect_ratio_policy": "stretch not_larger not_smaller",
    },
    "RoiAlign": {
        "mode": "avg max",
        "coordinate_transformation_mode": "half_pixel output_half_pixel",
    },
    "Upsample": {"mode": "nearest linear"},
}


def find_impossible_rules(target: Target) -> Iterator[str]:
    """Yield a sentence for each rule, or operator of one, that no node can meet.

    A sentence has the location, what cannot be, and what would be right. Operators without a schema are
    taken on trust.
    """
    rules = [rule.model_copy(update={"check": None}) for rule in target.rules.composites]
    in_composites = {
        op
        for pattern in make_patterns(rules)
        for form in pattern.forms
        for node in form.nodes
        for op in node.ops
    }
    for i, rule in enumerate(target.rules.ops):
        for place, problem in _find_contradictions(rule):
            yield f"{_locate(target, f'ops[{i}]{place}')}: {problem}"
        for op in dict.fromkeys(rule.op):
            problem = "" if op == ANY_OPERATOR else _find_problem(op, rule, target)
            alone = rule.standalone or op == ANY_OPERATOR
            if not (problem or alone) and in_composites.isdisjoint({op, ANY_OPERATOR}):
                problem = "it is taken only inside a composite (standalone), and none has it"
            if problem:
                yield f"{_locate(target, f'ops[{i}]')}: {op} is never taken: {problem}"


def _locate(target: Target, place: str) -> str:
    """Return the location of a part of a rule file, with its line where the file itself has it."""
    found = target.locate(place)
    try:
        line = find_line(find_file(ANNOTATIONS, split_generation(target.source)[0]), found)
    except InputError:  # a file that is not there any more
        line = None
    return found if line is None or ": " in found else f"{found} (line {line})"


def _find_problem(op: str, rule: OpRule, target: Target) -> str:
    """Return why no version of an operator can meet a rule; empty where one can."""
    schemas = sorted(find_schemas(op), key=lambda each: each.since_version)
    if not schemas:
        return ""
    problems = []
    latest, possible = None, False
    for schema, after in zip(schemas, [*schemas[1:], None], strict=True):
        last = inf if after is None else after.since_version - 1
        if schema.deprecated or last < (rule.opset.min or 0):
            continue
        if schema.since_version > (inf if rule.opset.max is None else rule.opset.max):
            continue
        latest = schema
        found = next(_list_problems(schema, rule, target), "")
        if not found:
            possible = True
        problems.append(found)
    if possible and latest is not None:
        # ONNX infers nothing for some early versions, and ranks are hardly ever others there.
        return next(_find_rank_problems(latest, rule, target, _list_needed(latest, rule)), "")
    first, newest = schemas[0].since_version, schemas[-1]
    if problems:
        return problems[-1]
    limits = f"{rule.opset.min or 1:g} to {rule.opset.max or inf:g}"
    ended = f", and gone in {newest.since_version}" if newest.deprecated else ""
    return f"it is there from operator set {first} on{ended}, the rule takes {limits} (opset)"


def _list_problems(schema: OperatorSchema, rule: OpRule, target: Target) -> Iterator[str]:
    """Yield the reasons why no node of a version of an operator meets a rule."""
    yield from _find_absent(schema, rule)
    for name, wanted in rule.attributes.items():
        yield from _check_attribute(schema, name, wanted)
    needed = _list_needed(schema, rule)
    # A model reads what every node has; of outputs that are all optional it reads some.
    always = [each for each in schema.outputs if not each.optional]
    outputs = [always] if always else [[each] for each in schema.outputs]
    yield from _find_sequences(needed, [each for some in outputs for each in some])
    if rule.quantized:
        if not any(FLOATS & formal.dtypes for formal in schema.inputs):
            yield "inputs of a rule with `quantized: true` are floats, and it has none of floats"
        return
    each = [list(_find_dtype_problems(schema, rule, target, [*needed, *some])) for some in outputs]
    if each and all(each):
        yield each[0][0]


def _find_absent(schema: OperatorSchema, rule: OpRule) -> Iterator[str]:
    """Yield the tensors that must be left out and cannot be, or must be given and are not there."""
    required = {each.name for each in schema.inputs if not each.optional}
    if len(schema.outputs) == 1:
        required.add(schema.outputs[0].name)
    there = {each.name for each in (*schema.inputs, *schema.outputs)}
    for name, wanted in rule.tensors.items():
        if wanted.absent and name in required:
            yield f"its {name} cannot be left out (tensors.{name}.absent)"
        if wanted.absent is False and name not in there:
            yield f"operator set {schema.since_version} has no {name}, which must be given"


def _list_needed(schema: OperatorSchema, rule: OpRule) -> list[FormalParameter]:
    """Return the inputs that every node which meets a rule has."""
    given = {name for name, wanted in rule.tensors.items() if wanted.absent is False}
    variadic = schema.min_input if schema.inputs and schema.inputs[-1].variadic else inf
    return [
        each
        for place, each in enumerate(schema.inputs)
        if each.name in given or (not each.optional and (not each.variadic or place < variadic))
    ]


def _find_sequences(
    needed: Sequence[FormalParameter], outputs: Sequence[FormalParameter]
) -> Iterator[str]:
    for formal in needed:
        if not formal.dtypes:
            yield f"its {formal.name} is no tensor ({formal.type_str}), and a region has tensors alone"
    if outputs and all(not each.dtypes for each in outputs):
        yield "what it makes is no tensor, and a region has tensors alone"


# Data types: those that a rule allows each tensor, and those that the operator's schema does.


def _find_allowed(
    schema: OperatorSchema, formal: FormalParameter, rule: OpRule, target: Target
) -> frozenset[str] | None:
    """Return the dtypes that a rule allows a tensor, None for all."""
    own = rule.tensors.get(formal.name, TensorRule()).dtype
    dtypes = rule.dtype or target.rules.dtype
    if own is None and not schema.is_computed(formal.type_str, dtypes):
        return None
    allowed = own or dtypes
    if not allowed or ANY_DTYPE in allowed:
        return None
    found = set(allowed)
    if target.compute_dtype in found:  # a model's float32 is computed in it
        found.add("float32")
    return frozenset(found)


def _find_dtype_problems(
    schema: OperatorSchema, rule: OpRule, target: Target, formals: Sequence[FormalParameter]
) -> Iterator[str]:
    """Yield the tensors that cannot have an allowed dtype, alone or together with others."""
    left: dict[str, tuple[FormalParameter, frozenset[str]]] = {}
    for formal in formals:
        allowed = _find_allowed(schema, formal, rule, target)
        possible = formal.dtypes if allowed is None else formal.dtypes & allowed
        if allowed is not None and not possible:
            yield _describe_dtypes(
                formal, allowed, rule, _find_remedy(schema, rule, target, formals, formal)
            )
            return
        if formal.type_str not in schema.variables or (formal.variadic and not formal.homogeneous):
            continue
        first, before = left.get(formal.type_str, (formal, possible))
        if not before & possible:
            one, other = (", ".join(sorted(each)[:_FEW]) for each in (before, possible))
            yield (
                f"{first.name} may be {one} and {formal.name} {other}, and both have one type "
                f"({formal.type_str}): give both the same `dtype`"
            )
            return
        left[formal.type_str] = first, before & possible


def _find_remedy(
    schema: OperatorSchema,
    rule: OpRule,
    target: Target,
    formals: Sequence[FormalParameter],
    formal: FormalParameter,
) -> str:
    """Return the keys that let a rule be met, for the tensor or for all; empty where none do."""
    dtype = next((each for each in ("float32", "bool") if each in formal.dtypes), min(formal.dtypes))
    own = rule.tensors.get(formal.name, TensorRule()).model_copy(update={"dtype": (dtype,)})
    tensor = rule.model_copy(update={"tensors": {**rule.tensors, formal.name: own}})
    for changed, text in (
        (tensor, f"tensors: {{{formal.name}: {{dtype: {dtype}}}}}"),
        (rule.model_copy(update={"dtype": (dtype,)}), f"dtype: {dtype}"),
    ):
        if _is_possible(schema, changed, target, formals):
            return text
    return ""


def _is_possible(
    schema: OperatorSchema, rule: OpRule, target: Target, formals: Sequence[FormalParameter]
) -> bool:
    """Return whether tensors may have allowed dtypes, each alone and together with others."""
    left: dict[str, frozenset[str]] = {}
    for formal in formals:
        allowed = _find_allowed(schema, formal, rule, target)
        possible = formal.dtypes if allowed is None else formal.dtypes & allowed
        if formal.type_str in schema.variables and (formal.homogeneous or not formal.variadic):
            possible = left.setdefault(formal.type_str, possible) & possible
            left[formal.type_str] = possible
        if not possible:
            return False
    return True


def _describe_dtypes(formal: FormalParameter, allowed: frozenset[str], rule: OpRule, remedy: str) -> str:
    names = sorted(formal.dtypes)
    few = ", ".join(names) if len(names) <= _FEW else f"{', '.join(names[:_FEW])} or others"
    own = rule.tensors.get(formal.name, TensorRule()).dtype
    where = f"tensors.{formal.name}.dtype" if own else "dtype"
    advice = f": say `{remedy}`" if remedy else ""
    return f"{formal.name} is {few}; allowed by {where}: {', '.join(sorted(allowed))}{advice}"


# Ranks: each is tried by ONNX's own inference of a single node.


def _find_rank_problems(
    schema: OperatorSchema, rule: OpRule, target: Target, needed: Sequence[FormalParameter]
) -> Iterator[str]:
    """Yield the tensors whose ranks the operator does not take or make."""
    given = {formal.name: rule.tensors[formal.name] for formal in needed if formal.name in rule.tensors}
    ranks = {name: _list_ranks(wanted) for name, wanted in given.items() if _says_rank(wanted)}
    made = {
        formal.name: _list_ranks(rule.tensors[formal.name])
        for formal in schema.outputs[:1]
        if formal.name in rule.tensors and _says_rank(rule.tensors[formal.name])
    }
    if schema.onnx_schema is None or not schema.inputs or not (ranks or made):
        return
    trial = _RankTrial(schema, rule, target, needed)
    if not trial.takes({}):  # for reasons of its own, such as an attribute that is not known
        return
    free = [each.name for each in needed if each.name not in ranks][:_MOST_FREE] if ranks else []
    every = {**ranks, **dict.fromkeys(free, range(_MOST_FREE_RANK + 1))}
    for combination in islice(product(*every.values()), _MOST_COMBINATIONS):
        for found in trial.infer(dict(zip(every, combination, strict=True))):
            if all(found.get(name) in (None, *there) for name, there in made.items()):
                return
    any_ranks = {name: range(_MOST_RANK + 1) for name in every}
    if every and not trial.find_any(any_ranks):
        return  # it is refused at any rank, for want of something else: an input, an attribute
    if not ranks:
        ((name, there),) = made.items()
        yield f"{name} has no rank of {', '.join(map(str, there))} (tensors.{name})"
        return
    names = " and ".join((*ranks, *made))
    yield f"ONNX has no node of it with the ranks that are asked of {names} (rank, dims)"


def _says_rank(wanted: TensorRule) -> bool:
    return bool(wanted.rank) or any(axis != EACH_DIM for axis in wanted.dims)


def _list_ranks(wanted: TensorRule) -> list[int]:
    """Return the ranks that a tensor may have by a rule: stated, or those that have its dimensions."""
    axes = [int(axis) for axis in wanted.dims if axis != EACH_DIM]
    ranks = wanted.rank or range(_MOST_RANK + 1)
    return [rank for rank in ranks if all(-rank <= axis < rank for axis in axes)]


class _RankTrial:
    """Nodes of one version of an operator with tensors of given ranks, as ONNX infers them."""

    def __init__(
        self,
        schema: OperatorSchema,
        rule: OpRule,
        target: Target,
        needed: Sequence[FormalParameter],
    ) -> None:
        self.schema, self.needed = schema, needed
        chosen: dict[str, str] = {}
        for formal in needed:
            allowed = _find_allowed(schema, formal, rule, target)
            # Inside a QDQ group the dtypes of a rule are those on the outer side.
            possible = sorted((allowed and formal.dtypes & allowed) or formal.dtypes)
            likely = [each for each in ("float32", "int64", *possible) if each in possible]
            chosen.setdefault(formal.type_str, likely[0])
        self.dtypes = {formal.name: chosen[formal.type_str] for formal in needed}
        self.attributes = list(_list_attributes(schema, rule))

    def find_any(self, ranks: Mapping[str, Sequence[int]]) -> bool:
        """Return whether ONNX takes a node of some ranks: those in the middle are tried first."""
        likely = {name: sorted(each, key=lambda rank: abs(rank - 3)) for name, each in ranks.items()}
        combinations = islice(product(*likely.values()), _MOST_COMBINATIONS)
        return any(self.takes(dict(zip(ranks, each, strict=True))) for each in combinations)

    def takes(self, ranks: Mapping[str, int]) -> bool:
        """Return whether there is a node of these ranks."""
        return next(self.infer(ranks), None) is not None

    def infer(self, ranks: Mapping[str, int]) -> Iterator[dict[str, int | None]]:
        """Yield the ranks of what nodes make, None each where it is open."""
        # ONNX wants to know how many sizes or pads there are: as many as dimensions, or twice that.
        first = next(iter(ranks.values()), 0)
        tried = (
            self._infer(ranks, attributes, count)
            for count in ((0, first, 2 * first, _ONES) if ranks else (0,))
            for attributes in self.attributes
        )
        return (found for found in tried if found is not None)

    def _infer(
        self, ranks: Mapping[str, int], attributes: Mapping[str, Any], count: int
    ) -> dict[str, int | None] | None:
        inputs = {}
        for formal in self.needed:
            dtype = self.dtypes[formal.name]
            kind = TypeProto()
            kind.tensor_type.elem_type = DTYPE_NUMBERS[dtype]
            if formal.name in ranks:
                kind.tensor_type.shape.SetInParent()
                for _ in range(ranks[formal.name]):
                    dim = kind.tensor_type.shape.dim.add()
                    if count == _ONES:
                        dim.dim_value = 1
                if count > 0 and ranks[formal.name] == 1 and dtype == "int64":
                    kind.tensor_type.shape.dim[0].dim_value = count
            inputs[formal.name] = kind
        names = [each.name if each.name in inputs else "" for each in self.schema.inputs]
        while names and not names[-1]:
            names.pop()
        node = build_node(
            self.schema.op_type,
            names,
            [each.name for each in self.schema.outputs[: max(1, self.schema.min_output)]],
            domain=self.schema.domain,
            **attributes,
        )
        found = self.schema.onnx_schema
        assert found is not None
        try:
            imports = [helper.make_opsetid(self.schema.domain, self.schema.since_version)]
            made = onnx.shape_inference.infer_node_outputs(found, node, inputs, opset_imports=imports)
        except (InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError, TypeError):
            return None
        return {name: _read_rank(kind) for name, kind in made.items()}


def _read_rank(kind: TypeProto) -> int | None:
    return len(kind.tensor_type.shape.dim) if kind.tensor_type.HasField("shape") else None


def _list_attributes(schema: OperatorSchema, rule: OpRule) -> Iterator[dict[str, Any]]:
    """Yield attributes that a node may have, since ranks depend on them (`keepdims`, `axes`).

    They are those that it must state or that the rule names values of, lists of any length, and then
    each other attribute with small values.
    """
    stated = {
        name: each.kind
        for name, each in schema.attributes.items()
        if each.required or (name in rule.attributes and rule.attributes[name].one_of)
    }
    has_list = not {"INTS", "FLOATS", "STRINGS"}.isdisjoint(stated.values())
    for length in range(1, 2 * _MOST_RANK + 1 if has_list else 2):  # pads are two for a dimension
        made = {
            name: _make_attribute(kind, rule.attributes.get(name), length)
            for name, kind in stated.items()
        }
        yield made
        for name, each in schema.attributes.items():
            if each.kind == "INT" and not rule.attributes.get(name, AttributeRule()).one_of:
                yield from ({**made, name: value} for value in (0, -1, 1))
            if each.kind == "INTS" and not each.required:
                yield from ({**made, name: list(range(count))} for count in range(1, _MOST_RANK))


def _make_attribute(kind: str, wanted: AttributeRule | None, length: int) -> Any:
    """Return a value of an attribute that a node must state, one that the rule allows if it says so."""
    if wanted is not None and wanted.one_of:
        return wanted.one_of[0]
    least = 1 if wanted is None or wanted.min is None else wanted.min
    values = {"INT": round(least), "FLOAT": float(least), "STRING": ""}
    return values.get(kind, [1.0 if kind == "FLOATS" else 1] * length)


# Constraints that contradict themselves or the operator: attributes, numbers.


def _check_attribute(schema: OperatorSchema, name: str, wanted: AttributeRule) -> Iterator[str]:
    """Yield why no value of an attribute meets a constraint; one without a value meets most."""
    known = schema.attributes.get(name)
    if known is None:
        if wanted.absent is False:
            yield f"operator set {schema.since_version} has no attribute {name}, which must have a value"
        return
    has_value = known.required or known.default is not None
    if wanted.absent and has_value:
        yield f"attribute {name} always has a value (attributes.{name}.absent)"
    if not has_value and wanted.absent is not False:
        return
    if wanted.one_of and not any(_is_value(schema, name, known.kind, v) for v in wanted.one_of):
        listed = ", ".join(map(str, wanted.one_of))
        words = _list_texts(schema, name)
        there = f"; it has {', '.join(sorted(words))}" if words else ""
        yield f"attribute {name} ({known.kind}) is never {listed}{there} (attributes.{name}.one_of)"
    if known.kind == "INT" and not _has_whole(wanted):
        yield f"no whole number lies within the limits of {name} (attributes.{name})"
    elements = wanted.each if known.kind == "INTS" and 0 not in (wanted.length or (0,)) else None
    if elements is not None and not _has_whole(elements):
        yield f"no whole number lies within the limits of {name}'s elements (attributes.{name}.each)"


def _list_texts(schema: OperatorSchema, name: str) -> list[str]:
    """Return the texts that an attribute may be, none where they are not known."""
    return _TEXTS.get(schema.op_type, {}).get(name, "").split() if schema.domain == "" else []


def _is_value(schema: OperatorSchema, name: str, kind: str, value: bool | float | str) -> bool:
    if kind == "STRING":
        words = _list_texts(schema, name)
        return isinstance(value, str) and (not words or value in words)
    if isinstance(value, (str, bool)):
        return kind not in {"INT", "FLOAT"}
    return kind != "INT" or float(value).is_integer()


def _has_whole(bounds: Bounds, multiple: int = 1) -> bool:
    """Return whether a whole number, a multiple of another one, lies within limits."""
    low = -inf if bounds.min is None else bounds.min
    high = inf if bounds.max is None else bounds.max
    if -inf in (low, high) or inf in (low, high):
        return True
    return ceil(low / multiple) <= floor(high / multiple)


def _find_contradictions(rule: OpRule) -> Iterator[tuple[str, str]]:
    """Yield constraints of a rule that contradict one another, each with its place and what is wrong."""
    for name, wanted in rule.attributes.items():
        yield from _check_choices(f".attributes.{name}", wanted)
        if wanted.each is not None:
            yield from _check_choices(f".attributes.{name}.each", wanted.each)
        if wanted.length and max(wanted.length) < 0:
            yield f".attributes.{name}.length", f"no list has {max(wanted.length)} elements"
    for name, tensor in rule.tensors.items():
        place = f".tensors.{name}"
        for axis, dim in tensor.dims.items():
            at = f"{place}.dims.{axis}" if axis == EACH_DIM else f"{place}.dims[{axis}]"
            yield from _check_choices(at, dim)
            yield from _check_count(at, dim)
        if tensor.elements is not None:
            yield from _check_count(f"{place}.elements", tensor.elements)
            one = tensor.elements.max is not None and tensor.elements.max < 1
            least = tensor.elements.min is not None and tensor.elements.min > 1
            if tensor.scalar and (one or least or (tensor.elements.multiple_of or 1) > 1):
                yield f"{place}.elements", "a tensor of one element (`scalar: true`) never has as many"
        if tensor.rank and max(tensor.rank) < 0:
            yield f"{place}.rank", "no tensor has a rank below 0"
        if tensor.static is False and (tensor.elements or tensor.bytes or tensor.scalar is not None):
            yield f"{place}.static", "the size of a tensor is known only where every dimension is fixed"
        if tensor.constant and tensor.static is False:
            yield f"{place}.static", "a constant is fixed in every dimension"
        if tensor.value is not None:
            yield from _check_choices(f"{place}.value", tensor.value)


def _check_choices(place: str, wanted: ElementRule | AttributeRule | Any) -> Iterator[tuple[str, str]]:
    """Yield a problem where no one of several values lies within the limits beside it."""
    numbers = [each for each in wanted.one_of or () if not isinstance(each, (bool, str))]
    if wanted.one_of and numbers and len(numbers) == len(wanted.one_of):
        low = -inf if wanted.min is None else wanted.min
        high = inf if wanted.max is None else wanted.max
        step = getattr(wanted, "multiple_of", None) or 1
        if not any(low <= each <= high and (step == 1 or each % step == 0) for each in numbers):
            yield f"{place}.one_of", "no value lies within the other limits"


def _check_count(place: str, wanted: CountRule) -> Iterator[tuple[str, str]]:
    low = 0 if wanted.min is None else max(wanted.min, 0)
    if wanted.max is not None and wanted.max < 0:
        yield f"{place}.max", "no number of elements is below 0"
    elif not _has_whole(Bounds(min=low, max=wanted.max), wanted.multiple_of or 1):
        step = f", a multiple of {wanted.multiple_of}," if wanted.multiple_of else ""
        yield f"{place}", f"no whole number{step} lies within its limits"
