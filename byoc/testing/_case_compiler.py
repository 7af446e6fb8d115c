"""Test cases partitioned as by `byoc partition`, those of composites included, for realistic regions."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnx import ModelProto, helper

from byoc._dataclasses import dataclass
from byoc.bundle import (
    Bundle,
    RegionCompiler,
    build_manifest,
    describe_variant,
    write_bundle,
    write_manifest,
)
from byoc.codegen import Artifact, Codegen, CompileError, Region
from byoc.costs import load_device_costs, load_host_costs
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, Model, prepare_model
from byoc.patterns import ANY_OPERATOR, Pattern, PatternForm, PatternLine
from byoc.pipeline import make_plan
from byoc.placement.strategies import AllSupported
from byoc.planning import Plan, PlanSettings, apply_rule_parameters
from byoc.quantization import NATIVE, Precision, has_float_mode
from byoc.reporting import make_report
from byoc.rules import Target, annotate_graph, load_rules
from byoc.samples import NoSampleError, model_samples
from byoc.testing._operator_cases import (
    Case,
    GraphSketch,
    list_onnx_operators,
    operator_cases,
    parse_one_node,
    read_own_cases,
)
from byoc.testing._region_forms import SHAPES, NodeWords, draw_form, list_node_choices
from byoc.verification import (
    NotVerifiableError,
    NotVerified,
    RecordedRuns,
    record_reference_runs,
    run_plain,
)
from byoc.zoo import load_model

_PREFERRED_DTYPES = (
    *("float32", "float16", "bfloat16", "float64"),
    *("int32", "int64", "int8", "uint8", "int16", "uint16", "bool"),
)
_MAX_DRAWINGS = 6  # attempts to draw a form
_MAX_CALIBRATED = 12  # models of an operator that are quantized, and so calibrated


class NotTakenError(Exception):
    """The rules do not put a case on the accelerator, for the reason in the message."""


@dataclass(frozen=True, eq=False)
class CompiledCase:
    """A partitioned and compiled case: its bundle, regions and artifacts.

    `expected_runs` maps regions to their inputs and to the outputs of plain onnxruntime for these.
    """

    case: "PlannedCase"
    bundle: Bundle
    regions: Sequence[tuple[Region, Artifact]]
    expected_runs: Mapping[str, RecordedRuns]

    @property
    def name(self) -> str:
        """The name of the case, for people."""
        return self.case.display_name


@dataclass(frozen=True, eq=False)
class PlannedCase:
    """A planned case with at least one region, and the inputs of its model."""

    name: str
    plan: Plan
    inputs: Mapping[str, Any]
    quantized: str | None = None
    """The integers that the model was quantized to; None where it is planned as it is."""

    @property
    def display_name(self) -> str:
        """The name, with what was made of the model before it was planned."""
        return f"{self.name}, quantized to {self.quantized}" if self.quantized else self.name

    @property
    def is_static(self) -> bool:
        """Whether all extents at the boundaries of regions are known."""
        return all(
            kind.elements is not None
            for region in self.plan.regions
            for name in (*region.interface.inputs, *region.interface.outputs)
            if (kind := region.index.types.get(name)) is not None
        )

    @cached_property
    def composites(self) -> set[str]:
        """The operators of the functions that regions call."""
        domain = self.plan.target.domain
        return {
            node.op_type
            for function in self.plan.proto.functions
            for node in function.node
            if node.domain == domain
        }


def list_target_operators(target: Target) -> list[str]:
    """Return the operators in a target's rules, in their order; all of ONNX's if a rule accepts any."""
    named = dict.fromkeys(op for rule in target.rules.ops for op in rule.op)
    return list_onnx_operators() if ANY_OPERATOR in named else list(named)


@dataclass(eq=False)
class CaseCompiler:
    """Plans cases for one target and compiles them by one codegen; bundles go into `folder`."""

    rules: str
    codegen: Codegen
    options: Mapping[str, str]
    folder: Path
    _bundle_count: int = 0
    _accepted_words: list[NodeWords] | None = None

    @cached_property
    def target(self) -> Target:
        """The target. Raises InputError for a rule file that is wrong."""
        return load_rules(self.rules)

    @cached_property
    def takes_any(self) -> bool:
        """Whether a rule accepts any operator, so that the file names none."""
        return any(ANY_OPERATOR in rule.op for rule in self.target.rules.ops)

    def is_only_inside(self, operator: str) -> bool:
        """Return whether the rules take an operator inside composites alone, which have cases."""
        own = [rule for rule in self.target.rules.ops if operator in rule.op]
        return bool(own) and not any(rule.standalone for rule in own)

    @cached_property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions of regions: the models' own and quantized, as far as there are rules."""
        floats = has_float_mode(self.target) or not self.target.has_quantized_rules
        found = (NATIVE,) if floats else ()
        if self.target.has_quantized_rules:
            found = (*found, Precision("int8" if floats else None, data="random"))
        return found

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that rules name: the usual ones, else others; float32 and int64 for `any`."""
        rules = self.target.rules
        named = {d for rule in rules.ops for d in rule.dtype or rules.dtype if not rule.quantized}
        if not named.isdisjoint(DTYPE_NUMBERS):
            usual = tuple(d for d in _PREFERRED_DTYPES if d in named)
            return usual or tuple(d for d in DTYPE_NUMBERS if d in named)
        return ("float32", "int64") if named else ("float32",)

    def plan_case(self, case: Case | Model, precision: Precision) -> PlannedCase:
        """Plan a case with all nodes that the rules accept on the accelerator.

        Raises NotTakenError when there are none, and InputError for an invalid model.
        """
        if isinstance(case, Case):
            model, inputs = prepare_model(case.model, case.name), case.inputs
        else:
            model, inputs = case, None
        target = self.target
        settings = PlanSettings(
            targets=(target,),
            costs=(apply_rule_parameters(load_device_costs(target.cost_model), target),),
            host=load_host_costs("host"),
            strategy=AllSupported(),
        )
        asked = {"model": model.source}
        plan = make_plan(model, settings, asked, precision)
        if not plan.regions:
            reasons = dict.fromkeys(str(verdict) for _, verdict in plan.host_units)
            raise NotTakenError("; ".join(reasons) or "there is nothing in it to place")
        try:
            samples = model_samples(model) if inputs is None else inputs
            return PlannedCase(model.source, plan, samples, precision.quantize)
        except NoSampleError as error:
            raise NotTakenError(str(error)) from None

    def compile(self, planned: PlannedCase) -> CompiledCase:
        """Compile a case into a bundle.

        Raises CompileError when the codegen refuses it, and NotTakenError when plain onnxruntime cannot
        compute the expected results.
        """
        return self._write_case(planned, RegionCompiler(self.codegen, self.options))

    def write_uncompiled(self, planned: PlannedCase) -> CompiledCase:
        """Write a case as a bundle whose regions are not compiled."""
        return self._write_case(planned, RegionCompiler(_EmptyCodegen(), {}))

    def _write_case(self, planned: PlannedCase, compiler: RegionCompiler) -> CompiledCase:
        self._bundle_count += 1
        folder = self.folder / str(self._bundle_count)
        folder.mkdir(parents=True)
        compilers = {self.target.name: compiler}
        try:
            entries = write_bundle(planned.plan, folder, compilers)
        except CompileError:
            _require_runnable(planned)
            raise
        report = make_report(planned.plan, NotVerified("this kit compares regions"))
        variant = describe_variant(planned.plan, entries, report)
        manifest = build_manifest(folder, [planned.plan], [variant])
        write_manifest(folder, manifest)
        bundle = Bundle(folder, manifest)
        try:
            runs = record_reference_runs(bundle, planned.inputs)
        except NotVerifiableError as error:
            raise NotTakenError(str(error)) from None
        twins = bundle.identical_regions
        found = [(r, artifact) for _, r, artifact in bundle.regions() if r.name not in twins]
        return CompiledCase(planned, bundle, found, runs)

    def plan_operator(
        self, operator: str, precision: Precision, own: Sequence[str | ModelProto] = ()
    ) -> Iterator[PlannedCase | NotTakenError]:
        """Yield models of one node of an operator as they are planned, or why the rules do not take one.

        `own` are models that are known beside those of this kit, and come first.
        """
        cases = chain(read_own_cases(own, self.dtypes), operator_cases(operator, self.dtypes))
        for number, case in enumerate(cases):
            if precision is not NATIVE and number == _MAX_CALIBRATED:
                return
            try:
                if precision is NATIVE:
                    self._require_accepted(case)
                yield self.plan_case(case, precision)
            except (NotTakenError, InputError) as error:
                yield NotTakenError(str(error))

    def _require_accepted(self, case: Case) -> None:
        """Raise NotTakenError unless the rules accept all nodes of a case; faster than planning it."""
        model = prepare_model(case.model, case.name)
        for mark in annotate_graph(model.index, self.target):
            if not mark.verdict:
                raise NotTakenError(str(mark.verdict))

    def plan_form(self, name: str, seed: int = 0) -> PlannedCase:
        """Return a form drawn with accepted nodes. Raises NotTakenError when that is not possible.

        Another `seed` than 0 gives it with other names and constants.
        """
        tried, reason = 0, "the rules take no operator that it could be drawn with"
        for words in self.words:
            for case in draw_form(name, words, seed):
                tried += 1
                try:
                    return self._plan_one_region(case)
                except (NotTakenError, InputError) as error:
                    reason = str(error)
                if tried == _MAX_DRAWINGS:
                    raise NotTakenError(reason)
        raise NotTakenError(reason)

    def _plan_one_region(self, case: Case) -> PlannedCase:
        """Plan a case. Raises NotTakenError unless all of it is in one region."""
        found = self.plan_case(case, self.precisions[0])
        if len(found.plan.regions) > 1 or (self.precisions[0] is NATIVE and found.plan.host_units):
            raise NotTakenError("the rules do not take all of it as one region")
        return found

    @property
    def words(self) -> list[NodeWords]:
        """The nodes that the rules accept among those that forms are drawn with, by shape and type."""
        if self._accepted_words is None:
            self._accepted_words = [
                w for d in self.dtypes for s in SHAPES if (w := self._find_words(d, s)).one_operand
            ]
            self._accepted_words.sort(key=lambda words: (not words.binary, not words.fixed))
        return self._accepted_words

    def _find_words(self, dtype: str, shape: tuple[int, ...]) -> NodeWords:
        found: dict[str, list[str]] = {"unary": [], "fixed": [], "binary": []}
        for kind, text, line in list_node_choices(shape):
            case = parse_one_node(line, dtype)
            try:
                if case is None:
                    continue
                if self.precisions[0] is NATIVE:
                    self._require_accepted(case)
                else:
                    self.plan_case(case, self.precisions[0])
            except (NotTakenError, InputError):
                continue
            found[kind].append(text)
        return NodeWords(dtype, shape, found["unary"], found["binary"], found["fixed"])

    def plan_zoo_model(self, name: str) -> PlannedCase:
        """Plan a model of the zoo. Raises NotTakenError when the rules accept nothing in it."""
        return self.plan_case(load_model(f"zoo:{name}"), self.precisions[0])


class _EmptyCodegen:
    """A codegen that returns empty artifacts."""

    name = "reference"

    def compile(self, region: Region, options: Any) -> Artifact:
        return Artifact()


def _require_runnable(planned: PlannedCase) -> None:
    """Raise NotTakenError when plain onnxruntime cannot run a case."""
    model = planned.plan.model
    try:
        run_plain(model.proto, model, planned.inputs)
    except InputError as error:
        raise NotTakenError(str(error)) from None


# Models that contain a composite of a rule file, generated from its pattern.

_SHAPES = ((1, 4, 8, 8), (8, 8), (1, 8, 8))
_MAX_ATTEMPTS = 12  # attempts

# The operands of operators after the first, in the notation of `GraphSketch.add_node`. The default is
# another tensor of the same shape.
_OPERANDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Conv": ("w=4x4x3x3", "b=4"),
        "ConvTranspose": ("w=4x4x1x1", "b=4"),
        "BatchNormalization": ("scale=4", "b=4", "mean=4", "var=4"),
        "InstanceNormalization": ("s=4", "b=4"),
        "LayerNormalization": ("s=8", "b=8"),
        "Gemm": ("w=8x8", "b=8"),
        "MatMul": ("w=8x8",),
        "Clip": ("lo=", "hi="),
    }
)
_DEFAULT_ATTRIBUTES = MappingProxyType(
    {
        "Conv": "<kernel_shape=[3,3], pads=[1,1,1,1]>",
        "MaxPool": "<kernel_shape=[3,3], pads=[1,1,1,1]>",
        "AveragePool": "<kernel_shape=[3,3], pads=[1,1,1,1]>",
    }
)


def plan_composite(workshop: CaseCompiler, name: str) -> PlannedCase:
    """Return a model with the composite in a region. Raises NotTakenError when none is found."""
    pattern = next(each for each in workshop.target.patterns if each.name == name)
    tried = 0
    for case in _composite_models(pattern, workshop.dtypes[0]):
        for precision in workshop.precisions:
            try:
                found = workshop.plan_case(case, precision)
            except (NotTakenError, InputError):
                continue
            if any(called == name or called.startswith(f"{name}_") for called in found.composites):
                return found
        tried += 1
        if tried == _MAX_ATTEMPTS:
            break
    raise NotTakenError("this kit makes none from its pattern; name a model of the zoo that has it")


def _composite_models(pattern: Pattern, dtype: str) -> Iterator[Case]:
    for form, shape, constant in product(pattern.forms, _SHAPES, (False, True)):
        try:
            yield _composite_model(pattern.name, form, dtype, shape, constant)
        except Exception:  # these operands do not suit the pattern; onnx raises various exceptions
            continue


def _composite_model(
    name: str, form: PatternForm, dtype: str, shape: tuple[int, ...], constant: bool
) -> Case:
    """Return the nodes of a form as a model; with `constant`, all but first operands are constants."""
    sketch = GraphSketch(dtype)
    for node in form.nodes:
        operator = node.ops[0]
        operands = [
            _operand_text(sketch, form, node, position, shape, constant)
            for position in range(len(node.operands))
        ]
        makes = [output or f"unread_{number}" for number, output in enumerate(node.outputs)]
        text = f"{operator}{_DEFAULT_ATTRIBUTES.get(operator, '')}({', '.join(operands)})"
        sketch.add_node(text, ", ".join(makes))
        _set_attributes(sketch, node)
    return sketch.build_case(f"composite {name}", form.outputs)


def _operand_text(  # noqa: PLR0913, PLR0917 - where the operand stands
    sketch: GraphSketch,
    form: PatternForm,
    node: PatternLine,
    position: int,
    shape: tuple[int, ...],
    constant: bool,
) -> str:
    operand = node.operands[position]
    if operand.name in form.makers or operand.name in sketch.inputs:
        return operand.name
    if operand.value is not None:
        raise ValueError("a literal")
    known = _OPERANDS.get(node.ops[0], ())
    if position and position <= len(known):
        return known[position - 1]
    if (constant or operand.constant) and position:
        return f"c={'x'.join(map(str, shape))}"
    return sketch.add_input(operand.name, shape)


def _set_attributes(sketch: GraphSketch, node: PatternLine) -> None:
    """Set the attributes that the pattern's line requires to fixed values."""
    made = sketch.nodes[-1]
    for asked in node.attributes:
        if asked.values and asked.name not in [attribute.name for attribute in made.attribute]:
            made.attribute.append(helper.make_attribute(asked.name, asked.values[0]))
