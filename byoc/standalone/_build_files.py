"""Files beside the source of a program: for CMake, for readers, and for those who track components."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from byoc.standalone._c_text import fill_template
from byoc.standalone._licences import Component
from byoc.standalone._program_graph import ProgramGraph
from byoc.standalone._program_steps import ProgramSteps
from byoc.standalone._weight_file import ProgramWeights


def format_cmake(sources: Sequence[str], libraries: Sequence[str]) -> str:
    """Return `CMakeLists.txt`."""
    library = "".join(f"  {name}\n" for name in sources if name != "main.c").rstrip("\n")
    assembler = " ASM" if any(name.endswith(".S") for name in sources) else ""
    return fill_template(
        "CMakeLists.txt.in",
        {"library": library, "libraries": " ".join(libraries), "assembler": assembler},
    )


def format_readme(
    graph: ProgramGraph,
    steps: ProgramSteps,
    weights: ProgramWeights,
    embed: bool,
    components: Sequence[Component],
) -> str:
    """Return the program's `README.md`."""
    plan = steps.plan
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
