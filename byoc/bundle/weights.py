"""The weight file of a bundle, shared by all its models; each tensor is stored once."""

from pathlib import Path
from types import TracebackType
from typing import Self

from onnx import ModelProto, TensorProto

from byoc.graph.copying import copy_without
from byoc.graph.tensors import is_large, read_raw_bytes, write_raw_bytes
from byoc.graph.walk import walk_tensors

WEIGHTS_FILE = "weights.bin"
# In bytes: enough for any vector load from a memory-mapped file.
_ALIGNMENT = 64


class WeightFile:
    """A writer of tensors to `weights.bin` in a folder; use as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Create the file in a folder."""
        self._file = (folder / WEIGHTS_FILE).open("wb")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def add(self, tensor: TensorProto, folder: Path | None) -> TensorProto:
        """Move a tensor's data into the file and return the tensor; `folder` holds its external data."""
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
        offset = self._file.tell()
        length = write_raw_bytes(tensor, folder, self._file)
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
