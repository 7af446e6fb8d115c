"""What benchmarks share: models written once, times taken in turn, the peak of memory."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import onnx

from byoc import zoo

T = TypeVar("T")


@contextmanager
def on_disk(name: str) -> Iterator[Path]:
    """Give a file with the zoo's model of that name; it is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save(zoo.load(name), path)
        yield path


def timed(action: Callable[..., T], *arguments: object) -> tuple[float, T]:
    """Return the seconds that a call took, and what it gave."""
    start = time.perf_counter()
    result = action(*arguments)
    return time.perf_counter() - start, result


def cpu_timed(action: Callable[..., T], *arguments: object) -> tuple[float, T]:
    """Return the seconds of processor time that a call took in this process, and what it gave."""
    start = time.process_time()
    result = action(*arguments)
    return time.process_time() - start, result


def read_and_infer(path: Path) -> None:
    """What everything is held against: reading a model and inferring its shapes, with `onnx` alone."""
    onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)


def machine() -> str:
    """Return the machine in words: processors and Python."""
    return f"{os.cpu_count()} processors, Python {sys.version.split()[0]}"
