"""The linter of rule files: all mistakes at once, each with its location, by ONNX's operator schemas."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from byoc.errors import InputError, suggest_nearest
from byoc.model import DTYPES, IMAGE, WEIGHT, list_own_bodies, parse_layout
from byoc.model.schemas import describe_unknown_operator, find_schemas
from byoc.patterns import ANY_OPERATOR, Pattern, PatternForm
from byoc.rules._composite_library import Library, make_pattern, open_library
from byoc.rules._condition_lint import lint_check_name, lint_operator_rule, lint_pattern_condition
from byoc.rules._rule_schema import (
    CompositeRule,
    Drop,
    Host,
    Layout,
    Nodes,
    OpRule,
    RuleFile,
    TensorRule,
    lint_drop,
)
from byoc.rules._schema_values import (
    ANY_DTYPE,
    ArithmeticClause,
    Names,
    Quantization,
    lint_arithmetic,
    wrap_single_part,
)
from byoc.support import format_short, validate_content
from byoc.support.expressions import compile_regex

# More than a file of 500 rules for one operator needs.
_MAX_COMPARISONS = 200_000
_MAX_MISTAKES = 1_000  # of one file; a reader mends the first
_SET_KEYS = {"rank", "one_of", "length", "broadcast"}


def find_hidden_rules(rules: Sequence[tuple[int, OpRule]], dtypes: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each rule, or operator of one, that an earlier rule hides.

    Only obvious cases are found: each constraint of the earlier rule follows from one of the same name
    in the later. `dtypes` are the file's. After `_MAX_COMPARISONS` of two rules nothing more is yielded.
    """
    left = _MAX_COMPARISONS
    before: dict[str, list[tuple[int, OpRule]]] = {}
    for i, rule in rules:
        covered: dict[int, list[str]] = {}
        for op in dict.fromkeys(rule.op):
            names = dict.fromkeys((op, ANY_OPERATOR))
            for number, other in merge(*(before.get(name, ()) for name in names), key=itemgetter(0)):
                left -= 1
                if left < 0:
                    return
                if _covers(other, rule, dtypes):
                    covered.setdefault(number, []).append(op)
                    break
        for number, ops in covered.items():
            about = "" if len(ops) == len(set(rule.op)) else f" about {', '.join(ops)}"
            yield f"ops[{i}]: never asked{about}, since ops[{number}] takes all that this rule would"
        for op in dict.fromkeys(rule.op):
            before.setdefault(op, []).append((i, rule))


def _covers(first: OpRule, second: OpRule, dtypes: Sequence[str]) -> bool:
    """Return whether the first rule accepts everything that the second accepts."""
    if first.quantized != second.quantized or not _implies(second.opset, first.opset):
        return False
    if first.check not in (None, second.check) or not _has_same_scheme(first, second):
        return False
    if not {c.expr for c in first.where} <= {c.expr for c in second.where}:
        return False
    wide, narrow = first.dtype or dtypes, second.dtype or dtypes
    if not _are_dtypes_within(narrow, wide) or not _tensors_cover(first, second, wide, narrow):
        return False
    return all(
        name in second.attributes and _implies(second.attributes[name], rule)
        for name, rule in first.attributes.items()
        if rule.model_fields_set
    )


def _has_same_scheme(first: OpRule, second: OpRule) -> bool:
    """Return whether the file's quantization scheme adds the same constraints to both rules."""
    if not first.quantized:
        return True
    own = [
        {name: rule.quantized for name, rule in r.tensors.items() if rule.quantized}
        for r in (first, second)
    ]
    return own[0] == own[1] and (
        bool(first.dtype) == bool(second.dtype) or ANY_DTYPE in (first.dtype or ())
    )


def _tensors_cover(first: OpRule, second: OpRule, wide: Sequence[str], narrow: Sequence[str]) -> bool:
    for name in {*first.tensors, *second.tensors}:
        outer, inner = first.tensors.get(name, TensorRule()), second.tensors.get(name, TensorRule())
        if (outer.dtype or inner.dtype) and not _are_dtypes_within(
            inner.dtype or narrow, outer.dtype or wide
        ):
            return False
        if not _implies(inner, outer):
            return False
    return True


def _are_dtypes_within(narrow: Sequence[str], wide: Sequence[str]) -> bool:
    return ANY_DTYPE in wide or (ANY_DTYPE not in narrow and set(narrow) <= set(wide))


def _implies(inner: BaseModel, outer: BaseModel) -> bool:
    """Return whether `inner` is at least as strict as `outer`, a rule of the same type."""
    return all(
        name == "dtype" or _constraint_follows(name, getattr(inner, name), getattr(outer, name))
        for name in outer.model_fields_set
    )


def _constraint_follows(name: str, inner: Any, outer: Any) -> bool:  # noqa: PLR0911 - one return for each kind of constraint
    if outer is None or outer == inner:
        return True
    if isinstance(outer, dict):
        return all(key in (inner or {}) and _implies(inner[key], outer[key]) for key in outer)
    if inner is None:
        return False
    if isinstance(outer, BaseModel):
        return _implies(inner, outer)
    if name in _SET_KEYS:
        return set(inner) <= set(outer)
    if name == "min":
        return bool(inner >= outer)
    if name == "max":
        return bool(inner <= outer)
    if name == "multiple_of":
        return int(inner) % int(outer) == 0
    return False


_NAMES_ADAPTER: TypeAdapter[tuple[str, ...]] = TypeAdapter(Names)

RuleT = TypeVar("RuleT", bound=BaseModel)

# The names of dtypes in other formats and frameworks.
_DTYPE_ALIASES = {
    **{"half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16"},
    **{"float": "float32", "fp32": "float32", "f32": "float32"},
    **{"double": "float64", "fp64": "float64", "f64": "float64"},
    **{f"{short}{bits}": f"int{bits}" for short in ("i", "s") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{"fp8": "float8e4m3fn", "boolean": "bool", "str": "string"},
}


def lint_rule_file(
    content: Mapping[Any, Any], base: RuleFile | None = None, *, unknown_base: bool = False
) -> list[str]:
    """Return a sentence for each mistake in a rule file, up to a limit: `ops[3].op: ONNX has no ...`.

    `content` is the file as read, `base` the file that it extends; `unknown_base` tells that it extends
    a file that could not be read. Rules and composites that do not validate are skipped: those mistakes
    come from `byoc.support.validate_content`.
    """
    return list(islice(_find_mistakes(content, base, unknown_base), _MAX_MISTAKES))


def _find_mistakes(
    content: Mapping[Any, Any], base: RuleFile | None, unknown_base: bool
) -> Iterator[str]:
    """Yield a sentence for each mistake, as `lint_rule_file` returns them."""
    ops = _read_parts(content.get("ops"), OpRule)
    composites = _read_parts(content.get("composites"), CompositeRule)
    dtypes = _read_names(content.get("dtype"))
    yield from lint_dtypes("dtype", dtypes)
    yield from _lint_layout(content.get("layout"))
    yield from _lint_quantization(content.get("quantization"))
    yield from _lint_host(content.get("host"))
    yield from _lint_keep(content.get("keep"))
    yield from _lint_annotations(content.get("annotations"))
    clauses = _read_parts(wrap_single_part(content.get("arithmetic")), ArithmeticClause)
    yield from lint_arithmetic(clauses, _lint_operator, lint_dtypes)
    for i, rule in ops:
        yield from lint_dtypes(f"ops[{i}].dtype", rule.dtype or ())
        for name, wanted in rule.tensors.items():
            yield from lint_dtypes(f"ops[{i}].tensors.{name}.dtype", wanted.dtype or ())
        yield from (f"ops[{i}].op: {problem}" for op in rule.op for problem in _lint_operator(op))
        yield from lint_operator_rule(f"ops[{i}]", rule)
    yield from find_hidden_rules(ops, dtypes or (base.dtype if base else ()))
    own = {op for _, rule in ops for op in rule.op}
    drop = validate_content(content.get("drop", {}), Drop)[0] or Drop()
    if base is not None:
        yield from lint_drop(drop, base)
    elif drop != Drop() and "extends" not in content:
        yield "drop: the file extends no other, so there is nothing to leave out"
    below = {op for rule in (base.ops if base else ()) for op in rule.op} - {*drop.ops}
    taken = own | (below if not unknown_base else {ANY_OPERATOR})
    target = content.get("target", base.target if base else None)
    yield from lint_composites(composites, taken, target if isinstance(target, str) else "?")


def _read_parts(entries: object, kind: type[RuleT]) -> list[tuple[int, RuleT]]:
    checked = [_read_part(entry, kind) for entry in entries] if isinstance(entries, list) else []
    return [(i, part) for i, part in enumerate(checked) if part is not None]


def _read_part(entry: object, kind: type[RuleT]) -> RuleT | None:
    try:
        return kind.model_validate(entry)
    except ValidationError:
        return None


def _read_names(value: object) -> tuple[str, ...]:
    try:
        return _NAMES_ADAPTER.validate_python(value)
    except ValidationError:
        return ()


def lint_dtypes(place: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield a sentence for each name that is not a data type."""
    known = (*DTYPES.values(), ANY_DTYPE)
    for name in names:
        if name not in known:
            hint = (
                f" (did you mean {_DTYPE_ALIASES[name]}?)"
                if name in _DTYPE_ALIASES
                else suggest_nearest(name, known)
            )
            known_names = f"; known: {', '.join(known)}"
            yield f"{place}: no such data type '{format_short(name)}'{hint or known_names}"


def _lint_operator(op: str) -> Iterator[str]:
    """Yield a sentence for an unknown operator of ONNX's and onnxruntime's domains."""
    if op != ANY_OPERATOR and (problem := describe_unknown_operator(op)):
        yield problem


def _lint_layout(value: object) -> Iterator[str]:
    words = validate_content(value, Layout)[0] or Layout()
    for key, axes in (("activations", IMAGE), ("weights", WEIGHT)):
        word = getattr(words, key)
        if word is None:
            continue
        try:
            layout = parse_layout(format_short(word))
        except ValueError as error:
            yield f"layout.{key}: {error}"
            continue
        if layout.plain_axes != axes:
            yield f"layout.{key}: {layout} is not of {key}, whose axes are {', '.join(axes)}"
        elif key == "activations" and words.convert == "either" and layout.blocks:
            yield f"layout.convert: only the host converts to {layout}, which has blocks"


def _lint_quantization(value: object) -> Iterator[str]:
    scheme = validate_content(value, Quantization)[0]
    if scheme is None:
        return
    for key in ("activations", "weights", "bias"):
        part = getattr(scheme, key)
        yield from lint_dtypes(f"quantization.{key}.dtype", (part.dtype if part else None) or ())
    for i, op in enumerate(scheme.same_scale or ()):
        if op == ANY_OPERATOR:
            yield f"quantization.same_scale[{i}]: name the operators, '{ANY_OPERATOR}' is not one"
        yield from (f"quantization.same_scale[{i}]: {problem}" for problem in _lint_operator(op))


def _lint_host(value: object) -> Iterator[str]:
    host = validate_content(value, Host)[0]
    if host is not None:
        yield from _lint_nodes("host", host)
        yield from _lint_nodes("host.after", host.after)


def _lint_nodes(place: str, nodes: Nodes) -> Iterator[str]:
    for i, op in enumerate(nodes.ops):
        if op == ANY_OPERATOR:
            yield f"{place}.ops[{i}]: name the operators, '{ANY_OPERATOR}' is not one"
        yield from (f"{place}.ops[{i}]: {problem}" for problem in _lint_operator(op))
    yield from _lint_patterns(f"{place}.names", nodes.names)


def _lint_keep(value: object) -> Iterator[str]:
    for i, op in enumerate(_read_names(value)):
        if op == ANY_OPERATOR:
            yield f"keep[{i}]: name the operators, '{ANY_OPERATOR}' is not one"
            continue
        problems = [*_lint_operator(op)]
        yield from (f"keep[{i}]: {problem}" for problem in problems)
        schemas = find_schemas(op)
        defined = op in list_own_bodies() or any(schema.is_function for schema in schemas)
        if not problems and schemas and not defined:
            yield f"keep[{i}]: {op} is made of no other operators, so that it is whole anyway"


def _lint_annotations(value: object) -> Iterator[str]:
    for key, patterns in value.items() if isinstance(value, dict) else ():
        yield from _lint_patterns(f"annotations.{key}", _read_names(patterns))


def _lint_patterns(place: str, patterns: Sequence[str]) -> Iterator[str]:
    for i, pattern in enumerate(patterns):
        try:
            compile_regex(pattern)
        except ValueError as error:
            yield f"{place}[{i}]: {error}"


# Lint of composites: wrong patterns, clashing names, and patterns that can never match.

NumberedComposites = Sequence[tuple[int, CompositeRule]]


def lint_composites(rules: NumberedComposites, taken: Collection[str], target: str) -> list[str]:
    """Return a sentence for each mistake in composites.

    `taken` are the operators that have rules, `target` is the name of the accelerator.
    """
    problems = list(_find_same_names(rules))
    patterns: dict[int, Pattern] = {}
    shelf = open_library(rule for _, rule in rules)
    for i, rule in rules:
        problems.extend(lint_check_name(f"composites[{i}].check", rule.check))
        try:
            patterns[i] = make_pattern(rule.model_copy(update={"check": None}), shelf)
        except InputError as error:
            problems.append(f"composites[{i}].library: {error}")
        except ValueError as error:
            lines = str(error).splitlines()
            problems.extend(f"composites[{i}].{_locate_problem(rule, line, shelf)}" for line in lines)
    for i, found in patterns.items():
        problems.extend(
            f"composites[{i}].{problem}" for problem in _lint_conditions(found, dict(rules)[i])
        )
        problems.extend(
            f"composites[{i}].{problem}" for problem in _find_idle_lines(found, rules, i, taken)
        )
    problems.extend(_find_taken_names(rules, patterns, target))
    return problems


def _lint_conditions(found: Pattern, rule: CompositeRule) -> Iterator[str]:
    """Yield a sentence for each mistake in a composite's own conditions, the last of its pattern."""
    inherited = len(found.where) - len(rule.where)
    for i in range(len(rule.where)):
        for problem in lint_pattern_condition(found, inherited + i):
            yield f"where[{i}]: {problem}"


def _locate_problem(rule: CompositeRule, problem: str, shelf: Library) -> str:
    """Return a problem of the pattern parser with its location in the rule file."""
    key = "library" if rule.library is not None else "pattern"
    place, _, text = problem.partition(": ")
    number = re.fullmatch(r"where\[(\d+)\]", place)
    if number is not None:
        inherited = len(shelf.get(rule.library).where) if rule.library is not None else 0
        return f"where[{int(number[1]) - inherited}]: {text}"
    return problem if place.startswith("pattern[") else f"{key}: {problem}"


def _find_same_names(rules: NumberedComposites) -> Iterator[str]:
    first: dict[str, int] = {}
    for i, rule in rules:
        other = first.setdefault(rule.display_name, i)
        if other != i:
            yield f"composites[{i}].name: '{rule.display_name}' is the name of composites[{other}] too"


def _find_idle_lines(
    found: Pattern, rules: NumberedComposites, number: int, taken: Collection[str]
) -> Iterator[str]:
    """Yield a sentence for each line that keeps a pattern from ever matching, for lack of a rule.

    One variant that can match is enough, and so is a form without an optional line.
    """
    if (
        not taken
        or ANY_OPERATOR in taken
        or any(not _list_unsupported_lines(form, taken) for form in found.forms)
    ):
        return
    rule = dict(rules)[number]
    for form in found.forms[:1]:
        key = "library" if rule.library is not None else "pattern"
        for line, ops in _list_unsupported_lines(form, taken):
            at = f"{key}[0]" if len(rule.pattern) > 1 else key
            yield f"{at}: line {line}: no rule in ops takes {' or '.join(ops)}"


def _list_unsupported_lines(
    form: PatternForm, taken: Collection[str]
) -> list[tuple[int, Sequence[str]]]:
    """Return the required lines of a form whose operators have no rule."""
    return [
        (node.line_number, node.ops)
        for node in form.nodes
        if ANY_OPERATOR not in node.ops and not node.optional and not any(op in taken for op in node.ops)
    ]


def _find_taken_names(
    rules: NumberedComposites, patterns: dict[int, Pattern], target: str
) -> Iterator[str]:
    """Yield a sentence for each composite whose name another function will have."""
    names = {rule.display_name for _, rule in rules}
    for i, rule in rules:
        if re.fullmatch(rf"{re.escape(target)}_[0-9]+", rule.display_name):
            yield f"composites[{i}].name: '{rule.display_name}' is what a region is called"
        found = patterns.get(i)
        if found is None:
            continue
        choices = {op.replace(".", "_").lower() for node in found.lines for op in node.ops}
        choices |= {name for node in found.lines for name in node.outputs}
        several = len(found.forms) > 1 or any(
            len(node.ops) > 1 or ANY_OPERATOR in node.ops for node in found.lines
        )
        for name in sorted(names):
            rest = name.removeprefix(f"{rule.display_name}_")
            if rest != name and several and _is_variant_suffix(rest, choices):
                yield (
                    f"composites[{i}].name: '{name}' is what a variant of "
                    f"'{rule.display_name}' is called"
                )


def _is_variant_suffix(rest: str, choices: Collection[str]) -> bool:
    return all(part in choices or re.fullmatch(r"no|v?\d+", part) for part in rest.split("_"))
