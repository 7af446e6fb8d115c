"""The choices about codegens and passes: what compiles the regions, and in which way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import byoc.cache
import byoc.codegen
from byoc.options._plan_options import PlanOptions
from byoc.options._record_values import (
    record_choice,
    record_names,
    record_pairs,
    record_texts,
    record_value,
)
from byoc.support import Flag, Panel, Syntax, declare_field


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

    def open_cache(self) -> byoc.cache.Cache | None:
        """Open the cache of compiled regions, None where there is to be none.

        Raises InputError for a folder that is not used as one.
        """
        if not self.cache:
            return None
        return (
            byoc.cache.open_user_cache()
            if self.cache_dir is None
            else byoc.cache.open_cache(self.cache_dir)
        )
