"""Partitioning of test cases as by `byoc partition`, so that a codegen gets realistic regions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from byoc.bundle.compile import Compiler
from byoc.bundle.read import Bundle
from byoc.bundle.write import make_manifest, write_bundle, write_manifest
from byoc.codegen import Artifact, Codegen, CompileError, Region
from byoc.costs.load import load_device_costs, load_host_costs
from byoc.errors import InputError
from byoc.graph.load import Model, prepare
from byoc.graph.types import NUMBERS
from byoc.pipeline import load_model, make_plan
from byoc.placement.strategies.all_supported import AllSupported
from byoc.plan import Plan, Settings
from byoc.precision.conclude import NATIVE, Precision, has_float_mode
from byoc.rules.annotate import annotate
from byoc.rules.load import Target, load_rules
from byoc.rules.values import ANY
from byoc.runtime.samples import samples_for
from byoc.testing.case import Case, one_node
from byoc.testing.operators import all_operators, candidates
from byoc.testing.structures import SHAPES, Words, choices, drawn
from byoc.verify.regions import NotVerifiableError, Watched, reference_runs
from byoc.verify.run import run_plain

_FLOATS = ("float32", "float16", "bfloat16", "float64")
_PREFERRED = (*_FLOATS, "int32", "int64", "int8", "uint8", "int16", "uint16", "bool")
_FEW = 6  # attempts to draw a form


class NotTakenError(Exception):
    """The rules do not put a case on the accelerator, for the reason in the message."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A partitioned and compiled case: its bundle, regions and artifacts.

    `runs` maps regions to their inputs and to the outputs of plain onnxruntime for these.
    """

    planned: "Planned"
    bundle: Bundle
    regions: Sequence[tuple[Region, Artifact]]
    runs: Mapping[str, Watched]

    @property
    def name(self) -> str:
        """The name of the case."""
        return self.planned.name


@dataclass(frozen=True, eq=False)
class Planned:
    """A planned case with at least one region, and the inputs of its model."""

    name: str
    plan: Plan
    inputs: Mapping[str, Any]

    @property
    def is_static(self) -> bool:
        """Whether all extents at the boundaries of regions are known."""
        return all(
            kind.elements is not None
            for region in self.plan.regions
            for name in (*region.border.inputs, *region.border.outputs)
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


def target_operators(target: Target) -> list[str]:
    """Return the ONNX operators in a target's rules, in their order; all if a rule accepts any."""
    named = dict.fromkeys(op for rule in target.rules.ops for op in rule.op)
    known = all_operators()
    return known if ANY in named else [op for op in named if op in known]


@dataclass(eq=False)
class Workshop:
    """Plans cases for one target and compiles them by one codegen; bundles go into `folder`."""

    rules: str
    codegen: Codegen
    options: Mapping[str, str]
    folder: Path
    _made: int = 0
    _words: list[Words] = field(default_factory=list)

    @cached_property
    def target(self) -> Target:
        """The target. Raises InputError for a rule file that is wrong."""
        return load_rules(self.rules)

    @cached_property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions of regions: the models' own and quantized, as far as there are rules."""
        floats = has_float_mode(self.target) or not self.target.quantized
        found = (NATIVE,) if floats else ()
        if self.target.quantized:
            found = (*found, Precision("int8" if floats else None, data="random"))
        return found

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes in the rules, usual ones first; only float32 where a rule accepts any."""
        rules = self.target.rules
        named = {d for rule in rules.ops for d in rule.dtype or rules.dtype if not rule.quantized}
        if not named.isdisjoint(NUMBERS):
            return tuple(d for d in _PREFERRED if d in named)
        return ("float32", "int64") if named else ("float32",)

    def planned(self, case: Case | Model, precision: Precision, inputs: Any = None) -> Planned:
        """Plan a case with all nodes that the rules accept on the accelerator.

        Raises NotTakenError when there are none, and InputError for an invalid model.
        """
        if isinstance(case, Case):
            model, inputs = prepare(case.model, case.name), case.inputs
        else:
            model = case
        target = self.target
        settings = Settings(
            targets=(target,),
            costs=(load_device_costs(target.cost_model),),
            host=load_host_costs("host"),
            strategy=AllSupported(),
        )
        asked = {"model": model.source}
        plan = make_plan(model, settings, asked, precision)
        if not plan.regions:
            reasons = dict.fromkeys(str(verdict) for _, verdict in plan.host_units)
            raise NotTakenError("; ".join(reasons) or "there is nothing in it to place")
        return Planned(model.source, plan, samples_for(model) if inputs is None else inputs)

    def compile(self, planned: Planned) -> Cut:
        """Compile a case into a bundle.

        Raises CompileError when the codegen refuses it, and NotTakenError when plain onnxruntime cannot
        compute the expected results.
        """
        return self._written(planned, Compiler(self.codegen, self.options))

    def uncompiled(self, planned: Planned) -> Cut:
        """Write a case as a bundle whose regions are not compiled."""
        return self._written(planned, Compiler(_Nothing(), {}))

    def _written(self, planned: Planned, compiler: Compiler) -> Cut:
        self._made += 1
        folder = self.folder / str(self._made)
        folder.mkdir(parents=True)
        compilers = {self.target.name: compiler}
        try:
            entries = write_bundle(planned.plan, folder, compilers, _quiet)
        except CompileError:
            _require_runnable(planned)
            raise
        manifest = make_manifest(folder, planned.plan, entries)
        write_manifest(folder, manifest)
        bundle = Bundle(folder, manifest)
        try:
            runs = reference_runs(bundle, planned.inputs)
        except NotVerifiableError as error:
            raise NotTakenError(str(error)) from None
        twins = bundle.twins
        found = [(r, artifact) for _, r, artifact in bundle.regions() if r.name not in twins]
        return Cut(planned, bundle, found, runs)

    def operator_cases(self, operator: str, most: int) -> Iterator[Planned]:
        """Yield planned models of one node of an operator that the rules accept.

        Raises NotTakenError with a rule's reason when there are none.
        """
        found, reason = 0, f"no model of {operator} is known to this kit"
        for precision in self.precisions:
            for number, case in enumerate(candidates(operator, self.dtypes)):
                if precision is not NATIVE and number >= most:  # each of them is calibrated
                    break
                try:
                    if precision is NATIVE:
                        self._require(case)
                    yield self.planned(case, precision)
                except (NotTakenError, InputError) as error:
                    reason = str(error)
                    continue
                found += 1
                if found % most == 0:
                    break
        if not found:
            raise NotTakenError(reason)

    def _require(self, case: Case) -> None:
        """Raise NotTakenError unless the rules accept all nodes of a case; faster than planning it."""
        model = prepare(case.model, case.name)
        for mark in annotate(model.index, self.target):
            if not mark.verdict:
                raise NotTakenError(str(mark.verdict))

    def form(self, name: str) -> Planned:
        """Return a form drawn with accepted nodes. Raises NotTakenError when that is not possible."""
        tried, reason = 0, "the rules take no operator that it could be drawn with"
        for words in self.words:
            for case in drawn(name, words):
                tried += 1
                try:
                    return self._whole(case)
                except (NotTakenError, InputError) as error:
                    reason = str(error)
                if tried == _FEW:
                    raise NotTakenError(reason)
        raise NotTakenError(reason)

    def _whole(self, case: Case) -> Planned:
        """Plan a case. Raises NotTakenError unless all of it is in one region."""
        found = self.planned(case, self.precisions[0])
        if len(found.plan.regions) > 1 or (self.precisions[0] is NATIVE and found.plan.host_units):
            raise NotTakenError("the rules do not take all of it as one region")
        return found

    @property
    def words(self) -> list[Words]:
        """The nodes that the rules accept among those that forms are drawn with, by shape and type."""
        if not self._words:
            self._words = [w for d in self.dtypes for s in SHAPES if (w := self._spoken(d, s)).one]
            self._words.sort(key=lambda words: (not words.binary, not words.fixed))
        return self._words

    def _spoken(self, dtype: str, shape: tuple[int, ...]) -> Words:
        found: dict[str, list[str]] = {"unary": [], "fixed": [], "binary": []}
        for kind, text, line in choices(shape):
            case = one_node(line, dtype)
            try:
                if case is None:
                    continue
                if self.precisions[0] is NATIVE:
                    self._require(case)
                else:
                    self.planned(case, self.precisions[0])
            except (NotTakenError, InputError):
                continue
            found[kind].append(text)
        return Words(dtype, shape, found["unary"], found["binary"], found["fixed"])

    def zoo(self, name: str) -> Planned:
        """Plan a model of the zoo. Raises NotTakenError when the rules accept nothing in it."""
        return self.planned(load_model(f"zoo:{name}"), self.precisions[0])


class _Nothing:
    """A codegen that returns empty artifacts."""

    name = "reference"

    def compile(self, region: Region, options: Any) -> Artifact:
        return Artifact()


def _require_runnable(planned: Planned) -> None:
    """Raise NotTakenError when plain onnxruntime cannot run a case."""
    model = planned.plan.model
    try:
        run_plain(model.proto, model, planned.inputs)
    except InputError as error:
        raise NotTakenError(str(error)) from None


def _quiet(step: str) -> None:
    """Ignore a progress message."""
