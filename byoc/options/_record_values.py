"""Options as the manifest keeps them: plain JSON, files by their names alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from byoc import samples, verification, zoo
from byoc.support import is_file


def record_value(value: Any) -> Any:
    """Return a value as it is, for options that are plain JSON."""
    return value


def record_pairs(pairs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return pairs as a mapping, which is empty for None."""
    return dict(pairs or {})


def record_variants(
    variants: Mapping[str, Mapping[str, int | str]] | None,
) -> dict[str, dict[str, int | str]] | None:
    """Return the dimensions of variants by name, None without any."""
    return {name: dict(dims) for name, dims in variants.items()} if variants else None


def record_texts(pairs: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return options as they were given, None without any; an existing file by its name alone."""
    if not pairs:
        return None
    return {key: zoo.name_source(text) if is_file(Path(text)) else text for key, text in pairs.items()}


def record_names(names: str | Sequence[str]) -> list[str] | None:
    """Return one name or several as a list, None without any."""
    return list_names(names) or None


def record_files(files: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the names of one file or several, without their folders."""
    return [zoo.name_source(name) for name in list_files(files)]


def record_choice(
    choice: str | Path | Mapping[str, str] | Mapping[str, str | Path] | None,
) -> str | dict[str, str] | None:
    """Return a choice of files or plug-ins, for all targets or for each, by their names alone."""
    if choice is None or isinstance(choice, str | Path):
        return None if choice is None else zoo.name_source(choice)
    return {target: zoo.name_source(name) for target, name in choice.items()}


def record_inputs(inputs: str | Path | samples.Inputs | Sequence[samples.Inputs] | None) -> str | None:
    """Return the name of the file or folder of samples, None without any."""
    if inputs is None:
        return None
    if isinstance(inputs, (str, Path)):
        return zoo.name_source(inputs)
    return "samples in memory"


def list_files(files: str | Path | Sequence[str | Path]) -> list[str | Path]:
    """Return one file or several as a list."""
    return [files] if isinstance(files, (str, Path)) else list(files)


def list_names(names: str | Sequence[str]) -> list[str]:
    """Return one name or several as a list."""
    return [names] if isinstance(names, str) else list(names)


def record_thresholds(allowed: verification.Thresholds | None) -> dict[str, float | None] | None:
    """Return the largest errors that are allowed, None for any."""
    if allowed is None:
        return None
    return {
        **allowed.relative,
        verification.QUANTIZED_THRESHOLD: allowed.units,
        "signal_to_noise": allowed.signal_to_noise,
    }
