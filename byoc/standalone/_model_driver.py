"""A driver that byoc makes of a bundle: its regions in C, behind the interface `byoc_driver.h`.

It is for codegens that say `model_driver`: their regions compute what their ONNX models do.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from byoc.boundary.contracts import TensorContract
from byoc.bundle import MODEL_TEXT, Bundle, hash_region_model, open_bundle
from byoc.codegen import DriverSources, Region
from byoc.codegen.drivers import build_driver
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, count_bits
from byoc.standalone._program_graph import (
    describe_in_comment,
    fill_template,
    quote,
    read_region_graph,
    read_source,
)
from byoc.standalone._program_steps import plan_steps
from byoc.standalone._source_text import (
    WEIGHTS_FILE,
    ByteOrder,
    ProgramWeights,
    SharedText,
    write_run_text,
)


def write_model_driver(
    bundle: Bundle, codegen: str, folder: Path, byte_order: ByteOrder = "little"
) -> DriverSources:
    """Write the sources of a driver for a bundle's regions of a codegen into a folder, and return them.

    The constants are in the driver, in the byte order of the machine that runs it, so it takes regions
    of this bundle alone. Raises InputError for a codegen that is not in the bundle or does not say
    `model_driver`, an extent that is not known, and an operator that has no function in C, which it
    names; MissingRuntimeError without onnxruntime or emx-onnx-cgen.
    """
    codegen = _choose_codegen(bundle, codegen)
    entries = [each for each in bundle.manifest.regions if each.codegen == codegen and not each.same_as]
    if not bundle.codegens.needs_model_driver(codegen):
        raise InputError(
            f"{bundle.display_path}: codegen {codegen} has no driver in C, and does not say that its "
            "regions compute what their models do (model_driver), of which byoc makes one"
        )
    weights = ProgramWeights(byte_order)
    contents: dict[str, str] = {}
    for number, entry in enumerate(entries):
        _, region, _ = bundle.open_compiled(entry.name)
        identity = hash_region_model(bundle.folder, entry)
        contents |= _write_region(region, f"region_{number}", identity, weights)
    names = [f"region_{number}" for number in range(len(entries))]
    contents["model_driver.h"] = fill_template(
        "model_driver.h.in",
        {"regions": "".join(f"extern const model_region {name};\n" for name in names)},
    )
    contents["model_driver.c"] = fill_template(
        "model_driver.c.in",
        {
            "codegen": codegen,
            "symbol": re.sub(r"\W", "_", codegen),
            "version": version("onnx-byoc"),
            "text": MODEL_TEXT,
            "known": "".join(f"    &{name},\n" for name in names),
        },
    )
    contents["weights.S"] = _format_weights(folder / WEIGHTS_FILE)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
    with (folder / WEIGHTS_FILE).open("wb") as file:
        for part in weights.list_parts():
            file.write(part)
    files = sorted(folder / name for name in contents if name.endswith((".c", ".S")))
    return DriverSources(codegen, tuple(files), ("m",))


def make_driver(
    bundle: str | Path | Bundle,
    library: str | Path,
    *,
    codegen: str = "",
    compiler: str | None = None,
    byte_order: ByteOrder = "little",
) -> str:
    """Make the driver of a bundle's regions: `byoc make-driver`. Returns the codegen that it is of.

    The codegen's own sources are built; of one without, a driver is made of the regions' models.

    Args:
        bundle: a folder or packed file, or what `open_bundle` gave for one.
        library: the shared library to write, whole or not at all.
        codegen: whose driver, of a bundle with several.
        compiler: the command of the C compiler, with flags; `$BYOC_CC` or `cc` unless given.
        byte_order: that of the machine that runs the driver, `little` or `big`.

    Raises InputError where there is no driver, or it does not compile, and as `write_model_driver`;
    MissingRuntimeError without a C compiler.
    """
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle, None)
    name = _choose_codegen(opened, codegen)
    own = opened.codegens.find_driver(name)
    if own is not None:
        build_driver(own, Path(library), compiler)
        return name
    with TemporaryDirectory(prefix="byoc-") as folder:
        sources = write_model_driver(opened, name, Path(folder), byte_order)
        build_driver(sources, Path(library), compiler)
    return name


def _choose_codegen(bundle: Bundle, codegen: str) -> str:
    """Return the codegen whose driver is meant. Raises InputError if that is not clear."""
    names = list(dict.fromkeys(entry.codegen for entry in bundle.manifest.regions))
    if codegen and codegen not in names:
        raise InputError(
            f"{bundle.display_path}: it has no region of codegen {codegen}, "
            f"but of {', '.join(names) or 'none'}"
        )
    if codegen or len(names) == 1:
        return codegen or names[0]
    if not names:
        raise InputError(f"{bundle.display_path}: it has no region, so nothing for a driver to run")
    raise InputError(
        f"{bundle.display_path}: its regions are of several codegens, {', '.join(names)}: say of which "
        "(--codegen)"
    )


def _write_region(region: Region, name: str, identity: str, weights: ProgramWeights) -> dict[str, str]:
    """Return the files of a region, by their names."""
    graph = read_region_graph(region)
    steps = plan_steps(graph, f"{name}_")
    inputs, outputs = ([each.name for each in side] for side in (region.inputs, region.outputs))
    run = write_run_text(graph, steps, SharedText(weights), inputs, outputs)
    includes = '#include "kernels.h"\n'
    includes += f'#include "{name}_nodes.h"\n' if steps.functions else ""
    found = {
        f"{name}.c": fill_template(
            "region.c.in",
            {
                "title": describe_in_comment(region.name),
                "plan": f"The plan of the arena has {steps.plan.size} bytes.",
                "includes": includes,
                "structures": run.structures,
                "body": run.body,
                "tensors": _list_tensors("inputs_of", region.inputs)
                + _list_tensors("outputs_of", region.outputs),
                "name": name,
                "identity": identity,
                "plan_bytes": steps.plan.size,
                "inputs": len(inputs),
                "outputs": len(outputs),
            },
        )
    }
    found |= {each: read_source(each).decode() for each in steps.kernel_files}
    if steps.functions is not None:
        found[f"{name}_nodes.c"] = steps.functions.format_source(f"{name}_nodes.h")
        found[f"{name}_nodes.h"] = steps.functions.format_header()
    return found


def _list_tensors(array: str, contracts: Sequence[TensorContract]) -> str:
    """Return the table of what crosses. Raises InputError for elements of less than a byte."""
    rows = []
    for contract in contracts:
        kind = contract.type
        if kind.bytes is None or count_bits(kind.dtype) % 8:
            raise InputError(f"{contract.name}: {kind} does not cross to a driver")
        rows.append(f"    {{{DTYPE_NUMBERS[kind.dtype]}, {kind.bytes}}},\n")
    return f"static const model_tensor {array}[] = {{\n{''.join(rows)}    {{0, 0}},\n}};\n"


def _format_weights(path: Path) -> str:
    """Return the assembler source that makes a file of constants a part of the driver."""
    text = read_source("weights.S").decode().replace("model_weights", "model_driver_weights")
    text = text.replace(".globl", ".hidden model_driver_weights\n    .globl")
    return text.replace(f'"{WEIGHTS_FILE}"', quote(str(path.resolve())))
