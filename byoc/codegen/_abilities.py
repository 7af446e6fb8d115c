"""The optional abilities of a codegen: Protocols that its class may satisfy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import onnx

from byoc._dataclasses import dataclass, field
from byoc.codegen._interface import API_VERSION
from byoc.errors import YES, Verdict, refuse
from byoc.support import install_command

if TYPE_CHECKING:
    from byoc.codegen._interface import AnyArray, Artifact, Cycles, Executor, OperatorTime
    from byoc.codegen._region import Region


@runtime_checkable
class Executable(Protocol):
    """A codegen whose artifacts run on this machine: on hardware, in a simulator or by a library."""

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Load an artifact and return its executor; `region` is the region it was compiled from."""
        ...


@runtime_checkable
class BindableExecutor(Protocol):
    """An executor that can read and write tensors in arrays that stay the same from run to run.

    A session with state keeps a decoder's cache so, and `byoc.bind_tensors` binds the caller's arrays.
    Other executors get the cache as an input and give it as an output.
    """

    def __call__(self, inputs: Mapping[str, AnyArray]) -> Mapping[str, AnyArray]:
        """Return the outputs by name."""
        ...

    def bind(self, inputs: Mapping[str, AnyArray], outputs: Mapping[str, AnyArray]) -> Executor | None:
        """Return an executor that reads `inputs` and writes `outputs` where they lie, None if it cannot.

        The arrays are contiguous. One that is an input and an output is a state that the region adds to
        in place. The executor is called with all inputs and returns all outputs, one call at a time.
        """
        ...


class DeviceState(Protocol):
    """States of one sequence in the memory of a device, which a region reads and makes anew there.

    One thread at a time uses it; an executor may have several, each with values of its own.
    """

    def reset(self, values: Mapping[str, AnyArray]) -> None:
        """Send values to the device, one for each state, by names of inputs; this comes first."""
        ...

    def step(self, inputs: Mapping[str, AnyArray]) -> Mapping[str, AnyArray]:
        """Run the region on the other inputs and return the other outputs.

        The states are then what the region made of them.
        """
        ...

    def read(self) -> Mapping[str, AnyArray]:
        """Return copies of the states, by names of inputs."""
        ...


@runtime_checkable
class StatefulExecutor(Protocol):
    """An executor that can keep states on its device, so that they do not cross in each run.

    A session with state asks for that where the region alone reads a state and makes the next one,
    of the same fixed shape. A device that shares the host's memory has `bind` (`BindableExecutor`).
    """

    def __call__(self, inputs: Mapping[str, AnyArray]) -> Mapping[str, AnyArray]:
        """Return the outputs by name."""
        ...

    def allocate(self, pairs: Mapping[str, str]) -> DeviceState | None:
        """Make room for states on the device, None where there is none.

        `pairs` maps names of inputs to the outputs whose values they take in the next run; both have the
        same dtype, shape and layout.
        """
        ...


@runtime_checkable
class Oracle(Protocol):
    """A codegen that can ask the vendor's compiler whether it accepts a node."""

    def check(self, model: onnx.ModelProto, options: Any) -> Sequence[Verdict]:
        """Return the compiler's verdict on each node of the model's main graph, in order.

        `options` are as in `compile`; before version 3 of the interface there are none.
        """
        ...


@runtime_checkable
class Measured(Protocol):
    """A codegen that can time a region on the device."""

    def cost(self, region: Region) -> float:
        """Return the seconds that one run of the region takes, without transfers."""
        ...


@runtime_checkable
class Estimating(Protocol):
    """A codegen whose compiler says what a compiled region will take on the device.

    It is an ability of version 2 of the interface. Where there is a `cost` as well, this one counts.
    """

    def estimate(self, region: Region, options: Any, artifact: Artifact) -> float | Cycles:
        """Return the seconds of one run of a compiled region, launch included, without transfers.

        `artifact` is what `compile` gave for the region with these `options`; its metadata is where a
        compiler's figures are best kept. Raises CompileError where the compiler does not say.
        """
        ...


@runtime_checkable
class Tracing(Protocol):
    """A codegen that shows the tensors inside of a compiled region: the layer dump of its compiler.

    It is an ability of version 4 of the interface. Verification compares quantized layers by it, without
    compiling the region a second time with each of them as an output.
    """

    def trace(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, AnyArray]
    ) -> Mapping[str, AnyArray]:
        """Run a compiled region on some inputs; return the tensors that were computed, by their names.

        `inputs` are as for its executor. Names are those of `Operation.outputs` of the region, and
        arrays have the dtype and the shape that ONNX gives them there, in its order of axes. What leaves
        the region is among them, by `TensorContract.inner`. What the compiler fused away is left out.
        Raises as `load` does.
        """
        ...


@runtime_checkable
class Profiling(Protocol):
    """A codegen that says what a run of a region spends on each of its operators.

    It is an ability of version 4 of the interface, which `byoc run --trace` asks for.
    """

    def profile(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, AnyArray]
    ) -> Sequence[OperatorTime]:
        """Run a compiled region on some inputs; return the times of its operations, in order.

        `inputs` are as for its executor. Raises as `load` does.
        """
        ...


@runtime_checkable
class Stamped(Protocol):
    """A codegen whose artifacts work with certain library versions or processors only.

    Loading a bundle recompiles the regions whose artifacts are not compatible.
    """

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the artifact can be loaded on this machine, with the reason if not."""
        ...


@dataclass(frozen=True)
class Fit:
    """Whether this machine runs a compiled region, as its codegen knows without loading anything.

    `driver` is what runs it, with its installed version: `OpenVINO 2026.4.1`. `verdict` says whether the
    region loads here, or why not; with `missing` since a library is not installed. `accepts` are the
    versions of the driver that run the artifact as it is, `machine` the platform that it is for, and
    `memory` the bytes that it needs on the device; empty and None where that is not known. `again` says
    why loading compiles the region again, and `unknown` what only loading tells.
    """

    driver: str
    verdict: Verdict = YES
    accepts: str = ""
    machine: str = ""
    memory: int | None = None
    again: str = ""
    unknown: str = ""
    missing: bool = False

    @classmethod
    def without(cls, hint: str) -> Fit:
        """Return the answer where a library is not installed; `hint` says which, and how to get it."""
        return cls("", refuse(hint), missing=True)


def describe_missing(library: str, extra: str) -> str:
    """Return that a codegen's library is not installed, how to get it, and what does without.

    `extra` is the one of pyproject.toml that names the library's packages.
    """
    return (
        f"{library} is not installed ({install_command(extra)}; "
        "--codegen reference runs on onnxruntime instead)"
    )


@runtime_checkable
class Fitting(Protocol):
    """A codegen that says whether a compiled region would load here, without loading it.

    It is an ability of version 4 of the interface. `byoc.find_fitting` asks it, and so does loading, of
    every region, before `compatible` and `load`: where the answer is no, neither is called.
    """

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        """Return the answer for an artifact, given the names of its files and its metadata.

        No library of a compiler or a device is imported: what is installed is known from its package's
        metadata, and what only the library knows is left to `load` (`Fit.unknown`). It takes about a
        millisecond.
        """
        ...


@runtime_checkable
class Keyed(Protocol):
    """A codegen that says what its artifacts depend on, so that a cached one is never an old one."""

    def cache_key(self, options: Any) -> Mapping[str, str]:
        """Return the further dependencies of artifacts: each by its name, as text.

        Region, options, packages and processor count anyway. A tool on the path, a device, files
        elsewhere and environment variables have to be named. `options` are as in
        `compile`. Raises CompileError or MissingRuntimeError where `compile` would.
        """
        ...


@runtime_checkable
class Together(Protocol):
    """A codegen that compiles all regions of its target in one call: shared weights, one blob."""

    def compile_all(self, regions: Sequence[Region], options: Any) -> Mapping[str, Artifact]:
        """Compile all regions; return the artifacts by region name. `options` are as in `compile`."""
        ...


@runtime_checkable
class TakesWeights(Protocol):
    """A codegen that gives an artifact other weights without compiling again."""

    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: Any
    ) -> Artifact | None:
        """Return the artifact of a region, made of that of `first`; None where it has to be compiled.

        The two regions are the same but for names and the values of constants: nodes, constants and
        contracts correspond by position. `options` are as in `compile`.
        """
        ...


@dataclass(frozen=True, eq=False)
class Context:
    """The contents of an EPContext node, by which an ONNX Runtime provider loads an artifact.

    `source` identifies the provider's own nodes; `file` is the artifact's only file, which holds the
    context. `inputs` and `outputs` are names of the region's tensors, in the node's order. The rest are
    the node's optional attributes; `more` holds those specific to the provider.
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
    """A codegen whose artifacts an ONNX Runtime provider can load, for `--emit epcontext`."""

    def context(self, artifact: Artifact) -> Context:
        """Return the contents of the EPContext node for an artifact."""
        ...


@dataclass(frozen=True)
class DriverSources:
    """The C sources of a driver (`byoc_driver.h`), and the libraries that it is linked with.

    `name` is the codegen's. `libraries` are names for the linker: `m`. Programs in C are given copies of
    the sources, and of licences and notices in their folders (`LICENSE*`, `COPYING*`, `NOTICE*`); `abi`
    is the version of the table that they link: 1, or 2 for a `byoc_driver_2`.
    """

    name: str
    files: tuple[Path, ...]
    libraries: tuple[str, ...] = ()
    abi: int = 1


@runtime_checkable
class Driven(Protocol):
    """A codegen whose artifacts a driver in C runs, without Python (docs/driver.md)."""

    def driver(self) -> DriverSources:
        """Return the driver's sources."""
        ...


@runtime_checkable
class Recoverable(Protocol):
    """A codegen with other options for a region that it computed wrong, safer ones at a price.

    Where a region's numbers are off, it is compiled again with the first of these in place of the
    options of the same names, then with the next; only then is anything of it given up. Options that
    the user gave for the target stay as given.
    """

    recovery_options: Sequence[Mapping[str, str]]


ABILITIES: Mapping[str, type] = MappingProxyType(
    {
        "executable": Executable,
        "oracle": Oracle,
        "measured": Measured,
        "estimate": Estimating,
        "trace": Tracing,
        "profile": Profiling,
        "fit": Fitting,
        "stamped": Stamped,
        "keyed": Keyed,
        "together": Together,
        "weights": TakesWeights,
        "context": ContextSource,
        "driver": Driven,
        "recovery": Recoverable,
    }
)
"""The optional abilities of a codegen: display names to the Protocols that define them."""

_FIRST_VERSIONS = {
    "estimate": 2,
    "driver": 2,
    "trace": 4,
    "profile": 4,
    "fit": 4,
}  # of the interface that have an ability; the others are of version 1


def list_abilities(codegen: object) -> tuple[str, ...]:
    """Return the abilities that a codegen has in the version of the interface that it speaks.

    A method of a later version's name is one of its own.
    """
    return tuple(name for name in ABILITIES if _has_ability(codegen, name))


def _has_ability(codegen: object, name: str) -> bool:
    version = getattr(codegen, "api", API_VERSION)
    return is_in_version(name, version) and isinstance(codegen, ABILITIES[name])


def is_in_version(ability: str, version: int) -> bool:
    """Return whether a version of the interface has an ability."""
    return version >= _FIRST_VERSIONS.get(ability, 1)


def list_recovery_options(codegen: object) -> tuple[Mapping[str, str], ...]:
    """Return the options to recover with that a codegen declares, in order; none where it has none."""
    declared = getattr(codegen, "recovery_options", ())
    return tuple({str(name): str(text) for name, text in each.items()} for each in declared)


def can_estimate(codegen: object) -> TypeGuard[Estimating]:
    """Return whether a codegen estimates the seconds of what it compiled."""
    return _has_ability(codegen, "estimate")


def can_trace(codegen: object) -> TypeGuard[Tracing]:
    """Return whether a codegen shows the tensors inside of what it compiled."""
    return _has_ability(codegen, "trace")


def can_profile(codegen: object) -> TypeGuard[Profiling]:
    """Return whether a codegen says what a run spends on each operator of a region."""
    return _has_ability(codegen, "profile")


def can_find_fit(codegen: object) -> TypeGuard[Fitting]:
    """Return whether a codegen says without loading a region whether it would load here."""
    return _has_ability(codegen, "fit")


def has_driver(codegen: object) -> TypeGuard[Driven]:
    """Return whether a driver in C runs what a codegen compiles."""
    return _has_ability(codegen, "driver")


def has_model_driver(codegen: object) -> bool:
    """Return whether a driver that byoc makes of regions' models runs what a codegen compiles.

    One with a driver of its own needs none.
    """
    return bool(getattr(codegen, "model_driver", False)) and not has_driver(codegen)
