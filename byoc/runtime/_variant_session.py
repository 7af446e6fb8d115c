"""Sessions of bundles with several variants: each call runs the one that takes inputs of its shapes."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import repeat
from typing import Any

import numpy as np

from byoc.bundle import (
    Bundle,
)
from byoc.errors import InputError
from byoc.model import Dim, StatePair, TensorType
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
from byoc.runtime._stage_program import DeviceTurns, StageValues, run_in_pipeline
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

    def run_in_turn(self, number: int, turns: DeviceTurns, trace: Trace | None) -> dict[str, Any]:
        """Return the outputs as `run` does, each stage run when its device is free."""
        if self.split is not None:
            run = self.session.run_in_turn
            calls = [run(rows, number, turns, trace) for rows in self._list_rows()]
            return self.split.join(calls, self.split.count_rows(self.inputs))
        return self.cut(self.session.run_in_turn(self.inputs, number, turns, self.mark(trace)))

    def _list_rows(self) -> Iterator[StageValues]:
        assert self.split is not None
        return self.split.list_rows(self.inputs)

    def run_pipeline(
        self, repeats: int, in_flight: int, trace: Trace | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the outputs of several runs of these inputs, as `Session.run_pipeline` does."""
        return run_in_pipeline(
            lambda _, number, turns: self.run_in_turn(number, turns, trace),
            repeat(self.inputs, repeats),
            in_flight,
        )

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
        return run_in_pipeline(partial(self._run_in_turn, trace=trace), inputs, in_flight)

    def _run_in_turn(
        self, inputs: StageValues, number: int, turns: DeviceTurns, trace: Trace | None
    ) -> dict[str, Any]:
        return self.fit(inputs).run_in_turn(number, turns, trace)

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
                padded = self._pad(name, read_tensors(inputs), defaultdict(str))
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
        problems: dict[str, str] = {}
        inputs = read_tensors(inputs)
        for name, session in self.sessions.items():
            try:
                session.require_inputs(inputs, self._made)
            except InputError as error:
                problems[name] = str(error)
            else:
                return FittedInputs(session, inputs)
        exact = {*problems.values()}
        padded = [each for name in self.paddings if (each := self._pad(name, inputs, problems))]
        if padded:
            return min(padded, key=lambda each: _count_elements(each.session.types))
        if len(exact) == 1 < len(self.sessions):
            raise InputError(exact.pop())  # such as an input that is missing
        variants = {entry.name: entry.variant for entry in self.bundle.manifest.variants}
        told = "; ".join(f"{variants[name]}: {problem}" for name, problem in problems.items())
        raise InputError(f"no variant takes these inputs: {told}")

    def _pad(self, name: str, inputs: StageValues, problems: dict[str, str]) -> FittedInputs | None:
        """Return a variant that inputs can be padded to, or None, and add the reason in `problems`."""
        rule, session = self.paddings[name], self.sessions[name]
        given = self._made.intersection(inputs)
        try:
            if given:
                raise InputError(f"input '{min(given)}' is made here, leave it out")
            sizes = find_unpadded_sizes(rule, inputs)
            session.require_inputs({**inputs, **make_padded_shapes(rule, inputs)}, self._made)
        except InputError as error:
            if rule.is_static:  # without what padding makes nothing fits as it is
                problems[name] = str(error)
            else:
                problems[name] += f", nor by padding: {error}"
            return None
        return FittedInputs(session, inputs, rule, sizes)


def _merge_extents(extents: tuple[Dim, ...]) -> Dim:
    """Return an extent for what variants have there: theirs if it is the same, else a name of all."""
    if None in extents:
        return None
    return extents[0] if len(set(extents)) == 1 else "|".join(map(str, extents))


def _count_elements(types: Mapping[str, TensorType]) -> int:
    return sum(kind.elements or 0 for kind in types.values())


# A prompt in pieces: several calls in place of one that no variant takes.


@dataclass(frozen=True)
class PromptAxes:
    """Along which axes a call of several tokens is cut into calls of fewer.

    `tokens` has axes of inputs with an entry for each token of the call, `so_far` those with one for
    each token until now, as of a mask, and `outputs` the axis of an output, of states too, with an entry
    for each token.
    `count` is the number of tokens, `sizes` those that variants take, the largest first, and `behind`
    the largest that one takes behind a past, 0 where none does.
    """

    tokens: Mapping[str, Sequence[int]]
    so_far: Mapping[str, Sequence[int]]
    outputs: Mapping[str, int]
    count: int
    sizes: Sequence[int]
    behind: int

    @classmethod
    def find(
        cls, session: VariantSession, inputs: StageValues, pairs: Mapping[str, StatePair]
    ) -> "PromptAxes | None":
        """Return the axes of inputs that no variant takes at once; None where that does not help.

        An axis is of tokens where its extents differ, from variant to variant or from what is given: of
        those until now where it is at least as long as the state is in the variant with the longest one.
        """
        lengths = _find_lengths(session, pairs)
        if not lengths:
            return None
        key, length = max(lengths.items(), key=lambda each: each[1])
        longest = session.sessions[key]
        tokens: dict[str, list[int]] = {}
        so_far: dict[str, list[int]] = {}
        sizes: set[int] = set()
        behind: set[int] = set()
        for name, value in inputs.items():
            for axis, extent in enumerate(np.shape(value)):
                found = [_get_extent(each, name, axis) for each in session.sessions.values()]
                if None in found or {*found} == {extent}:
                    continue
                if (_get_extent(longest, name, axis) or 0) >= max(length, 2):
                    so_far.setdefault(name, []).append(axis)
                else:
                    tokens.setdefault(name, []).append(axis)
                    by_variant = dict(zip(session.sessions, found, strict=True))
                    sizes.update(size for size in found if size)
                    behind.update(size or 0 for key, size in by_variant.items() if lengths.get(key))
        counts = {np.shape(inputs[name])[axis] for name, axes in tokens.items() for axis in axes}
        if len(counts) != 1:
            return None
        varying = {name: _find_varying_axes(session, name) for name in session.outputs}
        if any(axes is None or len(axes) > 1 for axes in varying.values()):
            return None  # what several calls make could not be joined
        outputs = {name: axes[0] for name, axes in varying.items() if axes}
        return cls(
            tokens, so_far, outputs, counts.pop(), sorted(sizes, reverse=True), max(behind, default=0)
        )

    @property
    def first(self) -> int:
        """The number of tokens to begin with so that whole pieces of `behind` follow, 0 for any.

        Without a past a piece may be padded, where behind one its last tokens would go one by one.
        """
        if self.behind <= 1:
            return 0
        return max(0, self.count - -(-(self.count - self.sizes[0]) // self.behind) * self.behind)

    def cut(self, inputs: StageValues, done: int, size: int) -> dict[str, Any]:
        """Return the inputs of `size` tokens behind the first `done`."""
        found = dict(inputs)
        for name, axes in self.tokens.items():
            for axis in axes:
                found[name] = np.take(found[name], range(done, done + size), axis)
        for name, axes in self.so_far.items():
            for axis in axes:
                left = np.shape(inputs[name])[axis] - self.count + done + size
                found[name] = np.take(found[name], range(left), axis)
        return found

    def cut_first(self, inputs: StageValues, size: int) -> dict[str, Any]:
        """Return the inputs of the first `size` tokens as of a sequence that begins with them.

        Where there are fewer, the last of them is repeated.
        """
        found = dict(inputs)
        for axes in (self.tokens, self.so_far):
            for name, own in axes.items():
                for axis in own:
                    found[name] = np.take(found[name], range(size), axis, mode="clip")
        return found

    def change_last(self, piece: StageValues) -> dict[str, Any]:
        """Return the inputs of some tokens with others for the last of them, which are as valid."""
        found = dict(piece)
        for name, axes in self.tokens.items():
            value = np.array(piece[name])
            for axis in axes:
                last = np.moveaxis(value, axis, 0)[-1]
                last[...] = np.where(last > 0, last - 1, last + 1)
            found[name] = value
        return found

    def measure_looking_ahead(self, one: StageValues, other: StageValues, size: int) -> float:
        """Return the change of outputs for earlier tokens as a share of the change for the last one.

        `one` and `other` are outputs for `size` tokens without a past, of which the last one differs. A
        causal model gives 0.
        """
        share = 0.0
        for name, axis in self.outputs.items():
            moved = np.moveaxis(np.abs(np.subtract(one[name], other[name], dtype=np.float64)), axis, 0)
            earlier, last = (
                float(part.max(initial=0.0)) for part in (moved[: size - 1], moved[size - 1 :])
            )
            share = max(share, earlier / (last or 1.0))
        return share

    def join(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the outputs of all calls as those of one; of one without tokens those of the last."""
        return {
            name: np.concatenate([part[name] for part in parts], self.outputs[name])
            if name in self.outputs
            else value
            for name, value in parts[-1].items()
        }


def _get_extent(session: Session, name: str, axis: int) -> int | None:
    kind = session.types.get(name)
    extent = kind.shape[axis] if kind is not None and kind.shape and axis < len(kind.shape) else None
    return extent if isinstance(extent, int) else None


def _find_lengths(session: VariantSession, pairs: Mapping[str, StatePair]) -> dict[str, int]:
    """Return the number of tokens that the state of each variant has; nothing where it is not seen.

    That is its extent along the axis that differs from variant to variant, or that is padded.
    """
    for name in pairs:
        shapes = {key: each.types[name].shape for key, each in session.sessions.items()}
        columns = zip(*(shape or () for shape in shapes.values()), strict=False)
        varying = {axis for axis, extents in enumerate(columns) if len({*extents}) > 1}
        rules = (rule.inputs[name] for rule in session.paddings.values() if name in rule.inputs)
        varying |= {
            axis for rule in rules for axis, dim in enumerate(rule.own_shape) if isinstance(dim, str)
        }
        if len(varying) == 1:
            axis = varying.pop()
            found = {key: _get_extent(each, name, axis) for key, each in session.sessions.items()}
            return {key: extent for key, extent in found.items() if extent is not None}
    return {}


def _find_varying_axes(session: VariantSession, name: str) -> list[int] | None:
    """Return the axes of an output whose extents differ between variants, None where none is known.

    An extent with a name that no input has, such as the total of past and new tokens, may differ.
    """
    kinds = [each.get_types().get(name) for each in session.sessions.values()]
    shapes = [kind.shape for kind in kinds if kind is not None and kind.shape is not None]
    if len(shapes) < len(kinds) or len({len(shape) for shape in shapes}) != 1:
        return None
    inputs = [kind.shape or () for each in session.sessions.values() for kind in each.types.values()]
    told = {dim for shape in inputs for dim in shape}
    return [
        axis
        for axis, extents in enumerate(zip(*shapes, strict=True))
        if len({*extents}) > 1 or not (isinstance(extents[0], int) or extents[0] in told)
    ]
