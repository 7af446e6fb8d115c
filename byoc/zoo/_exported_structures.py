"""Modern structures, exported once (tools/export_structures) and shipped with a seed for weights.

A file of `structures/` is an ordinary model, compressed. Each large weight has a name, a type and
dimensions but no values: its metadata give the centre and the spread of the values. They are drawn here,
seeded by the names of the model and of the weight.
"""

import lzma
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from byoc.errors import InputError, suggest_nearest
from byoc.support import StrictModel, read_yaml
from byoc.zoo._provider import ZooEntry
from byoc.zoo._sample_inputs import InputSpec, make_inputs
from byoc.zoo._seeded_weights import UniformSpread, derive_seed, draw_uniform

FOLDER = Path(__file__).parent / "structures"


class IndexedStructure(StrictModel):
    """One structure of the index; `nodes` counts those of bodies as well, but no Constant."""

    family: str
    source: str
    licence: str
    nodes: int
    inputs: Mapping[str, InputSpec]


class _StructureIndex(StrictModel):
    structures: Mapping[str, IndexedStructure]


class ExportedStructures:
    """Structures from torchvision, timm and transformers, with seeded random weights."""

    def entries(self) -> tuple[ZooEntry, ...]:
        """Return them by name."""
        return tuple(
            ZooEntry(
                name=name,
                family=structure.family,
                source=structure.source,
                licence=structure.licence,
                weights="random, seeded",
                nodes=structure.nodes,
            )
            for name, structure in _read_structures().items()
        )

    def load(self, name: str) -> onnx.ModelProto:
        """Make a model: float32, batch 1, seeded random weights, the same on every machine.

        Raises `InputError` for a name that is not in the index.
        """
        _look_up(name)
        packed = (FOLDER / f"{name}.onnx.xz").read_bytes()
        model = onnx.load_from_string(lzma.decompress(packed))
        model.doc_string = f"{name}: an exported structure with seeded random weights"
        for tensor in model.graph.initializer:
            if tensor.metadata_props:
                _fill_tensor(tensor, name)
        return model

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return an array for each input: images, token ids of the vocabulary, masks of ones.

        Raises `InputError` as `load` does.
        """
        return make_inputs(_look_up(name).inputs, seed)


def _fill_tensor(tensor: TensorProto, model: str) -> None:
    """Draw the values of a stripped tensor, and remove the metadata that describe them."""
    note = {entry.key: float(entry.value) for entry in tensor.metadata_props}
    spread = UniformSpread(note["centre"], note["reach"])
    values = draw_uniform(derive_seed(model, tensor.name), tuple(tensor.dims), spread)
    tensor.raw_data = values.astype("<f4", copy=False).tobytes()
    del tensor.metadata_props[:]


def _look_up(name: str) -> IndexedStructure:
    structures = _read_structures()
    if name not in structures:
        raise InputError(
            f"zoo: no structure named {name!r}{suggest_nearest(name, structures)}; "
            f"available: {', '.join(structures)}"
        )
    return structures[name]


@cache
def _read_structures() -> Mapping[str, IndexedStructure]:
    """Return the structures of the index, sorted by name."""
    return dict(sorted(read_yaml(FOLDER / "index.yaml", _StructureIndex).structures.items()))
