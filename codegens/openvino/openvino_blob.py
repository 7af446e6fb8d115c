"""Decide whether a compiled region is worth storing, and compare what is imported with it."""

import hashlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from byoc.codegen import (
    YES,
    AnyArray,
    Artifact,
    Region,
    TensorContract,
    Verdict,
    format_options,
    refuse,
    to_numpy_dtype,
)

from .openvino_device import import_blob, is_read_from_file, openvino_core, openvino_package
from .openvino_options import OpenVINOOptions

# Run a compiled model on numpy arrays, from any number of threads.


@dataclass(frozen=True, eq=False)
class OpenVINOExecutor:
    """A compiled model as an executor.

    `inputs` are the names of its inputs in order, `outputs` those of the region. A request holds the
    tensors of one run, so each thread has its own.
    """

    model: Any
    inputs: Sequence[str]
    outputs: Sequence[TensorContract]
    threads: threading.local = field(default_factory=threading.local)

    def __call__(self, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return the outputs by name, arrays of their own.

        Inputs are not copied, and outputs of known shape are written directly to the result.
        """
        request = self._thread_request()
        for position, (name, kind) in enumerate(zip(self.inputs, self._element_types, strict=True)):
            request.set_input_tensor(position, _to_tensor(inputs[name], kind))
        made = {}
        for position, name, dtype, shape in self._preallocated:
            made[name] = np.empty(shape, dtype)
            request.set_output_tensor(
                position, openvino_package().Tensor(made[name], shared_memory=True)
            )
        request.infer()
        return {
            value.name: made[value.name]
            if value.name in made
            else _to_array(request.get_output_tensor(position), value.type.dtype)
            for position, value in enumerate(self.outputs)
        }

    def profile(self, inputs: Mapping[str, AnyArray]) -> dict[str, tuple[list[str], float]]:
        """Return the layers of ONNX in each operation that runs, and its seconds, by its name.

        The model is one that was compiled with PERF_COUNT. The first run does not count.
        """
        for _ in range(2):
            self(inputs)
        layers = {}
        for node in self.model.get_runtime_model().get_ops():
            facts = node.get_rt_info()
            if "originalLayersNames" in facts:
                layers[node.friendly_name] = str(facts["originalLayersNames"]).split(",")
        return {
            each.node_name: (layers.get(each.node_name, []), each.real_time.total_seconds())
            for each in self._thread_request().profiling_info
            if each.real_time
        }

    def _thread_request(self) -> Any:
        if not hasattr(self.threads, "request"):
            self.threads.request = self.model.create_infer_request()
        return self.threads.request

    @cached_property
    def _element_types(self) -> list[Any]:
        return [port.element_type for port in self.model.inputs]

    @cached_property
    def _preallocated(self) -> list[tuple[int, str, Any, tuple[int, ...]]]:
        """The outputs that OpenVINO can write into an array: position, name, dtype and shape.

        Not among them are dtypes that numpy lacks, open shapes, and inputs under another name, which
        OpenVINO does not copy; they are copied from OpenVINO's memory.
        """
        passed = {name for port in self.model.inputs for name in port.names}
        return [
            (position, value.name, dtype, tuple(port.shape))
            for position, (port, value) in enumerate(zip(self.model.outputs, self.outputs, strict=True))
            if (dtype := to_numpy_dtype(value.type.dtype)).isbuiltin == 1
            and port.partial_shape.is_static
            and passed.isdisjoint({value.name, *port.names})
        ]


def _to_tensor(value: AnyArray, kind: Any) -> Any:
    """Return an array as a tensor, a view if possible; dtypes that numpy lacks are copied as bits.

    OpenVINO knows one of C's types for each width: `long`, but not `long long`, which onnxruntime's
    int64 tensors have. numpy's own name for the width leads to the one that it knows.
    """
    array = np.asarray(value, order="C")
    if array.dtype.isbuiltin == 1:
        array = array.view(np.dtype(array.dtype.name))
        return openvino_package().Tensor(array, shared_memory=array.flags.writeable and array.size > 0)
    return openvino_package().Tensor(array.view(f"u{array.dtype.itemsize}"), list(array.shape), kind)


def _to_array(tensor: Any, dtype: str) -> AnyArray:
    """Return a copy of a tensor as an array of a dtype."""
    wanted = to_numpy_dtype(dtype)
    found = np.array(tensor.data)
    return found if wanted.isbuiltin == 1 else found.view(wanted)


# Weights that a blob does not hold: it reads them where the region's constants lie.
#
# A blob that OpenVINO exports for size says at which byte of a file each constant begins, and not
# in which file. What OpenVINO computes of constants when it compiles, a folded BatchNormalization
# for instance, is in the blob itself.

_FILE, _OFFSETS = "weights_file", "weights_places"  # names in an artifact's metadata
_PATH_PROPERTY = "WEIGHTS_PATH"
_NOTED_BYTES = 1 << 20  # a note tells of a blob from this size on,
_NOTED_SHARE = 0.1  # if it is also this share of the region's constants


@dataclass(frozen=True)
class ReferredWeights:
    """The file with all large constants of a region.

    `offsets` is a SHA-256, in hex, of their offsets and sizes in it.
    """

    path: Path
    offsets: str

    @property
    def properties(self) -> dict[str, Any]:
        """The properties with which a blob that reads this file is imported."""
        return {"CACHE_MODE": "OPTIMIZE_SIZE", _PATH_PROPERTY: str(self.path)}

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of an artifact whose blob reads this file."""
        return {_FILE: self.path.name, _OFFSETS: self.offsets}


@dataclass(frozen=True)
class EmbeddedWeights:
    """The weights of a blob that holds them all.

    `reason` is a clause that says why; it is empty where the region has no weights in files.
    """

    reason: str

    @property
    def properties(self) -> dict[str, Any]:
        """The properties with which such a blob is imported."""
        return {}

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of such a blob's artifact: none, as it reads no file."""
        return {}


def choose_weights(region: Region, options: OpenVINOOptions) -> ReferredWeights | EmbeddedWeights:
    """Return the file from which a region's blob can read its weights, or why it cannot."""
    files = _list_files(region)
    if not files:
        return EmbeddedWeights("")
    if len(files) > 1:
        return EmbeddedWeights("they lie in several files, and OpenVINO reads those of one")
    if not is_read_from_file(region):
        return EmbeddedWeights("OpenVINO is given the region in memory, where it has other nodes")
    if _PATH_PROPERTY not in openvino_core().get_property(options.device, "SUPPORTED_PROPERTIES"):
        return EmbeddedWeights(f"OpenVINO's device {options.device} reads none from a file")
    return ReferredWeights(files.pop(), _digest_offsets(region))


def find_weight_file(region: Region, artifact: Artifact) -> ReferredWeights | None:
    """Return the file from which an artifact's blob reads weights, None where it holds them."""
    if _FILE not in artifact.metadata:
        return None
    return ReferredWeights(region.path.parent / artifact.metadata[_FILE], artifact.metadata[_OFFSETS])


def check_weight_offsets(region: Region, artifact: Artifact) -> Verdict:
    """Return whether the constants that a blob reads have the offsets that they had when it was made."""
    stated = find_weight_file(region, artifact)
    if stated is None:
        return YES
    names = {path.name for path in _list_files(region)}
    if names == {stated.path.name} and _digest_offsets(region) == stated.offsets:
        return YES
    return refuse(f"the blob reads weights at offsets in {stated.path.name} where they no longer lie")


def describe_embedded_weights(
    region: Region, blob: bytes, weights: ReferredWeights | EmbeddedWeights
) -> str:
    """Return a sentence on weights of files that a blob holds, too, "" where they are few.

    The blob's size is taken for that of its weights.
    """
    constants = sum(data.length for data in region.external_data.values())
    if not constants or len(blob) < max(_NOTED_BYTES, _NOTED_SHARE * constants):
        return ""
    changed = "OpenVINO changed them when it compiled"
    reason = weights.reason if isinstance(weights, EmbeddedWeights) else changed
    return f"its blob holds {len(blob) / 2**20:.1f} MiB of weights a second time, since {reason}"


def _list_files(region: Region) -> set[Path]:
    return {data.path for data in region.external_data.values()}


def _digest_offsets(region: Region) -> str:
    offsets = sorted((name, d.offset, d.length) for name, d in region.external_data.items())
    return hashlib.sha256(repr(offsets).encode()).hexdigest()


_PATIENCE = 600.0  # seconds
_SAME = 1e-3  # of the range; import lays out weights anew, which moves sums a little


def export_blob(
    region: Region,
    model: Any,
    inputs: Sequence[str],
    options: OpenVINOOptions,
    weights: ReferredWeights | EmbeddedWeights,
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
        command = [sys.executable, "-P", "-m", f"{__package__}.openvino_worker", "compare", *asked]
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
