"""The weights of a bundle: one file for all of its models, with equal weights stored once."""

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Self

from onnx import ModelProto, TensorProto

from byoc.bundle._original_weights import OriginalFiles
from byoc.model import (
    ExternalData,
    copy_without,
    embed_external_data,
    find_external_data,
    is_large,
    walk_tensors,
    write_raw_bytes,
)

WEIGHTS_FILE = "weights.bin"
# In bytes: enough for any vector load from a memory-mapped file.
_ALIGNMENT = 64


class WeightFile:
    """A writer of tensors to `weights.bin` in a folder; use as a context manager, as often as needed.

    Tensors of equal bytes are stored once, whatever their names, types and models; those that stand in
    the user's files, which the bundle shares, not at all.
    """

    def __init__(self, folder: Path, originals: OriginalFiles | None = None) -> None:
        """Write to the file in a folder, which is made when it is first needed."""
        self.folder = folder
        self._path = folder / WEIGHTS_FILE
        self._stored: dict[bytes, ExternalData] = {}
        self._moved: dict[tuple[Path, int, int], ExternalData] = {}
        self.originals = originals or OriginalFiles(folder, folder, "copy")

    def __enter__(self) -> Self:
        """Open the file, and return itself."""
        self._file = self._path.open("ab")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def add(
        self, tensor: TensorProto, folder: Path | None, known: dict[str, Path] | None = None
    ) -> TensorProto:
        """Move a tensor's data into the file and return the tensor; `folder` holds its external data.

        `known` is as in `byoc.model.find_external_data`.
        """
        place = self._find_moved(tensor, folder, known)
        moved = TensorProto(
            name=tensor.name,
            data_type=tensor.data_type,
            dims=tensor.dims,
            doc_string=tensor.doc_string,
            data_location=TensorProto.EXTERNAL,
        )
        moved.metadata_props.extend(tensor.metadata_props)
        fields = {"location": place.path.name, "offset": place.offset, "length": place.length}
        for key, value in fields.items():
            moved.external_data.add(key=key, value=str(value))
        return moved

    def _find_moved(
        self, tensor: TensorProto, folder: Path | None, known: dict[str, Path] | None
    ) -> ExternalData:
        """Return the new location of a tensor's data; what variants read of one file is read once."""
        own = find_external_data(tensor, folder, known)
        if own is None:
            return self._write(tensor, folder)
        key = own.path, own.offset, own.length
        if key not in self._moved:
            self._moved[key] = self.originals.find(own) or self._write(tensor, folder)
        return self._moved[key]

    def _write(self, tensor: TensorProto, folder: Path | None) -> ExternalData:
        """Write a tensor's bytes, and return where they are.

        They are hashed while they are written, since external data may be too large for memory; bytes
        that are there already are cut off again.
        """
        before = self._file.tell()
        self._file.write(b"\0" * (-before % _ALIGNMENT))
        offset = self._file.tell()
        hashed = hashlib.sha256()

        def write(block: bytes | memoryview) -> None:
            hashed.update(block)
            self._file.write(block)

        length = write_raw_bytes(tensor, folder, write)
        digest = hashed.digest()
        found = self._stored.get(digest) or self.originals.find_equal(length, digest)
        if found is not None:
            self._file.truncate(before)
            self._file.seek(before)
        self._stored[digest] = found or ExternalData(self._path, offset, length)
        return self._stored[digest]


def move_weights(model: ModelProto, folder: Path | None, weights: WeightFile) -> ModelProto:
    """Move a model's large constants into the weight file, and embed all others; return the model.

    A large tensor in a Constant node of the main graph becomes an initializer. `folder` holds the
    model's external data.
    """
    result = copy_without(model, "initializer", "node")
    lifted = []
    for node in model.graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and value is not None and is_large(value):
            lifted.append((node.output[0], value))
        else:
            result.graph.node.append(node)
    # onnxruntime supports external data only in initializers of the main graph.
    embed_external_data(walk_tensors(result), folder)
    known: dict[str, Path] = {}
    for name, tensor in [*((t.name, t) for t in model.graph.initializer), *lifted]:
        moved = weights.add(tensor, folder, known) if is_large(tensor) else _embed(tensor, folder)
        result.graph.initializer.add().CopyFrom(moved)
        result.graph.initializer[-1].name = name
    return result


def _embed(tensor: TensorProto, folder: Path | None) -> TensorProto:
    if tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    result = TensorProto()
    result.CopyFrom(tensor)
    embed_external_data((result,), folder)
    return result
