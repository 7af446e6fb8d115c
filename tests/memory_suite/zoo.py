"""Plans every network of the zoo that is here: `python tests/memory_suite/zoo.py [NAME ...]`.

Symbolic dimensions are those of the zoo's sample inputs. Prints for each convention the arena, the
proven bound, the gap and the seconds; what has extents that only a run can tell is left out with the
reason. Without names, no models of over 20,000 nodes. The exit code is 1 when a plan is refused.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from checkers.arena_check import check  # noqa: E402 - needs the path
from onnx import ModelProto  # noqa: E402

from byoc import zoo  # noqa: E402
from byoc.errors import ByocError  # noqa: E402
from byoc.memory.arena import plan_buffers  # noqa: E402
from byoc.memory.reading import CONVENTIONS, read_memory_model  # noqa: E402
from byoc.model import Model, prepare_model  # noqa: E402
from byoc.zoo import load_model  # noqa: E402

_MAX_NODES = 20_000


def load(name: str) -> Model:
    """Return a model of the zoo with the dimensions that its sample inputs have."""
    model = load_model(f"zoo:{name}")
    samples = zoo.sample_inputs(name)
    dims: dict[str, int] = {}
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    for value in proto.graph.input:
        extents = samples[value.name].shape if value.name in samples else ()
        for dim, extent in zip(value.type.tensor_type.shape.dim, extents, strict=False):
            if dim.dim_param:
                dims[dim.dim_param] = int(extent)
            elif not dim.HasField("dim_value"):
                dim.dim_value = int(extent)  # it has no name by which it could be given
    return prepare_model(proto, f"zoo:{name}", model.folder, dims)


def main(names: Sequence[str]) -> int:
    """Print the table, and return the exit code."""
    here = [entry for entry in zoo.list_entries() if entry.present]
    chosen = names or [entry.name for entry in here if (entry.nodes or 0) <= _MAX_NODES]
    sys.stdout.write(f"{'model':<22}{'counts':<7}{'steps':>7}{'bytes':>12}{'bound':>12}{'gap':>9}")
    sys.stdout.write(f"{'seconds':>9}  proof\n")
    proven = total = left = wrong = 0
    for name in chosen:
        try:
            index = load(name).index
            problems = {
                letter: read_memory_model(index, convention, source=name).problem
                for letter, convention in CONVENTIONS.items()
            }
        except ByocError as error:
            left += 1
            sys.stdout.write(f"{name:<22}left out: {error}\n")
            continue
        for letter, problem in problems.items():
            start = time.perf_counter()
            made = plan_buffers(problem, "exact")
            seconds = time.perf_counter() - start
            faults = check(made)
            total += 1
            proven += made.is_minimal
            wrong += bool(faults)
            gap = made.size / made.bound - 1 if made.bound else 0.0
            sys.stdout.write(
                f"{name:<22}{letter:<7}{len(problem.steps):>7}{made.size:>12}{made.bound:>12}"
                f"{gap:>9.3%}{seconds:>9.2f}  {faults[0] if faults else made.proof}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"{proven} of {total} plans are proven minimal, {left} models left out\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
