"""A pip that brings wheels made up on the spot, or fails in a way that it is told."""

import io
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from byoc.zoo._trained_models import TrainedModel, TrainedRow, WheelPackage

Failure = str | BaseException


def model(name: str, content: bytes, requirement: str = "pack==1", **changes: object) -> TrainedModel:
    """Return a row of a table for a file `NAME.onnx` of a wheel."""
    row = TrainedRow(
        family="test",
        file=f"inside/{name}.onnx",
        bytes=len(content),
        sha256=sha256(content).hexdigest(),
        nodes=1,
        inputs={},
    ).model_copy(update=changes)
    return TrainedModel(
        name, requirement, WheelPackage(licence="MIT", bytes=1000, models={name: row}), row
    )


def wheel(members: Mapping[str | ZipInfo, bytes]) -> bytes:
    """Return a zip with the members given."""
    whole = io.BytesIO()
    with ZipFile(whole, "w", ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return whole.getvalue()


@dataclass
class FakePip:
    """Stands in for `subprocess.run`; `wheels` and `failures` are by requirement."""

    wheels: dict[str, bytes] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    only_elsewhere: set[str] = field(default_factory=set)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    during: Callable[[Path], None] = lambda folder: None

    def run(self, command: tuple[str, ...], **_: object) -> subprocess.CompletedProcess[str]:
        """Do what pip would."""
        self.commands.append(command)
        requirement, folder = command[-1], Path(command[command.index("--dest") + 1])
        self.during(folder)
        failure = self.failures.get(requirement, "")
        if isinstance(failure, BaseException):
            (folder / "half.whl").write_bytes(b"PK")
            raise failure
        if requirement in self.only_elsewhere and "--platform" not in command:
            failure = f"ERROR: No matching distribution found for {requirement}"
        if failure:
            return subprocess.CompletedProcess(command, 1, "", failure)
        if requirement in self.wheels:
            (folder / "pack-1-py3-none-any.whl").write_bytes(self.wheels[requirement])
        return subprocess.CompletedProcess(command, 0, "", "")
