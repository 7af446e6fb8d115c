"""The weights of a bundle: one file, each tensor in it once, shared by every model in the folder."""

from pathlib import Path
from types import TracebackType
from typing import Self

from onnx import ModelProto, TensorProto

from byoc.graph.copying import copy_without
from byoc.graph.tensors import raw_bytes, stored_bytes
from byoc.graph.walk import attribute_tensors, walk_graphs

NAME = "weights.bin"
# Small constants (shapes, axes) stay in the model, where shape inference reads them.
_INLINE_BYTES = 1024
# Enough for any vector load, so that a mapped file can be used in place.
_ALIGNMENT = 64


class WeightFile:
    """Writes tensors to `weights.bin` in a folder, one after the other; use as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Create the file in a folder."""
        self._file = (folder / NAME).open("wb")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def add(self, tensor: TensorProto, folder: Path | None) -> TensorProto:
        """Return the tensor with its data moved into the file; `folder` is where it lies so far."""
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
        offset = self._file.tell()
        length = self._file.write(raw_bytes(tensor, folder))
        moved = TensorProto(
            name=tensor.name,
            data_type=tensor.data_type,
            dims=tensor.dims,
            doc_string=tensor.doc_string,
            data_location=TensorProto.EXTERNAL,
        )
        moved.metadata_props.extend(tensor.metadata_props)
        for key, value in (("location", NAME), ("offset", offset), ("length", length)):
            moved.external_data.add(key=key, value=str(value))
        return moved


def move_weights(model: ModelProto, folder: Path | None, weights: WeightFile) -> ModelProto:
    """Return the model with its large initializers in the weight file and nothing left elsewhere.

    `folder` is where the model's external data lies so far.
    """
    result = copy_without(model, "initializer")
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.STRING or stored_bytes(tensor) <= _INLINE_BYTES:
            result.graph.initializer.append(_inlined(tensor, folder))
        else:
            result.graph.initializer.append(weights.add(tensor, folder))
    for graph in walk_graphs(result.graph):
        for tensor in graph.initializer if graph is not result.graph else ():
            if tensor.data_location == TensorProto.EXTERNAL:
                tensor.CopyFrom(weights.add(tensor, folder))
    for tensor in attribute_tensors(result):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(_inlined(tensor, folder))
    return result


def _inlined(tensor: TensorProto, folder: Path | None) -> TensorProto:
    if tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    result = TensorProto()
    result.CopyFrom(tensor)
    result.raw_data = raw_bytes(tensor, folder)
    result.ClearField("data_location")
    del result.external_data[:]
    return result
