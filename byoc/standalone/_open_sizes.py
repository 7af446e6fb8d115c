"""A program with open dimensions: steps for each combination of sizes, which share weights and an arena.

The plan of each combination is its own, and the arena is as large as the largest of them. So each kernel
and each function that emx-onnx-cgen emits has fixed extents, as in other programs, and is proven.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, cast

from numpy.typing import NDArray

from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError
from byoc.memory.arena import ArenaPlan
from byoc.standalone._export import PlannedProgram, format_functions, list_sample
from byoc.standalone._export_options import MOST_COMBINATIONS, ExportOptions
from byoc.standalone._program_graph import (
    ProgramGraph,
    describe_in_comment,
    fill_template,
    quote,
    read_model_graph,
)
from byoc.standalone._proof import Proof
from byoc.standalone._source_text import (
    KEYWORDS,
    ByteOrder,
    ProgramText,
    ProgramWeights,
    RunText,
    SharedText,
    describe_tensors,
    format_noise,
    list_noise,
    write_run_text,
)
from byoc.support import report_step
from byoc.zoo import Source, load_model

Ranges = Mapping[str, tuple[int, int]]
"""The least and the largest size of open dimensions, by name."""


def read_ranges(model: Source, options: ExportOptions) -> Ranges:
    """Return the dimensions that stay open between two sizes.

    Raises InputError for a wrong model or wrong dimensions, and for more combinations of sizes than a
    program has.
    """
    if not any(isinstance(value, str) and ".." in value for value in (options.dims or {}).values()):
        return {}
    loaded = load_model(model, options.dims, options.shapes, without_heavy=True)
    ranges = loaded.planned.ranges
    count = prod(most - least + 1 for least, most in ranges.values())
    if count > MOST_COMBINATIONS:
        plural = "s" if len(ranges) > 1 else ""
        given = ", ".join(f"{name}={least}..{most}" for name, (least, most) in ranges.items())
        raise InputError(
            f"{loaded.source}: dimension{plural} {given}: a program has steps for each combination of "
            f"sizes, at most {MOST_COMBINATIONS}, and these are {count}: give fewer sizes "
            "(--dim NAME=LEAST..MOST) or one (--dim NAME=SIZE)"
        )
    return ranges


@dataclass(frozen=True, eq=False)
class _Combination:
    """The part of a program for a combination of sizes; its graph is let go, which holds all weights."""

    number: int
    title: str
    sizes: tuple[int, ...]
    body: str
    tensors: str
    noise: Sequence[str]
    sample: Sequence[NDArray[Any]]
    files: Mapping[str, bytes]
    kernel_files: Sequence[str]
    plan: ArenaPlan
    proof: Proof
    overruled: tuple[str, ...]


_KINDS = ("inputs", "outputs")


def plan_open_program(model: Source, ranges: Ranges, options: ExportOptions) -> PlannedProgram:
    """Plan a program whose open dimensions have the sizes of their ranges.

    Raises InputError for a wrong model, an operator without a function in C at any of the sizes, and an
    input or output that differs at smaller sizes in more than its extents, or that has more bytes there.
    """
    shared = SharedText(ProgramWeights(cast(ByteOrder, options.byte_order)))
    largest: PlannedProgram | None = None
    found: list[_Combination] = []
    combinations = itertools.product(*(range(least, most + 1) for least, most in ranges.values()))
    for number, sizes in reversed([*enumerate(combinations)]):  # the largest first, the others' measure
        given = dict(zip(ranges, sizes, strict=True))
        title = ", ".join(f"{name} = {size}" for name, size in given.items())
        report_step(title)
        try:
            graph = read_model_graph(model, {**(options.dims or {}), **given}, options.shapes)
            program = PlannedProgram.plan(graph, options.threads, f"sizes_{number}_")
        except InputError as error:
            raise InputError(*(f"at {title}: {line}" for line in error.lines)) from None
        graph = program.graph  # with the outputs by definition, where onnxruntime makes others
        if largest is not None:
            _require_smaller(graph, largest.graph, title)
        run = write_run_text(graph, program.steps, shared, list(graph.sample), list(graph.expected))
        found.append(
            _Combination(
                number=number,
                title=title,
                sizes=sizes,
                body=run.body,
                tensors=_describe_tables(graph, None if largest is None else number),
                noise=list_noise(graph, number * len(graph.expected)),
                sample=list_sample(graph),
                files=format_functions(program.steps, f"_{number}"),
                kernel_files=program.steps.kernel_files,
                plan=program.steps.plan,
                proof=program.steps.proof,
                overruled=program.overruled,
            )
        )
        if largest is None:
            largest = program
    assert largest is not None  # a range has a size
    found.reverse()
    overruled = dict.fromkeys(name for each in found for name in each.overruled)
    text = _describe_open(ranges, found, run)  # the last one's structures are those of all
    return replace(largest, overruled=tuple(overruled), text=text, weights=shared.weights)


def _require_smaller(graph: ProgramGraph, largest: ProgramGraph, title: str) -> None:
    """Raise InputError unless each input and output has a place in one of the largest sizes."""
    for own, others in ((graph.sample, largest.sample), (graph.expected, largest.expected)):
        if list(own) != list(others):
            raise InputError(f"{graph.source}: at {title} it has other inputs or outputs than at others")
        for name in own:
            if graph.get_dtype(name) != largest.get_dtype(name) or len(graph.get_shape(name)) != len(
                largest.get_shape(name)
            ):
                raise InputError(f"{graph.source}: '{name}' has another dtype or rank at {title}")
            if graph.sizes.count_bytes(name) > largest.sizes.count_bytes(name):
                raise InputError(
                    f"{graph.source}: '{name}' has more bytes at {title} than at the largest sizes"
                )


def _describe_tables(graph: ProgramGraph, number: int | None) -> str:
    """Return the tables of inputs and outputs; those of the largest sizes have no number."""
    return "".join(
        describe_tensors(graph, f"model_{kind}", list(names))
        if number is None
        else describe_tensors(graph, f"{kind}_{number}", list(names), "static ")
        for kind, names in (("inputs", graph.sample), ("outputs", graph.expected))
    )


def _describe_open(ranges: Ranges, found: Sequence[_Combination], run: RunText) -> ProgramText:
    """Return the text of all combinations, the largest last; `run` has the structures of all."""
    fields = _name_fields(ranges)
    numbers = range(len(found))
    tables = {kind: [*(f"{kind}_{n}" for n in numbers[:-1]), f"model_{kind}"] for kind in _KINDS}
    bounds = ", ".join(f"{name} {least} to {most}" for name, (least, most) in ranges.items())
    runs = "".join(
        fill_template(
            "run_sizes.c.in",
            {"title": describe_in_comment(each.title), "number": each.number, "body": each.body},
        )
        for each in found
    )
    body = fill_template(
        "run_open.c.in",
        {
            "runs": runs,
            "equal": "".join(
                f" && sizes->{name} == model_combinations[number].{name}" for name in fields
            ),
            "inputs": ", ".join(tables["inputs"]),
            "outputs": ", ".join(tables["outputs"]),
            "functions": ", ".join(f"run_{n}" for n in numbers),
            "refusal": quote(f"the sizes are out of bounds: there are {bounds}"),
        },
    )
    plan = max((each.plan for each in found), key=lambda plan: plan.size)
    header = fill_template(
        "sizes.h.in",
        {
            "fields": "".join(
                f"    int64_t {field}; /* {describe_in_comment(name)}: {least} to {most} */\n"
                for field, (name, (least, most)) in zip(fields, ranges.items(), strict=True)
            ),
            "dimensions": len(ranges),
            "combinations": len(found),
        },
    )
    files = {name: content for each in found for name, content in each.files.items()}
    return ProgramText(
        ranges=ranges,
        combinations=len(found),
        header=header,
        includes="".join(f'#include "{name}"\n' for name in files if name.endswith(".h")),
        tensors=_format_sizes(ranges, found)
        + "".join(each.tensors for each in found)
        + format_noise([row for each in found for row in each.noise]),
        run=replace(run, body=body),
        files=files,
        kernel_files=tuple(dict.fromkeys(name for each in found for name in each.kernel_files)),
        sample=[array for each in found for array in each.sample],
        # The arena has to hold every combination, so it needs what the most demanding one needs.
        plan=replace(plan, bound=max(each.plan.bound for each in found)),
        tried=sum(each.proof.tried for each in found),
        not_proven=next((each.proof.not_proven for each in found if each.proof.not_proven), ""),
    )


def _format_sizes(ranges: Ranges, found: Sequence[_Combination]) -> str:
    """Return the tables of dimensions and of combinations."""
    rows = "".join(
        f"    {{{quote(name)}, {least}, {most}}},\n" for name, (least, most) in ranges.items()
    )
    sizes = "".join(f"    {{{', '.join(map(str, each.sizes))}}},\n" for each in found)
    return (
        f"const model_dimension model_dimensions[] = {{\n{rows}    {{NULL, 0, 0}},\n}};\n"
        f"const model_sizes model_combinations[] = {{\n{sizes}}};\n"
    )


def _name_fields(names: Iterable[str]) -> list[str]:
    """Return a name in C for each dimension; `x[0]` is `x_0`."""
    found: list[str] = []
    for name in names:
        field = re.sub(r"\W", "_", name, flags=re.ASCII).rstrip("_") or "size"
        field = f"size_{field}" if field[0].isdigit() or field in KEYWORDS else field
        while field in found:
            field += "_"
        found.append(field)
    return found
