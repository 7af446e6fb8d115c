"""The outcome of a run: the plan, report and verification of each variant, and the bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import onnx

import byoc.verification
from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError
from byoc.reporting import check_requirements, make_report, report_placed_nodes, summarize_report

if TYPE_CHECKING:
    from byoc.bundle import Report
    from byoc.model import Variant
    from byoc.pipeline._state import Packed, Planned, Resolved
    from byoc.planning import Plan
    from byoc.reporting import Requirements


# The protocol of stages, and chains of them: what one makes is what the next one reads.

ReadT = TypeVar("ReadT")
MadeT = TypeVar("MadeT")
NextT = TypeVar("NextT")
ReadT_contra = TypeVar("ReadT_contra", contravariant=True)
MadeT_co = TypeVar("MadeT_co", covariant=True)
VariantT = TypeVar("VariantT", bound="Resolved")


class Stage(Protocol[ReadT_contra, MadeT_co]):
    """A step of the pipeline; its fields, if any, are its options.

    A *joint* stage takes and returns the states of all variants of a bundle, the others that of one.
    """

    def run(self, state: ReadT_contra, /) -> MadeT_co:
        """Return the state with what this stage makes; the one that is given stays as it is."""


@dataclass(frozen=True)
class Chain(Generic[ReadT, MadeT]):
    """Stages one after the other, which are a stage again: `Chain.of(Annotate()) >> Group()`.

    A type checker rejects a stage that reads what none before it makes. Iterating gives the stages,
    those of chains inside, too.
    """

    stages: tuple[Stage[Any, Any], ...]

    @classmethod
    def of(cls, stage: Stage[ReadT, MadeT]) -> Chain[ReadT, MadeT]:
        """Return the chain of one stage."""
        return cls((stage,))

    def __rshift__(self, stage: Stage[MadeT, NextT]) -> Chain[ReadT, NextT]:
        """Return the chain with one more stage at the end."""
        return Chain((*self.stages, stage))

    def __iter__(self) -> Iterator[Stage[Any, Any]]:
        """Yield the stages in order."""
        for stage in self.stages:
            inner = stage.stage if isinstance(stage, Each) else stage
            yield from inner if isinstance(inner, Chain) else (inner,)

    def run(self, state: ReadT) -> MadeT:
        """Run the stages. Raises what they raise."""
        made: Any = state
        for stage in self.stages:
            made = _run(stage, made)
        return made  # type: ignore[no-any-return]  # the last stage's, by how chains are made


@dataclass(frozen=True)
class Each(Generic[VariantT, MadeT]):
    """A stage for each variant of a bundle, as a joint stage."""

    stage: Stage[VariantT, MadeT]

    def run(self, states: Sequence[VariantT]) -> list[MadeT]:
        """Run the stage on each state. Raises as it does, InputError with the variant's name first."""
        made = []
        for state in states:
            with _naming_variant(state.request.variant):
                made.append(_run(self.stage, state))
        return made


@contextmanager
def _naming_variant(variant: Variant) -> Iterator[None]:
    """Put the name of a variant, if it has one, in front of the message of an InputError."""
    try:
        yield
    except InputError as error:
        if not variant.name or type(error) is not InputError:  # others say more than a message
            raise
        raise InputError(f"variant {variant.name}: {error}") from error


Watcher = Callable[[Stage[Any, Any], Any], None]
_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watch_stages(watch: Watcher) -> Iterator[None]:
    """Call `watch` after each stage that runs in the block, with the stage and the state that it made.

    A joint stage makes a list of states, one for each variant.
    """
    token = _WATCHER.set(watch)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def _run(stage: Stage[ReadT, MadeT], state: ReadT) -> MadeT:
    made = stage.run(state)
    watch = _WATCHER.get()
    if watch is not None and not isinstance(stage, Chain | Each):  # their stages are told by themselves
        watch(stage, made)
    return made


@dataclass(frozen=True, eq=False)
class VariantResult:
    """The outcome of `partition` for a variant: the plan, the report, the comparison with the original.

    `verification` is None where nothing was compared.
    """

    plan: Plan
    report: Report
    verification: byoc.verification.Verification | None = None

    @property
    def name(self) -> str:
        """The name of the variant, empty where there are none."""
        return self.plan.variant.name

    def __repr__(self) -> str:
        """Return the summary of the report."""
        return f"<VariantResult {summarize_report(self.report)}>"

    @property
    def model(self) -> onnx.ModelProto:
        """The partitioned model: plain ONNX, regions as functions."""
        return self.plan.proto

    def to_json(self) -> dict[str, Any]:
        """Return the report with the place of each node, as data that JSON can represent."""
        placed = report_placed_nodes(self.plan)
        return self.report.model_copy(update={"placed": placed}).to_json()


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of `partition`: that of each variant, a single one where none were asked for.

    `bundle` is where it was written (None without an output). `not_signed` is why the bundle is not
    signed, empty where it is or was not to be. `plan`, `report`, `verification` and `model` are those of
    the single variant, or of the one with sizes that byoc chose by itself; they raise InputError where
    there are several others.
    """

    variants: tuple[VariantResult, ...]
    bundle: Path | None = None
    not_signed: str = ""

    def __repr__(self) -> str:
        """Return the summary of each variant's report, and the bundle."""
        summary = "\n".join(summarize_report(each.report) for each in self.variants)
        return f"<Result {summary}{f'; {self.bundle}' if self.bundle else ''}>"

    @property
    def only(self) -> VariantResult:
        """The single variant, or the one with sizes that byoc chose; raises InputError for several."""
        if len(self.variants) > 1 and not self.variants[0].report.chosen_sizes:
            names = ", ".join(each.name for each in self.variants)
            raise InputError(f"there are several variants ({names}), and this takes one: see `variants`")
        return self.variants[0]

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.only.plan

    @property
    def report(self) -> Report:
        """The report."""
        return self.only.report

    @property
    def verification(self) -> byoc.verification.Verification | None:
        """The comparison with the original, None where there was none."""
        return self.only.verification

    @property
    def model(self) -> onnx.ModelProto:
        """The partitioned model: plain ONNX, regions as functions."""
        return self.only.model

    def check(self, requirements: Requirements) -> None:
        """Raise RequirementError, with a line for each of the `requirements` that a variant misses."""
        check_requirements([each.report for each in self.variants], requirements)

    def to_json(self) -> dict[str, Any]:
        """Return the document of `byoc partition --format json`: the report, or those of all variants.

        It has the place of each node, so that `byoc diff` compares it with a later placement.
        """
        documents = [each.to_json() for each in self.variants]
        return {"variants": documents} if self.variants[0].name else documents[0]

    def move_to(self, bundle: Path, not_signed: str) -> Result:
        """Return the result with its bundle elsewhere, and why it is not signed there."""

        def move(variant: VariantResult) -> VariantResult:
            report = variant.report.model_copy(update={"bundle": str(bundle)})
            return replace(variant, report=report)

        return Result(tuple(map(move, self.variants)), bundle, not_signed)

    def make_page(self) -> str:
        """Return the report as one HTML file with the graph: of the bundle, or of the plan alone."""
        from byoc.reporting.page import make_page, make_plan_page  # noqa: PLC0415 - few results get a page

        if self.bundle is None:
            return make_plan_page(self.plan, self.report)
        return make_page(self.bundle)


def make_plan_result(states: Sequence[Planned]) -> Result:
    """Return the result of variants that were only planned."""
    outcome = byoc.verification.NotVerified("nothing was compiled, since no output was given (-o)")
    return Result(tuple(VariantResult(each.plan, make_report(each.plan, outcome)) for each in states))


def make_result(states: Sequence[Packed]) -> Result:
    """Return the result of variants whose bundle is written."""
    first = states[0]
    output = Path(first.request.options.output or "")
    variants = tuple(_make_variant_result(each, output) for each in states)
    return Result(variants, output, first.not_signed)


def _make_variant_result(state: Packed, output: Path) -> VariantResult:
    outcome = state.verification
    report = make_report(state.plan, outcome, output, state.figures.estimates, state.figures.sram)
    return VariantResult(
        state.plan, report, outcome if isinstance(outcome, byoc.verification.Verification) else None
    )
