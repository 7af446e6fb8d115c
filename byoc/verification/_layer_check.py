"""The quantized layers of a region, each compared alone on what the codegen computed before it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from byoc.bundle import Bundle, RegionCompiler
from byoc.codegen import Executor, Region, read_region
from byoc.errors import InputError
from byoc.support import report_step
from byoc.verification._layer_error import measure_layer
from byoc.verification._layer_probe import LayerProbe, LayerRun
from byoc.verification._part_trials import (
    compile_and_load,
    find_weight_layout,
    make_compiler,
    save_part,
)
from byoc.verification._region_cutter import RegionCutter, RegionPart
from byoc.verification._region_verification import worst_errors
from byoc.verification._thresholds import Thresholds
from byoc.verification._verification_result import LayerCheck

Values = Mapping[str, Any]
Pair = tuple[Values, Values]

_MAX_RUNS = 8  # of a region, which layers are compared on


@dataclass(frozen=True, eq=False)
class BundleLayers:
    """The quantized layers of a bundle's regions, compiled with what compiled the regions."""

    bundle: Bundle
    thresholds: Thresholds

    def check(self, region: Region, runs: Sequence[Pair]) -> LayerCheck | None:
        """Compare each quantized layer of a region alone; None where it has none."""
        probe = LayerProbe(RegionCutter(region, runs[0][0]))
        try:
            if not probe.layers:
                return None
            report_step(f"compare the layers of {region.name}")
            return check_layers(probe, make_compiler(self.bundle, region.name), runs, self.thresholds)
        except (InputError, ValueError) as error:
            return LayerCheck(not_compared=str(error))


def check_layers(
    probe: LayerProbe, compiler: RegionCompiler, runs: Sequence[Pair], thresholds: Thresholds
) -> LayerCheck:
    """Compare each quantized layer of a region alone, on what reached the region in some runs.

    `runs` are the inputs and outputs of the region in the bundle. Raises InputError when the region with
    its layers shown is not compiled or does not run, ValueError when it makes other shapes.
    """
    cutter, part = probe.cutter, probe.make_part()
    reads, makes = cutter.match_inputs(part), cutter.match_outputs(part)
    found: dict[str, list[LayerRun]] = {}
    floats, same = [], True
    with _compile_part(cutter.region, compiler, part) as run:
        for inputs, outputs in runs[:_MAX_RUNS]:
            made = run({**part.inputs, **{reads[name]: inputs[name] for name in reads}})
            same = same and all(_has_same_bits(outputs[name], made[makes[name]]) for name in makes)
            computed = probe.compute_layers(inputs, probe.read_outputs(part, made))
            for tensor, each in computed.runs.items():
                found.setdefault(tensor, []).append(each)
            floats.append(computed.compare_floats(thresholds))
    errors = (measure_layer(layer, found[layer.tensor], thresholds.units) for layer in probe.layers)
    return LayerCheck(tuple(errors), worst_errors(floats), same)


@contextmanager
def _compile_part(region: Region, compiler: RegionCompiler, part: RegionPart) -> Iterator[Executor]:
    """Compile a part of a region and load it. Raises InputError when its codegen cannot do either."""
    with TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / f"{region.name}.onnx"
        save_part(part.model, path)
        alone = read_region(path, region.name, region.target, None, find_weight_layout(region))
        run = compile_and_load(compiler, alone)
        yield run


def _has_same_bits(one: Any, other: Any) -> bool:
    first, second = np.asarray(one), np.asarray(other)
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and first.tobytes() == second.tobytes()
    )
