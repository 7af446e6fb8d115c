"""The interface of a codegen in another Python: `from byoc_worker import Artifact, CompileError`.

byoc puts this package into the interpreter that the user's settings name, which needs Python 3.8 or
later and numpy. The names mean what they mean in `byoc.codegen`. All else stays in byoc's own
interpreter, and a region asks for it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Dict, Generic, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_MAX_NODES = 3  # nodes that a message names


class EmitterTable(Generic[T]):
    """A table of functions that emit code for an operation, by operator or composite.

    `emit = Emitters()`, `@emit.op("Conv")` or `@emit.composite("conv_relu")` over each function, and
    `emit(region)` calls them in order of execution. A subclass names the class of a refusal.
    """

    refusal: Any

    def __init__(self) -> None:
        """Make an empty table."""
        self._ops: dict[str, Callable[..., T]] = {}
        self._composites: dict[str, Callable[..., T]] = {}

    def op(self, *names: str) -> Callable[[F], F]:
        """Register a function for operators; outside ONNX's domain the name is `com.acme.Gelu`."""
        return _register(self._ops, names)

    def composite(self, *names: str) -> Callable[[F], F]:
        """Register a function for composites, by their names in the rule file."""
        return _register(self._composites, names)

    def find(self, operation: Any) -> Callable[..., T] | None:
        """Return the function for an operation, or None."""
        if operation.composite:
            return self._composites.get(operation.composite)
        return self._ops.get(_display_name(operation))

    def __call__(
        self,
        region: Any,
        *context: Any,
        fold: bool = True,
        boundary: bool = False,
        quantized: bool = False,
    ) -> list[T]:
        """Call the functions for all operations of a region; return the results in order of execution.

        Each function gets the operation, followed by `context`; `fold`, `boundary` and
        `quantized` are passed to `Region.operations`. Raises CompileError naming
        all operators without a function, before any function is called; a CompileError of a function
        that names no nodes gets the operation's name.
        """
        operations = region.operations(fold=fold, boundary=boundary, quantized=quantized)
        lacking = [operation for operation in operations if self.find(operation) is None]
        if lacking:
            raise self.refusal(_describe_missing(lacking), [operation.name for operation in lacking])
        return [self._emit(operation, context) for operation in operations]

    def _emit(self, operation: Any, context: Sequence[Any]) -> T:
        function = self.find(operation)
        assert function is not None
        try:
            return function(operation, *context)
        except self.refusal as error:
            if not error.nodes:
                error.nodes = (operation.name,)
            raise


def _register(table: dict[str, Callable[..., Any]], names: Sequence[str]) -> Callable[[F], F]:
    def enter(function: F) -> F:
        for name in names:
            if name in table:
                raise ValueError(f"there are two functions for {name}")
            table[name] = function
        return function

    return enter


def _display_name(operation: Any) -> str:
    if operation.composite:
        return str(operation.composite)
    return f"{operation.domain}.{operation.op}" if operation.domain else str(operation.op)


def _describe_missing(lacking: Sequence[Any]) -> str:
    names = ", ".join(dict.fromkeys(map(_display_name, lacking)))
    nodes = ", ".join(operation.name for operation in lacking[:_MAX_NODES])
    more = f" and {len(lacking) - _MAX_NODES} more" if len(lacking) > _MAX_NODES else ""
    return f"no code is emitted for {names} ({nodes}{more})"


Executor = Callable[[Dict[str, Any]], Dict[str, Any]]
"""Runs a region: arrays by name in, arrays by name out."""


class CompileError(Exception):
    """A codegen cannot compile a region, for the reason in the message.

    `nodes` names the nodes at fault, each by its name or else its first output; it is empty when the
    codegen does not know them. What may pass (a time limit, a service that does not answer) is not
    `lasting`.
    """

    def __init__(self, reason: object, nodes: Sequence[str] = (), *, lasting: bool = True) -> None:
        """Keep the rest beside the message, of which byoc shows one line."""
        super().__init__(str(reason))
        self.nodes = (nodes,) if isinstance(nodes, str) else tuple(nodes)
        self.lasting = lasting


class ResourceError(CompileError):
    """A region is too large for the device; a region with fewer nodes may compile."""


class NotHereError(Exception):
    """This machine cannot run an artifact that is right: `load` raises it with the reason."""

    def __init__(self, reason: object) -> None:
        """Make the message one line."""
        super().__init__(" ".join(str(reason).split()))


class Emitters(EmitterTable[T]):
    """A table of functions that emit code for an operation, by operator or composite."""

    refusal = CompileError


class Artifact:
    """The result of compiling a region: the contents of files by plain names, and texts by name."""

    def __init__(
        self, files: Mapping[str, bytes] | None = None, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Keep both."""
        self.files = {} if files is None else dict(files)
        self.metadata = {} if metadata is None else dict(metadata)


class DriverSources:
    """The C sources of a driver (`byoc_driver.h`), and the libraries that it is linked with.

    `name` is the codegen's, `files` are paths, and `libraries` names for the linker: `m`.
    `abi` is the version of the table that programs in C link: 1, or 2 for a `byoc_driver_2`.
    """

    def __init__(
        self, name: str, files: Sequence[Any], libraries: Sequence[str] = (), abi: int = 1
    ) -> None:
        """Keep them."""
        self.name, self.files, self.libraries = name, tuple(files), tuple(libraries)
        self.abi = abi


class Context:
    """The contents of an EPContext node, by which an ONNX Runtime provider loads an artifact.

    `source` identifies the provider's own nodes; `file` is the artifact's only file, which holds the
    context. `inputs` and `outputs` are names of the region's tensors, in the node's order. The rest are
    the node's optional attributes; `more` holds texts and numbers specific to the provider.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - an EPContext node has so many attributes
        self,
        source: str,
        file: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        partition: str = "",
        sdk_version: str = "",
        hardware: str = "",
        notes: str = "",
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep them."""
        self.source, self.file = source, file
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.partition, self.sdk_version = partition, sdk_version
        self.hardware, self.notes = hardware, notes
        self.more = {} if more is None else dict(more)


class Cycles:
    """A time in cycles of a device: their number, and how many there are in a second."""

    def __init__(self, count: float, hertz: float) -> None:
        """Keep both."""
        self.count, self.hertz = count, hertz


class OperatorTime:
    """The time that some nodes of a region, which ran as one operation, took in a run.

    `nodes` are named as in CompileError. `time` is in seconds, or Cycles. `name` is the compiler's own
    name for the operation.
    """

    def __init__(self, nodes: Sequence[str], time: Any, name: str = "") -> None:
        """Keep them."""
        self.nodes, self.time, self.name = tuple(nodes), time, name


class Verdict:
    """Falsy if there are reasons against; these are sentences for the user, the most severe first.

    `own_cpu` is True of what a compiler takes, and leaves to a CPU of the device's own.
    """

    def __init__(self, reasons: Sequence[str] = (), own_cpu: bool = False) -> None:
        """Keep both."""
        self.reasons = tuple(reasons)
        self.own_cpu = own_cpu

    def __bool__(self) -> bool:
        """Return whether there is no reason against."""
        return not self.reasons


YES = Verdict()
ON_OWN_CPU = Verdict(own_cpu=True)


def refuse(*reasons: str) -> Verdict:
    """Make a refusal with the given reasons."""
    return Verdict(reasons)


class Bytes(int):
    """The type of an option in bytes, which users may write with a unit: `128KiB`."""


class Record:
    """A value of byoc with the attributes that it has there: `kind` is the name of its class.

    Operations, contracts, types and quantizations are records.
    """

    def __init__(self, kind: str, attributes: Mapping[str, Any]) -> None:
        """Keep the attributes."""
        self.__dict__.update(attributes)
        self._kind = kind

    def __repr__(self) -> str:
        """Return for instance `TensorType(dtype='float32', shape=(1, 3))`."""
        named = ", ".join(f"{k}={v!r}" for k, v in self.__dict__.items() if k != "_kind")
        return f"{self._kind}({named})"


class Region:
    """A region to compile: a complete ONNX model of standard operators and composites.

    `path` is the model file, whose large constants are external data beside it. `inputs`, `outputs` and
    `constants` are the contracts of tensors, `composites` names. The methods ask byoc, which decodes the
    model in its own interpreter; what they gave is not kept here.
    """

    def __init__(self, ask: Any, number: int, attributes: Mapping[str, Any]) -> None:
        """Keep the function that asks byoc, the region's number there, and its attributes."""
        self._ask, self._number = ask, number
        self.name: str = attributes["name"]
        self.target: str = attributes["target"]
        self.path = Path(attributes["path"])
        self.inputs: tuple[Any, ...] = attributes["inputs"]
        self.outputs: tuple[Any, ...] = attributes["outputs"]
        self.composites: tuple[str, ...] = attributes["composites"]
        self.constants: tuple[Any, ...] = attributes["constants"]

    def operations(
        self, fold: bool = True, boundary: bool = False, quantized: bool = False
    ) -> tuple[Any, ...]:
        """Return the region's operations, in order of execution; all but `node` is there."""
        asked = {"fold": fold, "boundary": boundary}
        if quantized:
            asked["quantized"] = True
        found: tuple[Any, ...] = self._ask(self._number, "operations", asked)
        return found

    def type(self, name: str) -> Any:
        """Return the dtype and shape of any tensor in the region, None where they are not known."""
        return self._ask(self._number, "type", {"name": name})

    def constant(self, name: str, layout: Any = None) -> Any:
        """Return a constant by name as an array, in a layout. Raises KeyError where there is none."""
        asked = {"name": name} if layout is None else {"name": name, "layout": layout}
        return self._ask(self._number, "constant", asked)

    def samples(self) -> Sequence[Mapping[str, Any]]:
        """Return calibration samples as they reach the inputs; empty when the user gave no data."""
        found: Sequence[Mapping[str, Any]] = self._ask(self._number, "samples", {})
        return found

    def arena(self, alignment: int = 64) -> Any:
        """Plan the region's activation memory: an order, and an offset for each tensor."""
        return self._ask(self._number, "arena", {"alignment": alignment})

    def save(
        self,
        fold: bool = False,
        inline: bool = False,
        opset: int | None = None,
        ir_version: int | None = None,
        wants: Sequence[str] = (),
    ) -> Path:
        """Have the model written to a file of its own, for a tool or an older onnx; return its path.

        With `inline` composites are replaced by their bodies, with `fold` constants are computed.
        `opset` and `ir_version` are what the tool reads: the model is converted, which raises
        CompileError where that is not possible. `wants` are forms that it reads, as in `byoc.codegen`:
        `zero_points`, `inputs`, `constants`, `identity`. Constants are in the file; where
        they have more than 1 GiB, large ones are beside it. It is there as long as the region is.
        """
        asked: dict[str, Any] = {"fold": fold, "inline": inline, "opset": opset}
        asked.update({"ir_version": ir_version, "wants": list(wants) or None})
        given = {name: value for name, value in asked.items() if value is not None}
        return Path(self._ask(self._number, "save", given))

    def load(
        self,
        fold: bool = False,
        inline: bool = False,
        opset: int | None = None,
        ir_version: int | None = None,
        wants: Sequence[str] = (),
    ) -> Any:
        """Return the model by the onnx of this interpreter, constants included; raises ImportError."""
        import onnx  # noqa: PLC0415 - it need not be there

        return onnx.load(str(self.save(fold, inline, opset, ir_version, wants)))
