"""Running a bundle: host segments on onnxruntime, regions on their codegen's executor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TypeProto

from byoc.bundle.read import Bundle, open_bundle
from byoc.errors import ByocError, InputError
from byoc.graph.extract import nodes_model
from byoc.graph.index import GraphIndex, stated_types
from byoc.graph.outline import interface
from byoc.graph.types import TensorType
from byoc.runtime.onnxrt import open_session, output_types, run_session
from byoc.runtime.regions import executor
from byoc.runtime.segments import steps
from byoc.runtime.values import mismatch

Values = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Stage:
    """One step made ready: what it is called, what it reads, and the function that runs it."""

    name: str
    inputs: tuple[str, ...]
    run: Callable[[Values], Values]


@dataclass(frozen=True, eq=False)
class Session:
    """A loaded bundle. Call it with inputs by name to get outputs by name.

    `types` holds those of the inputs that are tensors, `constants` the outputs that are stored and the
    defaults of inputs that have one.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    constants: Values
    stages: Sequence[Stage]

    def __call__(self, inputs: Values) -> dict[str, Any]:
        """Return the outputs for inputs given as numpy arrays.

        Raises InputError naming an input that is missing, unknown or of another dtype or shape, or the
        stage that failed.
        """
        missing = [name for name in self.inputs if name not in {**self.constants, **inputs}]
        unknown = [name for name in inputs if name not in self.inputs]
        if missing or unknown:
            what = f"missing input '{missing[0]}'" if missing else f"no input '{unknown[0]}'"
            raise InputError(f"{what}; the model's inputs: {', '.join(self.inputs)}")
        for name, kind in self.types.items():
            given = mismatch(inputs[name], kind) if name in inputs else ""
            if given:
                raise InputError(f"input '{name}' is {given}, the model takes {kind}")
        values = {**self.constants, **inputs}
        for stage in self.stages:
            try:
                values.update(stage.run({name: values[name] for name in stage.inputs}))
            except ByocError as error:
                raise InputError(f"{stage.name}: {error}") from error
        return {name: values[name] for name in self.outputs}


def load(path: str | Path) -> Session:
    """Return a bundle made ready to run.

    Raises InputError when it is not a whole bundle or a codegen is missing or cannot run artifacts, and
    MissingRuntimeError without onnxruntime when the host has something to run.
    """
    return load_bundle(open_bundle(Path(path)))


def load_bundle(bundle: Bundle) -> Session:
    """Return an opened bundle made ready to run; raises as `load` does."""
    proto = bundle.model()
    index = GraphIndex(proto, stated_types(proto))
    regions = {stage.name: stage for stage in map(_region, bundle.regions())}
    local = {(function.domain, function.name) for function in index.proto.functions}
    calls = {
        i: node.op_type
        for i, node in enumerate(index.nodes)
        if node.domain.startswith("byoc.") and (node.domain, node.op_type) in local
    }
    _check_calls(bundle, index, calls, regions)
    stages = []
    values = dict(index.values)
    segments = count()
    for step in steps(index, calls):
        if step.call:
            stages.append(regions[index.nodes[step.nodes[0]].op_type])
        else:
            stage, found = _segment(index, step.nodes, next(segments), bundle.folder, values)
            stages.append(stage)
            values = {**found, **values}
    given = {*index.inputs, *index.outputs}
    return Session(
        tuple(index.inputs),
        tuple(index.outputs),
        {name: index.types[name] for name in index.inputs if name in index.types},
        {t.name: _value(t, bundle.folder) for t in proto.graph.initializer if t.name in given},
        stages,
    )


def _check_calls(
    bundle: Bundle, index: GraphIndex, calls: Mapping[int, str], regions: Mapping[str, Stage]
) -> None:
    """Raise InputError unless model and manifest agree on the regions and what these read."""
    domain = f"byoc.{bundle.manifest.target}"
    called = {name for i, name in calls.items() if index.nodes[i].domain == domain}
    if called != set(regions) or len(called) < len(calls):
        raise InputError(f"{bundle.folder}: the manifest and the model do not name the same regions")
    for i, name in calls.items():
        if not set(regions[name].inputs) <= set(index.nodes[i].input):
            raise InputError(f"{bundle.folder}: region {name} and the model do not have the same inputs")


def _segment(
    index: GraphIndex, nodes: tuple[int, ...], number: int, folder: Path, values: Mapping[str, TypeProto]
) -> tuple[Stage, Mapping[str, TypeProto]]:
    """Return a host segment made ready, and the types that onnxruntime found for its outputs.

    ONNX has no types for the outputs of operators that it does not know; onnxruntime knows its own.
    """
    session = open_session(nodes_model(index, nodes, f"host_{number}", values), folder)
    inputs = interface(index, nodes).inputs
    stage = Stage(f"host segment {number}", inputs, lambda given: run_session(session, given))
    return stage, output_types(session)


def _region(entry: tuple[str, Any, Any]) -> Stage:
    name, region, artifact = entry
    run = executor(name, region, artifact)
    return Stage(region.name, tuple(value.name for value in region.inputs), run)


def _value(tensor: onnx.TensorProto, folder: Path) -> NDArray[np.generic]:
    return onnx.numpy_helper.to_array(tensor, str(folder))
