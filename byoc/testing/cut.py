"""Cutting a case as `byoc partition` would, so that a codegen is handed the regions that it will be."""

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
from byoc.pipeline import load_model
from byoc.placement.strategies.all_supported import AllSupported
from byoc.plan import Plan, Settings
from byoc.precision.conclude import NATIVE, Precision, has_float_mode
from byoc.precision.lower import Lowering
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
_FEW = 6  # ways to draw a form that are tried


class NotTakenError(Exception):
    """The rules do not put a case on the accelerator; says why."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A case that was cut and compiled: what a codegen was handed, and what it made of it.

    `runs` has what reaches each region and what plain onnxruntime makes of that, by region.
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
    """A case that the rules put on the accelerator, and what its model is run on."""

    name: str
    plan: Plan
    inputs: Mapping[str, Any]

    @property
    def is_static(self) -> bool:
        """Whether every extent at the border of each region is known."""
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
    """Return ONNX's operators that a target's rules speak of, in their order; all for a rule for any."""
    named = dict.fromkeys(op for rule in target.rules.ops for op in rule.op)
    known = all_operators()
    return known if ANY in named else [op for op in named if op in known]


@dataclass(eq=False)
class Workshop:
    """Where cases are cut for one target and compiled by one codegen; `folder` is for the bundles."""

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
        """What regions compute in: as the models say, and quantized, as far as there are rules."""
        floats = has_float_mode(self.target) or not self.target.quantized
        found = (NATIVE,) if floats else ()
        if self.target.quantized:
            found = (*found, Precision("int8" if floats else None, data="random"))
        return found

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The types that rules name, the usual ones first; float32 alone where they name any."""
        rules = self.target.rules
        named = {d for rule in rules.ops for d in rule.dtype or rules.dtype if not rule.quantized}
        if not named.isdisjoint(NUMBERS):
            return tuple(d for d in _PREFERRED if d in named)
        return ("float32", "int64") if named else ("float32",)

    def planned(self, case: Case | Model, precision: Precision, inputs: Any = None) -> Planned:
        """Return a case with all that the rules take on the accelerator.

        Raises NotTakenError when that is nothing, and InputError for a model that is none.
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
        plan = Lowering(model, settings, precision, asked, _quiet).plan()
        if not plan.regions:
            reasons = dict.fromkeys(str(verdict) for _, verdict in plan.host_units)
            raise NotTakenError("; ".join(reasons) or "there is nothing in it to place")
        return Planned(model.source, plan, samples_for(model) if inputs is None else inputs)

    def compile(self, planned: Planned) -> Cut:
        """Return a case compiled, as a bundle.

        Raises CompileError when the codegen refuses it, and NotTakenError when plain onnxruntime has
        no word on what it should compute.
        """
        return self._written(planned, Compiler(self.codegen, self.options))

    def uncompiled(self, planned: Planned) -> Cut:
        """Return a case as a bundle whose regions the codegen has not seen."""
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
        """Yield models of one node of an operator that the rules put on the accelerator.

        Raises NotTakenError with a rule's reason when there is none.
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
        """Raise NotTakenError unless the rules take all nodes of a case; quicker than to plan it."""
        model = prepare(case.model, case.name)
        for mark in annotate(model.index, self.target):
            if not mark.verdict:
                raise NotTakenError(str(mark.verdict))

    def form(self, name: str) -> Planned:
        """Return a form drawn with what the rules take. Raises NotTakenError when it cannot be."""
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
        """Return a case all of which is in one region."""
        found = self.planned(case, self.precisions[0])
        if len(found.plan.regions) > 1 or (self.precisions[0] is NATIVE and found.plan.host_units):
            raise NotTakenError("the rules do not take all of it as one region")
        return found

    @property
    def words(self) -> list[Words]:
        """What the rules take of the nodes that forms are drawn with, by shape and type."""
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
        """Return a model of the zoo. Raises NotTakenError when the rules take nothing of it."""
        return self.planned(load_model(f"zoo:{name}"), self.precisions[0])


class _Nothing:
    """A codegen that makes nothing of a region."""

    name = "reference"

    def compile(self, region: Region, options: Any) -> Artifact:
        return Artifact()


def _require_runnable(planned: Planned) -> None:
    """Raise NotTakenError when plain onnxruntime does not run a case."""
    model = planned.plan.model
    try:
        run_plain(model.proto, model, planned.inputs)
    except InputError as error:
        raise NotTakenError(str(error)) from None


def _quiet(step: str) -> None:
    """Tell nobody of a step."""
