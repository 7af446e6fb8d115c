"""The nine classics, found by looking into the installed `onnx` package: no list is kept here."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from byoc.errors import InputError, suggest_nearest
from byoc.zoo.light import find_data_input, make_runnable
from byoc.zoo.provider import ZooEntry
from byoc.zoo.samples import make_photo

_PREFIX = "light_"
_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


class ClassicModels:
    """Structures from the `onnx` package, with seeded random weights."""

    def entries(self) -> tuple[ZooEntry, ...]:
        """Return them by name. Raises `InputError` when `onnx` was installed without them."""
        return tuple(
            ZooEntry(
                name=name,
                family="convolutional classifier",
                source=f"onnx package, test data {path.name}",
                licence="Apache-2.0",
                weights="random, seeded",
                nodes=_count_nodes(path),
            )
            for name, path in _find_files().items()
        )

    def load(self, name: str) -> onnx.ModelProto:
        """Make a model: float32, batch 1, seeded random weights, the same on every machine."""
        return make_runnable(load_structure(name), name)

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return a normalized image, `[1, channels, height, width]`."""
        value = find_data_input(load_structure(name).graph, name)
        _, *shape = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
        return {value.name: make_photo(seed, *shape)}


def load_structure(name: str) -> onnx.ModelProto:
    """Return the light model as the `onnx` package ships it: old format, constants for weights.

    Raises `InputError` for a name that is none of the nine, and when `onnx` was installed without them.
    """
    files = _find_files()
    if name not in files:
        raise InputError(
            f"zoo: no light model named {name!r}{suggest_nearest(name, files)}; available: {', '.join(files)}"
        )
    return onnx.load(files[name])


@lru_cache
def _count_nodes(path: Path) -> int:
    """Count the nodes without those that only stand for weights."""
    return sum(node.op_type != "ConstantOfShape" for node in onnx.load(path).graph.node)


def _find_files() -> dict[str, Path]:
    """Return the light files by model name, sorted."""
    files = sorted(_FOLDER.glob(f"{_PREFIX}*.onnx"))
    if not files:
        raise InputError(
            f"the installed onnx {onnx.__version__} carries no light models in {_FOLDER}; "
            "the wheel from the package index does"
        )
    return {path.stem.removeprefix(_PREFIX): path for path in files}
