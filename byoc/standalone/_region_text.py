"""The part of `model.c` that opens and runs the regions of a bundle by their drivers."""

from collections.abc import Sequence
from dataclasses import dataclass

from byoc.boundary.contracts import TensorContract
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, count_bits
from byoc.standalone._c_text import fill_template, quote, read_source
from byoc.standalone._program_graph import ProgramGraph
from byoc.standalone._weight_file import ProgramWeights


@dataclass(frozen=True)
class RegionText:
    """Pieces of `model.h` (`includes`, `members`) and of `model.c` (`definitions`, `opening`)."""

    includes: str
    members: str
    definitions: str
    opening: str

    @staticmethod
    def write(graph: ProgramGraph, weights: ProgramWeights) -> "RegionText":
        """Write the text of all regions; their artifacts are added to the weights, as they are.

        Raises InputError for a boundary tensor of elements of less than a byte.
        """
        if not graph.regions:
            return RegionText("", "", "", read_source("open_host.c.in").decode())
        calls = list(graph.regions.values())
        blobs = [list(call.artifact.files.items()) for call in calls]
        flat = [blob for each in blobs for blob in each]
        texts = [list(call.artifact.metadata.items()) for call in calls]
        codegens = dict.fromkeys(call.codegen for call in calls)
        definitions = fill_template(
            "regions.c.in",
            {
                "externs": "".join(
                    f"extern const byoc_driver byoc_driver_{name};\n" for name in codegens
                ),
                "drivers": ", ".join(f"&byoc_driver_{call.codegen}" for call in calls),
                "names": ", ".join(quote(call.region.name) for call in calls),
                "blob_names": ", ".join(quote(name) for name, _ in flat),
                "blob_offsets": ", ".join(str(weights.add_bytes(content)) for _, content in flat),
                "blob_bytes": ", ".join(str(len(content)) for _, content in flat),
                "first_blobs": _count_up(blobs),
                "texts": _list_texts(texts),
                "tensors": _list_tensors("inputs", [call.region.inputs for call in calls])
                + _list_tensors("outputs", [call.region.outputs for call in calls]),
            },
        )
        members = (
            f"    byoc_blob blobs[{len(flat)}];\n    byoc_region_info infos[{len(calls)}];\n"
            f"    byoc_region *regions[{len(calls)}];\n"
        )
        includes = (
            f'\n#include "byoc_driver.h"\n\n#define MODEL_REGIONS {len(calls)}\n'
            f"#define MODEL_BLOBS {len(flat)}\n"
        )
        return RegionText(includes, members, definitions, read_source("open_regions.c.in").decode())


def _count_up(groups: Sequence[Sequence[object]]) -> str:
    total, counts = 0, [0]
    for group in groups:
        total += len(group)
        counts.append(total)
    return ", ".join(map(str, counts))


def _list_texts(texts: Sequence[Sequence[tuple[str, str]]]) -> str:
    rows = "".join(f"    {{{quote(name)}, {quote(text)}}},\n" for each in texts for name, text in each)
    return (
        f"static const byoc_text texts[] = {{\n{rows}    {{NULL, NULL}},\n}};\n"
        f"static const size_t first_texts[] = {{{_count_up(texts)}}};\n"
    )


def _list_tensors(side: str, regions: Sequence[Sequence[TensorContract]]) -> str:
    shapes, rows = [], []
    for number, contract in enumerate(each for contracts in regions for each in contracts):
        kind = contract.type
        if kind.elements is None or count_bits(kind.dtype) % 8:
            raise InputError(f"{contract.name}: {kind} does not cross to a driver")
        extents = ", ".join(map(str, kind.shape or ())) or "1"
        shapes.append(f"static const int64_t region_{side}_shape_{number}[] = {{{extents}}};\n")
        rows.append(
            f"    {{{quote(contract.name)}, {DTYPE_NUMBERS[kind.dtype]}, {len(kind.shape or ())}, "
            f"region_{side}_shape_{number}, {kind.bytes}}},\n"
        )
    end = "    {NULL, 0, 0, NULL, 0},\n"
    return (
        f"{''.join(shapes)}static const byoc_tensor region_{side}[] = {{\n{''.join(rows)}{end}}};\n"
        f"static const size_t first_{side}[] = {{{_count_up(regions)}}};\n"
    )
