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
    """The state that stages keep on their devices, by names of inputs; a device may keep several."""

    devices: Mapping[str, DeviceState] = field(default_factory=dict)

    def reset(self, values: Arrays) -> None:
        """Send the first values of a sequence to the devices, by names of inputs."""
        for device in {id(device): device for device in self.devices.values()}.values():
            device.reset({name: values[name] for name, own in self.devices.items() if own is device})

    def read(self) -> dict[str, NDArray[Any]]:
        """Return copies of the state, by names of inputs."""
        found: dict[str, NDArray[Any]] = {}
        for device in {id(device): device for device in self.devices.values()}.values():
            found |= device.read()
        return {name: found[name] for name in self.devices}


def keep_on_devices(session: Session, pairs: Mapping[str, StatePair]) -> tuple[Session, KeptState]:
    """Have the stages of a session keep what state they can on their devices.

    Return the session, of which these inputs and outputs are gone, and what is kept. A stage can keep a
    state where it alone reads the input and makes the output, of the same fixed shape, and no other
    stage reads either.
    """
    stages: list[Stage] = []
    devices: dict[str, DeviceState] = {}
    for stage in session.stages:
        own = {name: pair.present for name, pair in pairs.items() if _is_own(session, stage, pair)}
        state = stage.allocate(own) if own and stage.allocate is not None else None
        stages.append(stage if state is None else _leave_out(stage, own, state))
        devices |= {} if state is None else dict.fromkeys(own, state)
    if not devices:
        return session, KeptState()
    gone = {pairs[name].present for name in devices}
    program = session.program
    outputs = tuple(name for name in program.outputs if name not in gone)
    without = replace(
        session,
        inputs=tuple(name for name in session.inputs if name not in devices),
        types={name: kind for name, kind in session.types.items() if name not in devices},
        program=replace(program, stages=stages, outputs=outputs),
    )
    return without, KeptState(devices)


def _is_own(session: Session, stage: Stage, pair: StatePair) -> bool:
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


def _leave_out(stage: Stage, pairs: Mapping[str, str], state: DeviceState) -> Stage:
    """Return a stage that keeps some of its inputs and outputs on the device."""
    gone = set(pairs.values())
    return replace(
        stage,
        inputs=tuple(name for name in stage.inputs if name not in pairs),
        outputs=tuple(name for name in stage.outputs if name not in gone),
        types={name: kind for name, kind in stage.types.items() if name not in gone},
        run=state.step,
        bind=None,
        allocate=None,
    )
