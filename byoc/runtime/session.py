"""Running a bundle: host segments on onnxruntime, regions on their codegen's executor."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byoc.bundle.read import Bundle, open_bundle
from byoc.codegen import Executor, Region
from byoc.errors import InputError
from byoc.graph.index import GraphIndex, stated_types
from byoc.graph.types import TensorType, write_type
from byoc.runtime.regions import executable, executor, twin
from byoc.runtime.stages import Loader, Program, Stage, Values, data_inputs
from byoc.runtime.values import mismatch


@dataclass(frozen=True, eq=False)
class Session:
    """A loaded bundle. Call it with inputs by name to get outputs by name.

    `types` holds those of the inputs that are tensors. `bundle` is what it was loaded from, whose files
    it may still read.
    """

    inputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    program: Program
    bundle: Bundle

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return self.program.outputs

    @property
    def stages(self) -> Sequence[Stage]:
        """What runs, in order."""
        return self.program.stages

    def __call__(self, inputs: Values) -> dict[str, Any]:
        """Return the outputs for inputs given as numpy arrays.

        Raises InputError naming an input that is missing, unknown or of another dtype or shape, or the
        stage that failed.
        """
        missing = [name for name in self.inputs if name not in {**self.program.constants, **inputs}]
        unknown = [name for name in inputs if name not in self.inputs]
        if missing or unknown:
            what = f"missing input '{missing[0]}'" if missing else f"no input '{unknown[0]}'"
            raise InputError(f"{what}; the model's inputs: {', '.join(self.inputs)}")
        for name, kind in self.types.items():
            given = mismatch(inputs[name], kind) if name in inputs else ""
            if given:
                raise InputError(f"input '{name}' is {given}, the model takes {kind}")
        return dict(zip(self.outputs, self.program(inputs), strict=True))


def load(path: str | Path) -> Session:
    """Return a bundle made ready to run.

    Raises InputError when it is not a whole bundle or a codegen is missing or cannot run artifacts, and
    MissingRuntimeError without onnxruntime when the host has something to run.
    """
    return load_bundle(open_bundle(Path(path)))


def load_bundle(bundle: Bundle, runs: Mapping[str, Executor] | None = None) -> Session:
    """Return an opened bundle made ready to run; raises as `load` does.

    `runs` has what runs the regions, by name; by default what their codegens load, see `executors`.
    """
    proto = bundle.model()
    index = GraphIndex(proto, stated_types(proto))
    given = executors(bundle) if runs is None else runs
    regions = {region.name: _region(region, given[region.name]) for _, region, _ in bundle.regions()}
    _check_calls(bundle, index.walk(), regions)
    program = Loader(bundle.folder, regions, _domains(bundle)).program(index, {})
    types = {name: index.types[name] for name in index.inputs if name in index.types}
    return Session(tuple(index.inputs), types, program, bundle)


def executors(bundle: Bundle) -> dict[str, Executor]:
    """Return what runs each region, by name, loaded by its codegen; raises as `load` does."""
    found = bundle.regions()
    codegens = {name: executable(name) for name in dict.fromkeys(name for name, _, _ in found)}
    twins = bundle.twins
    runs: dict[str, tuple[Region, Executor]] = {}
    for name, region, artifact in found:
        if region.name in twins:  # loaded once, for the first of them
            own, run = runs[twins[region.name]]
            runs[region.name] = region, twin(run, own, region)
        else:
            runs[region.name] = region, executor(codegens[name], name, region, artifact)
    return {name: run for name, (_, run) in runs.items()}


def _check_calls(bundle: Bundle, graphs: Iterable[GraphIndex], regions: Mapping[str, Stage]) -> None:
    """Raise InputError unless model and manifest agree on the regions and what these read."""
    domains = _domains(bundle)
    calls = [(g, node) for g in graphs for node in g.nodes if node.domain.startswith("byoc.")]
    if {n.op_type for _, n in calls} != set(regions) or any(n.domain not in domains for _, n in calls):
        raise InputError(f"{bundle.place}: the manifest and the model do not name the same regions")
    for graph, node in calls:
        region = regions[node.op_type]
        given = (len(data_inputs(graph, node)), len(node.output))
        if given != (len(region.inputs), len(region.types)):
            raise InputError(
                f"{bundle.place}: region {node.op_type} and the model do not have the same inputs"
            )


def _domains(bundle: Bundle) -> frozenset[str]:
    return frozenset(f"byoc.{name}" for name in bundle.manifest.targets)


def _region(region: Region, run: Executor) -> Stage:
    types = {value.name: write_type(value.type) for value in region.outputs}
    return Stage(region.name, tuple(value.name for value in region.inputs), run, types)
