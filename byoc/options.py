"""The choices of a user, each declared once: for Python, the command line and the manifest alike.

The keyword arguments of `byoc.partition` and `byoc.fastest`, the flags of `byoc partition` and
`byoc compare`, and what the manifest records as `asked` are all derived from the fields here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from byoc.cache import Cache, open_cache, open_user_cache
from byoc.codegen import Isolation
from byoc.costs import Policy
from byoc.errors import InputError
from byoc.model import DimensionOptions
from byoc.placement import Robust
from byoc.quantization import NATIVE, Precision
from byoc.samples import Inputs
from byoc.support import Flag, Syntax, declaration_of, declare, declare_field, is_file
from byoc.verification import DEFAULT_THRESHOLDS, QUANTIZED_THRESHOLD, TOLERANCE, Thresholds
from byoc.zoo import Source, name_source

DEFAULT_STRATEGY = "launch-aware"
DEFAULT_HOST_COSTS = "host"


def _record_value(value: Any) -> Any:
    return value


def _record_pairs(pairs: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(pairs or {})


def _record_texts(pairs: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return options as they were given, None without any; an existing file by its name alone."""
    if not pairs:
        return None
    return {key: name_source(text) if is_file(Path(text)) else text for key, text in pairs.items()}


def _record_files(files: str | Path | Sequence[str | Path]) -> list[str]:
    return [name_source(name) for name in list_files(files)]


def _record_choice(
    choice: str | Path | Mapping[str, str] | Mapping[str, str | Path] | None,
) -> str | dict[str, str] | None:
    """Return a choice of files or plug-ins, for all targets or for each, by their names alone."""
    if choice is None or isinstance(choice, str | Path):
        return None if choice is None else name_source(choice)
    return {target: name_source(name) for target, name in choice.items()}


def _record_inputs(inputs: str | Path | Inputs | Sequence[Inputs] | None) -> str:
    """Return the name of the file or folder of samples."""
    if isinstance(inputs, (str, Path)):
        return name_source(inputs)
    return "samples in memory"


def list_files(files: str | Path | Sequence[str | Path]) -> list[str | Path]:
    """Return one file or several as a list."""
    return [files] if isinstance(files, (str, Path)) else list(files)


@dataclass(frozen=True)
class PlanOptions(DimensionOptions):
    """The choices that planning needs, whatever the strategy."""

    rules: str | Path | Sequence[str | Path] = field(
        metadata=declare(
            "a rule file's path, or the name of a built-in one; several for several accelerators.",
            Flag(
                "A rule file, or the name of an installed one (byoc rules); one for each accelerator.",
                Syntax.LIST,
            ),
            _record_files,
        )
    )
    _: KW_ONLY
    objective: str = declare_field(
        "latency",
        "`latency`, `energy`, or weights of both: `latency=1,energy=0.5`.",
        Flag("latency, energy, or weights of both: latency=1,energy=0.5."),
        _record_value,
    )
    cost_model: str | Path | Mapping[str, str | Path] | None = declare_field(
        None,
        "the accelerator's cost model, a path or a name, or one for each of several accelerators "
        "by name; the rule file's unless given.",
        Flag(
            "The accelerator's costs, see byoc cost-models; by default the rule file's.",
            Syntax.BY_TARGET,
            metavar="[TARGET=]NAME",
        ),
        _record_choice,
    )
    host_cost_model: str | Path = declare_field(
        DEFAULT_HOST_COSTS,
        "the host's cost model; `host` is the one that the accelerator's cost model names "
        "(`beside`), if it does.",
        Flag("The host's costs; by default those that the accelerator's name, if any."),
        name_source,
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
        ),
        _record_texts,
        record_none=False,
    )
    strategy_options: Mapping[str, str] | None = declare_field(
        None,
        "options of the placement strategy by `name`, or by `strategy:name` where several are compared.",
        Flag(
            "An option of the strategy, see byoc strategies.",
            Syntax.PAIRS,
            names=("--strategy-option",),
            metavar="[STRATEGY:]NAME=VALUE",
        ),
        _record_texts,
        record_none=False,
    )
    time_limit: float | None = declare_field(
        None,
        "seconds that the strategy may take: counted by its steps where it can, else by the clock, on "
        "which the plan then depends. Unless given only `exact` looks at a clock, after ten minutes.",
        Flag(
            "The most that the strategy may take; it returns the best found.",
            Syntax.NUMBER,
            metavar="SECONDS",
        ),
        _record_value,
        record_none=False,
    )
    unknown_costs: str = declare_field(
        Policy.estimate.value,
        "what to do about a cost that no model knows: `refuse`, `host` or `estimate`.",
        Flag(
            "Where a cost is not known: stop, leave it on the host, or guess.",
            choices=tuple(policy.value for policy in Policy),
        ),
        _record_value,
    )
    perturb: float | None = declare_field(
        None,
        "the standard deviation of the logarithm of random factors on all costs, to see how much the "
        "placement depends on them; 0.5 is a factor of 1.6 up or down.",
        Flag(
            "Say what becomes of the placement at costs off by random factors.",
            Syntax.NUMBER,
            metavar="SIGMA",
        ),
        _record_value,
        record_none=False,
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
        ),
        _record_value,
        record_none=False,
    )
    perturb_seed: int | None = declare_field(
        None,
        "the seed of the factors, 0 unless given.",
        Flag("The seed for --perturb.", Syntax.INTEGER, metavar="NUMBER", minimum=0),
        _record_value,
        record_none=False,
    )
    robust: str | None = declare_field(
        None,
        "take the placement of least regret at the perturbed costs, `mean` or `worst`.",
        Flag(
            "With --perturb: take the placement whose regret is least on average, or at worst.",
            choices=tuple(choice.value for choice in Robust),
        ),
        _record_value,
        record_none=False,
    )
    trips: Mapping[str, float] | None = declare_field(
        None,
        "how often Loops and Scans run, by node name, where the model does not say.",
        Flag(
            "How often the body of a Loop or Scan runs, by the name or an output of that node.",
            Syntax.SIZES,
            metavar="NAME=NUMBER",
        ),
        _record_pairs,
    )


@dataclass(frozen=True, kw_only=True)
class Options(PlanOptions):
    """All choices of a partitioning run. Raises InputError for a timeout or a gate that is none."""

    output: str | Path | None = declare_field(
        None,
        "where to write the bundle; without it nothing is compiled or verified. An existing bundle "
        "is replaced, whole; anything else that is there is left alone.",
        Flag(
            "Write the bundle here (.zip: packed); else only plan.",
            Syntax.PATH,
            names=("--output", "-o"),
        ),
    )
    strategy: str = declare_field(
        DEFAULT_STRATEGY,
        "the placement strategy's name (`byoc.strategies` entry points).",
        Flag("How to place the units: see byoc strategies."),
        _record_value,
    )
    codegen: str | Mapping[str, str] | None = declare_field(
        None,
        "the codegen's name, or one for each accelerator; the rule file's unless given.",
        Flag(
            "What compiles the regions, see byoc codegens; by default the rule file's.",
            Syntax.BY_TARGET,
            metavar="[TARGET=]NAME",
        ),
        _record_choice,
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
        ),
        _record_pairs,
    )
    placement: str | Path | None = declare_field(
        None,
        "a file that says where some nodes are to be, as `save_placement` writes it.",
        Flag("A file that fixes the device of some nodes; --save-placement writes one.", Syntax.PATH),
        lambda path: None if path is None else name_source(path),
    )
    annotations: str | None = declare_field(
        None,
        "the metadata key of nodes in the model whose value names the device that they are wanted on: "
        "`host` or a target.",
        Flag("Place nodes on the device that their metadata of this key names.", metavar="KEY"),
        _record_value,
        record_none=False,
    )
    precision: Precision = declare_field(
        NATIVE,
        "what regions compute in, and what scales are concluded from.",
        record=lambda precision: precision.record,
    )
    inputs: str | Path | Inputs | Sequence[Inputs] | None = declare_field(
        None,
        "what the bundle is verified on instead of made samples: an `.npz` file, a folder as "
        "`calibrate` reads it, or one or several mappings of arrays by the names of the inputs.",
        Flag("Verify on these samples, by the names of the inputs.", metavar="FILE|FOLDER"),
        _record_inputs,
        record_none=False,
    )
    verify: bool = declare_field(
        True,
        "run the bundle and the original on samples and compare, if onnxruntime is there.",
        Flag("Run the result and the original, and compare.", Syntax.ON_OFF),
    )
    strict: bool = declare_field(
        False,
        "a region that its codegen does not compile, load or run is an error; without this its "
        "nodes go elsewhere, the model is cut anew, and the report tells of it.",
        Flag("Stop with an error where a region cannot be compiled or run.", Syntax.SWITCH),
        _record_value,
    )
    isolate: bool = declare_field(
        False,
        "compile, load and run regions in processes of the codegens' own, which may crash or be killed.",
        Flag("Run codegens in processes of their own.", Syntax.SWITCH),
        _record_value,
    )
    compile_timeout: float | None = declare_field(
        None,
        "the most seconds that compiling a region may take, which implies `isolate`.",
        Flag(
            "Stop compiling a region after this; implies --isolate.",
            Syntax.NUMBER,
            metavar="SECONDS",
        ),
        _record_value,
    )
    call_timeout: float | None = declare_field(
        None,
        "the most seconds that any call of a codegen may take, such as one run of a region, which "
        "implies `isolate`; for compiling, `compile_timeout` wins.",
        Flag(
            "Stop any call of a codegen after this; implies --isolate.",
            Syntax.NUMBER,
            metavar="SECONDS",
        ),
        _record_value,
        record_none=False,
    )
    cache: bool = declare_field(
        True,
        "take artifacts that were compiled before, of the same region by the same compiler, and keep "
        "what is compiled.",
        Flag("Keep compiled regions for the next run, and take those of earlier ones.", Syntax.ON_OFF),
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
        ),
    )
    ask: Literal["legality", "costs", "both"] | None = declare_field(
        None,
        "what codegens are asked about the model's units before these are placed: `legality`, which of "
        "them the compiler takes, `costs`, how many seconds they take, or `both`.",
        Flag(
            "Ask the codegen before placing: which units its compiler takes, their seconds, or both.",
            choices=("legality", "costs", "both"),
        ),
        _record_value,
        record_none=False,
    )
    share_blocks: bool = declare_field(
        False,
        "cut regions at the borders of repeated blocks, a decoder's layers, so that one is compiled "
        "for all; the codegen has to take weights, and each block is launched by itself.",
        Flag("Cut regions into their repeated blocks, which are compiled once.", Syntax.SWITCH),
        lambda share: share or None,
        record_none=False,
    )
    cache_dir: str | Path | None = declare_field(
        None,
        "the folder that compiled regions are kept in; by default `$XDG_CACHE_HOME/byoc/compiled`.",
        Flag("Keep compiled regions in this folder.", Syntax.PATH, metavar="FOLDER"),
    )
    gate: bool | float | Thresholds = declare_field(
        False,
        "compare each region alone with plain onnxruntime; those that are off by more than this go "
        "elsewhere, as if they were refused. True takes verification's thresholds; a number is the "
        "largest error of floats as a share of the range.",
        Flag(
            "Run each region alone, too; one whose error is too large goes back to the host.",
            Syntax.SWITCH,
        ),
        lambda gate: _record_thresholds(read_gate(gate)),
    )
    emit: Literal["epcontext"] | None = declare_field(
        None,
        "`epcontext` puts `model_ctx.onnx` into the bundle, the host's model with an EPContext node "
        "for each region, which ONNX Runtime loads where the codegen's provider is.",
        Flag(
            "Put a model with EPContext nodes into the bundle, for ONNX Runtime.",
            choices=("epcontext",),
        ),
        _record_value,
        record_none=False,
    )
    what_if: bool = declare_field(
        True,
        "estimate what would be gained if the accelerators supported more.",
        Flag("Estimate what would be gained if more were supported.", Syntax.ON_OFF),
    )
    sign: bool = declare_field(
        True,
        "sign the bundle with the key of this machine, so that native code in it runs here, and where "
        "the user trusts that key.",
        Flag("Sign the bundle with the key of this machine.", Syntax.ON_OFF),
    )
    progress: Callable[[str], None] | None = declare_field(
        None, "called with the name of each step as it begins."
    )

    def __post_init__(self) -> None:
        """Raise InputError for a timeout that is no time, and a gate below 0."""
        _ = self.isolation, self.largest_errors

    @property
    def isolation(self) -> Isolation | None:
        """The request for processes that codegens run in, None for this one."""
        limits = (self.compile_timeout, self.call_timeout)
        return Isolation(*limits) if self.isolate or limits != (None, None) else None

    def open_cache(self) -> Cache | None:
        """Open the cache of compiled regions, None where there is to be none.

        Raises InputError for a folder that is not used as one.
        """
        if not self.cache:
            return None
        return open_user_cache() if self.cache_dir is None else open_cache(self.cache_dir)

    @property
    def largest_errors(self) -> Thresholds | None:
        """The largest errors of a region by itself, None for any error."""
        return read_gate(self.gate)


def read_gate(gate: bool | float | Thresholds) -> Thresholds | None:
    """Return the largest errors of a region by itself, None for any. Raises InputError below 0."""
    if isinstance(gate, Thresholds):
        return gate
    if isinstance(gate, bool):
        return DEFAULT_THRESHOLDS if gate else None
    if not gate >= 0:
        raise InputError(f"gate {gate:g}: not an error of at least 0")
    return Thresholds(dict.fromkeys(TOLERANCE, gate), asked=frozenset(TOLERANCE))


def _record_thresholds(allowed: Thresholds | None) -> dict[str, float | None] | None:
    if allowed is None:
        return None
    return {
        **allowed.relative,
        QUANTIZED_THRESHOLD: allowed.units,
        "signal_to_noise": allowed.signal_to_noise,
    }


def record_options(source: Source, options: Options) -> dict[str, Any]:
    """Return the options as the manifest keeps them: plain JSON, files by their names alone."""
    record: dict[str, Any] = {"model": name_source(source)}
    for each in fields(options):
        declaration, value = declaration_of(each), getattr(options, each.name)
        if declaration is None or declaration.record is None:
            continue
        recorded = None if value is None and not declaration.record_none else declaration.record(value)
        if recorded is not None or declaration.record_none:
            record[each.name] = recorded
    return record
