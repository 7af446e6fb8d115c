"""The trial of a part of a region alone, compared with plain onnxruntime."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from byoc.bundle.compile import Compiler
from byoc.bundle.regions import read_region
from byoc.codegen import Executable, Executor, Region
from byoc.errors import InputError
from byoc.graph.layout import Layout, parse_layout
from byoc.runtime.onnxrt import unoptimized
from byoc.runtime.regions import executor
from byoc.verify.compare import OutputError, compare
from byoc.verify.cutting import Cutting, Part, Values
from byoc.verify.minimize import Outcome
from byoc.verify.regions import quantized_in, reference
from byoc.verify.thresholds import Thresholds

# Larger models are saved with external weights, since protobuf files are limited to 2 GiB.
_LARGE = 1 << 30


@dataclass(frozen=True, eq=False)
class Trial:
    """The actual and expected outputs of a part, and their errors."""

    part: Part
    expected: Values
    actual: Values
    errors: tuple[OutputError, ...]

    @property
    def outcome(self) -> Outcome:
        """Right if all outputs are within their tolerance."""
        return Outcome.RIGHT if all(error.within for error in self.errors) else Outcome.OFF


@dataclass(frozen=True, eq=False)
class Bench:
    """The trials of parts of a region, each made once; a string is the reason why there is none."""

    cutting: Cutting
    compiler: Compiler
    thresholds: Thresholds
    tried: dict[frozenset[int], Trial | str] = field(default_factory=dict)

    def outcome(self, operations: Collection[int]) -> Outcome:
        """Try some operations, and return only the outcome."""
        found = self.trial(operations)
        return Outcome.UNKNOWN if isinstance(found, str) else found.outcome

    def trial(self, operations: Collection[int]) -> Trial | str:
        """Try some operations; return the reason if that is not possible."""
        key = frozenset(operations)
        if key not in self.tried:
            self.tried[key] = self._trial(key)
        return self.tried[key]

    def _trial(self, operations: frozenset[int]) -> Trial | str:
        part = self.cutting.part(operations)
        if part is None:
            return "nothing reads what they make"
        whole = self.cutting.region
        with TemporaryDirectory(prefix="byoc-") as folder:
            path = Path(folder) / f"{whole.name}.onnx"
            save_part(part.model, path)
            region = read_region(path, whole.name, whole.target, None, weight_layout(whole))
            try:
                return tried(part, region, self.compiler, self.thresholds)
            except InputError as error:
                return str(error)


def tried(part: Part, region: Region, compiler: Compiler, thresholds: Thresholds) -> Trial:
    """Try a part that is on disk as a region.

    Raise InputError if the codegen refuses it, or it does not run there or in plain onnxruntime.
    """
    with unoptimized():
        run = compile_and_load(compiler, region)
    expected, actual = reference(region)(part.inputs), run(part.inputs)
    errors = tuple(compare(expected, actual, thresholds, quantized_in(region)))
    return Trial(part, expected, actual, errors)


def compile_and_load(compiler: Compiler, region: Region) -> Executor:
    """Compile a region in memory and load it. Raise InputError if the codegen cannot do either."""
    codegen = compiler.codegen
    if not isinstance(codegen, Executable):
        raise InputError(f"codegen {codegen.name} cannot run what it compiles here (it has no `load`)")
    return executor(codegen, codegen.name, region, compiler.compile(region))


def save_part(model: onnx.ModelProto, path: Path) -> None:
    """Write a model with its weights, in one file unless it is too large."""
    if model.ByteSize() < _LARGE:
        onnx.save(model, path)
    else:
        onnx.save(model, path, save_as_external_data=True, location=f"{path.stem}.weights")


def weight_layout(region: Region) -> Layout | None:
    """Return the layout that the target requires for convolution weights, according to the contracts."""
    words = {contract.layout for contract in region.constants if contract.layout}
    return parse_layout(words.pop()) if len(words) == 1 else None
