"""The weights of a bundle: one file for all of its models, with equal weights stored once."""

import hashlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from onnx import ModelProto, TensorProto

from byoc.model import copy_without, is_large, read_raw_bytes, walk_tensors, write_raw_bytes

WEIGHTS_FILE = "weights.bin"
# In bytes: enough for any vector load from a memory-mapped file.
_ALIGNMENT = 64


class WeightFile:
    """A writer of tensors to `weights.bin` in a folder; use as a context manager, as often as needed.

    Tensors of equal bytes are stored once, whatever their names, types and models.
    """

    def __init__(self, folder: Path) -> None:
        """Write to the file in a folder, which is made when it is first needed."""
        self._path = folder / WEIGHTS_FILE
        self._stored: dict[bytes, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        """Open the file, and return itself."""
        self._file = self._path.open("ab")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def add(self, tensor: TensorProto, folder: Path | None) -> TensorProto:
        """Move a tensor's data into the file and return the tensor; `folder` holds its external data."""
        offset, length = self._write(tensor, folder)
        moved = TensorProto(
            name=tensor.name,
            data_type=tensor.data_type,
            dims=tensor.dims,
            doc_string=tensor.doc_string,
            data_location=TensorProto.EXTERNAL,
        )
        moved.metadata_props.extend(tensor.metadata_props)
        for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", length)):
            moved.external_data.add(key=key, value=str(value))
        return moved

    def _write(self, tensor: TensorProto, folder: Path | None) -> tuple[int, int]:
        """Write a tensor's bytes, and return where they are: the offset and the length in bytes.

        They are hashed while they are written, since external data may be too large for memory; bytes
        that the file has already are cut off again.
        """
        before = self._file.tell()
        self._file.write(b"\0" * (-before % _ALIGNMENT))
        offset = self._file.tell()
        writer = _HashingWriter(self._file)
        length = write_raw_bytes(tensor, folder, writer)  # type: ignore[arg-type]
        own = offset, length
        found = self._stored.setdefault(writer.hash.digest(), own)
        if found != own:
            self._file.truncate(before)
            self._file.seek(before)
        return found


class _HashingWriter:
    """A file that hashes what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.hash.update(content)
        return self._file.write(content)


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
    for tensor in walk_tensors(result):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(_embed(tensor, folder))
    for name, tensor in [*((t.name, t) for t in model.graph.initializer), *lifted]:
        moved = weights.add(tensor, folder) if is_large(tensor) else _embed(tensor, folder)
        result.graph.initializer.add().CopyFrom(moved)
        result.graph.initializer[-1].name = name
    return result


def _embed(tensor: TensorProto, folder: Path | None) -> TensorProto:
    if tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    result = TensorProto()
    result.CopyFrom(tensor)
    result.raw_data = read_raw_bytes(tensor, folder)
    result.ClearField("data_location")
    del result.external_data[:]
    return result
