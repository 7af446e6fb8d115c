"""The options of `simplify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from byoc import samples
from byoc.model import DimensionOptions
from byoc.support import (
    Flag,
    Syntax,
    declare_field,
)


@dataclass(frozen=True, kw_only=True)
class SimplifyOptions(DimensionOptions):
    """The choices of `simplify`."""

    output: str | Path | None = declare_field(
        None,
        "where to write the simplified model; without it nothing is written.",
        Flag("Write the simplified model here.", Syntax.PATH, names=("--output", "-o")),
    )
    rules: str | Path | Sequence[str | Path] = declare_field(
        (),
        "rule files of accelerators: the model is planned for them before and after.",
        Flag("Show what this accelerator takes before and after.", Syntax.LIST, metavar="FILE|NAME"),
    )
    pass_options: Mapping[str, str] | None = declare_field(
        None,
        "options of the pass, as text: `largest` is the size of the largest constant that is made.",
        Flag(
            "An option of the pass simplify, see byoc passes.",
            Syntax.PAIRS,
            names=("--pass-option",),
            metavar="NAME=VALUE",
        ),
    )
    inputs: str | Path | samples.Inputs | Sequence[samples.Inputs] | None = declare_field(
        None,
        "what to compare on instead of made samples, as `partition` takes it.",
        Flag("Compare on these samples, by the names of the inputs.", metavar="FILE|FOLDER"),
    )
    verify: bool = declare_field(
        True,
        "compare the simplified model with the original, if onnxruntime is there.",
        Flag("Run the result and the original, and compare.", Syntax.ON_OFF),
    )
