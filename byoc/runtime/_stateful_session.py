"""A session with state: inputs that take what outputs gave in the last call, as a decoder's cache."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.bundle import Bundle
from byoc.errors import InputError, suggest_nearest
from byoc.model import Dim, StatePair, TensorType, choose_state_pairs, to_numpy_dtype
from byoc.onnxrt import with_memory_returned
from byoc.runtime._prompt_pieces import (
    MOST_LOOKING_AHEAD,
    PromptAxes,
    TokensRead,
    change_last,
    cut_tokens,
    find_token_axes,
    find_unlike,
    join_pieces,
    measure_looking_ahead,
    pays_behind,
    unmask,
)
from byoc.runtime._session import Session, SessionCalls, read_tensors
from byoc.runtime._stage_program import StageValues
from byoc.runtime._state_binding import (
    KeptState,
    VariantStates,
    bind_state,
    find_inner_types,
    find_updatable,
    hold_tensors,
    keep_on_devices,
)
from byoc.runtime._trace import Trace
from byoc.runtime._variant_session import FittedInputs, VariantSession
from byoc.samples import describe_mismatch, read_npz, restore_dtype, write_npz


class StatefulSession(SessionCalls):
    """A session that keeps some of its inputs from call to call; `open_stateful` makes one.

    Call it with the other inputs by name to get the outputs that are not state. It holds the state of
    one sequence, so one thread at a time may call it; several stateful sessions may share one session.
    After a call that failed the state is undefined: reset it.
    """

    def __init__(
        self,
        session: Session | VariantSession,
        pairs: tuple[StatePair, ...],
        max_length: int | None,
    ) -> None:
        """Start with an empty state. Raises InputError when a state cannot have a maximal length."""
        self._session = self._base = session
        self._pairs = {pair.past: pair for pair in pairs}
        self._variants = VariantStates(self._pairs)
        self._kept = KeptState()
        if isinstance(session, Session):
            self._base, self._kept = keep_on_devices(session, self._pairs)
        self._bound = self._base
        self._max_length = max_length
        self._has_begun = False
        self._initial: dict[str, NDArray[Any]] = {}
        self._state: dict[str, NDArray[Any]] = {}
        self._buffers: dict[str, NDArray[Any]] = {}
        self._sizes: dict[str, int] = {}
        self._held_sizes: dict[str, int] = {}
        self._is_causal = self._notes_tokens = False  # as far as is known; from the first `resume` on
        self._joined: dict[str, int] | None = None  # axes of tokens, once a prompt was read in pieces
        self._read: TokensRead | None = None  # where it is not known what the state holds
        for name in self._pairs if max_length is not None else ():
            self._check_growing(name)

    def __repr__(self) -> str:
        """Return the names of the inputs that a call takes, of the outputs, and of the state."""
        named = f"inputs={list(self.inputs)}, outputs={list(self.outputs)}"
        return f"StatefulSession({named}, state={list(self._pairs)})"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs that a call takes, in order."""
        return tuple(name for name in self._session.inputs if name not in self._pairs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs that a call returns, in order."""
        presents = {pair.present for pair in self._pairs.values()}
        return tuple(name for name in self._session.outputs if name not in presents)

    @property
    def pairs(self) -> Mapping[str, str]:
        """The outputs whose values are kept, by the inputs that take them."""
        return {past: pair.present for past, pair in self._pairs.items()}

    @property
    def state(self) -> Mapping[str, NDArray[Any]]:
        """The state by names of inputs; a call may overwrite the arrays. Empty ones may be missing.

        What devices keep is read from them, each time.
        """
        if not self._has_begun:
            return dict(self._initial)
        return {**self._state, **self._kept.read(), **self._variants.read(self._state)}

    @property
    def on_device(self) -> frozenset[str]:
        """The inputs of the state that stay on devices, and cross only when the state is read or set."""
        return frozenset(self._kept.holders) | self._variants.on_device

    @property
    def in_place(self) -> frozenset[str]:
        """The inputs of the state whose buffers the model updates, none before the first call."""
        return frozenset(self._buffers) - self._variants.on_device

    def get_types(self) -> Mapping[str, TensorType]:
        return self._session.get_types()

    def _run_named(self, inputs: StageValues, trace: Trace | None) -> dict[str, Any]:
        """Return the outputs that are not state, and record each stage in a trace.

        Raises InputError as `Session.run` does, for an input that is state, and for inputs that do not
        go on from the state.
        """
        for name in inputs:
            if name in self._pairs:
                raise InputError(f"input '{name}' is kept by the session; `reset` gives it a value")
        if not self._has_begun:
            self._begin(inputs)
        before = {name: np.shape(value) for name, value in self._state.items()}
        read, self._read = self._read, None  # as long as the call has not ended
        try:
            if isinstance(self._session, VariantSession):
                found = self._go_on_in_pieces(self._session, inputs, trace)
            else:
                found = self._go_on(inputs, trace)
        except InputError as error:
            misuse = self._find_misuse(inputs, before)
            if not misuse:
                raise
            raise InputError(misuse) from error
        self._read = read if read is not None and read.add(inputs, self._token_axes) else None
        return found

    def resume(self, inputs: StageValues, trace: Trace | None = None) -> dict[str, Any]:
        """Read a whole sequence, but for its first tokens that the state holds, and return the outputs.

        `inputs` are those of a call on all tokens with an empty state. They are compared with what the
        state was made of: tokens, and masks or positions where the model has them. The state keeps what
        each row shares with one of its rows, at most all but the last token, and the others are read in
        one call, whose outputs are returned. The sequence begins anew where nothing is shared, plans of
        variants predict that reading all takes less, a token depends on those behind it, after an error,
        and behind what no `resume` went before. Raises InputError as a call, and where no tokens show.
        """
        if not isinstance(inputs, Mapping):
            raise InputError(f"resume takes inputs by name, not {type(inputs).__name__}")
        if not self._token_axes:
            raise InputError(
                "no input has an entry for each token along an open extent: reset() and call"
            )
        inputs = read_tensors(inputs)
        shapes = {name: np.shape(inputs[name]) for name in self._token_axes if name in inputs}
        has_ranks = all(len(shape) == len(self._list_dims(name)) for name, shape in shapes.items())
        counts = {name: shapes[name][self._token_axes[name]] for name in shapes} if has_ranks else {}
        if len({*counts.values()}) > 1:
            told = ", ".join(f"'{name}' {count}" for name, count in counts.items())
            raise InputError(
                f"resume takes the inputs of all tokens of a sequence; their lengths: {told}"
            )
        self._notes_tokens = True
        behind = self._keep_shared(inputs, min(counts.values(), default=0))
        if behind is not None:
            with suppress(InputError):  # as of an operator that reads several tokens only at first
                return self.run(behind, trace)
        self.reset()
        return self.run(inputs, trace)

    def _keep_shared(self, inputs: StageValues, total: int) -> StageValues | None:
        """Cut the state back to what `total` tokens share, and return those behind; None for all."""
        read, axes = self._read, self._token_axes
        if total < 2 or read is None or not self._holds(read.count):
            return None
        shared, rows = read.match(inputs, axes)
        count = min(shared, total - 1)
        if count < 1:
            return None
        so_far = {name for name in axes if read.is_so_far(name, axes, self._list_dims)}
        behind = cut_tokens(inputs, axes, range(count, total), so_far)
        pays = pays_behind(self._session, self._pairs, count, inputs, behind)
        if not pays or not (self._is_causal or self._shows_causal(inputs, so_far)):
            return None
        try:
            if count < read.count:
                self.truncate(count)
            if rows != [*range(read.rows)]:
                self.reorder(rows)
        except InputError:  # a state that does not grow, or a batch that is fixed
            return None
        return behind

    def _holds(self, count: int) -> bool:
        """Return whether each state that grows has `count` entries, as one with a window has not."""
        state = self._state if self._has_begun else self._initial
        axes = {name: self._find_open_axis(name) for name in self._pairs}
        return self._max_length is not None or all(
            axis is None or np.shape(state.get(name, ()))[axis : axis + 1] == (count,)
            for name, axis in axes.items()
        )

    def _shows_causal(self, inputs: StageValues, so_far: Collection[str]) -> bool:
        """Return whether the state of a token depends on none behind it, by two runs on two tokens.

        Nor may an output sum or pool over the tokens of a call: it is the same where these are two.
        """
        piece = unmask(cut_tokens(inputs, self._token_axes, range(2)), so_far)
        others = change_last(piece, {n: [a] for n, a in self._token_axes.items() if n not in so_far})
        empty = [
            StatefulSession(self._session, (*self._pairs.values(),), self._max_length) for _ in "12"
        ]
        try:
            found = [session.run(each) for session, each in zip(empty, (piece, others), strict=True)]
        except InputError:
            return False
        for each, whole in zip((piece, others), found, strict=True):
            alone = StatefulSession(self._session, (*self._pairs.values(),), self._max_length)
            with suppress(InputError):  # of an operator that reads no token behind others: all are read
                alone.run(cut_tokens(each, self._token_axes, range(1)))
                second = cut_tokens(each, self._token_axes, range(1, 2), so_far)
                if find_unlike(whole, alone.run(second), self.outputs):
                    return False
        axes = {name: axis for name in self._pairs if (axis := self._find_open_axis(name)) is not None}
        share = measure_looking_ahead(empty[0].state, empty[1].state, axes, 2)
        self._is_causal = share <= MOST_LOOKING_AHEAD
        return self._is_causal

    def _go_on_in_pieces(
        self, session: VariantSession, inputs: StageValues, trace: Trace | None
    ) -> dict[str, Any]:
        """Run the variant that takes all tokens, or several calls where none does.

        These calls take the least time by the plans of the variants. Where the plans show no way, each
        takes as many of the next tokens as some variant does.
        """
        try:
            fitted = session.select({**inputs, **self._state})
        except InputError:
            axes = PromptAxes.find(session, inputs, self._pairs)
            if axes is None or axes.count <= 1:  # the variant says what a single token fails by
                raise
        else:
            return self._run_variant(session, fitted, trace)
        if self._joined is None:
            self._joined = axes.find_joined(
                session,
                inputs,
                lambda piece: {n: self._make_value(n, piece) for n in self._pairs},
                self.outputs,
                self._pairs,
            )
            self._is_causal = True
        planned = axes.plan_sizes(self._state)
        parts: list[dict[str, Any]] = []
        sizes: list[int] = []
        while (done := sum(sizes)) < axes.count:
            try:
                size, fitted = axes.select_piece(session, inputs, self._state, done, planned[:1])
                planned = planned[1:] if planned[:1] == [size] else []
                parts.append(self._run_variant(session, fitted, trace))
            except InputError as error:
                where = f"after {done} of {axes.count} tokens: " if done else ""
                raise InputError(f"{where}{error}") from error
            sizes.append(size)
        return join_pieces(parts, sizes, self._joined)

    def _run_variant(
        self, session: VariantSession, fitted: FittedInputs, trace: Trace | None
    ) -> dict[str, Any]:
        """Run a variant on inputs and state, and keep the state that it makes."""
        found, self._buffers = self._variants.run(session, fitted, trace)
        self._state |= self._buffers
        return self._keep_state(found)

    def _go_on(self, inputs: StageValues, trace: Trace | None) -> dict[str, Any]:
        """Run the only variant on inputs and state, and keep the state that it makes."""
        is_new = self._hold(inputs)
        others = {name: array for name, array in self._state.items() if name not in self._buffers}
        with with_memory_returned() if is_new else nullcontext():
            found = self._bound.run({**inputs, **others}, trace)
        return self._keep_state(found)

    def _keep_state(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return outputs without the state, which is kept for the next call."""
        for past, pair in self._pairs.items():
            value = found.pop(pair.present, None)
            if past not in self._buffers and past not in self._kept.holders:
                self._state[past] = value
        return found

    def reset(self, state: StageValues | None = None) -> None:
        """Begin a new sequence, with an empty state or with given values by names of inputs.

        Values are copied; what is not given is empty. A state with a maximal length may be shorter.
        Raises InputError for a name that is not state, and for a wrong dtype or shape.
        """
        initial = {}
        for name, value in (state or {}).items():
            if name not in self._pairs:
                raise InputError(f"input '{name}' is not state{suggest_nearest(name, self._pairs)}")
            kind = self._session.types[name]
            given = describe_mismatch(value, kind)
            if given:
                raise InputError(f"input '{name}' is {given}, the model takes {kind}")
            axis = self._find_open_axis(name)
            length = 0 if axis is None else np.shape(value)[axis]
            if length > (self._max_length or np.inf):
                most = self._max_length
                raise InputError(f"input '{name}' is {length} long, at most {most} is allowed")
            initial[name] = np.array(value)
        self._initial, self._state, self._has_begun = initial, {}, False
        self._read = TokensRead() if self._notes_tokens and not initial else None

    def fork(self) -> "StatefulSession":
        """Return a session on the same bundle that goes on from a copy of this state."""
        other = StatefulSession(self._session, tuple(self._pairs.values()), self._max_length)
        other._set_known(self.state, self._read and self._read.copy())
        other._is_causal, other._notes_tokens = self._is_causal, self._notes_tokens
        other._joined = self._joined
        return other

    def _set_known(self, state: StageValues, read: TokensRead | None) -> None:
        """Go on from a state that was made of some tokens, where they are known."""
        self.reset(state)
        self._read = read

    def truncate(self, length: int) -> None:
        """Keep the first `length` positions of the state, so that the last tokens are taken back.

        The state is copied. Raises InputError for a length that it does not have, and where it does not
        grow: then nothing in it is of one token.
        """
        state = dict(self.state)
        for name, value in state.items():
            axis = self._find_open_axis(name)
            if axis is None:
                raise InputError(f"input '{name}' does not grow: a fork() keeps what it was")
            if length not in range(value.shape[axis] + 1):  # nor a fraction
                raise InputError(f"a length of {length}: the state has {value.shape[axis]}")
            if self._read is not None and length > self._read.count > 0:  # the rest of a buffer
                raise InputError(f"a length of {length}: the state has {self._read.count}")
            state[name] = value[(*[slice(None)] * axis, slice(int(length)))]
        self._set_known(state, self._read and self._read.cut(int(length)))

    def reorder(self, rows: Sequence[int]) -> None:
        """Make row i of the state what row `rows[i]` was, as where beams are chosen.

        A row may be taken several times or not at all, where the batch is open. The state is copied.
        Raises InputError for a row that there is not, and for another number of rows where it is fixed.
        """
        state = dict(self.state)
        for name, value in state.items():
            axis = self._find_batch_axis(name)
            count = value.shape[axis]
            missing = [row for row in rows if row not in range(count)]
            if missing:
                raise InputError(f"no row {missing[0]}: the state has {count}")
            state[name] = np.take(value, [int(row) for row in rows], axis)
        self._set_known(state, self._read and self._read.take([int(row) for row in rows]))

    def save(self, path: str | Path) -> None:
        """Write the state to an .npz file, the arrays by names of inputs; `load` goes on from it.

        Raises InputError where no call has made a state, and when the file cannot be written.
        """
        state = self.state
        if not state:
            raise InputError("there is no state to save: a call makes it")
        write_npz(Path(path), state)

    def load(self, path: str | Path) -> None:
        """Go on from a state that `save` wrote, in this program or another, with the same model.

        Raises InputError, naming the file, where it cannot be read and is no state of such a model.
        """
        types = self._session.types
        state = {name: restore_dtype(a, types.get(name)) for name, a in read_npz(Path(path)).items()}
        missing = next((name for name in self._pairs if name not in state), None)
        if missing is not None:
            raise InputError(f"{path}: input '{missing}' is missing: it is no state of this model")
        try:
            self.reset(state)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def _find_batch_axis(self, name: str) -> int:
        """Return the axis of a state that has a row for each of the batch: the first of most models."""
        batches = {dims[0] for other in self.inputs if (dims := self._list_dims(other))}
        named = [axis for axis, dim in enumerate(self._list_dims(name)) if isinstance(dim, str)]
        return next((axis for axis in named if self._list_dims(name)[axis] in batches), 0)

    def _find_misuse(self, inputs: StageValues, state: Mapping[str, tuple[int, ...]]) -> str:
        """Return why inputs do not go on from a state of these shapes, empty where that is not seen."""
        shapes = {name: np.shape(value) for name, value in inputs.items()}
        empty = next((name for name, shape in shapes.items() if 0 in shape), None)
        if empty is not None:
            return f"input '{empty}' is empty: a call takes at least one token"
        held: dict[Dim, int] = {}
        for name, shape in state.items():
            for dim, extent in zip(self._list_dims(name), shape, strict=False):
                if isinstance(dim, str) and held.setdefault(dim, extent) != extent:
                    return (
                        f"the state has {held[dim]} along {dim}, but '{name}' {extent}: reset() takes "
                        "values of one length, and of all inputs that are state"
                    )
        for name, shape in shapes.items():
            for dim, extent in zip(self._list_dims(name), shape, strict=False):
                if isinstance(dim, str) and extent != held.get(dim, extent):
                    return (
                        f"input '{name}' has {extent} along {dim}, the state {held[dim]}: reset() "
                        "begins another sequence, reorder(rows) changes the rows of this one"
                    )
        return self._find_short_mask(shapes, state)

    def _find_short_mask(
        self, shapes: Mapping[str, tuple[int, ...]], state: Mapping[str, tuple[int, ...]]
    ) -> str:
        """Return that a mask is shorter than state and tokens; empty where there is none."""
        axes = {name: self._find_open_axis(name) for name in state}
        lengths = {state[name][axis] for name, axis in axes.items() if axis is not None}
        masks = [name for name, shape in shapes.items() if "mask" in name.lower() and shape]
        tokens = [shape[1] for name, shape in shapes.items() if name not in masks and len(shape) > 1]
        if self._max_length is not None or len(lengths) != 1 or not tokens:
            return ""
        held = lengths.pop()
        needed = held + tokens[0]
        short = next((name for name in masks if shapes[name][-1] != needed), None)
        if short is None:
            return ""
        return (
            f"input '{short}' is {shapes[short][-1]} long: the state has {held} tokens and the call "
            f"brings {tokens[0]}, so that it takes {needed}"
        )

    def _begin(self, inputs: StageValues) -> None:
        """Make the state that the first call of a sequence gets."""
        values = {name: self._make_value(name, inputs) for name in self._pairs}
        self._initial, self._has_begun = {}, True
        if isinstance(self._session, VariantSession):
            self._state, self._buffers = values, {}
            return
        self._kept.reset({name: values.pop(name) for name in self._kept.holders})
        shapes = {name: value.shape for name, value in values.items() if self._may_update(name)}
        if shapes != {name: buffer.shape for name, buffer in self._buffers.items()}:
            self._bind({name: values[name] for name in shapes})
        for name, buffer in self._buffers.items():
            buffer[...] = values[name]
        self._state = {**values, **self._buffers}

    def _make_value(self, name: str, inputs: StageValues) -> NDArray[Any]:
        """Return the first value of a state: what was given, behind which there are zeros, or empty."""
        given = self._initial.get(name)
        kind = self._session.types[name]
        axis = self._find_open_axis(name)
        if given is not None and (axis is None or self._max_length is None):
            return given
        sizes = {
            dim: extent
            for other, value in inputs.items()
            for dim, extent in zip(self._list_dims(other), np.shape(value), strict=False)
        }
        shape = [dim if isinstance(dim, int) else sizes.get(dim, 0) for dim in kind.shape or ()]
        if axis is not None:
            shape[axis] = self._max_length or 0
        result = np.zeros(shape, to_numpy_dtype(kind.dtype))
        if given is not None:
            result[tuple(map(slice, given.shape))] = given
        return result

    def _list_dims(self, name: str) -> tuple[Dim, ...]:
        """Return the stated extents of an input, none where they are not known."""
        kind = self._session.types.get(name)
        return (kind.shape or ()) if kind is not None else ()

    def _find_open_axis(self, name: str) -> int | None:
        """Return the axis along which a state grows: its extent is open, and no other input has it.

        None where there is none. Raises InputError where there are several.
        """
        others = {dim for other in self.inputs for dim in self._list_dims(other) if dim is not None}
        dims = self._list_dims(name)
        axes = [i for i, dim in enumerate(dims) if not isinstance(dim, int) and dim not in others]
        if len(axes) > 1:
            kind = self._session.types[name]
            raise InputError(f"input '{name}' is {kind}: along which axis it grows cannot be seen")
        return axes[0] if axes else None

    def _may_update(self, name: str) -> bool:
        """Return whether the extents of a state stay, so that it can be updated in place."""
        fixed = self._max_length is not None or self._find_open_axis(name) is None
        return name in self._updatable and fixed

    @cached_property
    def _updatable(self) -> frozenset[str]:
        assert isinstance(self._base, Session)
        return find_updatable(self._base, self._pairs)

    def _check_growing(self, name: str) -> None:
        """Raise InputError where a state would outgrow a maximal length, since it is made anew."""
        pair = self._pairs[name]
        if not pair.in_place and self._find_open_axis(name) is not None:
            how = f"{pair.maker} makes '{pair.present}' anew" if pair.maker else "it is made anew"
            raise InputError(f"input '{name}' cannot have a maximal length: {how} in each call")

    def _hold(self, inputs: StageValues) -> bool:
        """Hold tensors between stages whose extents stayed from the last call to this one.

        From token to token those are all but what depends on the number of tokens so far. Return whether
        other extents stayed than before: this call is a prompt or the like, and not one more token.
        """
        last = self._sizes
        self._sizes = {
            dim: np.shape(inputs[name])[axis]
            for name, axis, dim in self._open_extents
            if name in inputs and axis < np.ndim(inputs[name])
        }
        held = {dim: size for dim, size in self._sizes.items() if last.get(dim) == size}
        if held == self._held_sizes:
            return not last
        self._held_sizes = held
        if self._inner_types:
            self._bind(self._buffers)
        return True

    @cached_property
    def _inner_types(self) -> Mapping[str, TensorType]:
        assert isinstance(self._base, Session)
        return find_inner_types(self._base)

    @cached_property
    def _token_axes(self) -> dict[str, int]:
        return find_token_axes({name: self._list_dims(name) for name in self.inputs})

    @cached_property
    def _open_extents(self) -> list[tuple[str, int, str]]:
        """The inputs that are not state with the axes of open extents, and their names."""
        return [
            (name, axis, dim)
            for name in self.inputs
            for axis, dim in enumerate(self._list_dims(name))
            if isinstance(dim, str)
        ]

    def _bind(self, buffers: Mapping[str, NDArray[Any]]) -> None:
        """Have stages update the state in buffers, and keep those of which a stage does.

        Raises InputError where one that has a maximal length is not updated in place.
        """
        held = hold_tensors(self._inner_types, self._held_sizes)
        session = self._base
        assert isinstance(session, Session)
        bound = bind_state(session, self._pairs, buffers, held)
        self._buffers = dict(bound.buffers)
        for name in buffers:  # of fixed extents, but with a maximal length
            if name not in self._buffers and self._find_open_axis(name) is not None:
                present = self._pairs[name].present
                maker = next(stage.name for stage in session.stages if present in stage.output_names)
                raise InputError(
                    f"input '{name}' cannot have a maximal length: {maker} does not update it in place"
                )
        self._bound = bound.session


def open_stateful(
    session: Session | VariantSession,
    pairs: Mapping[str, str] | None = None,
    max_length: int | None = None,
) -> StatefulSession:
    """Return a session that keeps the state of a sequence on a loaded `session`, as a decoder's cache.

    `pairs` maps inputs to the outputs whose values they take in the next call; by default they are those
    that were declared when the bundle was made (`--state`, or a rule file), else found by operators and
    names (`byoc.model.find_state_pairs`).

    With `max_length` the state lies in buffers of that length, which the model updates in place: nothing
    is copied from call to call. That is possible where GroupQueryAttention alone reads and makes it, on
    the host or in regions whose executors have `bind` (`byoc.codegen.BindableExecutor`), as those of
    `reference` and `dla`. A state whose extents are fixed, the same before and after a call, is updated
    so in any case.

    Of a bundle of several variants each call runs the one that inputs and state fit, which are padded
    where they have to be: the variant limits the length of the state.

    Raises InputError where no pairs are found, where one names no input or output, where two name one
    output, for a maximal length with several variants, and where the state cannot be updated in place.
    """
    if max_length is not None and max_length < 1:
        raise InputError(f"a maximal length of {max_length}: it has to be at least 1")
    if max_length is not None and isinstance(session, VariantSession):
        raise InputError("variants have lengths of their own: leave out max_length")
    bundle = _get_bundle(session)
    declared = pairs if pairs is not None else bundle.manifest.state or None
    chosen = choose_state_pairs(bundle.model(), declared, session.types)
    if not chosen and pairs is None:
        raise InputError("no input takes what an output gave; name the pairs")
    return StatefulSession(session, chosen, max_length)


def _get_bundle(session: Session | VariantSession) -> Bundle:
    """Return the bundle of a session, its first variant. Raises InputError where it has none."""
    first = next(iter(session.sessions.values())) if isinstance(session, VariantSession) else session
    if first.bundle is None:
        raise InputError("only a session that was loaded from a bundle can keep state")
    return first.bundle
