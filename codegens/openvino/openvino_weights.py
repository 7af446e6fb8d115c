"""Weights that a blob does not hold: it reads them where the region's constants lie.

A blob that OpenVINO exports for size says at which byte of a file each constant begins, and not in which
file. What OpenVINO computes of constants when it compiles, a folded BatchNormalization for instance, is
in the blob itself.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byoc.codegen import YES, Artifact, Region, Verdict, refuse

from .openvino_device import is_read_from_file, openvino_core
from .openvino_options import OpenVINOOptions

_FILE, _OFFSETS = "weights_file", "weights_places"  # names in an artifact's metadata
_PATH_PROPERTY = "WEIGHTS_PATH"
_NOTED_BYTES = 1 << 20  # a note tells of a blob from this size on,
_NOTED_SHARE = 0.1  # if it is also this share of the region's constants


@dataclass(frozen=True)
class WeightFile:
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


def choose_weights(region: Region, options: OpenVINOOptions) -> WeightFile | EmbeddedWeights:
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
    return WeightFile(files.pop(), _digest_offsets(region))


def find_weight_file(region: Region, artifact: Artifact) -> WeightFile | None:
    """Return the file from which an artifact's blob reads weights, None where it holds them."""
    if _FILE not in artifact.metadata:
        return None
    return WeightFile(region.path.parent / artifact.metadata[_FILE], artifact.metadata[_OFFSETS])


def check_weight_offsets(region: Region, artifact: Artifact) -> Verdict:
    """Return whether the constants that a blob reads have the offsets that they had when it was made."""
    stated = find_weight_file(region, artifact)
    if stated is None:
        return YES
    names = {path.name for path in _list_files(region)}
    if names == {stated.path.name} and _digest_offsets(region) == stated.offsets:
        return YES
    return refuse(f"the blob reads weights at offsets in {stated.path.name} where they no longer lie")


def describe_embedded_weights(region: Region, blob: bytes, weights: WeightFile | EmbeddedWeights) -> str:
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
