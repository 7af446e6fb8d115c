"""The linter of rule files: all mistakes at once, each with its location, by ONNX's operator schemas."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from byoc.errors import nearest
from byoc.expressions import compile_regex
from byoc.graph.attributes import onnx_domains
from byoc.graph.layout import IMAGE, WEIGHT, parse_layout
from byoc.graph.types import DTYPES
from byoc.rules.hidden import hidden
from byoc.rules.lint_composites import composite_problems
from byoc.rules.lint_ops import op_problems
from byoc.rules.merge import drop_problems
from byoc.rules.operators import operator, operators
from byoc.rules.schema import (
    CompositeRule,
    Drop,
    Host,
    Layout,
    Nodes,
    OpRule,
    Quantization,
    RuleFile,
)
from byoc.rules.values import ANY, ANY_DTYPE, Names
from byoc.yamlfile import check, shortened

_NAMES: TypeAdapter[tuple[str, ...]] = TypeAdapter(Names)

T = TypeVar("T", bound=BaseModel)

# The names of dtypes in other formats and frameworks.
_ALIASES = {
    **{"half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16"},
    **{"float": "float32", "fp32": "float32", "f32": "float32"},
    **{"double": "float64", "fp64": "float64", "f64": "float64"},
    **{f"{short}{bits}": f"int{bits}" for short in ("i", "s") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{"fp8": "float8e4m3fn", "boolean": "bool", "str": "string"},
}


def lint(
    content: Mapping[Any, Any], base: RuleFile | None = None, *, unknown_base: bool = False
) -> list[str]:
    """Return a sentence for each mistake in a rule file: `ops[3].op: ONNX has no ...`.

    `content` is the file as read, `base` the file that it extends; `unknown_base` tells that it extends
    a file that could not be read. Rules and composites that do not validate are skipped: those mistakes
    come from `byoc.yamlfile.check`.
    """
    ops = _parts(content.get("ops"), OpRule)
    composites = _parts(content.get("composites"), CompositeRule)
    dtypes = _names(content.get("dtype"))
    problems = list(dtype_problems("dtype", dtypes))
    problems.extend(_layout(content.get("layout")))
    problems.extend(_quantization(content.get("quantization")))
    problems.extend(_host(content.get("host")))
    for i, rule in ops:
        problems.extend(dtype_problems(f"ops[{i}].dtype", rule.dtype or ()))
        for name, wanted in rule.tensors.items():
            problems.extend(dtype_problems(f"ops[{i}].tensors.{name}.dtype", wanted.dtype or ()))
        problems.extend(f"ops[{i}].op: {problem}" for op in rule.op for problem in _operator(op))
        problems.extend(op_problems(f"ops[{i}]", rule))
    problems.extend(hidden(ops, dtypes or (base.dtype if base else ())))
    own = {op for _, rule in ops for op in rule.op}
    drop = check(content.get("drop", {}), Drop)[0] or Drop()
    if base is not None:
        problems.extend(drop_problems(drop, base))
    elif drop != Drop() and "extends" not in content:
        problems.append("drop: the file extends no other, so there is nothing to leave out")
    below = {op for rule in (base.ops if base else ()) for op in rule.op} - {*drop.ops}
    taken = own | (below if not unknown_base else {ANY})
    target = content.get("target", base.target if base else None)
    problems.extend(composite_problems(composites, taken, target if isinstance(target, str) else "?"))
    return problems


def _parts(entries: object, kind: type[T]) -> list[tuple[int, T]]:
    checked = [check(entry, kind)[0] for entry in entries] if isinstance(entries, list) else []
    return [(i, part) for i, part in enumerate(checked) if part is not None]


def _names(value: object) -> tuple[str, ...]:
    try:
        return _NAMES.validate_python(value)
    except ValidationError:
        return ()


def dtype_problems(place: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield a sentence for each name that is not a data type."""
    known = (*DTYPES.values(), ANY_DTYPE)
    for name in names:
        if name not in known:
            hint = f" (did you mean {_ALIASES[name]}?)" if name in _ALIASES else nearest(name, known)
            known_names = f"; known: {', '.join(known)}"
            yield f"{place}: no such data type '{shortened(name)}'{hint or known_names}"


def _operator(op: str) -> Iterator[str]:
    """Yield a sentence for an unknown operator of ONNX's own domains; others are accepted."""
    if op != ANY and operator(op) is None and op.rpartition(".")[0] in onnx_domains():
        yield f"ONNX has no operator '{shortened(op)}'{nearest(op, operators())}"


def _layout(value: object) -> Iterator[str]:
    words = check(value, Layout)[0] or Layout()
    for key, axes in (("activations", IMAGE), ("weights", WEIGHT)):
        word = getattr(words, key)
        if word is None:
            continue
        try:
            layout = parse_layout(shortened(word))
        except ValueError as error:
            yield f"layout.{key}: {error}"
            continue
        if layout.plain_axes != axes:
            yield f"layout.{key}: {layout} is not of {key}, whose axes are {', '.join(axes)}"


def _quantization(value: object) -> Iterator[str]:
    scheme = check(value, Quantization)[0]
    if scheme is None:
        return
    for key in ("activations", "weights", "bias"):
        part = getattr(scheme, key)
        yield from dtype_problems(f"quantization.{key}.dtype", (part.dtype if part else None) or ())
    for i, op in enumerate(scheme.same_scale or ()):
        if op == ANY:
            yield f"quantization.same_scale[{i}]: name the operators, '{ANY}' is not one"
        yield from (f"quantization.same_scale[{i}]: {problem}" for problem in _operator(op))


def _host(value: object) -> Iterator[str]:
    host = check(value, Host)[0]
    if host is not None:
        yield from _nodes("host", host)
        yield from _nodes("host.after", host.after)


def _nodes(place: str, nodes: Nodes) -> Iterator[str]:
    for i, op in enumerate(nodes.ops):
        if op == ANY:
            yield f"{place}.ops[{i}]: name the operators, '{ANY}' is not one"
        yield from (f"{place}.ops[{i}]: {problem}" for problem in _operator(op))
    for i, pattern in enumerate(nodes.names):
        try:
            compile_regex(pattern)
        except ValueError as error:
            yield f"{place}.names[{i}]: {error}"
