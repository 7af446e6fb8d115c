"""State that stays on accelerators between calls: neither past nor present crosses a boundary."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from byoc.codegen import DeviceState
from byoc.model import StatePair, read_type
from byoc.runtime._session import Session
from byoc.runtime._stage_program import Stage

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
