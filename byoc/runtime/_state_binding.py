"""State in buffers: stages that update it there are bound to them, so that no call copies it."""

from collections.abc import Mapping
from contextlib import nullcontext
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.codegen import DeviceState
from byoc.errors import InputError
from byoc.model import (
    StatePair,
    TensorType,
    evaluate_dim,
    fix_type,
    get_stated_types,
    read_tensor_types,
    read_type,
    to_numpy_dtype,
)
from byoc.onnxrt import with_memory_returned
from byoc.padding import EDGE, PaddingRule, pad_inputs
from byoc.runtime._session import Session, bind_stages
from byoc.runtime._stage_program import Stage
from byoc.runtime._trace import Trace
from byoc.runtime._variant_session import FittedInputs, VariantSession

# State that stays on accelerators between calls: neither past nor present crosses a boundary.

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class KeptState:
    """The states that stages keep on their devices.

    `holders` maps names of inputs to what holds their states; one holder may have several.
    """

    holders: Mapping[str, DeviceState] = field(default_factory=dict)

    def reset(self, values: Arrays) -> None:
        """Send the first values of a sequence to the devices, by names of inputs."""
        for holder in self._list_holders():
            holder.reset({name: values[name] for name, own in self.holders.items() if own is holder})

    def read(self) -> dict[str, NDArray[Any]]:
        """Return copies of the state, by names of inputs."""
        found: dict[str, NDArray[Any]] = {}
        for holder in self._list_holders():
            found |= holder.read()
        return {name: found[name] for name in self.holders}

    def _list_holders(self) -> list[DeviceState]:
        """Return each holder once."""
        return list({id(holder): holder for holder in self.holders.values()}.values())


def keep_on_devices(session: Session, pairs: Mapping[str, StatePair]) -> tuple[Session, KeptState]:
    """Have the stages of a session keep what state they can on their devices.

    Return the session without the inputs and outputs of these states, and what is kept. A stage can keep
    a state if it alone reads the input and makes the output, of the same fixed shape, and no other stage
    reads either.
    """
    stages: list[Stage] = []
    holders: dict[str, DeviceState] = {}
    for stage in session.stages:
        own = {name: pair.present for name, pair in pairs.items() if _can_keep(session, stage, pair)}
        holder = stage.allocate(own) if own and stage.allocate is not None else None
        if holder is None:
            stages.append(stage)
        else:
            stages.append(_leave_out(stage, own, holder))
            holders |= dict.fromkeys(own, holder)
    if not holders:
        return session, KeptState()
    kept_outputs = {pairs[name].present for name in holders}
    program = session.program
    outputs = tuple(name for name in program.outputs if name not in kept_outputs)
    without = replace(
        session,
        inputs=tuple(name for name in session.inputs if name not in holders),
        types={name: kind for name, kind in session.types.items() if name not in holders},
        program=replace(program, stages=stages, outputs=outputs),
    )
    return without, KeptState(holders)


def _can_keep(session: Session, stage: Stage, pair: StatePair) -> bool:
    """Return whether a stage alone reads and makes a state, whose shape is fixed."""
    if pair.past not in stage.inputs or pair.present not in stage.types:
        return False
    others = {name for each in session.stages if each is not stage for name in each.inputs}
    if {pair.past, pair.present} & others or pair.past in session.outputs:
        return False
    kind = session.types.get(pair.past)
    if kind is None or kind.shape is None or not all(isinstance(dim, int) for dim in kind.shape):
        return False
    return read_type(stage.types[pair.present]) == kind


def _leave_out(stage: Stage, pairs: Mapping[str, str], holder: DeviceState) -> Stage:
    """Return a stage without the inputs and outputs of `pairs`, which its holder keeps."""
    kept_outputs = set(pairs.values())
    return replace(
        stage,
        inputs=tuple(name for name in stage.inputs if name not in pairs),
        outputs=tuple(name for name in stage.outputs if name not in kept_outputs),
        types={name: kind for name, kind in stage.types.items() if name not in kept_outputs},
        run=holder.step,
        bind=None,
        allocate=None,
    )


# Small tensors between stages that stay in the same arrays from run to run.
#
# Handing a tensor of a decoder's token from stage to stage takes longer than computing it: its
# array is allocated, described to onnxruntime, and freed. A stage that is bound to arrays runs
# without that.

_LARGEST = 1 << 16
"""Bytes of a tensor; handing over a larger one takes little beside computing it."""


@dataclass(eq=False)
class HeldTensors:
    """The tensors that may be held, by name with their fixed types, and the arrays of those that are."""

    types: Mapping[str, TensorType]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def bind(self, stage: Stage, inputs: Arrays, outputs: Arrays) -> Stage | None:
        """Return a stage bound to `inputs` and `outputs`, and to what is held; None where it cannot be.

        Stages come in their order, so that what a later one reads is held if an earlier one was bound.
        Raises InputError where an array of the caller does not fit.
        """
        if stage.bind is None:
            return None
        reads = {name: self.arrays[name] for name in stage.inputs if name in self.arrays}
        makes = {
            name: np.empty(_list_extents(kind), to_numpy_dtype(kind.dtype))
            for name in stage.output_names
            if name not in outputs and (kind := self.types.get(name)) is not None
        }
        if reads or makes:
            try:
                run = stage.bind({**reads, **inputs}, {**makes, **outputs})
            except InputError:  # the model states another shape than the stage has
                run = None
            if run is not None:
                self.arrays |= makes
                return replace(stage, run=run)
        run = stage.bind(inputs, outputs) if inputs or outputs else None
        return None if run is None else replace(stage, run=run)


def hold_tensors(kinds: Mapping[str, TensorType], sizes: Mapping[str, int]) -> HeldTensors:
    """Return the tensors between stages that may be held, where names in extents have some sizes.

    Those of open extents, of text, without elements and of more than 64 KiB are not.
    """
    fixed = {name: fix_type(kind, sizes) for name, kind in kinds.items()}
    return HeldTensors({name: kind for name, kind in fixed.items() if _may_be_held(kind)})


def find_inner_types(session: Session) -> Mapping[str, TensorType]:
    """Return the stated types of tensors between stages of a session's main graph that can be bound.

    A stage that cannot may give an array as it got it, which nobody may write to then.
    """
    if session.bundle is None or len(session.stages) < 2:
        return {}
    kinds = read_tensor_types(get_stated_types(session.bundle.model()))
    able = [stage for stage in session.stages if stage.bind is not None and stage.bind({}, {})]
    others = [stage for stage in session.stages if stage not in able]
    kept = {*session.outputs, *(name for stage in others for name in stage.inputs)}
    read = {name for stage in able for name in stage.inputs} - kept
    made = {name for stage in able for name in stage.output_names}
    return {name: kind for name in sorted(made & read) if (kind := kinds.get(name)) is not None}


def _may_be_held(kind: TensorType) -> bool:
    if kind.shape is None or kind.dtype == "string":
        return False
    extents = _list_extents(kind)
    if len(extents) < len(kind.shape):
        return False
    return 0 < prod(extents) * to_numpy_dtype(kind.dtype).itemsize <= _LARGEST


def _list_extents(kind: TensorType) -> list[int]:
    """Return the extents of a type that are numbers."""
    return [dim for dim in kind.shape or () if isinstance(dim, int)]


Buffers = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class BoundState:
    """A state in `buffers`, by the names of inputs, and the session that reads and updates it there."""

    session: Session
    buffers: Buffers = field(default_factory=dict)


def bind_state(
    session: Session, pairs: Mapping[str, StatePair], buffers: Buffers, held: HeldTensors
) -> BoundState:
    """Bind the stages of a session to the buffers of its state that they update, and to what is held."""
    bound: dict[str, NDArray[Any]] = {}
    stages = []
    for stage in session.stages:
        reads = {n: buffers[n] for n in stage.inputs if n in buffers and _makes(stage, pairs[n])}
        makes = {pairs[name].present: buffer for name, buffer in reads.items()}
        found = held.bind(stage, reads, makes)
        stages.append(found or stage)
        bound |= {} if found is None else reads
    return BoundState(bind_stages(session, stages, bound), bound)


def _makes(stage: Stage, pair: StatePair) -> bool:
    return pair.present in stage.output_names


def find_updatable(session: Session, pairs: Mapping[str, StatePair]) -> frozenset[str]:
    """Return the inputs of a state that may lie in one buffer with what the model makes of them.

    Its operator updates it, and each extent is the same number in both, or open in both.
    """
    if session.bundle is None:
        return frozenset()
    types = read_tensor_types(get_stated_types(session.bundle.model()))
    found = set()
    for name, pair in pairs.items():
        shapes = [
            kind.shape or () if (kind := types.get(each)) is not None else ()
            for each in (name, pair.present)
        ]
        extents = zip(*shapes, strict=False)
        stated = ((a, b) for a, b in extents if isinstance(a, int) or isinstance(b, int))
        if pair.in_place and all(a == b for a, b in stated):
            found.add(name)
    return frozenset(found)


@dataclass(frozen=True, eq=False)
class VariantState:
    """The state of a sequence in the buffers and on the devices of one variant, as long as it takes."""

    bound: BoundState
    pairs: Mapping[str, StatePair]
    on_device: KeptState = field(default_factory=KeptState)
    _stand_ins: dict[str, NDArray[Any]] = field(default_factory=dict)
    """What `run` gave for the state on devices: of its dtype and shape, and without its values."""
    _whole: dict[str, tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=dict)
    """What the model wrote new rows to, by inputs: the filled part as it was returned, and the whole."""

    @classmethod
    def make(
        cls, session: Session, rule: PaddingRule | None, pairs: Mapping[str, StatePair]
    ) -> "VariantState":
        """Make the buffers of a variant; none for a state that it does not update.

        `rule` is what its inputs are padded by. Behind what a buffer holds stands whatever it held
        before, so that a state that is padded with a number has none.
        """
        padded = {} if rule is None else rule.inputs
        takes_any = {
            name
            for name in pairs
            if name not in padded or (padded[name].value == EDGE and padded[name].first is None)
        }
        written = {name for name in pairs if name in padded and padded[name].room}
        keepable = {name: pair for name, pair in pairs.items() if name in takes_any | written}
        others, on_device = keep_on_devices(session, keepable)
        buffers = {}
        for name in find_updatable(session, pairs) & takes_any - on_device.holders.keys():
            kind = session.types[name]
            shape = [dim for dim in kind.shape or () if isinstance(dim, int)]
            if kind.shape is not None and len(shape) == len(kind.shape):
                buffers[name] = np.zeros(shape, to_numpy_dtype(kind.dtype))
        held = hold_tensors(find_inner_types(others), {})
        return cls(bind_state(others, pairs, buffers, held), pairs, on_device)

    def run(
        self, fitted: FittedInputs, trace: Trace | None
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the outputs that are not in buffers, and the state that is, as far as it is filled.

        A state that lies elsewhere is copied into its buffer first, or sent to its device. For one on a
        device an array without its values stands (`read`). Raises as `Session.run`.
        """
        buffers, devices = self.bound.buffers, self.on_device.holders
        if any(fitted.inputs[name] is not self._stand_ins.get(name) for name in devices):
            sent = {name: fitted.inputs[name] for name in devices}
            rule = fitted.rule
            self.on_device.reset(sent if rule is None else pad_inputs(rule, sent, fitted.sizes))
        for name, buffer in buffers.items():
            value = fitted.inputs[name]
            if value is not buffer and value.base is not buffer:
                buffer[tuple(map(slice, value.shape))] = value
        elsewhere = {*buffers, *devices}
        others = {name: value for name, value in fitted.inputs.items() if name not in elsewhere}
        kept = {name: whole for name, (part, whole) in self._whole.items() if others.get(name) is part}
        others = {name: value for name, value in others.items() if name not in kept}
        given = others if fitted.rule is None else pad_inputs(fitted.rule, others, fitted.sizes)
        found = self.bound.session.run({**given, **kept}, fitted.mark(trace))
        for name in buffers:
            found.pop(self.pairs[name].present)
        made = {name: found.pop(self.pairs[name].present) for name in self._list_written(fitted.rule)}
        self._whole.update(
            (name, (self._cut(name, fitted, whole), whole)) for name, whole in made.items()
        )
        parts = {self.pairs[name].present: self._whole[name][0] for name in made}
        filled = {name: self._cut(name, fitted, buffer) for name, buffer in buffers.items()}
        self._stand_ins.update((name, self._make_stand_in(name, fitted)) for name in devices)
        return {**fitted.cut(found), **parts}, {**filled, **self._stand_ins}

    def read(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Read the values on devices that arrays of a state stand for, by names of inputs."""
        asked = {name: mark for name, mark in self._stand_ins.items() if state.get(name) is mark}
        found = self.on_device.read() if asked else {}
        return {name: found[name][tuple(map(slice, mark.shape))] for name, mark in asked.items()}

    def _make_stand_in(self, name: str, fitted: FittedInputs) -> NDArray[Any]:
        """Return an array of one element as the filled part of a state on a device.

        It is NaN where that can be, so that who takes it for the state sees it.
        """
        kind = fitted.session.types[name]
        dtype = to_numpy_dtype(kind.dtype)
        one = np.full((), np.nan if np.issubdtype(dtype, np.floating) else 0, dtype)
        shape = [dim for dim in kind.shape or () if isinstance(dim, int)]
        return self._cut(name, fitted, np.broadcast_to(one, shape))

    def _list_written(self, rule: PaddingRule | None) -> list[str]:
        """Return the inputs of the state that the model writes new rows to, of those without buffers."""
        padded = {} if rule is None else rule.inputs
        elsewhere = {*self.bound.buffers, *self.on_device.holders}
        return [n for n in self.pairs if n not in elsewhere and n in padded and padded[n].room]

    def _cut(self, name: str, fitted: FittedInputs, buffer: NDArray[Any]) -> NDArray[Any]:
        """Return the filled part of the state of an input, without a copy."""
        rule = fitted.rule
        dims = None if rule is None else rule.outputs.get(self.pairs[name].present)
        if dims is None:
            return buffer
        return buffer[tuple(slice(evaluate_dim(dim, fitted.sizes)) for dim in dims)]


@dataclass(eq=False)
class VariantStates:
    """The state of a sequence in the variants that its calls run, each with what it needs for that."""

    pairs: Mapping[str, StatePair]
    _by_variant: dict[str, VariantState] = field(default_factory=dict)
    _last: str = ""

    @property
    def on_device(self) -> frozenset[str]:
        """The inputs of the state that the variant which ran last keeps on devices."""
        last = self._by_variant.get(self._last)
        return frozenset() if last is None else frozenset(last.on_device.holders)

    def read(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Read the part of a state that lies on devices of the variant that ran last."""
        last = self._by_variant.get(self._last)
        return {} if last is None else last.read(state)

    def run(
        self, session: VariantSession, fitted: FittedInputs, trace: Trace | None
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Run the variant that inputs and state fit; returns and raises as `VariantState.run`.

        Where the session splits batches, so does this: each row has its state, which is in no buffer.
        """
        name = fitted.session.variant
        if name != self._last and self.on_device:  # which hands its state over
            fitted = session.select({**fitted.inputs, **self.read(fitted.inputs)})
        rows = session.split_rows(fitted)
        if rows.split is not None:
            found = rows.run(trace)
            self._last = ""
            return found, {}
        if name not in self._by_variant:
            rule = session.paddings.get(name)
            self._by_variant[name] = VariantState.make(fitted.session, rule, self.pairs)
        is_new = name != self._last
        with with_memory_returned() if is_new else nullcontext():
            made = self._by_variant[name].run(fitted, trace)
        self._last = name  # until then the state is where it was
        return made
