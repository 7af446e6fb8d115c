"""The choices that planning needs: those of `byoc.list_tasks`, and of `byoc.compare` besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal

from byoc import costs, model, zoo
from byoc.options._record_values import (
    record_choice,
    record_files,
    record_names,
    record_pairs,
    record_texts,
    record_value,
)
from byoc.support import Flag, Panel, Syntax, declare, declare_field

DEFAULT_STRATEGY = "launch-aware"
DEFAULT_HOST_COSTS = "host"


@dataclass(frozen=True)
class UnitOptions(model.DimensionOptions):
    """The choices that units follow from, before anything is priced or placed."""

    rules: str | Path | Sequence[str | Path] = field(
        metadata=declare(
            "a rule file's path, or the name of a built-in one; several for several accelerators.",
            Flag(
                "A rule file, or the name of an installed one (byoc rules); one for each accelerator.",
                Syntax.LIST,
                metavar="FILE|NAME",
            ),
            record_files,
        )
    )
    _: KW_ONLY
    trips: Mapping[str, float] | None = declare_field(
        None,
        "how often Loops and Scans run, by node name, where the model does not say.",
        Flag(
            "How often the body of a Loop or Scan runs, by the name or an output of that node.",
            Syntax.SIZES,
            metavar="NAME=NUMBER",
            panel=Panel.COSTS,
        ),
        record_pairs,
    )
    no_passes: str | Sequence[str] = declare_field(
        (),
        "names of clean-up passes that are not to run, or `all`: they run before a model is planned "
        "without being asked for.",
        Flag(
            "Leave out this pass that runs without being asked for, or all: see byoc passes.",
            Syntax.LIST,
            names=("--no-pass",),
            metavar="NAME",
            panel=Panel.CODEGENS,
        ),
        record_names,
    )


@dataclass(frozen=True, kw_only=True)
class PlanOptions(UnitOptions):
    """The choices that planning needs, whatever the strategy."""

    values: Literal["shown", "assumed"] = declare_field(
        "shown",
        "of nodes whose whole numbers may leave what an accelerator promises to compute exactly, take "
        "none (`shown`: only those that are shown to stay inside), or all (`assumed`), on conditions "
        "that the report states.",
        Flag(
            "Offload whole numbers where they are shown to be exact there, or assume that they are.",
            choices=("shown", "assumed"),
            panel=Panel.PLACEMENT,
        ),
        lambda values: None if values == "shown" else values,
    )
    state: Mapping[str, str] | None = declare_field(
        None,
        "inputs that take what outputs gave in the last call, as a decoder's cache; those that are "
        "found unless given. They are not sent where rule files say that accelerators keep them.",
        Flag(
            "An input that takes what an output gave in the last call; found unless given.",
            Syntax.PAIRS,
            metavar="PAST=PRESENT",
            panel=Panel.COSTS,
        ),
        record_texts,
    )
    objective: str = declare_field(
        "latency",
        "`latency`, `energy`, or weights of both: `latency=1,energy=0.5`.",
        Flag("latency, energy, or weights of both: latency=1,energy=0.5."),
        record_value,
    )
    cost_model: str | Path | Mapping[str, str | Path] | None = declare_field(
        None,
        "the accelerator's cost model, a path or a name, or one for each of several accelerators "
        "by name; the rule file's unless given.",
        Flag(
            "The accelerator's costs, see byoc cost-models; by default the rule file's.",
            Syntax.BY_TARGET,
            metavar="[TARGET=]NAME",
            panel=Panel.COSTS,
        ),
        record_choice,
        record_none=True,
    )
    host_cost_model: str | Path = declare_field(
        DEFAULT_HOST_COSTS,
        "the host's cost model; `host` is the one that the accelerator's cost model names "
        "(`beside`), if it does.",
        Flag(
            "The host's costs; by default those that the accelerator's name, if any.", panel=Panel.COSTS
        ),
        zoo.name_source,
    )
    cost_options: Mapping[str, str] | None = declare_field(
        None,
        "options of the accelerators' cost models by `name`, of one target's by `target:name`, of the "
        "host's by `host:name`.",
        Flag(
            "An option of a cost model that is a plug-in; host:NAME=VALUE for the host's.",
            Syntax.PAIRS,
            names=("--cost-option",),
            metavar="[TARGET:]NAME=VALUE",
            panel=Panel.COSTS,
        ),
        record_texts,
    )
    strategy_options: Mapping[str, str] | None = declare_field(
        None,
        "options of the placement strategy by `name`, or by `strategy:name` where several are compared.",
        Flag(
            "An option of the strategy, see byoc strategies.",
            Syntax.PAIRS,
            names=("--strategy-option",),
            metavar="[STRATEGY:]NAME=VALUE",
            panel=Panel.PLACEMENT,
        ),
        record_texts,
    )
    time_limit: float | None = declare_field(
        None,
        "seconds of an ordinary computer that the strategy may take, counted by its steps, so that the "
        "plan does not depend on the machine: 10 unless given. Cheap strategies have no limit.",
        Flag(
            "The most that the strategy may take, counted by its steps; it returns the best found.",
            Syntax.NUMBER,
            metavar="SECONDS",
            panel=Panel.PLACEMENT,
        ),
        record_value,
    )
    unknown_costs: str = declare_field(
        costs.Policy.estimate.value,
        "what to do about a cost that no model knows: `refuse`, `host` or `estimate`.",
        Flag(
            "Where a cost is not known: stop, leave it on the host, or guess.",
            choices=tuple(policy.value for policy in costs.Policy),
            panel=Panel.COSTS,
        ),
        record_value,
    )
    perturb: float | None = declare_field(
        None,
        "the standard deviation of the logarithm of random factors on all costs, to see how much the "
        "placement depends on them; 0.5 is a factor of 1.6 up or down.",
        Flag(
            "Say what becomes of the placement at costs off by random factors.",
            Syntax.NUMBER,
            metavar="SIGMA",
            panel=Panel.PLACEMENT,
        ),
        record_value,
    )
    perturb_samples: int | None = declare_field(
        None,
        "how often costs are drawn, 32 unless given.",
        Flag(
            "Draw costs so often for --perturb, 32 times unless given.",
            Syntax.INTEGER,
            names=("--samples",),
            metavar="NUMBER",
            minimum=1,
            panel=Panel.PLACEMENT,
        ),
        record_value,
    )
    perturb_seed: int | None = declare_field(
        None,
        "the seed of the factors, 0 unless given.",
        Flag(
            "The seed for --perturb.", Syntax.INTEGER, metavar="NUMBER", minimum=0, panel=Panel.PLACEMENT
        ),
        record_value,
    )
