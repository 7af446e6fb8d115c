"""Executors of regions that are identical to others except for names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from byoc.codegen import BindableExecutor, DeviceState, Executor, Region, StatefulExecutor


@dataclass(frozen=True, eq=False)
class RenamedExecutor:
    """The executor of a region that is identical to another one except for names, whose own it calls.

    `inputs` and `outputs` map the names of this region's tensors to those of the other's.
    """

    run: Executor
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name. Raises as the other executor does."""
        made = self.run({theirs: inputs[mine] for mine, theirs in self.inputs.items()})
        return {mine: made[theirs] for mine, theirs in self.outputs.items()}

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> "RenamedExecutor | None":
        """Return an executor that reads and writes some tensors where they lie, None if it cannot."""
        if not isinstance(self.run, BindableExecutor):
            return None
        run = self.run.bind(
            {self.inputs[name]: array for name, array in inputs.items()},
            {self.outputs[name]: array for name, array in outputs.items()},
        )
        return None if run is None else replace(self, run=run)

    def allocate(self, pairs: Mapping[str, str]) -> "RenamedState | None":
        """Make room for states on the device, None where it cannot keep them."""
        if not isinstance(self.run, StatefulExecutor):
            return None
        theirs = {self.inputs[past]: self.outputs[present] for past, present in pairs.items()}
        state = self.run.allocate(theirs)
        return None if state is None else RenamedState(state, self)


@dataclass(frozen=True, eq=False)
class RenamedState:
    """States of a region on a device, with the names that an identical one has there."""

    state: DeviceState
    executor: RenamedExecutor

    def reset(self, values: Mapping[str, Any]) -> None:
        """Send values to the device, by names of inputs."""
        self.state.reset({self.executor.inputs[mine]: value for mine, value in values.items()})

    def step(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the region on the other inputs and return the other outputs."""
        renamed = self.executor.inputs
        made = self.state.step({renamed[mine]: value for mine, value in inputs.items()})
        return {m: made[theirs] for m, theirs in self.executor.outputs.items() if theirs in made}

    def read(self) -> dict[str, Any]:
        """Return copies of the states, by names of inputs."""
        found = self.state.read()
        return {m: found[theirs] for m, theirs in self.executor.inputs.items() if theirs in found}


def rename_executor(run: Executor, original: Region, other: Region) -> RenamedExecutor:
    """Return an executor of `other`, identical to `original` except for names, that calls `run`."""
    pairs = [(other.inputs, original.inputs), (other.outputs, original.outputs)]
    inputs, outputs = (
        {mine.name: theirs.name for mine, theirs in zip(own, others, strict=True)}
        for own, others in pairs
    )
    return RenamedExecutor(run, inputs, outputs)
