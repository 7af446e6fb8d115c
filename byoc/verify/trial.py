"""The trial of a part of a region alone, compared with plain onnxruntime."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from byoc.bundle.compile import RegionCompiler
from byoc.bundle.regions import read_region
from byoc.codegen import Executable, Executor, Region
from byoc.errors import InputError
from byoc.graph.layout import TensorLayout, parse_layout
from byoc.runtime.onnxrt import without_optimizations
from byoc.runtime.regions import load_executor
from byoc.verify.compare import OutputError, compare_tensors
from byoc.verify.cutting import RegionCutter, RegionPart, Values
from byoc.verify.minimize import TrialOutcome
from byoc.verify.regions import quantized_tensors_of, make_reference_executor
from byoc.verify.thresholds import Thresholds

# Larger models are saved with external weights, since protobuf files are limited to 2 GiB.
_LARGE = 1 << 30


@dataclass(frozen=True, eq=False)
class PartTrial:
    """The actual and expected outputs of a part, and their errors."""

    part: RegionPart
    expected: Values
    actual: Values
    errors: tuple[OutputError, ...]

    @property
    def outcome(self) -> TrialOutcome:
        """Right if all outputs are within their tolerance."""
        return TrialOutcome.RIGHT if all(error.within for error in self.errors) else TrialOutcome.WRONG


@dataclass(frozen=True, eq=False)
class TrialBench:
    """The trials of parts of a region, each made once; a string is the reason why there is none."""

    cutting: RegionCutter
    compiler: RegionCompiler
    thresholds: Thresholds
    trials: dict[frozenset[int], PartTrial | str] = field(default_factory=dict)

    def try_outcome(self, operations: Collection[int]) -> TrialOutcome:
        """Try some operations, and return only the outcome."""
        found = self.try_operations(operations)
        return TrialOutcome.UNKNOWN if isinstance(found, str) else found.outcome

    def try_operations(self, operations: Collection[int]) -> PartTrial | str:
        """Try some operations; return the reason if that is not possible."""
        key = frozenset(operations)
        if key not in self.trials:
            self.trials[key] = self._run_trial(key)
        return self.trials[key]

    def _run_trial(self, operations: frozenset[int]) -> PartTrial | str:
        part = self.cutting.make_part(operations)
        if part is None:
            return "nothing reads what they make"
        whole = self.cutting.region
        with TemporaryDirectory(prefix="byoc-") as folder:
            path = Path(folder) / f"{whole.name}.onnx"
            save_part(part.model, path)
            region = read_region(path, whole.name, whole.target, None, find_weight_layout(whole))
            try:
                return run_trial(part, region, self.compiler, self.thresholds)
            except InputError as error:
                return str(error)


def run_trial(part: RegionPart, region: Region, compiler: RegionCompiler, thresholds: Thresholds) -> PartTrial:
    """Try a part that is on disk as a region.

    Raise InputError if the codegen refuses it, or it does not run there or in plain onnxruntime.
    """
    with without_optimizations():
        run = compile_and_load(compiler, region)
    expected, actual = make_reference_executor(region)(part.inputs), run(part.inputs)
    errors = tuple(compare_tensors(expected, actual, thresholds, quantized_tensors_of(region)))
    return PartTrial(part, expected, actual, errors)


def compile_and_load(compiler: RegionCompiler, region: Region) -> Executor:
    """Compile a region in memory and load it. Raise InputError if the codegen cannot do either."""
    codegen = compiler.codegen
    if not isinstance(codegen, Executable):
        raise InputError(f"codegen {codegen.name} cannot run what it compiles here (it has no `load`)")
    return load_executor(codegen, codegen.name, region, compiler.compile(region))


def save_part(model: onnx.ModelProto, path: Path) -> None:
    """Write a model with its weights, in one file unless it is too large."""
    if model.ByteSize() < _LARGE:
        onnx.save(model, path)
    else:
        onnx.save(model, path, save_as_external_data=True, location=f"{path.stem}.weights")


def find_weight_layout(region: Region) -> TensorLayout | None:
    """Return the layout that the target requires for convolution weights, according to the contracts."""
    words = {contract.layout for contract in region.constants if contract.layout}
    return parse_layout(words.pop()) if len(words) == 1 else None
