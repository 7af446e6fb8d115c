"""Export of a model, a bundle or a package as C: one program, or several and what chooses among them.

Of a bundle for several devices each variant is a program in a folder of its own, with weights that all
have in common, and a further source chooses one of them where it runs, as `byoc.load` does.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from byoc._dataclasses import dataclass, replace
from byoc.bundle import PROGRAM_FILE, Bundle, VariantEntry, is_bundle, list_models, open_bundle
from byoc.codegen import find_same_paths
from byoc.errors import InputError
from byoc.numerics import round_up
from byoc.runtime import HOST_NAME, describe_seconds, list_alternatives, list_own_names
from byoc.standalone._export import (
    FORMAT,
    ExportedProgram,
    NoDriverError,
    PlannedProgram,
    check_output,
    format_json,
    stage_program,
    write_files,
)
from byoc.standalone._export_options import MOST_THREADS, ExportOptions
from byoc.standalone._open_sizes import plan_open_program, read_ranges
from byoc.standalone._program_graph import (
    ProgramGraph,
    describe_in_comment,
    fill_template,
    quote,
    read_bundle_graph,
    read_model_graph,
    read_source,
)
from byoc.standalone._source_text import (
    ALIGNMENT,
    PREFIX,
    WEIGHTS_FILE,
    ByteOrder,
    ProgramWeights,
    check_prefix,
    describe_tensors,
    rename_program,
)
from byoc.support import check_type, report_step, take_keywords
from byoc.zoo import ZOO, Source


@take_keywords(ExportOptions)
def export_c(model: Source, options: ExportOptions) -> ExportedProgram:
    """Export a model or a bundle as a C program without dependencies, to `output`.

    `model` is a path, `zoo:NAME`, a protobuf, or the path of a bundle or package; of a package each
    model is a program in a folder of its own, and they share an arena. Of a bundle for several devices
    the program has all of its variants, or those that are named, whose codegens have a driver in C, and
    chooses one where it runs; `left_out` has the others.

    Raises InputError for a wrong model, an operator that has no function in C or a wrong one, which it
    names, an extent that is not known, and an output that cannot be written: nothing has been written
    then. Raises MissingRuntimeError without onnxruntime, which computes what the program's self-test
    compares with, or emx-onnx-cgen.
    """
    check_type("variant", options.variant, str | Sequence[str] | None)
    models = list_models(Path(model)) if isinstance(model, str | Path) else []
    if options.byte_order not in ("little", "big"):
        raise InputError(f"byte_order is {options.byte_order!r}, but must be little or big")
    if options.threads > MOST_THREADS:
        raise InputError(f"threads is {options.threads}, but must be at most {MOST_THREADS}")
    is_package = len(models) > 1
    if is_package and options.prefix != PREFIX:
        raise InputError(f"prefix '{options.prefix}': models of a package have their names as prefixes")
    check_prefix(options.prefix)
    output = Path(options.output)
    check_output(output)
    with stage_program(output) as folder:
        if is_package:
            made = _export_package(folder, models, options)
        else:
            made = _export_model(folder, model, options)
    return replace(made, folder=output)


def _export_package(folder: Path, models: Sequence[Path], options: ExportOptions) -> ExportedProgram:
    """Write the models of a package as one project of CMake, in which they share an arena.

    The sizes that are returned are those of all together: the arena is that of the largest.
    """
    names = [path.name.lower() for path in models]
    for name in names:
        check_prefix(name)
    made = []
    for path, name in zip(models, names, strict=True):
        (folder / name).mkdir()
        made.append(_export_model(folder / name, path, replace(options, prefix=name)))
    shared = round_up(max(each.arena_bytes for each in made), ALIGNMENT)
    includes = "".join(f'#include "{name}.h"\n' for name in names)
    contents = {
        "CMakeLists.txt": fill_template(
            "package.cmake.in", {"models": _add_subdirectories(names)}
        ).encode(),
        "models.h": fill_template("models.h.in", {"includes": includes, "shared": shared}).encode(),
    }
    _write_project(folder, names, contents)
    left_out = {
        f"{name}/{variant}": why
        for name, each in zip(names, made, strict=True)
        for variant, why in each.left_out.items()
    }
    found = _add_up(folder, made, sum(each.weight_bytes for each in made))
    return replace(found, left_out=left_out)


def _add_subdirectories(names: Sequence[str]) -> str:
    return "".join(f"add_subdirectory({name})\n" for name in names)


def _write_project(folder: Path, names: Sequence[str], contents: dict[str, bytes]) -> None:
    """Write the files of a project of several programs, and which files it has."""
    write_files(folder, contents, None)
    inside = [each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()]
    document = {"format": FORMAT, "models": list(names), "files": sorted(inside)}
    (folder / PROGRAM_FILE).write_bytes(format_json(document))


def _add_up(folder: Path, made: Sequence[ExportedProgram], weight_bytes: int) -> ExportedProgram:
    return ExportedProgram(
        folder,
        max(each.arena_bytes for each in made),
        max(each.bound for each in made),
        weight_bytes,
        sum(each.steps for each in made),
        sum(each.kernels for each in made),
        sum(each.regions for each in made),
        next((each.not_signed for each in made if each.not_signed), ""),
        sum(each.proven for each in made),
        "; ".join(dict.fromkeys(each.not_proven for each in made if each.not_proven)),
        overruled=tuple(dict.fromkeys(name for each in made for name in each.overruled)),
    )


def _export_model(folder: Path, model: Source, options: ExportOptions) -> ExportedProgram:
    """Write a model, a variant of a bundle, or several and their choice, into an empty folder."""
    report_step("load model")
    given = options.variant or ()
    names = [given] if isinstance(given, str) else [*dict.fromkeys(given)]
    path = None if not isinstance(model, str | Path) or str(model).startswith(ZOO) else Path(model)
    if path is None or not is_bundle(path):
        if names:
            raise InputError(f"variant {names[0]}: a model has none; a bundle may have some")
        ranges = read_ranges(model, options)
        if ranges:
            return plan_open_program(model, ranges, options).write(folder, options)
        graph = read_model_graph(model, options.dims, options.shapes)
        return PlannedProgram.plan(graph, options.threads).write(folder, options)
    if options.dims or options.shapes:
        raise InputError(f"{path}: the extents of a bundle are given when it is made, not here")
    bundle = open_bundle(path, None)
    entries = bundle.manifest.variants
    if len(names) > 1 or (not names and len(entries) > 1 and not entries[0].automatic):
        return _export_variants(folder, bundle, names, options)
    is_host = names == [HOST_NAME] and HOST_NAME not in {each.name for each in entries}
    if is_host:
        graph = read_bundle_graph(_find_fastest(bundle), on_host=True)
    else:
        graph = read_bundle_graph(bundle.choose(names[0]) if names else bundle)
    return PlannedProgram.plan(graph, options.threads).write(folder, options)


# A program that chooses among variants.


@dataclass(frozen=True, eq=False)
class Candidate:
    """A variant of a program that chooses: its name, names that mean it in a preference, its program.

    `summary` is what a choice says of it: its predicted time. `identifier` is its name in C.
    """

    name: str
    names: tuple[str, ...]
    summary: str
    program: PlannedProgram

    @property
    def identifier(self) -> str:
        """The name in C, and of the folder."""
        return self.name.lower()


def _find_fastest(bundle: Bundle) -> Bundle:
    """Return a bundle for its fastest variant, by prediction. Raises as `_require_alternatives`."""
    entries = _require_alternatives(bundle, [each.name for each in bundle.manifest.variants])
    return bundle.choose(entries[0].name) if len(entries) > 1 else bundle


def _require_alternatives(bundle: Bundle, names: Sequence[str]) -> list[VariantEntry]:
    """Return the variants of some names, the fastest by prediction first.

    Raises InputError for one that is not there, and unless they take the same inputs.
    """
    entries = [bundle.choose(name).variant for name in dict.fromkeys(names)]
    for group in list_alternatives(bundle.manifest):
        if all(each in group for each in entries):
            return sorted(entries, key=lambda each: each.report.predicted.seconds)
    raise InputError(
        f"{bundle.display_path}: {' and '.join(each.name for each in entries)} are of different sizes, "
        "and a program has one: give --variant (in Python variant=), several times for those among "
        "which it chooses"
    )


def _export_variants(
    folder: Path, bundle: Bundle, names: Sequence[str], options: ExportOptions
) -> ExportedProgram:
    """Write a program for each variant, and the source that chooses one of them.

    Raises InputError where none has a driver in C, or they differ in inputs or outputs.
    """
    if options.embed:
        raise InputError(
            f"{bundle.display_path}: --embed makes the weights of one variant a part of a program: give "
            "--variant (in Python variant=)"
        )
    known = [each.name for each in bundle.manifest.variants]
    entries = _require_alternatives(bundle, [n for n in names or known if n in known or n != HOST_NAME])
    candidates, left_out = [], {}
    for entry in entries:
        try:
            program = PlannedProgram.plan(read_bundle_graph(bundle.choose(entry.name)), options.threads)
        except NoDriverError as error:
            left_out[entry.name] = str(error)
            continue
        own = tuple(list_own_names(entry, known))
        candidates.append(
            Candidate(entry.name, own, describe_seconds(entry.report.predicted.seconds), program)
        )
    if HOST_NAME in names and HOST_NAME not in known:
        graph = read_bundle_graph(bundle.choose(entries[0].name), on_host=True)
        summary = describe_seconds(entries[0].report.predicted.host_only)
        candidates.append(
            Candidate(HOST_NAME, (HOST_NAME,), summary, PlannedProgram.plan(graph, options.threads))
        )
    if not candidates:
        raise InputError(*left_out.values())
    _require_comparable(bundle, candidates)
    made, weights = _write_programs(folder, candidates, options)
    _write_choice(folder, bundle, candidates, weights, options.prefix)
    return replace(_add_up(folder, made, weights.size), left_out=left_out)


def _require_comparable(bundle: Bundle, candidates: Sequence[Candidate]) -> None:
    """Raise InputError unless programs have the same inputs and outputs, and folders of their own."""
    same = find_same_paths(each.name for each in candidates)
    if same is not None:
        raise InputError(
            f"{bundle.display_path}: {' and '.join(same)} would have one folder: '{HOST_NAME}' is the "
            "model on the host alone unless a variant is called so"
        )
    first, *others = candidates
    expected = [*_list_tensors(first.program.graph)]
    for each in others:
        found = [*_list_tensors(each.program.graph)]
        if found != expected:
            raise InputError(
                f"{bundle.display_path}: variants {first.name} and {each.name} differ in inputs or "
                "outputs, so that one cannot stand for the other: give --variant (in Python variant=)"
            )


def _list_tensors(graph: ProgramGraph) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the name, dtype and shape of each input and output of a program."""
    for name in (*graph.sample, *graph.expected):
        yield name, graph.get_dtype(name), graph.get_shape(name)


def _write_programs(
    folder: Path, candidates: Sequence[Candidate], options: ExportOptions
) -> tuple[list[ExportedProgram], ProgramWeights]:
    """Write each program into a folder beside the file of weights, in which equal bytes are once."""
    weights = ProgramWeights(cast(ByteOrder, options.byte_order))
    for each in candidates:
        each.program.add_weights(weights)
    made = []
    for each in candidates:
        prefix = f"{options.prefix}_{each.identifier}"
        check_prefix(prefix)
        place = folder / each.identifier
        place.mkdir()
        made.append(each.program.write(place, replace(options, prefix=prefix), weights))
    write_files(folder, {}, weights)
    return made, weights


def _write_choice(
    folder: Path,
    bundle: Bundle,
    candidates: Sequence[Candidate],
    weights: ProgramWeights,
    prefix: str,
) -> None:
    """Write the source that chooses a variant, and the project of all of them."""
    graph = candidates[0].program.graph
    title = describe_in_comment(graph.display_name)
    inputs, outputs = list(graph.sample), list(graph.expected)
    names = [each.identifier for each in candidates]
    header = fill_template(
        "choice.h.in",
        {
            "title": title,
            "includes": "".join(f'#include "{prefix}_{name}.h"\n' for name in names),
            "inputs": len(inputs),
            "outputs": len(outputs),
            "plan": max(each.program.steps.plan.size for each in candidates),
            "weights": weights.size,
            "weights_file": WEIGHTS_FILE,
            "count": len(candidates),
            "tensors": read_source("tensors.h.in").decode(),
            "members": "".join(f"        model_{name} {name};\n" for name in names),
        },
    )
    known = dict.fromkeys(name for each in candidates for name in each.names)
    source = fill_template(
        "choice.c.in",
        {
            "title": title,
            "tensors": describe_tensors(graph, "model_inputs", inputs)
            + describe_tensors(graph, "model_outputs", outputs),
            "variant_names": ", ".join(quote(each.name) for each in candidates),
            "functions": "".join(
                fill_template(
                    "variant.c.in",
                    {"name": each.identifier, "names": ", ".join(map(quote, each.names))},
                )
                for each in candidates
            ),
            "rows": "".join(map(_write_row, candidates)),
            "first": names[0],
            "known": quote(", ".join(known))[1:-1],
        },
    )
    libraries = " ".join(f"{prefix}_{name}" for name in names)
    values = {"name": prefix, "variants": _add_subdirectories(names), "libraries": libraries}
    sources = rename_program({"model.h": header.encode(), "model.c": source.encode()}, prefix)
    cmake = fill_template("choice.cmake.in", values).encode()
    _write_project(folder, names, sources | {"CMakeLists.txt": cmake})


def _write_row(each: Candidate) -> str:
    name = each.identifier
    return (
        f"    {{names_{name}, {quote(each.summary)}, MODEL_{name.upper()}_PLAN_BYTES, fits_{name},\n"
        f"     model_{name}_own_bytes, open_{name}, run_{name}, close_{name}}},\n"
    )
