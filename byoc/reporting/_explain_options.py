"""The options of `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal

import byoc.rules
from byoc.model import DimensionOptions
from byoc.support import Flag, Syntax, declare, declare_field


@dataclass(frozen=True)
class ExplainOptions(DimensionOptions):
    """All choices of an explanation."""

    rules: str | Path | byoc.rules.Target = field(
        metadata=declare(
            "a rule file's path or name, or what `byoc.load_rules` returned.",
            Flag("A rule file, or the name of an installed one (see byoc rules)."),
        )
    )
    _: KW_ONLY
    no_passes: str | Sequence[str] = declare_field(
        (),
        "names of clean-up passes that are not to run, or `all`, as `partition` takes them.",
        Flag(
            "Leave out this pass that runs without being asked for, or all: see byoc passes.",
            Syntax.LIST,
            names=("--no-pass",),
            metavar="NAME",
        ),
    )
    values: Literal["shown", "assumed"] = declare_field(
        "shown",
        "whether nodes are refused whose whole numbers are not shown to stay where the accelerator is "
        "exact, as in `partition`.",
        Flag(
            "Refuse whole numbers that are not shown to be exact there, or assume that they are.",
            choices=("shown", "assumed"),
        ),
    )
    keep_open: bool = declare_field(
        False,
        "leave open dimensions open. Otherwise, where no size is given and nodes are refused for that, "
        "the sizes are those that `partition` chooses.",
        Flag("Leave open what is open; else sizes that rules need are chosen.", Syntax.SWITCH),
    )
    node: str | None = declare_field(
        None,
        "examine only the node of this name or output.",
        Flag("Only this node, by its name or output, with all that was tried."),
    )
    op: str | None = declare_field(
        None,
        "examine only nodes of this operator.",
        Flag("Only nodes of this operator, with all that was tried."),
    )
