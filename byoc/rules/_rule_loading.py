"""Loading of rule files with those that they extend, to a checked `Target`; their JSON Schema."""

import marshal
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError, suggest_nearest
from byoc.model.schemas import DTYPE_NUMBERS, list_onnx_operators
from byoc.patterns import ANY_OPERATOR, Pattern
from byoc.rules._composite_library import describe_library_state, make_patterns, read_library
from byoc.rules._rule_lint import lint_rule_file
from byoc.rules._rule_schema import OpRule, RuleFile, apply_defaults, locate_own_clauses, merge_rules
from byoc.rules._schema_values import ANY_DTYPE, GENERATION_NAME, NOT_IN_GENERATIONS, ArithmeticContract
from byoc.support import (
    ANNOTATIONS,
    CHECKS,
    COST_MODELS,
    COSTS,
    find_beside,
    find_extended_file,
    find_file,
    find_installed_file,
    is_file,
    is_installed_name,
    list_installed,
    make_file_error,
    read_mapping,
    validate_content,
)
from byoc.support.trust import list_codegens

if TYPE_CHECKING:
    from byoc.patterns import Mark

# Generations of a target's hardware: what a rule file says of each, and the choice of one.
#
# A generation is a part of a rule file that says what a file extending it would say: rules, limits,
# the cost model and its parameters, options of the codegen. `FILE:GENERATION` names one.

_NAME = re.compile(GENERATION_NAME)


def split_generation(name: str) -> tuple[str, str]:
    """Return the rule file and the generation that `FILE:GENERATION` names; "" for its default.

    What is a file's path as a whole names no generation.
    """
    head, _, tail = name.rpartition(":")
    if not head or not _NAME.search(tail):
        return name, ""
    if is_file(Path(name)) and not is_installed_name(ANNOTATIONS, head):
        return name, ""
    return head, tail


def describe_unknown_generation(name: str, rules: RuleFile) -> str:
    """Return a sentence that names the generations that there are; "" where `name` is one of them."""
    if name in rules.generations:
        return ""
    if not rules.generations:
        return f"{rules.target} has no generations, and so no '{name}'"
    there = ", ".join(rules.generations)
    hint = suggest_nearest(name, rules.generations)
    return f"{rules.target} has no generation '{name}'{hint}; it has: {there}"


def find_generation_problems(content: Mapping[Any, Any], rules: RuleFile) -> Iterator[str]:
    """Yield the mistakes in the generations of a file, each with its location.

    `content` is the file as it was read, `rules` what it says with all that it extends, but for the
    generations.
    """
    if rules.generations and not rules.generation:
        yield "generation: must be given, the one of `generations` that holds where none is named"
    elif problem := describe_unknown_generation(rules.generation, rules) if rules.generation else "":
        yield f"generation: {problem}"
    for name, changes in (content.get("generations") or {}).items():
        for problem in _find_problems_of_one(changes, rules):
            yield f"generations.{name}.{problem}"


def _find_problems_of_one(changes: Mapping[Any, Any], rules: RuleFile) -> Iterator[str]:
    """Yield the mistakes in one generation that do not depend on what it is joined with."""
    kept = {key: value for key, value in changes.items() if key not in NOT_IN_GENERATIONS}
    yield from (f"{key}: a generation cannot change it" for key in changes if key not in kept)
    inherited = {f"{key}: must be given" for key in RuleFile.model_fields}
    yield from (problem for problem in validate_content(kept, RuleFile)[1] if problem not in inherited)
    yield from lint_rule_file(kept, rules)


def list_locations(changes: Any, before: str = "") -> Iterator[str]:
    """Yield the locations of all parts of a generation: `limits`, `limits.batch`, `ops[0]`."""
    parts: list[tuple[str, Any]] = []
    if isinstance(changes, Mapping):
        parts = [(f"{before}.{key}" if before else str(key), value) for key, value in changes.items()]
    elif isinstance(changes, list):
        parts = [(f"{before}[{number}]", value) for number, value in enumerate(changes)]
    for location, value in parts:
        yield location
        yield from list_locations(value, location)


# A million numbers take 240 MB (measured); a network has some hundreds.
_MOST_KNOWN = 1_000_000


@dataclass(frozen=True, eq=False)
class KnownMarks:
    """The marks that all nodes of a signature get, and the numbers that signatures are made of."""

    numbers: dict[Hashable, int] = field(default_factory=dict)
    marks: dict[Hashable, "Mark"] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Target:
    """An accelerator as its rule file describes it; `source` is the user's name for the file.

    `rules` include those of extended files; `locations` maps the location of an inherited part
    (`ops[3]`, `dtype`, `limits.batch`) to that in its own file (`dla.yaml: ops[1]`); `folder` is that
    of the file that names the cost model. With `compute_dtype` (`float16` or `bfloat16`) float32
    tensors are treated as that type, since the regions will compute in it. `values` says whether nodes
    are refused whose values are not shown to stay where `arithmetic` promises exact results, or taken.
    With `asks_beyond` nodes that no rule takes are taken as well, since their compiler is asked.
    """

    source: str
    rules: RuleFile
    locations: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()
    compute_dtype: str | None = None
    values: Literal["shown", "assumed"] = "shown"
    asks_beyond: bool = False

    def open_known_marks(self) -> "KnownMarks":
        """Return the marks of nodes that the rules were tried on in other graphs, for one more graph.

        They begin anew beyond `_MOST_KNOWN`, so that a process that plans many models does not grow;
        graphs that were opened before keep the marks that their numbers belong to.
        """
        if len(self._known_marks.numbers) > _MOST_KNOWN:
            self.__dict__["_known_marks"] = KnownMarks()
        return self._known_marks

    @cached_property
    def _known_marks(self) -> "KnownMarks":
        return KnownMarks()

    @property
    def name(self) -> str:
        """The target's name, which is also the last part of its domain."""
        return self.rules.target

    @property
    def domain(self) -> str:
        """The ONNX domain of the functions made for this target."""
        return f"byoc.{self.name}"

    @property
    def cost_model(self) -> str:
        """The path of the cost model, relative to the file that names it, or the name of a plug-in.

        Raises InputError when there is neither such a file nor a plug-in of that name.
        """
        name = self.rules.cost_model
        try:
            if beside := find_beside(COST_MODELS, self.folder / "rules", name):
                return str(beside)
            plugins = list_installed(COSTS)
            return name if name in plugins else str(find_installed_file(COST_MODELS, name, plugins))
        except InputError as error:
            raise InputError(f"{self.source}: {self.locate('cost_model')}: {error}") from None

    @cached_property
    def has_quantized_rules(self) -> bool:
        """Whether a rule is for operators between DequantizeLinear and QuantizeLinear."""
        return any(rule.quantized for rule in self.rules.ops)

    @cached_property
    def unlimited_rules(self) -> tuple[OpRule, ...]:
        """Rules that take any operator in any type, quantized as well where the file has such rules."""
        forms = (False, *([True] if self.has_quantized_rules else ()))
        return tuple(OpRule(op=(ANY_OPERATOR,), dtype=(ANY_DTYPE,), quantized=form) for form in forms)

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns of the composites, in the order of the file.

        Raises InputError when the library lacks a composite.
        """
        return make_patterns(self.rules.composites)

    @cached_property
    def arithmetic(self) -> ArithmeticContract:
        """The target's arithmetic contract."""
        return ArithmeticContract(self.rules.arithmetic)

    @property
    def generation(self) -> str:
        """The generation of the hardware that is described; empty where the file has none."""
        return self.rules.generation

    @property
    def display_name(self) -> str:
        """The name, with the generation where the file has several: `ethos-u55 (u55-128)`."""
        return f"{self.name} ({self.generation})" if self.generation else self.name

    def locate(self, merged_place: str) -> str:
        """Return the location of a part of `rules`: `ops[3]`, or `dla.yaml: ops[3]` if inherited."""
        outer = merged_place
        while outer and outer not in self.locations:
            outer = outer[: max(outer.rfind("."), outer.rfind("["), 0)]
        return self.locations[outer] + merged_place[len(outer) :] if outer else merged_place


def load_rules(name: str | Path) -> Target:
    """Load a rule file: `name` is its path, or the name of an installed one, such as `dla`.

    `dla:GENERATION` names one of the generations of the hardware that the file has, else its default
    holds. Raises InputError with a line for each mistake in the file, and for a generation that it does
    not have.
    """
    source = str(name)
    file, generation = split_generation(source)
    read = _read_rules(find_file(ANNOTATIONS, file), ())
    chosen = generation or read.target.generation
    if chosen:
        read = _choose_generation(read, chosen, source)
    return replace(read.target, source=source)


def require_dtype(target: Target, dtype: str) -> None:
    """Raise InputError unless a rule of the target supports a data type, such as `float16`."""
    listed = dict.fromkeys(
        name for rule in target.rules.ops for name in rule.dtype or target.rules.dtype
    )
    if dtype not in listed and ANY_DTYPE not in listed:
        place = target.locate("dtype")
        raise InputError(
            f"{target.source}: {place}: no rule is for {dtype}; there are {', '.join(listed)}"
        )


def find_missing_plugins(target: Target) -> list[str]:
    """Return a sentence if the cost model or the codegen of a rule file is not installed.

    Loading does not check them: neither is needed to explain a model, nor the codegen to plan it.
    """
    problems = []
    try:
        _ = target.cost_model
    except InputError as error:
        problems.append(str(error))
    codegen, there = target.rules.codegen, list_codegens()
    if codegen not in there:
        text = (
            f"no such codegen '{codegen}'{suggest_nearest(codegen, there)}; installed: "
            f"{', '.join(there)}"
        )
        problems.append(f"{target.source}: {target.locate('codegen')}: {text}")
    return problems


@dataclass(frozen=True, eq=False)
class _RuleFileContent:
    """A target, and the keys of its file and of extended files as they were read.

    `path` is the file, `origins` has the files of its generations, which it may have inherited.
    """

    target: Target
    content: Mapping[Any, Any]
    path: Path
    origins: Mapping[str, Path]


def _read_rules(path: Path, chain: tuple[Path, ...]) -> _RuleFileContent:
    content = read_mapping(path)
    extends = content.get("extends")
    try:
        base = _read_base(path, extends, (*chain, path)) if isinstance(extends, str) else None
    except InputError as error:
        own = _find_own_problems(content)
        also = make_file_error(path, own).lines if own else ()
        raise InputError(*error.lines, *also) from None
    try:
        written = marshal.dumps(content)
    except ValueError:  # as a date, which is a mistake
        return _check_content(path, content, base)
    return _check_kept_content(path, written, base, (*list_installed(CHECKS), *describe_library_state()))


@lru_cache(maxsize=32)
def _check_kept_content(
    path: Path, written: bytes, base: _RuleFileContent | None, _surroundings: Sequence[object]
) -> _RuleFileContent:
    """Check a file once for each content; `_surroundings` are what else it is checked against.

    To check the rules of an accelerator takes longer than to plan a small model for it.
    """
    return _check_content(path, marshal.loads(written), base)


def _check_content(
    path: Path, content: Mapping[Any, Any], base: _RuleFileContent | None
) -> _RuleFileContent:
    whole = apply_defaults(content, base.content) if base else content
    rules, problems = validate_content(whole, RuleFile)
    problems += lint_rule_file(content, base.target.rules if base else None)
    if rules is None or problems:
        raise make_file_error(path, problems)
    target = Target(str(path), rules, folder=path.parent)
    if base is not None:
        joined, locations = _join(path, content, rules, base.target)
        folder = path.parent if "cost_model" in content else base.target.folder
        target = Target(path.name, joined, locations, folder)
    if wrong := list(find_generation_problems(content, target.rules)):
        raise make_file_error(path, wrong)
    origins = {**(base.origins if base else {}), **dict.fromkeys(content.get("generations", ()), path)}
    return _RuleFileContent(target, whole, path, origins)


def _join(
    path: Path, content: Mapping[Any, Any], rules: RuleFile, base: Target
) -> tuple[RuleFile, dict[str, str]]:
    """Return rules joined with those that they extend, and the locations of what is inherited."""
    joined, places = merge_rules(rules, content, base.rules)
    if not joined.ops:
        raise make_file_error(path, ["drop.ops: no rule for an operator is left"])
    inherited = {place: base.locate(old) for place, old in places.items()}
    return joined, {
        **locate_own_clauses(joined, base.rules),
        **{p: at if ": " in at else f"{base.source}: {at}" for p, at in inherited.items()},
    }


@lru_cache(maxsize=32)
def _choose_generation(read: _RuleFileContent, name: str, source: str) -> _RuleFileContent:
    """Return a file with what one of its generations changes; messages name it `source`.

    Raises InputError where it has no such generation, or the two do not fit together.
    """
    base = read.target
    if problem := describe_unknown_generation(name, base.rules):
        raise InputError(f"{source}: {problem}")
    changes, origin = base.rules.generations[name], read.origins[name]
    whole = apply_defaults(changes, read.content)
    rules, problems = validate_content(whole, RuleFile)
    if rules is None:
        raise make_file_error(origin, [f"generations.{name}.{problem}" for problem in problems])
    joined, places = merge_rules(rules, changes, base.rules)
    if not joined.ops:
        raise make_file_error(origin, [f"generations.{name}.drop.ops: no rule for an operator is left"])
    at = f"generations.{name}" if origin == read.path else f"{origin.name}: generations.{name}"
    locations = {place: f"{at}.{place}" for place in list_locations(changes)}
    locations |= {place: f"{at}.{own}" for place, own in locate_own_clauses(joined, base.rules).items()}
    locations |= {place: base.locate(old) for place, old in places.items()}
    target = replace(
        base,
        rules=joined.model_copy(update={"generation": name}),
        locations=locations,
        folder=origin.parent if "cost_model" in changes else base.folder,
    )
    return replace(read, target=target, content=whole)


def _find_own_problems(content: Mapping[Any, Any]) -> list[str]:
    """Return the mistakes of a file that do not depend on the extended file, which is wrong."""
    inherited = {f"{key}: must be given" for key in RuleFile.model_fields}
    problems = [
        problem for problem in validate_content(content, RuleFile)[1] if problem not in inherited
    ]
    return problems + lint_rule_file(content, unknown_base=True)


def _read_base(path: Path, name: str, chain: tuple[Path, ...]) -> _RuleFileContent:
    if is_file(path.parent / name):
        file, generation = name, ""
    else:
        file, generation = split_generation(name)
    found = find_extended_file(ANNOTATIONS, path, file, chain)
    return _prepare_base(_read_rules(found, chain), generation, str(path), found.name)


@lru_cache(maxsize=32)
def _prepare_base(read: _RuleFileContent, generation: str, path: str, name: str) -> _RuleFileContent:
    """Return a file as the one at `path` extends it; the same object for the same file."""
    if generation:
        read = _fix_generation(_choose_generation(read, generation, f"{path}: extends"))
    return replace(read, target=replace(read.target, source=name))


def _fix_generation(read: _RuleFileContent) -> _RuleFileContent:
    """Return a file with the generation that was chosen of it as all that it describes."""
    content = {key: v for key, v in read.content.items() if key not in ("generation", "generations")}
    rules = read.target.rules.model_copy(update={"generation": "", "generations": {}})
    locations = {
        place: at if ": " in at else f"{read.path.name}: {at}"
        for place, at in read.target.locations.items()
    }
    target = replace(read.target, rules=rules, locations=locations)
    return replace(read, target=target, content=content, origins={})


# Rules without one constraint: what a target takes if its file were wider at one place.

MISSING_OPERATOR = "ops"
"""The path that stands for a missing rule for an operator."""

# The path of a whole rule, which is no constraint.
_NO_CONSTRAINT = re.compile(r"ops\[\d+\](\.quantized)?")
_RULE = re.compile(r"ops\[(\d+)\]")


def drop_constraint(
    target: Target, location: str, op: str = "", *, quantized: bool = False
) -> Target | None:
    """Return a target with one constraint less, None if the path is not that of a constraint.

    `location` is the path that objections report. A constraint on data types becomes `any`. For the path
    `ops`, the operator `op` gets a rule without constraints, for quantized operators if asked for.
    """
    rules = target.rules
    if location == MISSING_OPERATOR:
        return replace(
            target,
            rules=_replace_value(rules, "ops", (*rules.ops, OpRule(op=(op,), quantized=quantized))),
        )
    path = _find_merged_path(target, location)
    if not path or _NO_CONSTRAINT.fullmatch(path):
        return None
    without = _drop_at(rules, path)
    return None if without is None else replace(target, rules=without)


def write_quantized(target: Target) -> Target:
    """Return a target all of whose rules are for quantized operators."""
    ops = tuple(rule.model_copy(update={"quantized": True}) for rule in target.rules.ops)
    return replace(target, rules=target.rules.model_copy(update={"ops": ops}))


def operators_concerned(target: Target, location: str, op: str = "") -> Collection[str] | None:
    """Return the operators that a constraint may concern, None if any."""
    if location == MISSING_OPERATOR:
        return {op}
    found = _RULE.match(_find_merged_path(target, location))
    if found is None:
        return None
    ops = target.rules.ops[int(found[1])].op
    return None if ANY_OPERATOR in ops else set(ops)


def _find_merged_path(target: Target, location: str) -> str:
    """Return the path in the merged rules for a path that may be in a file that was built on."""
    for path, written in target.locations.items():
        if _strip_key(location, written) is not None:
            return path + location[len(written) :]
    return "" if ": " in location else location


def _strip_key(path: str, key: str) -> str | None:
    """Return the rest of a path after a key, None if the path does not begin with the key."""
    if not path.startswith(key):
        return None
    rest = path[len(key) :]
    if not rest or rest[0] == "[":
        return rest
    return rest[1:] if rest[0] == "." else None


def _iterate_keys(part: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield the keys of a part of the rules, as written in paths, and the values."""
    if isinstance(part, BaseModel):
        yield from ((name, name, getattr(part, name)) for name in type(part).model_fields)
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield key, f"[{key}]" if isinstance(key, int) else str(key), value
    elif isinstance(part, tuple):
        yield from ((number, f"[{number}]", value) for number, value in enumerate(part))


def _drop_at(part: Any, path: str) -> Any:
    """Return a part of the rules without the value at a path, None if there is none."""
    for key, written, value in _iterate_keys(part):
        rest = _strip_key(path, written)
        if rest is None:
            continue
        if rest:
            inner = _drop_at(value, rest)
            if inner is not None:
                return _replace_value(part, key, inner)
        elif value is not None and key == "dtype":
            return _replace_value(part, key, (ANY_DTYPE,))
        elif value is not None:
            return _drop_key(part, key)
    return None


def _replace_value(part: Any, key: Any, value: Any) -> Any:
    if isinstance(part, BaseModel):
        return part.model_copy(update={key: value})
    if isinstance(part, Mapping):
        return {**part, key: value}
    return (*part[:key], value, *part[key + 1 :])


def _drop_key(part: Any, key: Any) -> Any:
    if isinstance(part, BaseModel):
        return part.model_copy(update={key: type(part).model_fields[key].get_default()})
    if isinstance(part, Mapping):
        return {other: value for other, value in part.items() if other != key}
    return (*part[:key], *part[key + 1 :])


# The JSON Schema of rule files for editors, made from the types that check them.


_AXIS_PATTERN = r"^(each|-?[0-9]+)$"
# An operator of a domain other than ONNX's own: `com.microsoft.Gelu`.
_FOREIGN_OPERATOR = r"^(?!ai\.onnx\.)[^.].*\."
# In these null removes a key that the extended file has.
_NULLABLE = ("Layout", "Limits", "Quantization", "QuantizedTensors", "QuantizedRule")


def make_json_schema() -> dict[str, Any]:
    """Make the JSON Schema (draft 2020-12) of a rule file.

    It lists the operators and dtypes of the installed ONNX, and the composites of the installed library.
    """
    schema: dict[str, Any] = _simplify(RuleFile.model_json_schema())
    del schema["required"]
    schema["anyOf"] = [
        {"required": ["extends"]},
        {"required": ["target", "cost_model", "dtype", "ops"]},
    ]
    parts = schema["$defs"]
    parts["CompositeRule"]["oneOf"] = [{"required": ["name", "pattern"]}, {"required": ["library"]}]
    dims = parts["TensorRule"]["properties"]["dims"]
    dims["patternProperties"] = {_AXIS_PATTERN: dims["additionalProperties"]}
    dims["additionalProperties"] = False
    parts["operators"] = {
        "anyOf": [
            {"enum": [ANY_OPERATOR, *sorted(list_onnx_operators())]},
            {"type": "string", "pattern": _FOREIGN_OPERATOR},
        ]
    }
    parts["dtypes"] = {"enum": [ANY_DTYPE, *sorted(DTYPE_NUMBERS)]}
    keys = [key for key in schema["properties"] if key not in NOT_IN_GENERATIONS]
    changes = {
        key: {
            "$ref": f"#/properties/{key}",
            "description": schema["properties"][key].get("description", ""),
        }
        for key in keys
    }
    parts["generation"] = {"type": "object", "additionalProperties": False, "properties": changes}
    parts["library"] = {"enum": list(read_library().entries)}
    for name in _NULLABLE:
        for key, part in parts[name]["properties"].items():
            described = {"description": part.pop("description")} if "description" in part else {}
            parts[name]["properties"][key] = {"anyOf": [part, {"type": "null"}], **described}
    start = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "byoc rule file"}
    return {**start, **{key: schema[key] for key in sorted(schema, key=_sort_key)}}


def _sort_key(key: str) -> tuple[bool, str]:
    return key == "$defs", key


def _simplify(schema: Any) -> Any:
    """Return pydantic's schema without titles, empty defaults, and null as an alternative."""
    if isinstance(schema, list):
        return [_simplify(part) for part in schema if part != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    if "x-offered" in schema:
        return {"$ref": f"#/$defs/{schema['x-offered']}"}
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: _simplify(part) for name, part in value.items()}
        elif key != "title" and not (key == "default" and (not value or isinstance(value, dict))):
            result[key] = _simplify(value)
    if len(result.get("anyOf", ())) == 1:
        (only,) = result.pop("anyOf")
        result = {**only, **result}
    return result
