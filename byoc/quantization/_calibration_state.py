"""The progress of a calibration, kept in a file so that an interrupted one can be continued.

The file is a NumPy archive (.npz) that is replaced as a whole. It identifies the calibration that it
belongs to; another one is not continued from it.
"""

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from byoc.errors import InputError
from byoc.model import Model, copy_without, find_external_data
from byoc.support import write_atomically

_FORMAT = "3"
Purpose = Mapping[str, str]
"""What a calibration is of: `model`, `method`, `tensors` and `data`, each as a text that tells it."""


@dataclass(eq=False)
class CalibrationState:
    """Statistics of the tensors, one entry for each, and the progress of the calibration.

    `channel_low` and `channel_high` are those of channels, tensor after tensor. `usual` has sums over
    samples, `[outputs, 3]`: of the ends that usual values of an output lie between, and of the samples
    that have some. `stage` counts the
    passes over the data, `done` the samples of the present pass so far, `samples` those of the first.
    `infinite` is the first sample in which a tensor is infinite, or -1. `counts` are those of the
    histograms and exist from the second pass on.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    size: NDArray[np.int64]
    infinite: NDArray[np.int64]
    channel_low: NDArray[np.float32]
    channel_high: NDArray[np.float32]
    usual: NDArray[np.float64]
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    stage: int = 0
    done: int = 0
    samples: int = 0

    @classmethod
    def start(cls, tensors: int, channels: int, outputs: int) -> "CalibrationState":
        """Return the statistics before the first sample; `channels` is the number of all channels."""
        return cls(
            np.full(tensors, np.inf, np.float32),
            np.full(tensors, -np.inf, np.float32),
            np.zeros(tensors, np.int64),
            np.full(tensors, -1, np.int64),
            np.full(channels, np.inf, np.float32),
            np.full(channels, -np.inf, np.float32),
            np.zeros((outputs, 3)),
        )


def save_state(path: Path, purpose: Purpose, seen: CalibrationState) -> None:
    """Write the progress of a calibration. Raises InputError if the file cannot be written."""
    document = json.dumps({"format": _FORMAT, **purpose})
    write_atomically(path, lambda file: np.savez(file, purpose=np.array(document), **vars(seen)))


def load_state(path: Path, purpose: Purpose, sizes: tuple[int, int, int]) -> CalibrationState:
    """Return the progress of a calibration from its file, or the initial one if there is no file.

    `sizes` are the numbers of tensors, of all channels, and of outputs with usual values.

    Raises InputError if the file belongs to another calibration, or cannot be read.
    """
    if not path.exists():
        return CalibrationState.start(*sizes)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            saved_purpose = json.loads(str(archive["purpose"]))
            arrays = {name: archive[name] for name in CalibrationState.__dataclass_fields__}
            fields = {name: array if array.ndim else array.item() for name, array in arrays.items()}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        raise InputError(
            f"{path}: is not the state of a calibration, or is damaged: remove it to start anew"
        ) from None
    expected = {"format": _FORMAT, **purpose}
    others = [name for name in expected if saved_purpose.get(name) != expected[name]]
    if others:
        raise InputError(
            f"{path}: is the state of a calibration with another {' and another '.join(others)}: remove"
            " it to start anew, or write to another file"
        )
    return CalibrationState(**fields)


def hash_model(model: Model) -> str:
    """Return a hash of a model that is equal for equal models.

    Files with external data are identified by their size and time of change, since they may be huge.
    """
    result = hashlib.sha256(
        copy_without(model.proto, "initializer").SerializeToString(deterministic=True)
    )
    for tensor in model.proto.graph.initializer:
        location = find_external_data(tensor, model.folder)
        if location is None:
            result.update(tensor.SerializeToString(deterministic=True))
            continue
        status = location.path.stat()
        plain = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
        result.update(plain.SerializeToString(deterministic=True))
        result.update(repr((location.offset, status.st_size, status.st_mtime_ns)).encode())
    return result.hexdigest()
