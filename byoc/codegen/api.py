"""The Protocols of a codegen plug-in, and the values that pass through them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import onnx
import onnx.inliner
from numpy.typing import NDArray

from byoc.errors import InputError
from byoc.graph.fold import fold_constants
from byoc.graph.types import TensorType
from byoc.verdict import Verdict

Array = NDArray[np.generic]
Executor = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Runs a compiled region: its inputs by name to its outputs by name, dtypes and shapes as declared."""


class CompileError(InputError):
    """A codegen cannot compile a region; the message says why."""


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of a region. An unknown dimension in `type` may differ from run to run."""

    name: str
    type: TensorType


@dataclass(frozen=True, eq=False)
class Region:
    """What a codegen compiles: a complete ONNX model of standard operators and composites.

    `path` is that model on disk; its large constants are ONNX external data in the same folder, so
    onnx.load and every ONNX tool read it as it is. A composite is a call of a model-local function in
    the domain `byoc.<target>`, whose body says in standard operators what it computes. `composites`
    holds their names in order of execution.
    """

    name: str
    target: str
    path: Path
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    composites: tuple[str, ...] = ()

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
    """All that a vendor must write. The class is made without arguments."""

    name: str

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
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
    """A codegen that can be asked, before anything is placed, what it would take."""

    def check(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """Return for each node of the graph, in order, whether the codegen compiles it by itself."""
        ...
