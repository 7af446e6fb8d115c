"""The types of the rule file, which pydantic checks.

All keys are documented in docs/rules.md; `_rule_loading` makes a JSON Schema from these types.
`_rule_lint` checks a file against ONNX's operator schemas, and `_annotator` applies it to
a model.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from byoc.errors import suggest_nearest
from byoc.rules._schema_values import (
    GENERATION_NAME,
    ArithmeticClause,
    AttributeRule,
    Axis,
    Bounds,
    Count,
    CountRule,
    Dim,
    Dtypes,
    ElementRule,
    Generation,
    Integers,
    Names,
    Operators,
    OptionText,
    Quantization,
    QuantizedRule,
    Size,
    SizeBounds,
    StatePatterns,
    make_optional_field,
    wrap_single_part,
)
from byoc.support import StrictModel

WantedForm = Literal["folded_batchnorm", "narrow_doubles", "real_products"]
Broadcast = Literal["none", "scalar", "channel", "last", "other"]
_Broadcasts = Annotated[
    tuple[Broadcast, ...],
    Field(min_length=1),
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value,
        json_schema_input_type=Broadcast | Annotated[list[Broadcast], Field(min_length=1)],
    ),
]


class TensorRule(StrictModel):
    """A constraint on an input or output, by its name in ONNX's schema. All given keys must hold."""

    dtype: Dtypes | None = make_optional_field("The data types it may have, instead of the rule's.")
    rank: Integers | None = make_optional_field("The number of dimensions, one or several.")
    constant: bool | None = make_optional_field(
        "true: its value is known at compile time; false: it is not."
    )
    absent: bool | None = make_optional_field("true: must be left out; false: must be given.")
    dims: dict[Axis, Dim] = Field(
        default_factory=dict,
        description="Extents by the number of the dimension (negative: from the end), or for `each`.",
    )
    elements: CountRule | None = make_optional_field("The number of elements.")
    bytes: SizeBounds | None = make_optional_field("The size in bytes.")
    scalar: bool | None = make_optional_field("true: exactly one element; false: not one.")
    static: bool | None = make_optional_field(
        "true: every dimension has a fixed extent; false: one has not."
    )
    broadcast: _Broadcasts | None = make_optional_field(
        "How this input relates to the first output: none (same shape), scalar (one element), channel "
        "(ones but for axis 1), last (ones but for the last axis), other."
    )
    value: ElementRule | None = make_optional_field("What every element of this constant may be.")
    quantized: QuantizedRule | None = make_optional_field(
        "The quantization; only in rules with `quantized: true`."
    )


class Condition(StrictModel):
    """An expression that must hold, and the sentence for the user when it does not."""

    expr: str = Field(description="A condition in CEL over the facts of the node or the match.")
    reason: str = Field(default="", description="The sentence for the user when it does not hold.")


_Condition = Annotated[
    Condition,
    BeforeValidator(
        lambda value: {"expr": value} if isinstance(value, str) else value,
        json_schema_input_type=str | Condition,
    ),
]
Conditions = Annotated[
    tuple[_Condition, ...],
    BeforeValidator(wrap_single_part, json_schema_input_type=str | Condition | list[str | Condition]),
]
_WHERE = "Conditions in CEL that must all hold: texts, or {expr, reason}."
_CHECK = "The name of an installed function (entry-point group byoc.checks) that is asked last."


class OpRule(StrictModel):
    """One or more operators and the constraints under which the accelerator takes them."""

    op: Operators = Field(description="Operators: Conv, com.microsoft.Gelu, or '*' for any.")
    opset: Bounds = Field(default=Bounds(), description="The versions of the operator set.")
    dtype: Dtypes | None = make_optional_field("The data types to compute in, instead of the file's.")
    tensors: dict[str, TensorRule] = Field(
        default_factory=dict, description="Constraints by the names of inputs and outputs in ONNX."
    )
    attributes: dict[str, AttributeRule] = Field(
        default_factory=dict, description="Constraints by attribute; one not written has its default."
    )
    where: Conditions = Field(default=(), description=_WHERE)
    check: str | None = make_optional_field(_CHECK)
    standalone: bool = Field(default=True, description="false: taken only inside a composite.")
    level: Literal["may", "must"] = Field(
        default="may", description="must: when it is accepted it has to run on the accelerator."
    )
    quantized: bool = Field(
        default=False,
        description="true: speaks of the operator between DequantizeLinear and QuantizeLinear.",
    )


CompositeName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
PatternTexts = Annotated[
    tuple[str, ...],
    Field(min_length=1),
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value,
        json_schema_input_type=str | Annotated[list[str], Field(min_length=1)],
    ),
]


_FormName = Literal[
    "flat-form", "frame-form", "narrow-doubles", "narrow-integers", "planar-form", "pooled-mean"
]
_Library = Annotated[str, Field(json_schema_extra={"x-offered": "library"})]


class CompositeRule(StrictModel):
    """Several operators that the accelerator runs as one: a pattern, or one of the library."""

    name: CompositeName = Field(
        default="", description="The name of the function; that of the library's composite if left out."
    )
    pattern: PatternTexts = Field(
        default=(), description="Lines such as `c = Conv(x, w, b?)`; a list holds variants."
    )
    library: _Library | None = make_optional_field(
        "The name of a composite of the library (byoc rules composites)."
    )
    where: Conditions = Field(default=(), description=_WHERE)
    check: str | None = make_optional_field(_CHECK)
    finer: bool = Field(
        default=False,
        description="As one it takes longer than its operators, and rounds less: quantization on data "
        "chooses where, and elsewhere quantizes them one by one.",
    )
    description: str = Field(default="", description="A line for people.")

    @model_validator(mode="after")
    def _either(self) -> Self:
        if bool(self.pattern) == bool(self.library):
            raise ValueError("either `pattern` or `library` must be given, and not both")
        if self.pattern and not self.name:
            raise ValueError("`name` must be given with a pattern")
        return self

    @property
    def display_name(self) -> str:
        """The name of the composite."""
        return self.name or self.library or ""


# `_rule_lint` checks layouts; this pattern for editors is nearly as strict.
_Layout = Annotated[str, Field(json_schema_extra={"pattern": "^[A-Z]{4}([0-9]+[a-z])*$"})]


class Layout(StrictModel):
    """The accelerator's layouts of tensors of rank 4; ONNX's own by default."""

    activations: _Layout | None = make_optional_field(
        "Of images that cross its border, such as NHWC or NCHW16c."
    )
    weights: _Layout | None = make_optional_field(
        "Of the weights of convolutions, such as OHWI or OIHW16i16o."
    )
    convert: Literal["host", "either"] | None = make_optional_field(
        "Who transposes images: the host (default), or either side, whichever is cheaper."
    )


class Limits(StrictModel):
    """Limits on the resources of the accelerator."""

    regions: Count | None = make_optional_field("The most regions in a graph.")
    min_nodes: Count | None = make_optional_field("The fewest nodes in a region.")
    max_nodes: Count | None = make_optional_field("The most nodes in a region.")
    memory: Size | None = make_optional_field(
        "For the constants of all on it and a region's largest arena: bytes, or text such as 1MiB."
    )
    batch: Count | None = make_optional_field(
        "The most of dimension 0 of the model's inputs of rank 2 and more."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min_nodes and self.max_nodes and self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes {self.min_nodes} is greater than max_nodes {self.max_nodes}")
        return self


class Nodes(StrictModel):
    """Some nodes of a model, by operator or by name."""

    ops: Operators = Field(default=(), description="Operators.")
    names: Names = Field(
        default=(), description="Regular expressions (RE2), found anywhere in a node's name."
    )


class Host(Nodes):
    """Nodes that stay on the host, even if a rule accepts them."""

    after: Nodes = Field(
        default=Nodes(), description="All that is downstream of such nodes, but not they themselves."
    )


class Drop(StrictModel):
    """Parts of the extended file that are not inherited."""

    ops: Operators = Field(default=(), description="Operators whose rules are left out.")
    composites: Names = Field(default=(), description="Names of composites that are left out.")
    host: Host = Field(default=Host(), description="Entries of `host` that are left out, as written.")


class RuleFile(StrictModel):
    """A rule file: a target, its operators and composites, its cost model and codegen."""

    extends: str | None = make_optional_field(
        "The rule file to build on: a path from this one, or an installed name."
    )
    drop: Drop = Field(default=Drop(), description="What is not taken over from the file it extends.")
    target: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=40)] = Field(
        description="The accelerator's name; functions get the domain byoc.NAME."
    )
    description: str = Field(default="", description="A line for people.")
    generation: str = Field(
        default="", description="The one of `generations` that holds where FILE:GENERATION names none."
    )
    generations: dict[Annotated[str, Field(pattern=GENERATION_NAME)], Generation] = Field(
        default_factory=dict,
        description="Generations of the hardware by name, each with what a file that extends this one "
        "would say.",
    )
    codegen: str = Field(default="reference", description="The installed codegen for the regions.")
    codegen_options: dict[str, OptionText] = Field(
        default_factory=dict, description="The codegen's options by name: see byoc codegens NAME."
    )
    passes: dict[str, dict[str, OptionText]] = Field(
        default_factory=dict,
        description="Passes that rewrite regions before the codegen gets them, in this order, each with "
        "its options: see byoc passes.",
    )
    wants: Annotated[
        tuple[WantedForm, ...],
        BeforeValidator(
            lambda value: [value] if isinstance(value, str) else value,
            json_schema_input_type=WantedForm | Annotated[list[WantedForm], Field(min_length=1)],
        ),
    ] = Field(
        default=(),
        description="What the model is to be made into first: folded_batchnorm, BatchNormalization "
        "folded into the Conv, ConvTranspose or Gemm before it; real_products, products of "
        "integers that DynamicQuantizeLinear makes as products of their real numbers; narrow_doubles, "
        "float64 computed in float32 where digits are lost, too.",
    )
    unwanted_forms: Annotated[
        tuple[_FormName, ...],
        BeforeValidator(
            lambda value: [value] if isinstance(value, str) else value,
            json_schema_input_type=_FormName
            | Annotated[
                list[_FormName],
                Field(min_length=1),
            ],
        ),
    ] = Field(
        default=(),
        description="Forms that nodes are not brought into for the accelerator, though its rules take "
        "them: planar-form, 1-D convolutions and pools as 2-D ones; frame-form, 3-D ones as 2-D ones on "
        "frames; flat-form, those along the depth as 2-D ones; pooled-mean, means over images as "
        "global pools; narrow-integers, int64 as int32; narrow-doubles, float64 as float32 where no "
        "digit is lost.",
    )
    cost_model: str = Field(description="The cost model: a path, or an installed name.")
    cost_parameters: dict[str, bool | int | float | str] = Field(
        default_factory=dict,
        description="Values in place of those of the cost model's file, by its keys: peak.int8, launch.",
    )
    regions: Literal["connected", "phase"] = Field(
        default="connected",
        description="connected: a region hangs together; phase: branches may share one.",
    )
    overlaps: Literal["largest", "placement"] = Field(
        default="largest",
        description="Of composites that overlap: the largest is formed, or the placement chooses.",
    )
    dtype: Dtypes = Field(description="The data types that the accelerator computes in, or any.")
    shapes: Literal["any", "ranked", "static"] = Field(
        default="any",
        description="What must be known of the shape of all that a node reads: nothing (any), the rank "
        "(ranked), or every extent (static).",
    )
    state: Literal["sent", "kept"] = Field(
        default="sent",
        description="A decoder's cache: sent in each call, or kept on the accelerator between calls.",
    )
    state_pairs: StatePatterns = Field(
        default_factory=dict,
        description="Inputs of models that take what outputs gave in the last call, by name, where that "
        "cannot be seen; a `*` in both stands for the same text: {cache_in_*: cache_out_*}.",
    )
    arithmetic: Annotated[
        tuple[ArithmeticClause, ...],
        BeforeValidator(
            wrap_single_part, json_schema_input_type=ArithmeticClause | list[ArithmeticClause]
        ),
    ] = Field(
        default=(),
        description="What is promised of values where it is not what ONNX defines; later clauses "
        "override earlier ones key by key, and inherited ones come first.",
    )
    layout: Layout = Field(default=Layout(), description="How the accelerator wants its data.")
    quantization: Quantization = Field(
        default=Quantization(), description="The quantization scheme of the accelerator."
    )
    limits: Limits = Field(default=Limits(), description="What the accelerator has no more of.")
    host: Host = Field(default=Host(), description="Nodes that stay on the host whatever the rules say.")
    keep: Operators = Field(
        default=(),
        description="Operators that are never taken apart: where they are refused they stay whole on "
        "the host, though the rules take the operators that they are made of.",
    )
    annotations: dict[str, Names] = Field(
        default_factory=dict,
        description="Nodes wanted on the accelerator: by a key of their metadata, regular expressions "
        "(RE2), found anywhere in its value.",
    )
    ops: Annotated[tuple[OpRule, ...], Field(min_length=1)] = Field(
        description="The rules for operators; of several for one, the first that accepts holds."
    )
    composites: tuple[CompositeRule, ...] = Field(
        default=(), description="Operators that the accelerator runs as one."
    )


# Inheritance of rule files: merging a file with the one that it extends.
#
# The rules for an operator replace the inherited ones; a composite or a generation replaces one of
# the same name; `host` lists are joined; `layout`, `quantization`, `limits`, `codegen_options` and
# `cost_parameters` are merged key by key, but options are not inherited if the file names another
# codegen, nor parameters if it names another cost model. Own rules and composites precede inherited
# ones, and own clauses of `arithmetic`, which override earlier ones, follow them. Parts under
# `drop` are not inherited.

_MERGED_BY_KEY = ("layout", "quantization", "limits")
# What is given to a plug-in or a file, by the key that names that.
_GIVEN_TO = {"codegen_options": "codegen", "cost_parameters": "cost_model"}
NodesT = TypeVar("NodesT", bound=Nodes)
_MERGED_BY_PART = ("ops", "composites", "host", "arithmetic")
_NOT_INHERITED = ("extends", "drop")


def apply_defaults(content: Mapping[Any, Any], base: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the keys of a file, with those that it lacks from the file that it extends, as read."""
    base = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
    for key, owner in _GIVEN_TO.items():
        name = base.get(owner, RuleFile.model_fields[owner].default)
        if content.get(owner, name) != name:
            base.pop(key, None)
    result = {**base, **content}
    for key in (*_MERGED_BY_KEY, *_GIVEN_TO, "generations"):
        own, below = content.get(key), base.get(key)
        if isinstance(own, dict) and isinstance(below, dict):
            result[key] = {**below, **own}
    return result


def merge_rules(
    rules: RuleFile, content: Mapping[Any, Any], base: RuleFile
) -> tuple[RuleFile, dict[str, str]]:
    """Merge the rules of a file with those that it extends.

    Returns the rules, and for inherited parts the location in the merged rules to that in `base`.
    `rules` are the result of `defaults`, checked.
    """
    keys = [
        key for key in RuleFile.model_fields if key not in (*content, *_MERGED_BY_PART, *_NOT_INHERITED)
    ]
    for key in _MERGED_BY_KEY:
        keys += [
            f"{key}.{name}" for name in getattr(base, key).model_fields_set - {*(content.get(key) or ())}
        ]
    for key in _GIVEN_TO:
        own = content.get(key) or ()
        keys += [f"{key}.{name}" for name in getattr(rules, key) if name not in own]
    places = {key: key for key in keys}
    clauses = base.arithmetic + (rules.arithmetic if "arithmetic" in content else ())
    places |= {f"arithmetic[{i}]": f"arithmetic[{i}]" for i in range(len(base.arithmetic))}
    drop = rules.drop
    ops = _merge_ops(rules.ops if "ops" in content else (), base.ops, drop.ops, places)
    written = rules.composites if "composites" in content else ()
    composites = _merge_composites(written, base.composites, drop.composites, places)
    host = rules.host if "host" in content else Host()
    after = _merge_nodes("host.after", host.after, base.host.after, drop.host.after, places)
    whole = _merge_nodes("host", host, base.host, drop.host, places).model_copy(update={"after": after})
    update = {
        **{"ops": ops, "composites": composites, "host": whole, "arithmetic": clauses},
        **{"extends": None, "drop": Drop()},
    }
    return rules.model_copy(update=update), places


def locate_own_clauses(rules: RuleFile, base: RuleFile) -> dict[str, str]:
    """Return the locations of a file's own clauses of `arithmetic` in merged rules, to those in it."""
    before = len(base.arithmetic)
    return {
        f"arithmetic[{i}]": f"arithmetic[{i - before}]" for i in range(before, len(rules.arithmetic))
    }


def lint_drop(drop: Drop, base: RuleFile) -> Iterator[str]:
    """Yield a sentence for each name under `drop` that the extended file does not have."""
    asked = {
        "ops": (drop.ops, {op for rule in base.ops for op in rule.op}),
        "composites": (drop.composites, {rule.display_name for rule in base.composites}),
        "host.ops": (drop.host.ops, {*base.host.ops}),
        "host.names": (drop.host.names, {*base.host.names}),
        "host.after.ops": (drop.host.after.ops, {*base.host.after.ops}),
        "host.after.names": (drop.host.after.names, {*base.host.after.names}),
    }
    for key, (names, there) in asked.items():
        for i, name in enumerate(names):
            if name not in there:
                yield f"drop.{key}[{i}]: there is no '{name}' to drop{suggest_nearest(name, there)}"


def _merge_ops(
    own: Sequence[OpRule], base: Sequence[OpRule], drop: Sequence[str], places: dict[str, str]
) -> tuple[OpRule, ...]:
    hidden = {*drop, *(op for rule in own for op in rule.op)}
    result = list(own)
    for position, rule in enumerate(base):
        rest = tuple(op for op in rule.op if op not in hidden)
        if rest:
            places[f"ops[{len(result)}]"] = f"ops[{position}]"
            result.append(rule.model_copy(update={"op": rest}))
    return tuple(result)


def _merge_composites(
    own: Sequence[CompositeRule],
    base: Sequence[CompositeRule],
    drop: Sequence[str],
    places: dict[str, str],
) -> tuple[CompositeRule, ...]:
    names = {*drop, *(composite.display_name for composite in own)}
    result = list(own)
    for position, composite in enumerate(base):
        if composite.display_name not in names:
            places[f"composites[{len(result)}]"] = f"composites[{position}]"
            result.append(composite)
    return tuple(result)


def _merge_nodes(place: str, own: NodesT, base: NodesT, drop: Nodes, places: dict[str, str]) -> NodesT:
    """Return the joined lists of operators and names."""
    update = {}
    for key in ("ops", "names"):
        whole = list(getattr(own, key))
        for position, name in enumerate(getattr(base, key)):
            if name not in getattr(drop, key):
                places[f"{place}.{key}[{len(whole)}]"] = f"{place}.{key}[{position}]"
                whole.append(name)
        update[key] = tuple(whole)
    return own.model_copy(update=update)
