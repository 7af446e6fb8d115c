"""A prompt in pieces: several calls in place of one that no variant takes."""

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from byoc._dataclasses import dataclass
from byoc.model import StatePair, evaluate_dim
from byoc.runtime._session import Session
from byoc.runtime._stage_program import StageValues
from byoc.runtime._variant_session import VariantSession


@dataclass(frozen=True)
class PieceForm:
    """A variant as it reads a piece: least and most tokens in a call, and tokens before them.

    `seconds` are predicted of a call. Of several variants that read a piece the one with the fewest
    `elements` of its inputs does (`VariantSession.select`).
    """

    sizes: tuple[int, int]
    past: tuple[int, int]
    seconds: float
    elements: int

    def follows(self, past: int) -> bool:
        """Return whether it reads tokens behind so many."""
        return self.past[0] <= past <= self.past[1]

    def reads(self, size: int) -> bool:
        """Return whether it reads so many tokens."""
        return self.sizes[0] <= size <= self.sizes[1]


@dataclass(frozen=True)
class PromptAxes:
    """Along which axes a call of several tokens is cut into calls of fewer.

    `tokens` has axes of inputs with an entry for each token of the call, `so_far` those with one for
    each token until now, as of a mask, and `outputs` the axis of an output, of states too, with an entry
    for each token.
    `count` is the number of tokens, and `forms` are the pieces that variants read. Along `length` of the
    state, an input and an axis, there is an entry for each token so far.
    """

    tokens: Mapping[str, Sequence[int]]
    so_far: Mapping[str, Sequence[int]]
    outputs: Mapping[str, int]
    count: int
    forms: Sequence[PieceForm]
    length: tuple[str, int]

    @classmethod
    def find(
        cls, session: VariantSession, inputs: StageValues, pairs: Mapping[str, StatePair]
    ) -> "PromptAxes | None":
        """Return the axes of inputs that no variant takes at once; None where that does not help.

        An axis is of tokens where its extents differ, from variant to variant or from what is given: of
        those until now where it is at least as long as the state is in the variant with the longest one.
        """
        length = _find_length_axis(session, pairs)
        if length is None:
            return None
        extents = {key: _get_extent(each, *length) or 0 for key, each in session.sessions.items()}
        longest = max(extents, key=lambda key: extents[key])
        tokens: dict[str, list[int]] = {}
        so_far: dict[str, list[int]] = {}
        for name, value in inputs.items():
            for axis, extent in enumerate(np.shape(value)):
                found = [_get_extent(each, name, axis) for each in session.sessions.values()]
                if None in found or {*found} == {extent}:
                    continue
                of_longest = _get_extent(session.sessions[longest], name, axis) or 0
                is_total = of_longest >= max(extents[longest], 2)
                (so_far if is_total else tokens).setdefault(name, []).append(axis)
        counts = {np.shape(inputs[name])[axis] for name, axes in tokens.items() for axis in axes}
        if len(counts) != 1:
            return None
        varying = {name: _find_varying_axes(session, name) for name in session.outputs}
        if any(axes is None or len(axes) > 1 for axes in varying.values()):
            return None  # what several calls make could not be joined
        outputs = {name: axes[0] for name, axes in varying.items() if axes}
        name, axes = next(iter(tokens.items()))
        forms = tuple(_list_forms(session, (name, axes[0]), length))
        return cls(tokens, so_far, outputs, counts.pop(), forms, length)

    @property
    def sizes(self) -> list[int]:
        """The numbers of tokens that variants have, the largest first."""
        return sorted({form.sizes[1] for form in self.forms if form.sizes[1]}, reverse=True)

    def plan_sizes(self, state: StageValues) -> list[int]:
        """Return the sizes of pieces, in their order, that take the least predicted time behind a state.

        Of those that take as long the fewest; nothing where the variants read no such pieces. This is
        Dijkstra's shortest path, over the numbers of tokens that are read.
        """
        name, axis = self.length
        past = np.shape(state[name])[axis]
        queue: list[tuple[float, int, int, tuple[int, ...]]] = [(0.0, 0, 0, ())]
        seen: set[int] = set()
        while queue:
            seconds, calls, done, sizes = heappop(queue)
            if done == self.count:
                return [*sizes]
            if done in seen:
                continue
            seen.add(done)
            for size, form in self._list_next(past + done, self.count - done):
                path = (seconds + form.seconds, calls + 1, done + size, (*sizes, size))
                heappush(queue, path)
        return []

    def _list_next(self, past: int, left: int) -> Iterator[tuple[int, PieceForm]]:
        """Yield sizes of the next piece with the variant that reads it.

        They are those of variants, and what leaves whole pieces to be read behind it. Where there is
        one of several tokens, a variant for a single one reads but such a rest.
        """
        forms = [form for form in self.forms if form.follows(past)]
        rests = {left % form.sizes[1] for form in self.forms if form.sizes[1] > 1} - {0}
        sizes = rests | {min(form.sizes[1], left) for form in forms}
        reading = {size: [form for form in forms if form.reads(size)] for size in sizes}
        found = {size: each for size, each in reading.items() if each}
        if max(found, default=0) > 1 and 1 not in rests:
            found.pop(1, None)
        for size, each in found.items():
            yield size, min(each, key=lambda form: form.elements)

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


def _find_length_axis(session: VariantSession, pairs: Mapping[str, StatePair]) -> tuple[str, int] | None:
    """Return a state and its axis with an entry for each token so far; None where it is not seen.

    Along it extents differ from variant to variant, or are padded, and all are known.
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
            extents = [_get_extent(each, name, axis) for each in session.sessions.values()]
            return None if None in extents else (name, axis)
    return None


def _list_forms(
    session: VariantSession, tokens: tuple[str, int], length: tuple[str, int]
) -> Iterator[PieceForm]:
    """Yield the form of each variant, by the axes of an input that has the tokens, and of the state."""
    entries = {entry.name: entry for entry in session.bundle.manifest.variants}
    for key, elements in session.input_elements.items():
        sizes, past = (_find_range(session, key, *axis) for axis in (tokens, length))
        yield PieceForm(sizes, past, entries[key].report.predicted.seconds, elements)


def _find_range(session: VariantSession, key: str, name: str, axis: int) -> tuple[int, int]:
    """Return the least and the largest extent of an input that a variant takes, padded or not."""
    rule = session.paddings.get(key)
    padded = None if rule is None else rule.inputs.get(name)
    if rule is None or padded is None:
        extent = _get_extent(session.sessions[key], name, axis) or 0
        return extent, extent
    dim = padded.own_shape[axis]
    least = evaluate_dim(dim, dict.fromkeys(rule.dims, rule.least))
    return least or 0, evaluate_dim(dim, rule.dims) or 0


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
