"""How much of each model has unknown shapes once its inputs have fixed ones, before and after a change.

    python tests/zoo_suite/unknown_shapes.py [MODEL ...] [--backend] -o after.json
    PYTHONPATH=OTHER_CHECKOUT python tests/zoo_suite/unknown_shapes.py -o before.json
    python tests/zoo_suite/unknown_shapes.py --compare before.json after.json

Models of the zoo by name, all that are here unless some are named, but none of over 20,000 nodes;
`--backend` takes the models of ONNX's own backend tests that have several nodes instead. Every extent of
the inputs is that of the sample inputs. A node is unknown where byoc does not know every extent of what
it reads and writes as a number. Its work is that of a run in onnxruntime (`reference_run.py`,
`operation_counts.py`), so that it is not counted smaller where shapes are not known.

Printed are nodes, unknown ones, the share of unknown work; then the same of the nodes whose shapes the
data of the inputs do not decide (`data_dependence.py`); the operators where data begin to decide, and
those where shapes begin to be unknown. The exit code is 1 where more than a hundredth of such work is
unknown.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS), str(Path(__file__).parent), str(_TESTS / "onnx_suite")]

from data_dependence import find_data_dependence  # noqa: E402 - needs the path
from onnx import ModelProto  # noqa: E402
from operation_counts import count_operations  # noqa: E402
from reference_run import Key, run_profiled, walk_nodes  # noqa: E402
from suite import collect  # noqa: E402

from byoc import zoo  # noqa: E402
from byoc.errors import ByocError  # noqa: E402
from byoc.model import GraphIndex, prepare_model  # noqa: E402

_MAX_NODES = 20_000
_LIMIT = 0.01


@dataclass(frozen=True)
class Row:
    """What is unknown of a model; shares are of the operations of one run.

    `avoidable` are the unknown nodes whose shapes do not depend on data. `unknown_operators` are where
    unknown shapes begin: all that their nodes read is known.
    """

    model: str
    nodes: int
    unknown_nodes: int
    unknown_work: float
    avoidable_nodes: int
    avoidable_work: float
    data_operators: Sequence[str]
    unknown_operators: Sequence[str]


def measure(name: str, proto: ModelProto, inputs: Mapping[str, Any]) -> Row:
    """Return the row of a model with the given inputs. Raises InputError where byoc refuses it."""
    model = prepare_model(fix_inputs(proto, inputs), name)
    nodes = dict(walk_nodes(model.proto.graph))
    runs = run_profiled(model.proto, inputs)
    work = {
        key: sum(count_operations(nodes[key], execution) for execution in executions)
        for key, executions in runs.items()
    }
    total = sum(work.values()) or 1
    dependence = find_data_dependence(model.proto)
    counted = unknown = avoidable = unknown_work = avoidable_work = 0
    begins: dict[str, None] = {}
    for key, known, known_inputs in walk_known(model.index):
        counted += 1
        if known:
            continue
        unknown += 1
        unknown_work += work.get(key, 0)
        if known_inputs:
            begins[nodes[key].op_type] = None
        if key not in dependence.nodes:
            avoidable += 1
            avoidable_work += work.get(key, 0)
    return Row(
        name,
        counted,
        unknown,
        unknown_work / total,
        avoidable,
        avoidable_work / total,
        dependence.sources,
        tuple(sorted(begins)),
    )


def fix_inputs(proto: ModelProto, inputs: Mapping[str, Any]) -> ModelProto:
    """Return a model whose inputs, and dimensions that share a name with theirs, have fixed extents."""
    fixed = ModelProto()
    fixed.CopyFrom(proto)
    sizes: dict[str, int] = {}
    for value in fixed.graph.input:
        if value.name not in inputs or not hasattr(inputs[value.name], "shape"):
            continue
        for dim, extent in zip(value.type.tensor_type.shape.dim, inputs[value.name].shape, strict=False):
            if dim.dim_param:
                sizes[dim.dim_param] = int(extent)
            dim.dim_value = int(extent)
    for value in (*fixed.graph.value_info, *fixed.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    return fixed


def walk_known(index: GraphIndex, path: str = "") -> Iterator[tuple[Key, bool, bool]]:
    """Yield each node but constant ones: its key, whether all its shapes are known, and all it reads."""
    for number, node in enumerate(index.nodes):
        if number in index.constant_nodes:
            continue
        key = f"{path}{number}"
        reads = all(_is_known(index, name) for name in index.reads[number])
        writes = all(_is_known(index, name) for name in node.output if name and index.is_used(name))
        yield key, reads and writes, reads
        for body in index.bodies.get(number, ()):
            yield from walk_known(body.index, f"{key}/{body.attribute}/{body.position}/")


def _is_known(index: GraphIndex, name: str) -> bool:
    kind = index.types.get(name)
    if (
        kind is None
    ):  # a sequence or an optional has no extents; a tensor without a type has unknown ones
        proto = index.type_protos.get(name)
        return proto is not None and proto.WhichOneof("value") not in (None, "tensor_type")
    return kind.shape is not None and all(isinstance(dim, int) for dim in kind.shape)


def _list_zoo(names: Sequence[str]) -> Iterator[tuple[str, ModelProto, Mapping[str, Any]]]:
    here = [entry for entry in zoo.list_entries() if entry.present]
    for name in names or [each.name for each in here if (each.nodes or 0) <= _MAX_NODES]:
        yield name, zoo.load(name), zoo.sample_inputs(name)


def _list_backend() -> Iterator[tuple[str, ModelProto, Mapping[str, Any]]]:
    for case in collect():
        nodes = sum(1 for _ in walk_nodes(case.model.graph))
        if nodes > 1 and case.data_sets and not case.model.functions:
            yield f"{case.kind}/{case.name}", case.model, case.data_sets[0][0]


def _measure_all(models: Iterator[tuple[str, ModelProto, Mapping[str, Any]]]) -> list[Row]:
    rows = []
    for name, proto, inputs in models:
        try:
            rows.append(measure(name, proto, inputs))
        except ByocError as error:
            sys.stdout.write(f"{name:<22} refused: {error}\n")
        except Exception as error:  # onnxruntime has no kernel, or takes no such input
            sys.stdout.write(f"{name:<22} does not run: {str(error)[:90]!r}\n")
        else:
            sys.stdout.write(format_row(rows[-1]))
        sys.stdout.flush()
    return rows


def format_row(row: Row) -> str:
    """Return the line of a model."""
    data, begins = (", ".join(each) or "-" for each in (row.data_operators, row.unknown_operators))
    return (
        f"{row.model:<22}{row.nodes:>7}{row.unknown_nodes:>9}{row.unknown_work:>9.2%}"
        f"{row.avoidable_nodes:>11}{row.avoidable_work:>9.2%}  {data} | {begins}\n"
    )


def format_comparison(before: Sequence[Row], after: Sequence[Row]) -> str:
    """Return the table of two measurements, and the sums below it."""
    older = {row.model: row for row in before}
    lines = [
        f"{'model':<22}{'nodes':>7}{'unknown':>16}{'unknown work':>18}{'avoidable work':>18}"
        "  data decide at\n"
    ]
    for row in after:
        old = older.get(row.model)
        pairs = (
            (_count(old and old.unknown_nodes), _count(row.unknown_nodes)),
            (_share(old and old.unknown_work), _share(row.unknown_work)),
            (_share(old and old.avoidable_work), _share(row.avoidable_work)),
        )
        told = [f"{a} -> {b}" for a, b in pairs]
        lines.append(
            f"{row.model:<22}{row.nodes:>7}{told[0]:>16}{told[1]:>18}{told[2]:>18}"
            f"  {', '.join(row.data_operators) or '-'}\n"
        )
    for name, rows in (("before", before), ("after", after)):
        none = sum(row.unknown_work == 0 for row in rows)
        met = sum(row.avoidable_work <= _LIMIT for row in rows)
        lines.append(
            f"{name}: no unknown work in {none} of {len(rows)} models, "
            f"at most {_LIMIT:.0%} that data do not decide in {met}\n"
        )
    return "".join(lines)


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def _share(number: float | None) -> str:
    return "-" if number is None else f"{number:.2%}"


def _read_rows(file: Path) -> list[Row]:
    return [Row(**each) for each in json.loads(file.read_text(encoding="utf-8"))]


def main() -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*")
    parser.add_argument("--backend", action="store_true")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_intermixed_args()
    if asked.compare:
        before, after = map(_read_rows, asked.compare)
        sys.stdout.write(format_comparison(before, after))
        return 0
    rows = _measure_all(_list_backend() if asked.backend else _list_zoo(asked.models))
    if asked.output:
        text = json.dumps([asdict(row) for row in rows], indent=1)
        asked.output.write_text(text + "\n", encoding="utf-8")
    wrong = [row.model for row in rows if row.avoidable_work > _LIMIT]
    sys.stdout.write(f"{len(rows) - len(wrong)} of {len(rows)} models\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
