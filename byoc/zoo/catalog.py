"""What the zoo holds, found by looking into the installed `onnx` package: no list is kept here."""

from dataclasses import dataclass
from pathlib import Path

import onnx

from byoc.errors import InputError, nearest
from byoc.zoo.light import usable

_PREFIX = "light_"
_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@dataclass(frozen=True)
class ZooEntry:
    """One model of the zoo: what it is, where its structure comes from and on which terms."""

    name: str
    family: str
    source: str
    licence: str
    weights: str


def entries() -> tuple[ZooEntry, ...]:
    """Return what `load` can make, sorted by name; nothing if `onnx` carries no test data."""
    return tuple(
        ZooEntry(
            name=name,
            family="convolutional classifier",
            source=f"onnx package, test data {path.name}",
            licence="Apache-2.0",
            weights="random, seeded",
        )
        for name, path in _files().items()
    )


def load(name: str) -> onnx.ModelProto:
    """Make the model called `name`: float32, batch 1, seeded random weights, ready to run.

    The same name gives the same numbers on every machine. Raises `InputError` for an unknown name,
    and when the installed `onnx` package comes without the light models.
    """
    return usable(structure(name), name)


def structure(name: str) -> onnx.ModelProto:
    """Return the light model as the `onnx` package carries it: old format, constants for weights.

    Raises `InputError` as `load` does.
    """
    files = _files()
    if not files:
        raise InputError(
            f"zoo: the installed onnx {onnx.__version__} carries no light models in {_FOLDER}; "
            "the wheel from the package index does"
        )
    if name not in files:
        raise InputError(
            f"zoo: no model named {name!r}{nearest(name, files)}; available: {', '.join(files)}"
        )
    return onnx.load(files[name])


def _files() -> dict[str, Path]:
    """Return the light files by model name, sorted."""
    return {path.stem.removeprefix(_PREFIX): path for path in sorted(_FOLDER.glob(f"{_PREFIX}*.onnx"))}
