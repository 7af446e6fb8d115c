"""The choices that planning needs: those of `byoc.list_tasks`, and of `byoc.compare` besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import byoc.codegen
import byoc.support.cache
from byoc import costs, model, samples, verification, zoo
from byoc._dataclasses import KW_ONLY, dataclass, field
from byoc.support import Flag, Panel, Syntax, declare, declare_field, is_file

# Options as the manifest keeps them: plain JSON, files by their names alone.


def record_value(value: Any) -> Any:
    """Return a value as it is, for options that are plain JSON."""
    return value


def record_pairs(pairs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return pairs as a mapping, which is empty for None."""
    return dict(pairs or {})


VariantValue = int | str | Path | Sequence[str | Path]
"""A size or a relation of a variant's dimension, or, under VARIANT_RULES, its rule files."""
VARIANT_RULES = "rules"
"""The key of a variant's own rule files, among its dimensions."""


def record_variants(
    variants: Mapping[str, Mapping[str, VariantValue]] | None,
) -> dict[str, dict[str, Any]] | None:
    """Return the dimensions of variants and the names of their rule files by name, None without any."""
    if not variants:
        return None
    return {
        name: {
            key: said if isinstance(said, int) or key != VARIANT_RULES else record_files(said)
            for key, said in own.items()
        }
        for name, own in variants.items()
    }


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


DEFAULT_STRATEGY = "launch-aware"
DEFAULT_HOST_COSTS = "host"


@dataclass(frozen=True)
class UnitOptions(model.DimensionOptions):
    """The choices that units follow from, before anything is priced or placed."""

    rules: str | Path | Sequence[str | Path] = field(
        default=(),
        metadata=declare(
            "a rule file's path, or the name of a built-in one; several for several accelerators. "
            "Variants may have their own instead.",
            Flag(
                "A rule file, or the name of an installed one (byoc rules); one for each accelerator.",
                Syntax.LIST,
                metavar="FILE|NAME",
                required=True,
            ),
            record_files,
        ),
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
    within: str | None = declare_field(
        None,
        "what a placement may take at most by the other cost, all added up: `latency=5ms` where the "
        "objective is energy, `energy=2mJ` where it is latency.",
        Flag(
            "The most that it may take by the other cost: latency=5ms, energy=2mJ.",
            metavar="COST=AMOUNT",
            panel=Panel.PLACEMENT,
        ),
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
        lambda path: None if path is None else zoo.name_source(path),
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


# The choices about codegens and passes: what compiles the regions, and in which way.


@dataclass(frozen=True, kw_only=True)
class CompileOptions(PlanOptions):
    """The choices that compiling regions needs besides those of planning."""

    codegen: str | Mapping[str, str] | None = declare_field(
        None,
        "the codegen's name, or one for each accelerator; the rule file's unless given.",
        Flag(
            "What compiles the regions, see byoc codegens; by default the rule file's.",
            Syntax.BY_TARGET,
            metavar="[TARGET=]NAME",
            panel=Panel.CODEGENS,
        ),
        record_choice,
        record_none=True,
    )
    codegen_options: Mapping[str, str] | None = declare_field(
        None,
        "options by `name`, or by `target:name` for the codegen of one target; they win over those "
        "of the rule files.",
        Flag(
            "An option of the codegen, see byoc codegens CODEGEN; it wins over the rule file's.",
            Syntax.PAIRS,
            names=("--codegen-option",),
            metavar="[TARGET:]NAME=VALUE",
            panel=Panel.CODEGENS,
        ),
        record_pairs,
    )
    passes: str | Sequence[str] = declare_field(
        (),
        "names of passes (`byoc.passes` entry points), which rewrite the model before it is annotated, "
        "or each region before its codegen gets it; they run in this order.",
        Flag(
            "Rewrite the model, or the regions, by this pass: see byoc passes.",
            Syntax.LIST,
            names=("--pass",),
            metavar="NAME",
            panel=Panel.CODEGENS,
        ),
        record_names,
    )
    pass_options: Mapping[str, str] | None = declare_field(
        None,
        "options of the passes by `name`, or by `pass:name` for one of several.",
        Flag(
            "An option of a pass, see byoc passes.",
            Syntax.PAIRS,
            names=("--pass-option",),
            metavar="[PASS:]NAME=VALUE",
            panel=Panel.CODEGENS,
        ),
        record_texts,
    )
    strict: bool = declare_field(
        False,
        "a region that its codegen does not compile, load or run is an error; without this its "
        "nodes go elsewhere, the model is cut anew, and the report tells of it.",
        Flag(
            "Stop with an error where a region cannot be compiled or run.",
            Syntax.SWITCH,
            panel=Panel.CODEGENS,
        ),
        record_value,
    )
    isolate: bool = declare_field(
        False,
        "compile, load and run regions in processes of the codegens' own, which may crash or be killed.",
        Flag("Run codegens in processes of their own.", Syntax.SWITCH, panel=Panel.CODEGENS),
        record_value,
    )
    compile_timeout: float | None = declare_field(
        None,
        "the most seconds that compiling a region may take, which implies `isolate`.",
        Flag(
            "Stop compiling a region after this; implies --isolate.",
            Syntax.NUMBER,
            metavar="SECONDS",
            panel=Panel.CODEGENS,
        ),
        record_value,
        record_none=True,
    )
    call_timeout: float | None = declare_field(
        None,
        "the most seconds that any call of a codegen may take, such as one run of a region, which "
        "implies `isolate`; for compiling, `compile_timeout` wins.",
        Flag(
            "Stop any call of a codegen after this; implies --isolate.",
            Syntax.NUMBER,
            metavar="SECONDS",
            panel=Panel.CODEGENS,
        ),
        record_value,
    )
    cache: bool = declare_field(
        True,
        "take artifacts that were compiled before, of the same region by the same compiler, and keep "
        "what is compiled.",
        Flag(
            "Keep compiled regions for the next run, and take those of earlier ones.",
            Syntax.ON_OFF,
            panel=Panel.CODEGENS,
        ),
    )
    jobs: int | None = declare_field(
        None,
        "how many regions are compiled at a time; by default as many as there are processors if threads "
        "can share the codegen, else one, since more take further processes.",
        Flag(
            "Compile so many regions at a time; by default what the codegen does well with.",
            Syntax.INTEGER,
            metavar="NUMBER",
            minimum=1,
            panel=Panel.CODEGENS,
        ),
    )
    cache_dir: str | Path | None = declare_field(
        None,
        "the folder that compiled regions are kept in; by default `$XDG_CACHE_HOME/byoc/compiled`.",
        Flag(
            "Keep compiled regions in this folder.", Syntax.PATH, metavar="FOLDER", panel=Panel.CODEGENS
        ),
    )

    @property
    def isolation(self) -> byoc.codegen.Isolation | None:
        """The request for processes that codegens run in, None for this one."""
        limits = (self.compile_timeout, self.call_timeout)
        return byoc.codegen.Isolation(*limits) if self.isolate or limits != (None, None) else None

    def open_cache(self) -> byoc.support.cache.Cache | None:
        """Open the cache of compiled regions, None where there is to be none.

        Raises InputError for a folder that is not used as one.
        """
        if not self.cache:
            return None
        return (
            byoc.support.cache.open_user_cache()
            if self.cache_dir is None
            else byoc.support.cache.open_cache(self.cache_dir)
        )
