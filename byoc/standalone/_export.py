"""A program that is written: its files of C, CMake and JSON, README and licences."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import Distribution, distribution, version
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.bundle import PROGRAM_FILE, sign_folder
from byoc.codegen import DriverSources
from byoc.codegen.drivers import get_include_folder
from byoc.errors import InputError
from byoc.memory.arena import ArenaPlan
from byoc.standalone._export_options import ExportOptions
from byoc.standalone._program_graph import (
    ProgramGraph,
    fill_template,
    read_source,
)
from byoc.standalone._program_steps import ProgramSteps, plan_steps
from byoc.standalone._small_types import view_as_stored
from byoc.standalone._source_text import (
    CODE_SUFFIXES,
    WEIGHTS_FILE,
    ByteOrder,
    ProgramForm,
    ProgramText,
    ProgramWeights,
    SharedText,
    describe_tensors,
    format_noise,
    list_noise,
    make_sample_file,
    rename_program,
    write_model_text,
    write_run_text,
)
from byoc.support import (
    CODEGENS,
    describe_missing_folder,
    list_installed,
    open_workspace,
    read_name_and_version,
    replace_path,
    report_step,
    resolve_path,
)
from byoc.support.trust import SIGNATURE_FILE

# The components of a program, and the texts of their licences.

_FOLDER = "licences"
_TEXT_NAME = re.compile(r"(LICEN[CS]E|COPYING|NOTICE)([.-].*)?", re.IGNORECASE)
_EMITTER = "emx-onnx-cgen"
_EXPRESSIONS = {_EMITTER: "Apache-2.0"}
"""Licences of distributions that state none in their metadata; read in the texts they come with."""


@dataclass(frozen=True)
class Component:
    """A library whose source is in a program: `files` in the program's folder are of it.

    `expression` is an SPDX expression, empty if none is stated; `texts` are licences and notices by the
    names of their files.
    """

    name: str
    version: str
    expression: str
    texts: Mapping[str, bytes]
    files: str

    def list_texts(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path of each text from the program's folder, and the text."""
        for name, content in self.texts.items():
            yield f"{_FOLDER}/{self.name}/{name}", content

    def describe(self) -> dict[str, Any]:
        """Return the entry of a CycloneDX document."""
        found: dict[str, Any] = {"type": "library", "name": self.name}
        if self.version:
            found["version"] = self.version
        if self.expression:
            found["licenses"] = [{"expression": self.expression}]
        if self.texts:
            paths = [path for path, _ in self.list_texts()]
            found["externalReferences"] = [{"type": "license", "url": path} for path in paths]
        return found

    def format_line(self) -> str:
        """Return the line of the program's README."""
        paths = ", ".join(f"`{path}`" for path, _ in self.list_texts())
        text = f"the text is in {paths}" if paths else "no text came with it: ask its maker"
        named = " ".join(filter(None, (self.name, self.version)))
        return f"- {self.files}: {named}; {self.expression or 'no licence is stated'}; {text}.\n"


def list_components(has_nodes: bool, drivers: Sequence[DriverSources]) -> list[Component]:
    """Return the components of a program with functions of emx-onnx-cgen, and with drivers."""
    own = "`kernels.*`, `windows.c`, `main.c`, `byoc_driver.h` and what byoc writes"
    found = [_describe_distribution(distribution("onnx-byoc"), own)]
    if has_nodes:
        found.append(_describe_distribution(distribution(_EMITTER), "`nodes.*`, as emitted"))
    return [*found, *map(_describe_driver, drivers)]


def _describe_distribution(found: Distribution, files: str) -> Component:
    name, version = read_name_and_version(found)
    return Component(name, version, _find_expression(found), _read_texts(found), files)


def _describe_driver(driver: DriverSources) -> Component:
    """Return a driver's component: texts beside its sources go before those of its distribution."""
    point = list_installed(CODEGENS).get(driver.name)
    found = point.dist if point is not None else None
    beside = {
        file.name: file.read_bytes()
        for folder in sorted({file.parent for file in driver.files})
        for file in sorted(folder.iterdir())
        if _TEXT_NAME.fullmatch(file.name) and file.is_file()
    }
    name, files = f"driver-{driver.name}", f"`drivers/{driver.name}/`"
    if beside or found is None:
        return Component(name, "", "", beside, files)
    version = read_name_and_version(found)[1]
    return Component(name, version, _find_expression(found), _read_texts(found), files)


def _find_expression(found: Distribution) -> str:
    stated = found.metadata.get_all("License-Expression")
    return str(stated[0]) if stated else _EXPRESSIONS.get(read_name_and_version(found)[0], "")


def _read_texts(found: Distribution) -> dict[str, bytes]:
    """Return the licences and notices of a whole distribution, not those of parts of it in folders."""
    texts = {}
    for file in found.files or ():
        folders = file.parts[:-1]
        inside = len(folders) in (1, 2) and folders[0].endswith(".dist-info")
        if inside and folders[1:] in ((), ("licenses",)) and _TEXT_NAME.fullmatch(file.name):
            texts[file.name] = Path(str(file.locate())).read_bytes()
    return dict(sorted(texts.items()))


# A program: its folder and its files.

FORMAT = 2  # of `program.json`
SAMPLE_FILE = "sample.bin"


@dataclass(frozen=True)
class ExportedProgram:
    """A program that was written: its folder, and what it needs, in bytes.

    `arena_bytes` is the plan of boundary tensors and host operators, without what drivers need for
    regions; `bound` is what no plan can be below. `steps` counts calls, `kernels` those of byoc's own.
    `not_signed` is why it is not signed, empty if it is. `left_out` says of variants why a program that
    chooses does not have them. `proven` counts the functions of emx-onnx-cgen that were run here and
    found right, and `not_proven` is why others were not run, empty if all were. `overruled` are the
    operators of which onnxruntime computes something else than ONNX defines and the program computes,
    where the program's sample is onnxruntime's all the same: it cannot be verified then.
    `combinations` counts the sizes of open dimensions that a run may have: it has so many steps at each.
    """

    folder: Path
    arena_bytes: int
    bound: int
    weight_bytes: int
    steps: int
    kernels: int
    regions: int
    not_signed: str = ""
    proven: int = 0
    not_proven: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    overruled: tuple[str, ...] = ()
    combinations: int = 1


class NoDriverError(InputError):
    """The codegen of a region has no driver in C."""


@dataclass(frozen=True, eq=False)
class PlannedProgram:
    """A program before it is written: its graph, its steps in order, and the drivers of its regions.

    `overruled` is as in `ExportedProgram`. With open dimensions graph and steps are those of the
    largest sizes, `text` has all, and `weights` the constants that they read.
    """

    graph: ProgramGraph
    steps: ProgramSteps
    drivers: Sequence[DriverSources]
    overruled: tuple[str, ...] = ()
    text: ProgramText | None = None
    weights: ProgramWeights | None = None

    @classmethod
    def plan(cls, graph: ProgramGraph, threads: int, prefix: str = "") -> "PlannedProgram":
        """Plan a program. Raises InputError for an operator or a codegen that has nothing in C."""
        drivers = _find_drivers(graph)
        report_step("plan memory")
        steps = plan_steps(graph, prefix, threads)
        defined = graph.follow_definition(steps.overruled) if steps.overruled else graph
        kinds = dict.fromkeys(graph.index.nodes[number].op_type for number in steps.overruled)
        return cls(defined or graph, steps, drivers, () if defined else tuple(kinds))

    def write_text(self, weights: ProgramWeights) -> ProgramText:
        """Return the text of the steps, whose constants are added to the weights."""
        return self.text or _write_text(self.graph, self.steps, weights)

    def add_weights(self, weights: ProgramWeights) -> None:
        """Add all constants to weights that several programs have in common."""
        form = ProgramForm({each.name: each.abi for each in self.drivers})
        text = self.write_text(weights)
        write_model_text(self.graph, text, self.steps.threads, weights, form)

    def write(
        self, folder: Path, options: ExportOptions, shared: ProgramWeights | None = None
    ) -> ExportedProgram:
        """Write the program into an empty folder.

        With `shared` weights it is one of several, each in a folder beside the file of them, that find
        drivers where they run. All constants are in these already.
        """
        weights = shared or self.weights or ProgramWeights(cast(ByteOrder, options.byte_order))
        text = self.write_text(weights)
        contents = _make_files(self, text, weights, options, shared is not None)
        write_files(folder, contents, None if shared else weights)
        steps, digest = self.steps, hashlib.sha256(contents[PROGRAM_FILE]).digest()
        return ExportedProgram(
            folder,
            text.plan.size,
            text.plan.bound,
            weights.size,
            len(steps.steps),
            sum(step.call is not None and bool(step.call.kind) for step in steps.steps),
            len(self.graph.regions),
            sign_folder(folder, digest, kind="program"),
            text.tried,
            text.not_proven,
            overruled=self.overruled,
            combinations=text.combinations,
        )


def _write_text(graph: ProgramGraph, steps: ProgramSteps, weights: ProgramWeights) -> ProgramText:
    """Return the text of a program whose dimensions have one size each."""
    inputs, outputs = list(graph.sample), list(graph.expected)
    run = write_run_text(graph, steps, SharedText(weights), inputs, outputs)
    return ProgramText(
        ranges={},
        combinations=1,
        header="",
        includes='#include "nodes.h"\n' if steps.functions else "",
        tensors=describe_tensors(graph, "model_inputs", inputs)
        + describe_tensors(graph, "model_outputs", outputs)
        + format_noise(list_noise(graph)),
        run=replace(run, body=fill_template("run.c.in", {"body": run.body})),
        files=format_functions(steps),
        kernel_files=steps.kernel_files,
        sample=list_sample(graph),
        plan=steps.plan,
        tried=steps.proof.tried,
        not_proven=steps.proof.not_proven,
    )


def _find_drivers(graph: ProgramGraph) -> list[DriverSources]:
    """Return the drivers of a bundle's regions. Raises NoDriverError where a codegen has none."""
    if graph.bundle is None:
        return []
    found = []
    for name in dict.fromkeys(call.codegen for call in graph.regions.values()):
        sources = graph.bundle.codegens.find_driver(name)
        if sources is None:
            raise NoDriverError(
                f"{graph.source}: codegen {name} has no driver in C, so its regions run in Python alone"
            )
        found.append(sources)
    return found


def _make_files(
    program: PlannedProgram,
    text: ProgramText,
    weights: ProgramWeights,
    options: ExportOptions,
    is_one_of_several: bool,
) -> dict[str, bytes]:
    """Return all files but the weights, by path from the program's folder."""
    graph, steps, drivers = program.graph, program.steps, program.drivers
    embed, prefix = options.embed, options.prefix
    weights_file = f"../{WEIGHTS_FILE}" if is_one_of_several else WEIGHTS_FILE
    form = ProgramForm({driver.name: driver.abi for driver in drivers}, embed, weights_file)
    model = write_model_text(graph, text, steps.threads, weights, form)
    found = {"model.h": model.header.encode(), "model.c": model.source.encode()}
    found |= {name: read_source(name) for name in (*text.kernel_files, "main.c")}
    found |= text.files
    for driver in drivers:
        folders = {file.parent for file in driver.files}
        headers = [header for folder in sorted(folders) for header in sorted(folder.glob("*.h"))]
        for file in (*driver.files, *headers):
            found[f"drivers/{driver.name}/{file.name}"] = file.read_bytes()
    if drivers:
        found["byoc_driver.h"] = (get_include_folder() / "byoc_driver.h").read_bytes()
    if embed:
        found["weights.S"] = read_source("weights.S")
    own = {"m", "pthread"} if steps.threads > 1 else {"m"}
    libraries = sorted(own.union(*(driver.libraries for driver in drivers)))
    found = rename_program(found, prefix)
    sources = [name for name in found if name.endswith((".c", ".S"))]
    has_nodes = any(name.startswith("nodes") for name in found)
    found[SAMPLE_FILE] = make_sample_file(text.sample, weights.order)
    found["CMakeLists.txt"] = format_cmake(sources, libraries, prefix, is_one_of_several).encode()
    arena, components = text.plan, list_components(has_nodes, drivers)
    found |= {name: licence for each in components for name, licence in each.list_texts()}
    readme = format_readme(graph, arena, weights, embed, components)
    readme_bytes = readme.encode(errors="backslashreplace")  # a path that is not text
    found |= rename_program({"README.md": readme_bytes}, prefix)
    found["sbom.cdx.json"] = format_json(describe_components(graph, components))
    found[PROGRAM_FILE] = format_json(
        {
            "format": FORMAT,
            "byoc": version("onnx-byoc"),
            "source": graph.display_name,
            "byte_order": weights.order,
            "embedded": embed,
            "prefix": prefix,
            "sources": sources,
            "code": {
                name: hashlib.sha256(content).hexdigest()
                for name, content in found.items()
                if name.endswith(CODE_SUFFIXES)
            },
            "libraries": libraries,
            "arena": {"bytes": arena.size, "bound": arena.bound, "proof": arena.proof},
            "dimensions": {name: list(ends) for name, ends in text.ranges.items()},
            "weights": weights.size,
            "files": sorted({*found, *(() if is_one_of_several else (WEIGHTS_FILE,))}),
        }
    )
    return found


def format_functions(steps: ProgramSteps, suffix: str = "") -> dict[str, bytes]:
    """Return the files of the functions of nodes, none where steps call none."""
    if steps.functions is None:
        return {}
    header = f"nodes{suffix}.h"
    source = steps.functions.format_source(header)
    return {f"nodes{suffix}.c": source.encode(), header: steps.functions.format_header(suffix).encode()}


def list_sample(graph: ProgramGraph) -> list[NDArray[Any]]:
    """Return the inputs and the outputs of a sample, as they are stored."""
    sample = (*graph.sample.items(), *graph.expected.items())
    return [view_as_stored(value, graph.get_dtype(name)) for name, value in sample]


def format_json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def write_files(folder: Path, contents: Mapping[str, bytes], weights: ProgramWeights | None) -> None:
    """Write files by their paths, and the file of weights, where a folder has its own."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if weights is not None:
        with (folder / WEIGHTS_FILE).open("wb") as file:
            for part in weights.list_parts():
                file.write(part)


def check_output(output: Path) -> None:
    """Raise InputError unless a program can be written to a path."""
    try:
        real = resolve_path(output)
        if not real.parent.is_dir():
            raise InputError(f"{output}: cannot be written: {describe_missing_folder(output.parent)}")
        if real.exists() and not _is_replaceable(real):
            raise InputError(f"{output}: exists and is not a program of byoc's, so it is not replaced")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have this name"
        raise InputError(f"{output}: cannot be written: {reason}") from None


def _is_replaceable(folder: Path) -> bool:
    """Return whether a folder holds files of one program of byoc's and nothing else, or nothing."""
    if not folder.is_dir():
        return False
    there = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()}
    if not there:
        return True
    try:
        known = set(json.loads((folder / PROGRAM_FILE).read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return there <= {*known, PROGRAM_FILE, SIGNATURE_FILE}


@contextmanager
def stage_program(output: Path) -> Iterator[Path]:
    """Provide a folder that becomes `output` when the block succeeds."""
    real = resolve_path(output)
    try:
        with open_workspace(real.parent) as workspace:
            fresh = workspace / "new"
            fresh.mkdir()
            yield fresh
            check_output(output)
            replace_path(fresh, real)
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror or error}") from None


# Files beside the source of a program: for CMake, for readers, and for those who track components.


def format_cmake(
    sources: Sequence[str], libraries: Sequence[str], prefix: str, is_one_of_several: bool
) -> str:
    """Return `CMakeLists.txt`: a library of the model, one for each driver, the self-test, a package.

    A driver is a target of its own, so that programs with regions of one codegen have it once. One of
    several programs, which find drivers where they run, is no package.
    """
    own = [name for name in sources if name != "main.c" and not name.startswith("drivers/")]
    drivers: dict[str, list[str]] = {}
    for name in sources:
        if name.startswith("drivers/"):
            drivers.setdefault(name.split("/")[1], []).append(name)
    assembler = " ASM" if any(name.endswith(".S") for name in sources) else ""
    targets = {name: f"byoc_driver_{name}" for name in drivers}
    values: dict[str, object] = {
        "name": prefix,
        "library": _indent(own),
        "libraries": " ".join([*targets.values(), *libraries]),
        "headers": " ".join([f"{prefix}.h", *(["byoc_driver.h"] if drivers else [])]),
        "targets": " ".join(targets.values()),
        "assembler": assembler,
    }

    def describe(template: str) -> str:
        return "".join(
            fill_template(
                template,
                {
                    "name": prefix,
                    "target": targets[name],
                    "sources": _indent(files),
                    "libraries": " ".join(libraries),
                },
            )
            for name, files in drivers.items()
        )

    linked = describe("driver.cmake.in") + fill_template("linking.cmake.in", values)
    if is_one_of_several:
        opened = describe("shared_driver.cmake.in") + fill_template("opening.cmake.in", values)
        linking = f"if(BYOC_LINK_DRIVERS)\n{linked}else()\n{opened}endif()\n"
    else:
        linking = linked + fill_template("install.cmake.in", values)
    return fill_template("CMakeLists.txt.in", values | {"linking": linking})


def _indent(names: Sequence[str]) -> str:
    return "\n".join(f"  {name}" for name in names)


def format_readme(
    graph: ProgramGraph,
    plan: ArenaPlan,
    weights: ProgramWeights,
    embed: bool,
    components: Sequence[Component],
) -> str:
    """Return the program's `README.md`."""
    sources = "*.c" + (" drivers/*/*.c" if graph.regions else "") + (" weights.S" if embed else "")
    proof = ", proven to be the fewest" if plan.is_minimal else f", at least {plan.bound} are needed"
    return fill_template(
        "README.md.in",
        {
            "source": graph.display_name,
            "version": version("onnx-byoc"),
            "sources": sources,
            "arena": plan.size,
            "proof": proof,
            "weights": weights.size,
            "embedded": ", and is a part of the program" if embed else "",
            "order": weights.order,
            "licences": "".join(each.format_line() for each in components),
        },
    )


def describe_components(graph: ProgramGraph, components: Sequence[Component]) -> dict[str, Any]:
    """Return the components of a program as a CycloneDX document, without a time or a serial number."""
    found = [each.describe() for each in components]
    found.append({"type": "machine-learning-model", "name": graph.display_name})
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": found}
