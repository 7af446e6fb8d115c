"""What the host transposes for NHWC regions: `python tests/boundary_suite/transposes.py [NAME ...]`.

Without names, every model of the zoo that is there, but those of over 20,000 nodes. Each is cut by the
rules of tests/helpers/vanilla.yaml with everything that they take on the accelerator, and the regions
are put in NHWC. All numbers are of the host's graphs, the user's own Transposes included, after
onnxruntime's basic optimizations without its transpose optimizer, so that what constants fold to
counts for nobody:

- `put in`: as the layouts were put in, a Transpose for each tensor and form;
- `left`: after `byoc.boundary.convert`;
- `ort`: what was put in, after onnxruntime's transpose optimizer (part of its basic optimizations);

each as a number and in megabytes. In all three the regions are opaque (`opaque.hidden`): an If with a
condition that is not known, which onnxruntime keeps, since it would inline functions and move Transposes
through what is inside them; `failed` is where onnxruntime does not get through. `pairs` counts those
left that undo the one before them, one of the two ours; the exit code is 1 when there are any.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

sys.path[:0] = [str(Path(__file__).parents[1])]

from helpers.cutting import planned  # noqa: E402 - needs the path
from helpers.support import VANILLA  # noqa: E402
from onnx import ModelProto  # noqa: E402
from opaque import count, hidden, inverse_pairs, optimized  # noqa: E402

import byoc  # noqa: E402
from byoc import zoo  # noqa: E402
from byoc.boundary.convert import (  # noqa: E402
    ModelEditor,
    RegionBoundary,
    minimize_transposes,
)
from byoc.errors import ByocError  # noqa: E402
from byoc.placement.strategies import AllSupported  # noqa: E402
from byoc.rules import load_rules  # noqa: E402

_MAX_NODES = 20_000
_PER_MB = 1e6


def put_in(name: str) -> tuple[ModelProto, list[RegionBoundary]]:
    """Return a model of the zoo with the layouts put in and no Transpose removed, and its borders."""
    borders: list[RegionBoundary] = []
    model = byoc.load_model(f"zoo:{name}")
    with patch(
        "byoc.boundary.convert.minimize_transposes",
        lambda edit, found: borders.extend(found),
    ):
        plan = planned(model, load_rules(str(VANILLA)), AllSupported())
    return plan.proto, borders


def row(name: str) -> tuple[str, int]:
    """Return a model's line of the table, and how many inverse pairs are left."""
    before, borders = put_in(name)
    after = ModelProto()
    after.CopyFrom(before)
    edit = ModelEditor(after)
    minimize_transposes(edit, borders)
    after = edit.finish()
    pairs = inverse_pairs(after)
    whole = hidden(before)
    found = (optimized(whole, False), optimized(hidden(after), False), optimized(whole, True))
    cells = "".join(map(_cell, found))
    return f"{name:<22}{len(borders):>8}{cells}{pairs:>7}\n", pairs


def _cell(model: ModelProto | None) -> str:
    if model is None:
        return f"{'failed':>17}"
    number, size = count(model)
    return f"{number:>7}{size / _PER_MB:>10.2f}"


def main(names: Sequence[str]) -> int:
    """Print the table, and return the exit code."""
    pairs = failed = 0
    chosen = names or [e.name for e in zoo.list_entries() if (e.nodes or 0) <= _MAX_NODES]
    heads = "".join(f"{head:>7}{'MB':>10}" for head in ("put in", "left", "ort"))
    sys.stdout.write(f"{'model':<22}{'regions':>8}{heads}{'pairs':>7}\n")
    for name in chosen:
        try:
            line, left = row(name)
        except ByocError as error:
            failed += 1
            sys.stdout.write(f"{name:<22}FAILED {str(error)[:100]}\n")
            continue
        pairs += left
        sys.stdout.write(line)
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - failed} of {len(chosen)} models\n")
    return int(pairs > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
