"""A prompt in pieces: several calls in place of one that no variant takes.

And the tokens that a session has read, for a sequence that begins with the same ones.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from math import inf, isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError
from byoc.model import Dim, StatePair, evaluate_dim
from byoc.runtime._session import Session
from byoc.runtime._stage_program import StageValues
from byoc.runtime._variant_session import FittedInputs, VariantSession

MOST_LOOKING_AHEAD = 1e-3
"""Largest change of earlier tokens in a causal model, as a share of that of the changed token.

Rounding stays far below it, a mean over all tokens lies above it.
"""

MOST_OFF_IN_PIECES = 0.05
"""Largest difference between an output of one call and of several, as a share of its largest value.

Rounding of regions in lower precision stays below it. A sum or a mean over the tokens of a call differs
from the last token's own by about as much as that is.
"""


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
    """The axes along which a call of several tokens is cut into calls of fewer.

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

        An axis counts tokens if its extents differ between variants, or from the given one. It counts
        all tokens so far if, in the variant with the longest state, it is at least as long as that.
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

        Of those that take as long the fewest; nothing where the variants read no such pieces.
        """
        name, axis = self.length
        return self.plan(np.shape(state[name])[axis])[1]

    def plan(self, past: int) -> tuple[float, list[int]]:
        """Return the predicted seconds and the sizes of the pieces that take least behind `past` tokens.

        Infinity and nothing where the variants read no such pieces. This is Dijkstra's shortest path,
        over the numbers of tokens that are read.
        """
        queue: list[tuple[float, int, int, tuple[int, ...]]] = [(0.0, 0, 0, ())]
        seen: set[int] = set()
        while queue:
            seconds, calls, done, sizes = heappop(queue)
            if done == self.count:
                return seconds, [*sizes]
            if done in seen:
                continue
            seen.add(done)
            for size, form in self._list_next(past + done, self.count - done):
                path = (seconds + form.seconds, calls + 1, done + size, (*sizes, size))
                heappush(queue, path)
        return np.inf, []

    def _list_next(self, past: int, left: int) -> Iterator[tuple[int, PieceForm]]:
        """Yield sizes of the next piece with the variant that reads it.

        Sizes are the largest that variants read, and remainders that leave whole pieces for later
        calls. Beside a variant for several tokens, one for a single token reads such remainders only.
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

        Where there are fewer, the last of them is repeated. No token is masked: one that attends to
        none attends to all alike, also to those behind it.
        """
        found = dict(inputs)
        for axes in (self.tokens, self.so_far):
            for name, own in axes.items():
                for axis in own:
                    found[name] = np.take(found[name], range(size), axis, mode="clip")
        return unmask(found, self.so_far)

    def select_piece(
        self,
        session: VariantSession,
        inputs: StageValues,
        state: StageValues,
        done: int,
        planned: Sequence[int],
    ) -> tuple[int, FittedInputs]:
        """Return a number of next tokens with the variant that takes them: as planned, or the largest.

        Raises InputError where none does: then the smallest says why.
        """
        sizes = [*planned, *(min(size, self.count - done) for size in self.sizes)]
        refusals = {}
        for size in dict.fromkeys(sizes):
            try:
                return size, session.select({**self.cut(inputs, done, size), **state})
            except InputError as error:
                refusals[size] = error
        raise refusals[min(refusals)]

    def find_joined(
        self,
        session: VariantSession,
        inputs: StageValues,
        make_state: Callable[[StageValues], StageValues],
        given: Collection[str],
        pairs: Mapping[str, StatePair],
    ) -> dict[str, int]:
        """Return the axis of tokens of each output in `given` that is made piece by piece.

        The model runs twice without a past, the second time with another last token: results for
        earlier tokens have to stay. Both runs take the fewest tokens that a variant does, even more
        than the prompt has. They also show the axis of an output whose extents are alike in all
        variants. Where the variants read the last of these tokens behind the others, too, outputs have
        to be the same. Raises InputError for a model in which a token depends on later ones, where
        nothing shows it, and for an output that sums or pools over the tokens of a call.
        """
        for size in sorted({2, *self.sizes} - {1}):
            piece = self.cut_first(inputs, size)
            state = make_state(piece)
            if not session.takes({**piece, **state}):
                continue
            others = change_last(piece, self.tokens)
            one, other = (session.run({**each, **state}) for each in (piece, others))
            found = dict(self.outputs)
            for name in given if len(self.sizes) == 1 else ():  # else extents would differ
                if name not in found and size in np.shape(one[name]):
                    found[name] = find_causal_axis(one[name], other[name], size)
            if not found:
                break
            unclear = next((name for name, axis in found.items() if axis < 0), None)
            if unclear is not None:
                raise InputError(
                    "the prompt is longer than variants take, and cannot be read in pieces: all read as "
                    f"many tokens, and whether output '{unclear}' has an entry for each is not seen"
                )
            if measure_looking_ahead(one, other, found, size) > MOST_LOOKING_AHEAD:
                raise InputError(
                    "the prompt is longer than variants take, and cannot be read in pieces: what the "
                    "model makes of a token depends on those behind it"
                )
            for each, whole in ((piece, one), (others, other)):
                behind = self._run_last(session, each, whole, size, pairs)
                unlike = find_unlike(whole, behind, given)
                if unlike:
                    raise InputError(
                        "the prompt is longer than variants take, and cannot be read in pieces: output "
                        f"'{unlike}' is of all tokens of a call at once, as a sum or a mean of them"
                    )
            return {name: found[name] for name in given if name in found}
        raise InputError(
            "no variant takes the prompt, and none shows by the outputs for two tokens without a past "
            "whether the model reads it in pieces: give its tokens one by one"
        )

    def _run_last(
        self,
        session: VariantSession,
        piece: StageValues,
        whole: StageValues,
        size: int,
        pairs: Mapping[str, StatePair],
    ) -> dict[str, Any]:
        """Return the outputs for the last of `size` tokens behind the state of those before it.

        `whole` is made of all at once, so that its state begins with that of fewer tokens. Of the last
        tokens the fewest are taken that a variant reads; nothing where none does, or a state is of no
        tokens.
        """
        axes = {past: self.outputs.get(pair.present) for past, pair in pairs.items()}
        made = {past: whole[pair.present] for past, pair in pairs.items()}
        if any(axis is None or made[past].shape[axis] != size for past, axis in axes.items()):
            return {}
        own = replace(self, count=size)
        for count in range(size - 1, 0, -1):
            state = {past: np.take(made[past], range(count), axis) for past, axis in axes.items()}
            given = {**own.cut(piece, count, size - count), **state}
            if session.takes(given):
                return dict(session.run(given))
        return {}


def find_unlike(whole: StageValues, behind: StageValues, names: Collection[str]) -> str:
    """Return an output of all tokens at once that differs from the one behind a state, empty if none.

    Those of other extents are not compared, as of one with an entry for each token of a call.
    """
    for name in names:
        if name in behind and _is_unlike(whole[name], behind[name]):
            return name
    return ""


def _is_unlike(whole: Any, behind: Any) -> bool:
    """Return whether values differ: arrays of numbers or texts, lists of them, or None."""
    if isinstance(whole, list) and isinstance(behind, list):
        return len(whole) == len(behind) and any(map(_is_unlike, whole, behind))
    if whole is None or behind is None or np.shape(whole) != np.shape(behind):
        return False
    if np.asarray(whole).dtype.kind in "OSU":
        return bool(np.any(whole != behind))
    change = _measure_change(whole, behind).max(initial=0.0)
    size = np.abs(np.nan_to_num(whole.astype(np.float64), posinf=0, neginf=0))
    return bool(change > MOST_OFF_IN_PIECES * size.max(initial=0.0))


def join_pieces(
    parts: Sequence[Mapping[str, Any]], sizes: Sequence[int], axes: Mapping[str, int]
) -> dict[str, Any]:
    """Return the outputs of all calls, of so many tokens each, as those of one.

    Those along `axes` are joined, others are those of the last call, and so are outputs that each call
    makes anew for all tokens so far: along the axis each is longer than the last one by its tokens.
    """
    joined = dict(parts[-1])
    for name, axis in axes.items():
        made = [part[name] for part in parts]
        grown = [after.shape[axis] - before.shape[axis] for before, after in pairwise(made)]
        if not grown or grown != [*sizes[1:]]:
            joined[name] = np.concatenate(made, axis)
    return joined


def find_causal_axis(one: NDArray[Any], other: NDArray[Any], size: int) -> int:
    """Return the axis of `size` entries along which two outputs differ in the last one alone.

    -1 where there is none, or several: then nothing shows that an axis is of tokens.
    """
    axes = [axis for axis, extent in enumerate(one.shape) if extent == size]
    shares = [measure_looking_ahead({"": one}, {"": other}, {"": axis}, size) for axis in axes]
    causal = [axis for axis, share in zip(axes, shares, strict=True) if share <= MOST_LOOKING_AHEAD]
    return causal[0] if len(causal) == 1 and not np.array_equal(one, other) else -1


def unmask(piece: StageValues, masks: Collection[str]) -> dict[str, Any]:
    """Return inputs with the largest element everywhere in masks: 1, or 0 where 0 is added to scores."""
    found = {name: np.full_like(piece[name], np.max(piece[name])) for name in masks}
    return {**piece, **found}


def change_last(piece: StageValues, tokens: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return the inputs of some tokens with others for the last of them, which are as valid."""
    found = dict(piece)
    for name, axes in tokens.items():
        value = np.array(piece[name])
        for axis in axes:
            last = np.moveaxis(value, axis, 0)[-1:]
            last[...] = np.where(last > 0, last - 1, last + 1)
        found[name] = value
    return found


def measure_looking_ahead(
    one: StageValues, other: StageValues, axes: Mapping[str, int], size: int
) -> float:
    """Return the change of values for earlier tokens as a share of the change for the last one.

    `one` and `other` are of `size` tokens without a past, of which the last one differs, along `axes`.
    A causal model gives 0.
    """
    share = 0.0
    for name, axis in axes.items():
        moved = np.moveaxis(_measure_change(one[name], other[name]), axis, 0)
        earlier, last = (float(part.max(initial=0.0)) for part in (moved[: size - 1], moved[size - 1 :]))
        share = max(share, inf if isinf(earlier) else earlier / (last or 1.0))
    return share


def _measure_change(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """Return the change of each value, float64: 0 of equal ones, infinite to or from NaN or infinity."""
    before, after = (np.asarray(each).astype(np.float64) for each in (one, other))
    with np.errstate(invalid="ignore"):  # infinities, as scores of tokens that are left out
        change = np.abs(before - after)
    is_same = (before == after) | (np.isnan(before) & np.isnan(after))
    return np.where(is_same, 0.0, np.where(np.isnan(change), inf, change))


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


# What a state was made of, so that a sequence that begins alike need not be read again.

_MOST_PARTS = 64
"""Arrays of one input that are kept apart; more are joined."""


def find_token_axes(dims: Mapping[str, Sequence[Dim]]) -> dict[str, int]:
    """Return the open axes of inputs besides that of the rows, by the stated extents of inputs.

    They have an entry for each token of a call, or each one so far. Nothing where an input has several.
    """
    rows = {each[0] for each in dims.values() if len(each) > 1}
    found = {
        name: [
            axis
            for axis, dim in enumerate(each)
            if isinstance(dim, str) and (axis > 0 or (len(each) == 1 and dim not in rows))
        ]
        for name, each in dims.items()
    }
    if any(len(axes) > 1 for axes in found.values()):
        return {}
    return {name: axes[0] for name, axes in found.items() if axes}


def cut_tokens(
    inputs: StageValues, axes: Mapping[str, int], places: range, whole: Collection[str] = ()
) -> dict[str, Any]:
    """Return inputs with the entries of some tokens alone; the last stands for those that there are not.

    Those of `whole` stay as they are.
    """
    cut = {name: axis for name, axis in axes.items() if name in inputs and name not in whole}
    found = {name: np.take(inputs[name], places, axis, mode="clip") for name, axis in cut.items()}
    return {**inputs, **found}


def pays_behind(
    session: Session | VariantSession,
    pairs: Mapping[str, StatePair],
    count: int,
    inputs: StageValues,
    behind: StageValues,
) -> bool:
    """Return whether plans predict that reading behind `count` tokens takes no more than reading all.

    Where no variants show it, it does.
    """
    if isinstance(session, Session):
        return True
    whole, rest = (PromptAxes.find(session, each, pairs) for each in (inputs, behind))
    return whole is None or rest is None or rest.plan(count)[0] <= whole.plan(0)[0]


@dataclass(eq=False)
class TokensRead:
    """Copies of the inputs of a sequence's calls, from which `count` entries of a state follow.

    `parts` are those of inputs with an entry for each token, which together are `[rows, tokens, ...]`, a
    mask of all tokens so far among them; `kept` are inputs that were the same in each call. `so_far`
    says of inputs whether they had all tokens so far in a call, once a call showed it.
    """

    count: int = 0
    parts: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    kept: dict[str, NDArray[Any]] = field(default_factory=dict)
    so_far: dict[str, bool] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows that were read."""
        return len(next(iter(self.parts.values()))[0]) if self.parts else 0

    def is_so_far(
        self, name: str, axes: Mapping[str, int], list_dims: Callable[[str], Sequence[Dim]]
    ) -> bool:
        """Return whether an input has an entry for each token so far, as a mask mostly has.

        A call behind others showed it; before there was one names and extents say so.
        """
        if name in self.so_far:
            return self.so_far[name]
        dims = {other: list_dims(other)[axis] for other, axis in axes.items()}
        alike = any(dim == dims[name] for other, dim in dims.items() if other != name)
        return "mask" in name.lower() and not alike

    def copy(self) -> "TokensRead":
        """Return another that is added to by itself."""
        parts = {name: [*own] for name, own in self.parts.items()}
        return TokensRead(self.count, parts, dict(self.kept), dict(self.so_far))

    def add(self, inputs: StageValues, axes: Mapping[str, int]) -> bool:
        """Note the inputs of a call; return whether the state still follows from what is noted.

        `axes` are those with an entry for each token of the call, or for each one so far.
        """
        given = _list_columns(inputs, axes)
        kept = {name: np.asarray(value) for name, value in inputs.items() if name not in axes}
        new = min((value.shape[1] for value in given.values()), default=0)
        if not self.count:
            self.parts = {name: [value.copy()] for name, value in given.items()}
            self.kept, self.count = {name: value.copy() for name, value in kept.items()}, new
            return new > 0 and len({value.shape[:2] for value in given.values()}) == 1
        if not new or not self._has_same(given, kept):
            return False
        for name, value in given.items():
            held = self.parts[name]
            if value.shape[0] != held[0].shape[0] or value.shape[2:] != held[0].shape[2:]:
                return False
            self.so_far[name] = value.shape[1] != new
            if value.shape[1] == new:
                held.append(value.copy())
                if len(held) > _MOST_PARTS:
                    self._join(name)
            elif np.array_equal(value[:, :-new], self._join(name)):
                self.parts[name] = [value.copy()]
            else:
                return False
        self.count += new
        return True

    def cut(self, count: int) -> "TokensRead":
        """Return the first `count` tokens that were read."""
        parts = {name: [self._join(name)[:, :count]] for name in self.parts}
        return TokensRead(count, parts, dict(self.kept), self.so_far) if count else TokensRead()

    def take(self, rows: Sequence[int]) -> "TokensRead":
        """Return the tokens that were read, with row `rows[i]` as row i."""
        parts = {name: [self._join(name)[[*rows]]] for name in self.parts}
        return TokensRead(self.count, parts, dict(self.kept), self.so_far)

    def match(self, inputs: StageValues, axes: Mapping[str, int]) -> tuple[int, list[int]]:
        """Return how many first tokens all rows share with rows that were read, and these rows.

        Each row gets the earlier row that shares most with it: if several do, the one in its place.
        """
        given = _list_columns(inputs, axes)
        kept = {name: np.asarray(value) for name, value in inputs.items() if name not in axes}
        if not self.count or not self._has_same(given, kept):
            return 0, []
        held = {name: self._join(name) for name in given}
        if any(value.shape[2:] != held[name].shape[2:] for name, value in given.items()):
            return 0, []
        counts, chosen = [], []
        for row in range(len(next(iter(given.values())))):
            alike = [
                min(_count_alike(value[row], held[name][other]) for name, value in given.items())
                for other in range(self.rows)
            ]
            counts.append(max(alike))
            same_place = row < len(alike) and alike[row] == max(alike)
            chosen.append(row if same_place else alike.index(max(alike)))
        return min(counts), chosen

    def _has_same(self, given: StageValues, kept: Mapping[str, NDArray[Any]]) -> bool:
        """Return whether inputs are those of the calls, and what is `kept` is the same."""
        same = given.keys() == self.parts.keys() and kept.keys() == self.kept.keys()
        return same and all(np.array_equal(value, self.kept[name]) for name, value in kept.items())

    def _join(self, name: str) -> NDArray[Any]:
        """Return the entries of all tokens, as one array from then on."""
        held = self.parts[name]
        if len(held) > 1:
            held[:] = [np.concatenate(held, axis=1)]
        return held[0]


def _list_columns(inputs: StageValues, axes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """Return inputs with entries for tokens as `[rows, tokens, ...]`; one without rows has one."""
    given = {name: np.asarray(inputs[name]) for name in axes if name in inputs}
    return {
        name: value
        if axes[name] == 1
        else np.moveaxis(value, axes[name], 1)
        if axes[name]
        else value[None]
        for name, value in given.items()
    }


def _count_alike(one: NDArray[Any], other: NDArray[Any]) -> int:
    """Return the number of entries at which two arrays begin alike."""
    most = min(len(one), len(other))
    equal = (one[:most] == other[:most]).reshape(most, -1).all(axis=1)
    return most if equal.all() else int(equal.argmin())
