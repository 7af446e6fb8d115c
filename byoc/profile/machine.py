"""The description of the machine that measurements were made on, without its owner or name."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from byoc.costs.file import MeasuredMachine

_PACKAGES = {"byoc": "onnx-byoc", "onnx": "onnx", "onnxruntime": "onnxruntime", "numpy": "numpy"}


def describe_machine() -> MeasuredMachine:
    """Describe the processor, usable cores, system and package versions of this machine."""
    versions = {"python": platform.python_version()}
    for name, package in _PACKAGES.items():
        try:
            versions[name] = version(package)
        except PackageNotFoundError:
            continue
    return MeasuredMachine(
        cpu=_cpu_name(), cores=_count_cores(), os=f"{platform.system()} {platform.machine()}", versions=versions
    )


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor()
