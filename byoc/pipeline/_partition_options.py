"""The choices of a partitioning run, and their record in the manifest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import byoc.placement
from byoc import bundle, codegen, model, quantization, samples, verification, zoo
from byoc._dataclasses import dataclass, fields
from byoc.errors import InputError
from byoc.pipeline._plan_options import (
    DEFAULT_STRATEGY,
    VARIANT_RULES,
    CompileOptions,
    VariantValue,
    list_files,
    record_inputs,
    record_names,
    record_thresholds,
    record_value,
    record_variants,
)
from byoc.support import Flag, Panel, Syntax, declaration_of, declare_field

HostMode = Literal["exact", "fast"]
HOST_MODES: tuple[HostMode, ...] = ("exact", "fast")
"""The modes of sessions that a user chooses from, the default first."""


@dataclass(frozen=True, kw_only=True)
class Options(CompileOptions):
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
    variants: Mapping[str, Mapping[str, VariantValue]] | None = declare_field(
        None,
        "variants of the bundle by name: for each the open dimensions that are its own, as in `dims`, "
        "and under `rules` the rule files that are its own. They share the weights. The inputs of a "
        "call choose one by their shapes; of those for other accelerators one is chosen at load.",
        Flag(
            "A variant of the bundle, with sizes of its own, such as decode:seq=1,past=256, or for "
            "another accelerator, such as board:rules=dla.",
            Syntax.VARIANTS,
            names=("--variant",),
            metavar="NAME:DIM=SIZE|rules=FILE,...",
            panel=Panel.BUNDLE,
        ),
        record_variants,
    )
    variable: str | Sequence[str] = declare_field(
        (),
        "constants that are inputs of the model and of its regions, with their value as the default, by "
        "names or patterns (`*lora*`): weights of an adapter that calls may exchange.",
        Flag(
            "Make this constant an input with a default, which calls may exchange: '*lora*'.",
            Syntax.LIST,
            metavar="NAME",
            panel=Panel.BUNDLE,
        ),
        record_names,
    )
    freeze_initializers: bool = declare_field(
        False,
        "make weights that the model lists among its inputs, with their values as defaults, constants: "
        "calls cannot give others then, and accelerators take them as the weights that they are.",
        Flag(
            "Make weights that are inputs with a default constants, which no call can exchange.",
            Syntax.SWITCH,
            panel=Panel.BUNDLE,
        ),
        lambda freeze: freeze or None,
    )
    buckets: Mapping[str, Sequence[int]] | None = declare_field(
        None,
        "sizes of one open dimension: a variant for each, called after it (`seq_16`).",
        Flag(
            "A variant for each of these sizes of a dimension: seq=1,16,128.",
            Syntax.BUCKETS,
            names=("--bucket",),
            metavar="DIM=SIZE,...",
            panel=Panel.BUNDLE,
        ),
        lambda buckets: {name: list(sizes) for name, sizes in buckets.items()} if buckets else None,
    )
    keep_open: bool = declare_field(
        False,
        "make one plan in which open dimensions stay open. Otherwise, where no size is given and rules "
        "refuse nodes for that, byoc chooses sizes, and makes a variant with these and an open one.",
        Flag(
            "Make one open plan; else sizes that rules need are chosen, and others run on it.",
            Syntax.SWITCH,
            panel=Panel.BUNDLE,
        ),
    )
    pad: bool = declare_field(
        True,
        "find out which dimensions of variants may be smaller: inputs are padded then, and outputs cut, "
        "where the model's graph proves that padding changes nothing.",
        Flag(
            "Find out where inputs smaller than a variant's may be padded.",
            Syntax.ON_OFF,
            panel=Panel.BUNDLE,
        ),
        lambda pad: None if pad else False,
    )
    static_cache: bool = declare_field(
        False,
        "give the caches of variants with a past one length, before and after a call, where a Concat "
        "makes them longer: new rows are written to their places. A past may then be shorter.",
        Flag(
            "Give caches that a Concat makes longer one length in variants with a past.",
            Syntax.SWITCH,
            panel=Panel.BUNDLE,
        ),
        lambda static: static or None,
    )
    weights: bundle.Sharing = declare_field(
        "copy",
        "what to do with weights in files beside the model: `copy` them into the bundle, `link` the "
        "files into it (a reflink, else a hard link), or leave them where they are, with a `reference`. "
        "What byoc changes or makes is in the bundle.",
        Flag(
            "Copy weights that lie in files beside the model, link the files, or refer to them.",
            choices=("copy", "link", "reference"),
            panel=Panel.BUNDLE,
        ),
        lambda weights: None if weights == "copy" else weights,
    )
    strategy: str = declare_field(
        DEFAULT_STRATEGY,
        "the placement strategy's name (`byoc.strategies` entry points).",
        Flag("How to place the units: see byoc strategies."),
        record_value,
    )
    robust: str | None = declare_field(
        None,
        "take the placement of least regret at the perturbed costs, `mean` or `worst`.",
        Flag(
            "With --perturb: take the placement whose regret is least on average, or at worst.",
            choices=tuple(choice.value for choice in byoc.placement.Robust),
            panel=Panel.PLACEMENT,
        ),
        record_value,
    )
    placement: str | Path | None = declare_field(
        None,
        "a file that says where some nodes are to be, as `save_placement` writes it.",
        Flag(
            "A file that fixes the device of some nodes; --save-placement writes one.",
            Syntax.PATH,
            panel=Panel.PLACEMENT,
        ),
        lambda path: None if path is None else zoo.name_source(path),
        record_none=True,
    )
    annotations: str | None = declare_field(
        None,
        "the metadata key of nodes in the model whose value names the device that they are wanted on: "
        "`host` or a target.",
        Flag(
            "Place nodes on the device that their metadata of this key names.",
            metavar="KEY",
            panel=Panel.PLACEMENT,
        ),
        record_value,
    )
    precision: quantization.Precision = declare_field(
        quantization.NATIVE,
        "what regions compute in, and what scales are concluded from.",
        record=lambda precision: precision.record,
    )
    precisions: Mapping[str, quantization.Precision] | None = declare_field(
        None,
        "the precision of variants that have one of their own, by name.",
        record=lambda given: {name: each.record for name, each in (given or {}).items()} or None,
    )
    host_mode: HostMode = declare_field(
        HOST_MODES[0],
        "how the host computes quantized activations, here and whenever the bundle runs: `exact`, as "
        "ONNX defines them, or `fast`, as onnxruntime fuses them, which moves results by units. What is "
        "verified is what runs.",
        Flag(
            "Compute quantized activations on the host as ONNX defines them, or sooner.",
            choices=HOST_MODES,
            panel=Panel.BUNDLE,
        ),
        lambda mode: None if mode == HOST_MODES[0] else mode,
    )
    inputs: str | Path | samples.Inputs | Sequence[samples.Inputs] | None = declare_field(
        None,
        "what the bundle is verified on instead of made samples: an `.npz` file, a folder as "
        "`calibrate` reads it, or one or several mappings of arrays by the names of the inputs.",
        Flag("Verify on these samples, by the names of the inputs.", metavar="FILE|FOLDER"),
        record_inputs,
    )
    verify: bool = declare_field(
        True,
        "run the bundle and the original on samples and compare, if onnxruntime is there.",
        Flag("Run the result and the original, and compare.", Syntax.ON_OFF, panel=Panel.BUNDLE),
    )
    ask: Literal["legality", "costs", "both", "numbers", "everything"] | None = declare_field(
        None,
        "what codegens are asked about the model's units before these are placed: `legality`, which of "
        "them the compiler takes, `costs`, how many seconds they take, or `both`; `numbers`, which of "
        "them are computed right, each compiled and run alone, and `everything`, that of units as well "
        "that the rules refuse.",
        Flag(
            "Ask the codegen before placing: which units its compiler takes, their seconds, or both; "
            "which it computes right (numbers), those that rules refuse as well (everything).",
            choices=("legality", "costs", "both", "numbers", "everything"),
            panel=Panel.PLACEMENT,
        ),
        record_value,
    )
    share_blocks: bool = declare_field(
        False,
        "cut regions at the borders of repeated blocks, a decoder's layers, so that one is compiled "
        "for all; the codegen has to take weights, and each block is launched by itself.",
        Flag(
            "Cut regions into their repeated blocks, which are compiled once.",
            Syntax.SWITCH,
            panel=Panel.PLACEMENT,
        ),
        lambda share: share or None,
    )
    refit: str | Path | None = declare_field(
        None,
        "a bundle of the same structure: its compiled regions get the weights of this model, where "
        "their codegen can exchange weights (`take_weights`), and others are compiled. Its maker has to "
        "be trusted.",
        Flag(
            "Take compiled regions of this bundle with other weights, where the codegen can.",
            Syntax.PATH,
            metavar="BUNDLE",
            panel=Panel.BUNDLE,
        ),
    )
    gate: bool | float | verification.Thresholds = declare_field(
        False,
        "compare each region alone with plain onnxruntime; those that are off by more than this go "
        "elsewhere, as if they were refused. True takes verification's thresholds; a number is the "
        "largest error of floats as a share of the range.",
        Flag(
            "Run each region alone, too; one whose error is too large goes back to the host.",
            Syntax.SWITCH,
            panel=Panel.BUNDLE,
        ),
        lambda gate: record_thresholds(read_gate(gate)),
        record_none=True,
    )
    emit: Literal["epcontext"] | None = declare_field(
        None,
        "`epcontext` puts `model_ctx.onnx` into the bundle, the host's model with an EPContext node "
        "for each region, which ONNX Runtime loads with the codegen's provider, or byoc's and a driver.",
        Flag(
            "Put a model with EPContext nodes into the bundle, for ONNX Runtime.",
            choices=("epcontext",),
            panel=Panel.BUNDLE,
        ),
        record_value,
    )
    what_if: bool = declare_field(
        True,
        "estimate what would be gained if the accelerators supported more.",
        Flag(
            "Estimate what would be gained if more were supported.", Syntax.ON_OFF, panel=Panel.PLACEMENT
        ),
    )
    sign: bool = declare_field(
        True,
        "sign the bundle with the key of this machine, so that native code in it runs here, and where "
        "the user trusts that key.",
        Flag("Sign the bundle with the key of this machine.", Syntax.ON_OFF, panel=Panel.BUNDLE),
    )
    progress: Callable[[str], None] | None = declare_field(
        None, "called with the name of each step as it begins."
    )

    def __post_init__(self) -> None:
        """Raise InputError for a timeout that is no time, a gate below 0, variants that are none."""
        _ = self.isolation, self.largest_errors
        known = [each.name for each in self.list_variants()]
        unknown = next((name for name in self.precisions or () if name not in known), None)
        if unknown is not None:
            raise InputError(f"precisions: there is no variant '{unknown}'")
        if self.static_cache and not (self.variants or self.buckets):
            raise InputError(
                "--static-cache is for variants, whose sizes say how long a cache is (--variant)"
            )

    def get_precision(self, variant: str) -> quantization.Precision:
        """Return the precision of a variant: its own, or that of all."""
        return (self.precisions or {}).get(variant, self.precision)

    def list_variants(self) -> tuple[model.Variant, ...]:
        """Return the variants of the bundle; a single one without a name where none are asked for.

        Raises InputError as the function of that name does.
        """
        return list_variants(self.variants or {}, self.buckets or {}, self.dims or {})

    @property
    def may_choose_sizes(self) -> bool:
        """Whether byoc may choose sizes of open dimensions: nobody did, or asked for one plan."""
        given = self.dims or self.shapes or self.variants or self.buckets or self.static_cache
        one = self.keep_open or self.placement is not None or self.emit is not None
        return not (given or one)

    @property
    def largest_errors(self) -> verification.Thresholds | None:
        """The largest errors of a region by itself, None for any error."""
        return read_gate(self.gate)


@dataclass(frozen=True, kw_only=True)
class PackageOptions(Options):
    """The choices of a package, which are those of each of its models unless that has its own."""

    output: str | Path | None = declare_field(
        None,
        "where to write the package, a folder, or packed where it ends in `.zip`. An existing one is "
        "replaced, whole; anything else that is there is left alone.",
        Flag("Write the package here (.zip: packed).", Syntax.PATH, ("--output", "-o"), required=True),
    )
    devices: Mapping[str, str | Path | Sequence[str | Path] | Mapping[str, Any]] | None = declare_field(
        None,
        "the devices that the package is for, by name, each with one rule file or several, or a mapping "
        "with these under `rules` and a precision of its own (`quantize`, `data`, `calibration`, ...): "
        "a variant of each model, or one for each of its variants.",
        Flag(
            "A device that the package is for, its rule file, and the precision that is its own, as in "
            "phone=dla,quantize=int8,data=photos/.",
            Syntax.PAIRS,
            names=("--for",),
            metavar="DEVICE=FILE|NAME,KEY=VALUE,...",
        ),
    )
    base: str | Path | None = declare_field(
        None, "a package whose models are taken over as they are; `output` may be the same."
    )


def read_gate(gate: bool | float | verification.Thresholds) -> verification.Thresholds | None:
    """Return the largest errors of a region by itself, None for any. Raises InputError below 0."""
    if isinstance(gate, verification.Thresholds):
        return gate
    if isinstance(gate, bool):
        return verification.DEFAULT_THRESHOLDS if gate else None
    if not gate >= 0:
        raise InputError(f"gate {gate:g}: not an error of at least 0")
    return verification.Thresholds(
        dict.fromkeys(verification.TOLERANCE, gate), asked=frozenset(verification.TOLERANCE)
    )


def record_options(source: zoo.Source, options: Options) -> dict[str, Any]:
    """Return the options as the manifest keeps them: plain JSON, files by their names alone."""
    record: dict[str, Any] = {"model": zoo.name_source(source)}
    for each in fields(options):
        declaration, value = declaration_of(each), getattr(options, each.name)
        if declaration is None or declaration.record is None:
            continue
        recorded = declaration.record(value)
        if recorded is not None or declaration.record_none:
            record[each.name] = recorded
    return record


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """The rates, deadlines and weights of models that are placed together."""

    rates: Mapping[str, str | float] | None = declare_field(
        None,
        "how often each model runs, in inferences a second, by its name; one round of all unless given.",
        Flag(
            "With --together: how often a model runs, in inferences a second.",
            Syntax.PAIRS,
            names=("--rate",),
            metavar="MODEL=NUMBER",
            panel=Panel.PLACEMENT,
        ),
    )
    deadlines: Mapping[str, str | float] | None = declare_field(
        None,
        "the time within which an inference of a model has to end, by its name, in seconds or as in "
        "`5ms`; the period unless given.",
        Flag(
            "With --together: the time within which an inference of a model has to end.",
            Syntax.PAIRS,
            names=("--deadline",),
            metavar="MODEL=5ms",
            panel=Panel.PLACEMENT,
        ),
    )
    model_weights: Mapping[str, str | float] | None = declare_field(
        None,
        "factors on the time at which each model ends in a round, by its name; 1 unless given.",
        Flag(
            "With --together: a factor on the time at which a model ends in a round.",
            Syntax.PAIRS,
            names=("--model-weight",),
            metavar="MODEL=NUMBER",
            panel=Panel.PLACEMENT,
        ),
    )


# The variants of a bundle, as the options name them.


def list_variants(
    variants: Mapping[str, Mapping[str, VariantValue]],
    buckets: Mapping[str, Sequence[int]],
    dims: Mapping[str, int | str],
) -> tuple[model.Variant, ...]:
    """Return the variants that are asked for, those of `buckets` last; without any, one without a name.

    `dims` are the dimensions that all variants share. Raises InputError for a name that none can have,
    two that differ in case alone, a dimension that is given for all, too, and buckets of two dimensions.
    """
    found = [_read_variant(name, own) for name, own in variants.items()]
    found += _list_buckets(buckets)
    for each in found:
        if not re.fullmatch(model.VARIANT_NAME, each.name) or not codegen.is_plain_name(each.name):
            raise InputError(
                f"variant '{each.name}': a name is a letter, and then at most 39 letters, digits or "
                "underscores"
            )
        twice = next((name for name in each.dims if name in dims), None)
        if twice is not None:
            raise InputError(f"variant {each}: dimension {twice}={dims[twice]} is given for all")
    same = codegen.find_same_paths(each.name for each in found)
    if same is not None:
        raise InputError(f"variants {same[0]} and {same[1]} cannot be told apart on every system")
    if len({each.name for each in found}) < len(found):
        names = [each.name for each in found]
        raise InputError(f"variant {next(n for n in names if names.count(n) > 1)} is given twice")
    return tuple(found) or (model.ONLY_VARIANT,)


def _read_variant(name: str, own: Mapping[str, VariantValue]) -> model.Variant:
    """Return a variant. Raises InputError where a dimension has several sizes."""
    dims: dict[str, int | str] = {}
    for key, said in own.items():
        if key == VARIANT_RULES:
            continue
        if not isinstance(said, (int, str)):
            raise InputError(f"variant '{name}': dimension {key} has one size, not {said!r}")
        dims[key] = said
    rules = own.get(VARIANT_RULES, ())
    if isinstance(rules, int):
        raise InputError(f"variant '{name}': {VARIANT_RULES} names rule files, not '{rules}'")
    if VARIANT_RULES in own and not all(list_files(rules) or [""]):
        raise InputError(f"variant '{name}': {VARIANT_RULES} names no rule file")
    return model.Variant(name, dims, rules=tuple(map(str, list_files(rules))))


def _list_buckets(buckets: Mapping[str, Sequence[int]]) -> Iterator[model.Variant]:
    """Yield a variant for each size of a dimension, called after both."""
    if len(buckets) > 1:
        raise InputError(f"buckets of {' and '.join(buckets)}: one dimension can have buckets")
    for name, sizes in buckets.items():
        plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
        for size in sizes:
            yield model.Variant(f"{plain}_{size}", {name: size})
