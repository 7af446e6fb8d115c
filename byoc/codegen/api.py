"""The Protocols of a codegen plug-in, and the values that pass through them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnx
import onnx.inliner
from numpy.typing import NDArray

from byoc.boundary.contract import Contract
from byoc.boundary.weights import convolution_weights, packed_array
from byoc.codegen.arena import Arena, plan_arena
from byoc.codegen.operations import Operation, operations
from byoc.errors import InputError
from byoc.graph.copying import copy_without
from byoc.graph.fold import fold_constants
from byoc.graph.index import GraphIndex, stated_types
from byoc.graph.tensors import stored_array
from byoc.verdict import Verdict

API_VERSION = 1
"""The version of this interface; a codegen says as `api` which one it was written for."""

Array = NDArray[np.generic]
Executor = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Runs a compiled region: its inputs by name to its outputs by name, dtypes and shapes as declared."""


class CompileError(InputError):
    """A codegen cannot compile a region; the message says why.

    `nodes` are those of the region's nodes that are at fault, by name or by first output where they
    have none; empty when the codegen does not know.
    """

    def __init__(self, reason: str, nodes: Sequence[str] = ()) -> None:
        """Keep the nodes beside the message."""
        super().__init__(reason)
        self.nodes = (nodes,) if isinstance(nodes, str) else tuple(nodes)


class ResourceError(CompileError):
    """A region is too large for the device: fewer of its nodes at once may compile."""


@dataclass(frozen=True, eq=False)
class Region:
    """What a codegen compiles: a complete ONNX model of standard operators and composites.

    `path` is that model on disk; its large constants are ONNX external data in the same folder, so
    onnx.load and every ONNX tool read it as it is. A composite is a call of a model-local function in
    the domain `byoc.<target>`, whose body says in standard operators what it computes. `composites`
    holds their names in order of execution.

    `inputs`, `outputs` and `constants` say what each tensor at the region's border, and each one stored
    in it, is: name, dtype and shape, layout, quantization, and who converts it.
    """

    name: str
    target: str
    path: Path
    inputs: tuple[Contract, ...]
    outputs: tuple[Contract, ...]
    composites: tuple[str, ...] = ()
    constants: tuple[Contract, ...] = ()

    def load(self, fold: bool = False, inline: bool = False) -> onnx.ModelProto:
        """Return the model with all its constants in memory.

        With `inline`, the body of each composite stands in its place, so that there are standard
        operators alone. With `fold`, what nodes compute of constants alone is computed, so that only
        nodes that the rules accepted are left.
        """
        model = onnx.load(self.path, load_external_data=False)
        if inline and model.functions:
            model = onnx.inliner.inline_local_functions(model)  # at most 2 GB, so without the weights
        onnx.load_external_data_for_model(model, str(self.path.parent))
        return fold_constants(model) if fold else model

    def operations(self, fold: bool = True, boundary: bool = False) -> tuple[Operation, ...]:
        """Return what the region does, in order of execution.

        With `fold`, what nodes compute of constants alone is a constant. Unless `boundary`, the nodes
        that undo byoc's conversions of layout and float type at the border are left out, since the
        contracts say it: the first operations then read `inner` of the inputs' contracts.
        """
        model = self._folded if fold else self.model
        return operations(model, f"byoc.{self.target}", self.inputs, self.outputs, boundary)

    def arena(self, alignment: int = 64) -> Arena:
        """Return an order of the operations and a place for each tensor in the smallest arena there is.

        Sizes and offsets are multiples of `alignment` bytes. Views share the bytes of what they view
        (Reshape, Flatten, Squeeze, Identity, ...) and elementwise operators write over an operand that
        dies: right where tensors lie as ONNX has them. A target that packs images, to which some Reshape
        is a copy, plans with `byoc.memory` itself, as `codegens/dla` does. Raises InputError when a
        tensor's extents are not known.
        """
        return plan_arena(self._folded, self.inputs, self.outputs, self.name, alignment)

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        """The nodes of the model, in order of execution."""
        return self.model.graph.node

    def constant(self, name: str) -> Array:
        """Return a constant by name as its contract has it: its dtype, and packed in its layout.

        Only that tensor is read from disk. What nodes compute of constants alone is one, too, and lies
        as ONNX has it. Raises KeyError when the region has no such constant.
        """
        contract = next((each for each in self.constants if each.name == name), None)
        if contract is None and name in self._computed:
            return self._computed[name]
        if contract is None:
            there = ", ".join(each.name for each in self.constants) or "none"
            raise KeyError(f"{self.name} has no constant '{name}', it has: {there}")
        array = stored_array(self._stored[name], self.path.parent)
        if not contract.layout:
            return array
        return packed_array(array, contract.layout, self._weights[name])

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model without its large constants, which stay on disk; it is not to be changed."""
        return onnx.load(self.path, load_external_data=False)

    @cached_property
    def _folded(self) -> onnx.ModelProto:
        """The model with what is computed of constants as constants, the other large ones on disk."""
        index = GraphIndex(self.model, stated_types(self.model))
        if not index.constant_nodes:
            return self.model
        read = {name for i in index.constant_nodes for name in index.reads[i]}
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for tensor in model.graph.initializer:
            if tensor.name in read and tensor.data_location == onnx.TensorProto.EXTERNAL:
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(self.path.parent))
        folded = fold_constants(model)
        left = GraphIndex(folded, {})
        kept = [tensor for tensor in folded.graph.initializer if left.is_used(tensor.name)]
        result = copy_without(folded, "initializer")
        result.graph.initializer.extend(kept)
        return result

    @cached_property
    def _computed(self) -> Mapping[str, Array]:
        """What is computed of constants alone."""
        if self._folded is self.model:
            return {}
        return {
            tensor.name: onnx.numpy_helper.to_array(tensor)
            for tensor in self._folded.graph.initializer
            if tensor.name not in self._stored
        }

    @cached_property
    def _stored(self) -> Mapping[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @cached_property
    def _weights(self) -> Mapping[str, str]:
        return convolution_weights(self.model)


@dataclass(frozen=True, eq=False)
class Artifact:
    """What a codegen made of a region.

    `files` are written beside the region in the bundle, by plain file name; `metadata` goes into the
    manifest. Both come back as they were when the bundle is loaded.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Codegen(Protocol):
    """All that a vendor must write. The class is made without arguments.

    It may have four class attributes more: `api`, the version of this interface that it speaks
    (API_VERSION when it does not say); `Options`, a frozen dataclass of its own, of which `compile` is
    handed an instance (without it `compile` gets the user's options as a mapping of texts);
    `concurrent`, True where its executors can be called by several threads at once; and `recompiles`,
    True where `load` itself copes with an artifact that `compatible` refuses.
    """

    name: str

    def compile(self, region: Region, options: Any) -> Artifact:
        """Return the compiled region. Raise CompileError with the reason when it cannot be."""
        ...


@runtime_checkable
class Executable(Protocol):
    """A codegen whose artifacts run here: on hardware, in a simulator, or by a library."""

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return what runs the artifact; `region` is the one that it was compiled from."""
        ...


@runtime_checkable
class Oracle(Protocol):
    """A codegen that can ask the real compiler what it accepts."""

    def check(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """Return what the compiler says of each node of the model's main graph, in their order."""
        ...


@runtime_checkable
class Measured(Protocol):
    """A codegen that can time a region on the device."""

    def cost(self, region: Region) -> float:
        """Return how many seconds the region takes, transfers left out."""
        ...


@runtime_checkable
class Stamped(Protocol):
    """A codegen whose artifacts fit some versions of a library, or some processors, only.

    Where one of a bundle does not fit, the region is compiled anew as the bundle is loaded.
    """

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the artifact can be loaded here, or why it cannot."""
        ...


@runtime_checkable
class Together(Protocol):
    """A codegen that takes all regions of its target in one compile: shared weights, one blob."""

    def compile_all(self, regions: Sequence[Region], options: Any) -> Mapping[str, Artifact]:
        """Return the artifact of each region by the region's name; `options` are those of `compile`."""
        ...


@dataclass(frozen=True, eq=False)
class Context:
    """How a provider of ONNX Runtime loads an artifact: what its EPContext node says.

    `source` is the name by which the provider knows its own nodes, `file` the artifact's file that holds
    the context, the only one that it needs. `inputs` and `outputs` are the region's, by name, in the
    node's order. The rest are the node's optional attributes, `more` those that are the provider's own.
    """

    source: str
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    partition: str = ""
    sdk_version: str = ""
    hardware: str = ""
    notes: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class ContextSource(Protocol):
    """A codegen whose artifacts a provider of ONNX Runtime loads, for `--emit epcontext`."""

    def context(self, artifact: Artifact) -> Context:
        """Return how the provider loads an artifact."""
        ...


ABILITIES: Mapping[str, type] = MappingProxyType(
    {
        "executable": Executable,
        "oracle": Oracle,
        "measured": Measured,
        "stamped": Stamped,
        "together": Together,
        "context": ContextSource,
    }
)
"""What a codegen may be able to do besides compiling: a word to the Protocol that it then satisfies."""
