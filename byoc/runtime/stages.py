"""Preparing a partitioned graph to run: a stage for each step, bodies of control flow included."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TypeProto

from byoc.graph.extract import extract_nodes
from byoc.graph.index import GraphIndex
from byoc.graph.interface import find_boundary
from byoc.graph.types import rate_knowledge, read_type, clear_shape
from byoc.graph.walk import describe_node
from byoc.runtime.control import ControlBody, control_runner
from byoc.runtime.onnxrt import open_session, output_types, session_runner
from byoc.runtime.program import StageProgram, Stage, StageValues
from byoc.runtime.segments import find_steps


@dataclass(frozen=True, eq=False)
class ProgramBuilder:
    """Builds programs from the graphs of one bundle, given its folder, its regions and their domains."""

    folder: Path
    regions: Mapping[str, Stage]
    domains: frozenset[str]
    segment_numbers: Iterator[int] = field(default_factory=count)

    def region_calls(self, index: GraphIndex) -> dict[int, str]:
        """Return the regions that a graph calls, by node number."""
        nodes = enumerate(index.nodes)
        return {i: node.op_type for i, node in nodes if node.domain in self.domains}

    def build_program(self, index: GraphIndex, values: Mapping[str, TypeProto]) -> StageProgram:
        """Return a graph ready to run; `values` holds the types of tensors around it."""
        calls = self.region_calls(index)
        controls = {
            i
            for i, bodies in index.bodies.items()
            if any(self.region_calls(inner) for body in bodies for inner in body.index.walk())
        }
        known = {**index.type_protos, **values}
        stages = []
        for step in find_steps(index, calls, controls):
            if not step.single:
                stage = self._host_stage(index, step.nodes, known)
            elif step.nodes[0] in calls:
                stage = _call_stage(self.regions[calls[step.nodes[0]]], index, index.nodes[step.nodes[0]])
            else:
                stage = self._control_stage(index, step.nodes[0], known)
            known |= {
                name: kind
                for name, kind in stage.types.items()
                if rate_knowledge(kind) > rate_knowledge(known.get(name))
            }
            stages.append(stage)
        read = {*index.inputs, *index.outputs}
        read |= {name for i in controls for name in index.nodes[i].input}
        stored = {name: index.stored_tensors[name] for name in read & index.stored_tensors.keys()}
        stored |= {t.name: t for t in index.graph.initializer if t.name in read}
        constants = {name: _read_constant(tensor, self.folder) for name, tensor in stored.items()}
        outputs = tuple(value.name for value in index.graph.output)  # one may occur twice
        types = {name: known[name] for name in outputs if name in known}
        return StageProgram(stages, constants, outputs, types)

    def _host_stage(
        self, index: GraphIndex, nodes: tuple[int, ...], values: Mapping[str, TypeProto]
    ) -> Stage:
        """Return the stage of a host segment, with the output types that onnxruntime infers.

        Shape inference of ONNX finds no types behind operators that only onnxruntime knows.
        """
        number = next(self.segment_numbers)
        session = open_session(extract_nodes(index, nodes, f"host_{number}", values), self.folder)
        inputs = find_boundary(index, nodes).inputs
        name = f"host segment {number}"
        return Stage(name, inputs, session_runner(session), output_types(session))

    def _control_stage(self, index: GraphIndex, number: int, values: Mapping[str, TypeProto]) -> Stage:
        """Return the stage of a node with regions in its bodies; their outputs give its output types."""
        node: NodeProto = index.nodes[number]
        bodies = {}
        found: dict[str, TypeProto] = {}
        around: list[str] = [name for name in node.input if name]
        for body in index.bodies[number]:
            inner = body.index
            names = [value.name for value in inner.graph.input]
            program = self.build_program(inner, values)
            kinds = map(program.types.get, program.outputs)
            types = [read_type(kind) if kind else None for kind in kinds]
            own = {name: value for name, value in program.constants.items() if name not in names}
            bodies[body.attribute] = ControlBody(names, types, _bind_constants(own, program))
            made = program.outputs[1 if node.op_type == "Loop" else 0 :]
            for mine, theirs in zip(node.output, made, strict=False):
                kind = clear_shape(program.types.get(theirs))
                if mine and kind is not None:
                    found[mine] = kind
            around += body.index.captured_names
        reads = tuple(dict.fromkeys(around))
        made_here = tuple(name for name in node.output if name)
        return Stage(describe_node(node), reads, control_runner(node, bodies), found, made_here)


def data_inputs(index: GraphIndex, call: NodeProto) -> list[str]:
    """Return the inputs of a region's call without its constants, which are stored in the region."""
    return [name for name in call.input if not index.is_constant(name)]


def _call_stage(region: Stage, index: GraphIndex, call: NodeProto) -> Stage:
    """Return a region's stage with its boundary tensors named as in the graph around its call."""
    inputs = dict(zip(region.inputs, data_inputs(index, call), strict=True))
    outputs = dict(zip(region.types, call.output, strict=True))

    def run(values: StageValues) -> StageValues:
        made = region.run({inside: values[name] for inside, name in inputs.items()})
        return {name: made[inside] for inside, name in outputs.items()}

    types = {name: region.types[inside] for inside, name in outputs.items()}
    return replace(region, inputs=tuple(inputs.values()), run=run, types=types)


def _bind_constants(own: StageValues, program: StageProgram) -> Callable[[StageValues], list[Any]]:
    """Return a function that runs a body; its constants shadow values of the same name around it."""
    return lambda values: program({**values, **own})


def _read_constant(tensor: onnx.TensorProto, folder: Path) -> NDArray[np.generic]:
    return onnx.numpy_helper.to_array(tensor, str(folder))
