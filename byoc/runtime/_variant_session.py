"""Sessions of bundles with several variants: each call runs the one that takes inputs of its shapes."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import repeat
from typing import Any

from byoc._dataclasses import dataclass, field, replace
from byoc.bundle import (
    Bundle,
)
from byoc.errors import InputError
from byoc.model import Dim, TensorType
from byoc.padding import (
    PaddingRule,
    RowSplit,
    cut_outputs,
    find_unpadded_sizes,
    make_padded_shapes,
    pad_inputs,
)
from byoc.runtime._fitting import (
    VariantChoice,
)
from byoc.runtime._session import (
    Session,
    SessionCalls,
    read_tensors,
)
from byoc.runtime._stage_program import StageValues, Steps, run_in_pipeline
from byoc.runtime._trace import Trace


@dataclass(frozen=True, eq=False)
class FittedInputs:
    """Inputs as a variant takes them: its session, and the arrays, padded where they have to be.

    `rule` is what they are padded by, None where they fit as they are, and `sizes` what they were. With
    a `split` the variant takes some rows of a batch, and is run for all, one call after another.
    """

    session: Session
    inputs: StageValues
    rule: PaddingRule | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    split: RowSplit | None = None

    @property
    def padded(self) -> str:
        """The dimensions that are padded, `seq 7 to 16`; empty for none."""
        if self.rule is None:
            return ""
        grown = ((name, self.sizes[name], size) for name, size in self.rule.dims.items())
        return ", ".join(f"{name} {own} to {size}" for name, own, size in grown if own < size)

    @property
    def calls(self) -> int:
        """The number of calls of the variant, one unless a batch is split."""
        return 1 if self.split is None else -(-self.split.count_rows(self.inputs) // self.split.size)

    def pad(self) -> "FittedInputs":
        """Return the inputs padded to the variant, as contiguous arrays."""
        given = self.inputs if self.rule is None else pad_inputs(self.rule, self.inputs, self.sizes)
        return replace(self, inputs=self.session.check_inputs(given))

    def run(self, trace: Trace | None = None) -> dict[str, Any]:
        """Return the outputs, cut where the inputs were padded; raises as `Session.run`."""
        if self.split is not None:
            calls = [self.session.run(rows, trace) for rows in self._list_rows()]
            return self.split.join(calls, self.split.count_rows(self.inputs))
        return self.cut(self.session.run(self.inputs, self.mark(trace)))

    def list_steps(self, trace: Trace | None) -> Steps:
        """Yield the device of each stage before it runs there; return the outputs as `run` does."""
        if self.split is not None:
            calls = []
            for rows in self._list_rows():
                calls.append((yield from self.session.list_steps(rows, trace)))
            return self.split.join(calls, self.split.count_rows(self.inputs))
        return self.cut((yield from self.session.list_steps(self.inputs, self.mark(trace))))

    def _list_rows(self) -> Iterator[StageValues]:
        assert self.split is not None
        return self.split.list_rows(self.inputs)

    def run_pipeline(
        self, repeats: int, in_flight: int, trace: Trace | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the outputs of several runs of these inputs, as `Session.run_pipeline` does."""
        return run_in_pipeline(lambda _: self.list_steps(trace), repeat(self.inputs, repeats), in_flight)

    def mark(self, trace: Trace | None) -> Trace | None:
        """Return a trace whose events say what is padded."""
        return trace.for_padding(self.padded) if trace is not None and self.padded else trace

    def cut(self, outputs: StageValues) -> dict[str, Any]:
        """Return outputs of the session without what padding added. Raises InputError."""
        return dict(outputs) if self.rule is None else cut_outputs(self.rule, outputs, self.sizes)


@dataclass(frozen=True, eq=False)
class VariantSession(SessionCalls):
    """A loaded bundle of several variants. Call it with inputs by name to get outputs by name.

    `sessions` has the session of each variant by its name. A call runs the first whose inputs have the
    dtypes and shapes that are given. Where there is none, the inputs are padded to the variant with the
    fewest elements of those that `paddings` lets take them, and its outputs are cut.

    With a `split`, a batch that only the last, open variant takes is run by the first, in several calls.
    Where byoc chose the sizes of the first, inputs are padded to it that the open one would take, too:
    its rule says from which size on that is faster.
    """

    sessions: Mapping[str, Session]
    bundle: Bundle
    paddings: Mapping[str, PaddingRule] = field(default_factory=dict)
    split: RowSplit | None = None

    def __repr__(self) -> str:
        """Return the variants, and the names of inputs and outputs."""
        variants = list(self.sessions)
        return f"VariantSession({variants}, inputs={list(self.inputs)}, outputs={list(self.outputs)})"

    @property
    def is_automatic(self) -> bool:
        """Whether byoc chose the sizes of the first variant, and the last one takes all others."""
        return self.bundle.manifest.variants[0].automatic

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, the same in all variants; those that padding makes are left out."""
        return tuple(
            name for name in next(iter(self.sessions.values())).inputs if name not in self._made
        )

    @property
    def choice(self) -> VariantChoice:
        """The variants that were loaded, and why not others that take the same inputs."""
        return next(iter(self.sessions.values())).choice

    @property
    def fallbacks(self) -> Mapping[str, str]:
        """Regions of all variants that run on the host, each with the reason."""
        return {name: why for each in self.sessions.values() for name, why in each.fallbacks.items()}

    @cached_property
    def _made(self) -> set[str]:
        """The inputs that padding makes in any variant."""
        rules = self.paddings.values()
        return {name for rule in rules for name, each in rule.inputs.items() if each.made}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return next(iter(self.sessions.values())).outputs

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """The types of the inputs that are tensors, over all variants.

        An extent that differs between variants, or that padding leaves open, is named after what each
        of them takes, such as `64|1`; two extents that are alike in every variant have one name. Where
        byoc chose sizes by itself, the types are those of the variant that takes all others, too.
        """
        if self.is_automatic:
            return [*self.sessions.values()][-1].types
        kinds = {name: session.types for name, session in self.sessions.items()}
        shared = next(iter(kinds.values()))
        return {
            name: TensorType(kind.dtype, self._merge_shapes(name, kinds))
            for name, kind in shared.items()
            if name not in self._made
        }

    def _merge_shapes(
        self, name: str, kinds: Mapping[str, Mapping[str, TensorType]]
    ) -> tuple[Dim, ...] | None:
        shapes = []
        for variant, types in kinds.items():
            rule = self.paddings.get(variant)
            padded = None if rule is None else rule.inputs.get(name)
            shapes.append(types[name].shape if padded is None else padded.own_shape)
        known = [shape for shape in shapes if shape is not None]
        if len({len(shape) for shape in known}) != 1 or len(known) < len(shapes):
            return None
        return tuple(map(_merge_extents, zip(*known, strict=True)))

    def get_types(self) -> Mapping[str, TensorType]:
        made = [*self.sessions.values()][-1].get_types()
        return {**{name: made[name] for name in self.outputs if name in made}, **self.types}

    def _run_named(self, inputs: StageValues, trace: Trace | None) -> dict[str, Any]:
        """Return the outputs, and record each stage, with its variant, in a trace; raises as `fit`."""
        return self.fit(inputs).run(trace)

    def split_rows(self, fitted: FittedInputs) -> FittedInputs:
        """Return inputs of the last, open variant as rows of the first, where that takes each."""
        if self.split is None or fitted.session is not [*self.sessions.values()][-1]:
            return fitted
        first = next(iter(self.sessions.values()))
        if not self.split.size < self.split.count_rows(fitted.inputs) <= self.split.most:
            return fitted
        if not first.fits(next(self.split.list_rows(fitted.inputs))):  # another size is another one
            return fitted
        return FittedInputs(first, fitted.inputs, split=self.split)

    def run_pipeline(
        self, inputs: Iterable[StageValues], in_flight: int = 4, trace: Trace | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the outputs for each of several inputs, as `Session.run_pipeline` does."""
        return run_in_pipeline(partial(self._list_steps, trace=trace), inputs, in_flight)

    def _list_steps(self, inputs: StageValues, trace: Trace | None) -> Steps:
        return (yield from self.fit(inputs).list_steps(trace))

    def tensors(self, inputs: StageValues, names: Collection[str] | None = None) -> dict[str, Any]:
        """Return the values of tensors by name, as `Session.tensors` does; padded ones are not cut."""
        fitted = self._fit_whole(inputs, self.is_automatic)
        return fitted.session.tensors(fitted.inputs, names)

    def choose(self, inputs: StageValues) -> Session:
        """Return the session of the variant that takes the inputs, padded or not; raises as `fit`."""
        return self._fit_whole(inputs).session

    def fit(self, inputs: StageValues) -> FittedInputs:
        """Return the inputs as the variant takes them that fits them best, as rows where it splits them.

        Raises InputError, which says what each variant takes, where none does.
        """
        return self.split_rows(self._fit_whole(inputs))

    def _fit_whole(self, inputs: StageValues, unpadded: bool = False) -> FittedInputs:
        """Return the inputs as the variant takes them that takes all rows at once; raises as `fit`.

        With `unpadded` they are not padded where a variant takes them as they are.
        """
        for name, session in self.sessions.items():
            if session.fits(inputs):
                return FittedInputs(session, inputs)
            if self.is_automatic and not unpadded and name in self.paddings:
                padded = self._pad(name, read_tensors(inputs))
                if padded is not None:
                    return padded.pad()
        return self.select(inputs).pad()

    def takes(self, inputs: StageValues) -> bool:
        """Return whether some variant takes inputs, padded or not."""
        try:
            self.select(inputs)
        except InputError:
            return False
        return True

    def select(self, inputs: StageValues) -> FittedInputs:
        """Return the variant that inputs fit best, and the inputs as they are; raises as `fit`."""
        inputs = read_tensors(inputs)
        for session in self.sessions.values():
            if session.accepts(inputs):
                return FittedInputs(session, inputs)
        refusals: dict[str, str] = {}
        padded = [each for name in self.paddings if (each := self._pad(name, inputs, refusals))]
        if padded:
            return min(padded, key=lambda each: self.input_elements[each.session.variant])
        raise InputError(self._explain(inputs, refusals))

    @cached_property
    def input_elements(self) -> Mapping[str, int]:
        """The number of elements that the inputs of each variant have: the fewest are padded to."""
        return {name: _count_elements(session.types) for name, session in self.sessions.items()}

    def _explain(self, inputs: StageValues, refusals: Mapping[str, str]) -> str:
        """Return why no variant takes inputs; `refusals` say why those that are padded do not."""
        problems: dict[str, str] = {}
        for name, session in self.sessions.items():
            try:
                session.require_inputs(inputs, self._made)
            except InputError as error:
                problems[name] = str(error)
        exact = {*problems.values()}
        if len(exact) == 1 < len(self.sessions):
            return exact.pop()  # such as an input that is missing
        for name, refusal in refusals.items():
            if self.paddings[name].is_static:  # without what padding makes nothing fits as it is
                problems[name] = refusal
            else:
                problems[name] += f", nor by padding: {refusal}"
        variants = {entry.name: entry.variant for entry in self.bundle.manifest.variants}
        told = "; ".join(f"{variants[name]}: {problem}" for name, problem in problems.items())
        return f"no variant takes these inputs: {told}"

    def _pad(
        self, name: str, inputs: StageValues, refusals: dict[str, str] | None = None
    ) -> FittedInputs | None:
        """Return a variant that inputs can be padded to, or None, and add the reason to `refusals`."""
        rule, session = self.paddings[name], self.sessions[name]
        given = self._made.intersection(inputs)
        try:
            if given:
                raise InputError(f"input '{min(given)}' is made here, leave it out")
            sizes = find_unpadded_sizes(rule, inputs)
            session.require_inputs({**inputs, **make_padded_shapes(rule, inputs)}, self._made)
        except InputError as error:
            if refusals is not None:
                refusals[name] = str(error)
            return None
        return FittedInputs(session, inputs, rule, sizes)


def _merge_extents(extents: tuple[Dim, ...]) -> Dim:
    """Return an extent for what variants have there: theirs if it is the same, else a name of all."""
    if None in extents:
        return None
    return extents[0] if len(set(extents)) == 1 else "|".join(map(str, extents))


def _count_elements(types: Mapping[str, TensorType]) -> int:
    return sum(kind.elements or 0 for kind in types.values())
