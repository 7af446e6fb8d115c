"""How long it takes to annotate and group, against reading the model and inferring its shapes.

    python benchmarks/rules_scale.py [MODEL...]

A block for each model: nodes, seconds of `onnx.load` with shape inference, and for each built-in rule
file, as ratios to these taken in the same run, annotating and grouping into the file's composites.
"""

import sys

from common import machine, on_disk, read_and_infer, timed

from byoc.model import Model
from byoc.patterns import group_units
from byoc.rules import Target, annotate_graph, load_rules
from byoc.support import ANNOTATIONS, find_files
from byoc.zoo import load_model

_MODELS = ("transformer_1k", "transformer_10k", "transformer_100k")


def main(names: list[str]) -> None:
    """Print the figures for some models of the zoo."""
    print(machine())
    targets = [load_rules(name) for name in find_files(ANNOTATIONS)[0]]
    for name in names or _MODELS:
        with on_disk(name) as path:
            reading, _ = timed(read_and_infer, path)
            model = load_model(path)
        warm(model)
        print(f"\n{name}: {len(model.index.nodes)} nodes, load and infer {reading:.2f} s")
        for target in targets:
            print(f"  {target.name:<16} {measured(model, target, reading)}")


def warm(model: Model) -> None:
    """Have the index work out what any stage would need, and what is not meant here."""
    index = model.index
    assert index.types
    assert index.consumers
    assert index.constant_nodes is not None


def measured(model: Model, target: Target, reading: float) -> str:
    """Return the seconds of both stages and their ratios to reading."""
    patterns = target.patterns  # parsed once, however many models follow
    annotating, marks = timed(annotate_graph, model.index, target)
    grouping, units = timed(group_units, model.index, patterns, marks)
    taken = sum(bool(mark.verdict) for mark in marks)
    composites = sum(unit.match is not None for unit in units)
    return (
        f"annotate {annotating:6.2f} s ({annotating / reading:.2f})  "
        f"group {grouping:6.2f} s ({grouping / reading:.2f})  "
        f"{taken} taken, {composites} composites"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
