"""Decide whether a compiled region is worth storing, and compare what is imported with it."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from byoc.codegen import AnyArray, Region, TensorContract, format_options, to_numpy_dtype

from .openvino_device import import_blob
from .openvino_executor import OpenVINOExecutor
from .openvino_options import OpenVINOOptions
from .openvino_weights import EmbeddedWeights, WeightFile

_PATIENCE = 600.0  # seconds
_SAME = 1e-3  # of the range; import lays out weights anew, which moves sums a little


def export_blob(
    region: Region,
    model: Any,
    inputs: Sequence[str],
    options: OpenVINOOptions,
    weights: WeightFile | EmbeddedWeights,
) -> tuple[bytes | None, str]:
    """Return the blob of a compiled region, or None and why it is not to be stored.

    `inputs` are the names of the model's inputs in the region, `weights` where its weights will be. It
    is not stored without the option, where it would hold more weights than `blob_limit`, and where it
    computes something else than `model`.
    """
    if not options.blob:
        return None, "blob is false"
    constants = sum(contract.type.bytes or 0 for contract in region.constants)
    is_whole = isinstance(weights, EmbeddedWeights)
    too_large = f"it would hold more weights than blob_limit, {options.blob_limit} bytes"
    if is_whole and constants > options.blob_limit:
        return None, too_large
    blob: bytes = model.export_model().getvalue()
    if not is_whole and len(blob) > options.blob_limit:
        return None, too_large
    if _suits_any_sample(region):
        imported = import_blob(blob, options, weights.properties)
        right = is_import_right(region, inputs, model, imported)
    else:
        right = _is_right_elsewhere(region, blob, options)
    if not right:
        return None, "what OpenVINO imports from it computes something else, or could not be compared"
    return blob, ""


def _suits_any_sample(region: Region) -> bool:
    """Return whether a region computes something of all values that its inputs may have.

    OpenVINO does not check shapes and indices that are inputs: those that do not fit make it read and
    write memory which is not its own. Open extents may have to fit together.
    """
    inside = (node for function in region.model.functions for node in function.node)
    casts = any(node.op_type in ("Cast", "CastLike") for node in (*region.nodes, *inside))
    return not casts and all(
        value.type.dtype.startswith(("float", "bfloat")) and value.type.elements is not None
        for value in region.inputs
    )


def _is_right_elsewhere(region: Region, blob: bytes, options: OpenVINOOptions) -> bool:
    """Ask `is_import_right` in a process of its own; return False if that crashes or hangs."""
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "region.blob"
        path.write_bytes(blob)
        given = json.dumps(format_options(options))
        asked = [str(path), str(region.path), region.name, region.target, given]
        # -P: a module in the working directory may be a stranger's.
        command = [sys.executable, "-P", "-m", f"{__package__}.compare", *asked]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            return False
    return ran.returncode == 0 and ran.stdout.strip() == "right"


def is_import_right(region: Region, inputs: Sequence[str], model: Any, imported: Any | None) -> bool:
    """Return whether a blob, imported again, computes what the compiled model does.

    OpenVINO 2026.4.1 imports a RotaryEmbedding as something that reads memory which is not its own. Both
    run on one sample of the region's inputs; where that cannot be run, nothing is known, and the answer
    is no, as it is where nothing was imported.
    """
    if imported is None:
        return False
    try:
        sample = _make_sample(region.inputs)
        expected, found = (
            OpenVINOExecutor(each, inputs, region.outputs)(sample) for each in (model, imported)
        )
    except (RuntimeError, TypeError, ValueError):
        return False
    return all(_is_close(expected[name], found[name]) for name in expected)


def _make_sample(inputs: Sequence[TensorContract]) -> dict[str, AnyArray]:
    """Return seeded values by name: floats about 0, whole numbers 0 and 1, open extents of 2.

    Raises ValueError for an input of unknown rank.
    """
    generator = np.random.default_rng(0)
    sample = {}
    for value in inputs:
        if value.type.shape is None:
            raise ValueError(f"{value.name} has no rank")
        shape = [extent if isinstance(extent, int) else 2 for extent in value.type.shape]
        whole = value.type.dtype.startswith(("int", "uint", "bool"))
        drawn = generator.integers(0, 2, shape) if whole else generator.normal(size=shape)
        sample[value.name] = drawn.astype(to_numpy_dtype(value.type.dtype))
    return sample


def _is_close(one: AnyArray, other: AnyArray) -> bool:
    if one.shape != other.shape:
        return False
    first, second = one.astype(np.float64), other.astype(np.float64)
    scale = float(np.max(np.abs(first), initial=0.0, where=np.isfinite(first)))
    return bool(np.allclose(first, second, rtol=_SAME, atol=_SAME * scale, equal_nan=True))
