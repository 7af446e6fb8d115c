"""`byoc verify`: compare a bundle with its original on the same inputs, and bisect differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import byoc
import byoc.bundle
import byoc.runtime
import byoc.verification
from byoc import reporting, standalone, verification
from byoc._dataclasses import asdict, dataclass
from byoc.cli._common import (
    NOT_VERIFIED,
    AllowUnverifiedOption,
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import (
    DEFAULT_LOAD_OPTIONS,
    DRIVER_FLAG,
    RUNTIME_FLAG,
    JUnitFile,
    JUnitOption,
    LoadOptions,
    check_drivers,
    flag_field,
    take_options,
)
from byoc.console import format_count, format_share, print_line, print_lines
from byoc.errors import InputError
from byoc.support import Flag, Syntax

# The flags of `byoc verify --generate`, and what it prints: generated sequences compared.

_SEEDS = 2  # samples of tokens for `--generate` where no prompts are given


def _read_lengths(text: str) -> tuple[int, ...]:
    """Return the whole numbers of a list, none for an empty text. Raises ValueError."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdigit() and int(part[:9]) for part in parts):
        raise ValueError(f"'{text}' is no list of lengths, such as 1,64")
    return tuple(int(part[:9]) for part in parts)


@dataclass(frozen=True)
class GenerationFlags:
    """The flags of `byoc verify` that are about generated sequences."""

    generate: int | None = flag_field(
        Flag(
            "Of a decoder, compare so many generated tokens, its state fed back, instead of samples.",
            Syntax.INTEGER,
            minimum=1,
            metavar="TOKENS",
        )
    )
    prompts: tuple[int, ...] | None = flag_field(
        Flag(
            "With --generate, the lengths of prompts; those that reach each variant unless given.",
            metavar="LENGTH,LENGTH,...",
            read=_read_lengths,
        )
    )
    seeds: int | None = flag_field(
        Flag(
            "With --generate, how many prompts of each length, from --seed on; 2 unless given.",
            Syntax.INTEGER,
            minimum=1,
        )
    )

    @property
    def is_asked(self) -> bool:
        """Whether sequences are to be generated. Raises typer.BadParameter for other flags alone."""
        others = {"--prompts": self.prompts, "--seeds": self.seeds}
        given = next((name for name, value in others.items() if value is not None), None)
        if self.generate is None and given is not None:
            raise typer.BadParameter("it is about --generate", param_hint=given)
        return self.generate is not None

    def verify(
        self,
        bundle: Path,
        load: LoadOptions,
        against: str | None,
        seed: int,
        thresholds: byoc.Thresholds,
    ) -> byoc.Generation:
        """Compare generated sequences. Raises InputError."""
        assert self.generate is not None
        options = verification.GenerationOptions(
            self.generate, self.prompts or (), self.seeds or _SEEDS, seed
        )
        with show_status() as show, reserve_stdout():
            show("generate")
            return verification.GenerationCheck(
                load.open_bundle(bundle), against, options, thresholds
            ).verify()


DEFAULT_GENERATION_FLAGS = GenerationFlags()


def print_generation(generation: byoc.Generation, bundle: str, form: OutputFormat) -> None:
    """Print generated sequences: a table of them, one of positions, and each token that differs."""
    if form is OutputFormat.json:
        print_json(reporting.make_generation_report(generation).to_json())
        return
    by = f", run by {generation.judge}" if generation.judge else ""
    print_line(f"{bundle} against {generation.against}{by}, token by token:")
    print_rows(reporting.make_sequence_rows(generation.runs), OutputFormat.text)
    print_line("The largest errors of all sequences, as shares of the range:")
    print_rows(reporting.make_position_rows(generation), OutputFormat.text)
    for run in generation.runs:
        for each in run.differences:
            told = "a tie" if each.is_tie else "wrong"
            print_line(
                f"{told}: seed {run.seed}, prompt of {run.prompt}, position {each.position}: token "
                f"{each.found} instead of {each.expected}, {each.margin:.2g} below it; noise explains "
                f"{each.noise:.2g}"
            )
    if generation.not_reached:
        names = ", ".join(generation.not_reached)
        print_line(f"note: no step ran {names}; other lengths (--prompts) or more tokens may")
    for name, reason in generation.not_here.items():
        print_line(f"{name} is compiled, not verified here: {reason}")


@dataclass(frozen=True)
class VerifyOptions:
    """The flags of `byoc verify`."""

    against: str | None = flag_field(
        Flag("The original model: a file or zoo:NAME; a bundle of a zoo model needs none.")
    )
    inputs: Path | None = flag_field(
        Flag(
            "Samples by the names of the inputs, instead of made ones.",
            Syntax.PATH,
            metavar="FILE|FOLDER",
        )
    )
    seed: int = flag_field(Flag("The seed of the inputs.", Syntax.INTEGER, minimum=0), 0)
    threshold: Mapping[str, str] = flag_field(
        Flag(
            "The largest error, as a share of the range; quantized=NUMBER: in units of the last place.",
            Syntax.PAIRS,
            metavar="DTYPE=NUMBER",
        )
    )
    snr: float | None = flag_field(
        Flag(
            "The least signal-to-noise ratio (dB) of float outputs, instead of a largest error.",
            Syntax.NUMBER,
        )
    )
    bisect: bool = flag_field(
        Flag(
            "In each region that is not within its threshold, find the operation at fault.",
            Syntax.SWITCH,
        ),
        False,
    )
    generation: GenerationFlags = DEFAULT_GENERATION_FLAGS
    load: LoadOptions = DEFAULT_LOAD_OPTIONS
    cc: str | None = flag_field(
        Flag(
            "The C compiler and the flags that ship, for a program of export-c; $BYOC_CC, or cc -O2.",
            metavar="COMMAND",
        )
    )
    run: str | None = flag_field(
        Flag("What runs a program of export-c: qemu-aarch64.", metavar="COMMAND")
    )
    runtime: str = flag_field(RUNTIME_FLAG, byoc.runtime.RUNTIMES[0])
    drivers: Mapping[str, str] = flag_field(DRIVER_FLAG)
    output: Path | None = flag_field(
        Flag("Where --bisect writes; NAME.faults unless given.", Syntax.PATH, ("--output", "-o"))
    )


# The options that a program or a fault takes; a bundle is asked for the others one by one.
_TAKEN: Mapping[byoc.bundle.FolderKind, tuple[str, Sequence[str]]] = {
    "program": ("a program of export-c", ("cc", "run", "trust")),
    "fault": ("a fault of --bisect", ("trust", "codegens", "isolate", "call_timeout")),
}
_SAMPLES = {
    "other": "is not reached by these inputs; it is compared on other ones",
    "made": "is not reached by any inputs that were tried; it is compared on values made for it alone",
    "none": "is not reached by any inputs that were tried, and not compared",
}


@take_options(VerifyOptions)
def verify(  # noqa: PLR0913, PLR0917 - typer gives each
    context: typer.Context,
    bundle: Annotated[
        Path, typer.Argument(help="A bundle, or a folder that --bisect or export-c wrote.")
    ],
    options: VerifyOptions,
    form: FormatOption = OutputFormat.text,
    junit: JUnitOption = None,
    allow_unverified: AllowUnverifiedOption = False,
) -> None:
    """Check that a bundle computes what its model did.

    Leaves with 4 when some of its regions are not compared: this machine cannot run them, or no inputs
    that were tried reach them.
    """
    check_drivers(options.drivers, options.runtime)
    tests = JUnitFile.prepare(junit, "verify", bundle, options.inputs, options.against)
    kind = byoc.bundle.find_folder_kind(bundle)
    _refuse_ignored(kind, context)
    if kind == "program":
        verify_exported(bundle, options.cc, options.run, options.load.trust, form)
        return
    if options.cc is not None or options.run is not None:
        raise InputError(f"{bundle}: is no program of export-c, so there is nothing to compile")
    if options.bisect and options.runtime != byoc.runtime.RUNTIMES[0]:
        raise typer.BadParameter("--bisect runs parts of regions by codegens", param_hint="--runtime")
    if options.output is not None and not options.bisect:
        raise typer.BadParameter("it says where --bisect writes", param_hint="--output")
    thresholds = byoc.verification.read_thresholds(options.threshold, options.snr)
    if options.generation.is_asked:
        generation = _verify_generation(bundle, options, thresholds, tests, form)
        byoc.verification.require_generated(generation)
        _check_all_here(generation.not_here, allow_unverified)
        return
    if kind == "fault":
        _repeat_fault(bundle, options.load, form)
        return
    models = byoc.bundle.list_models(bundle)
    if len(models) > 1 and (options.against or options.inputs):
        given = "--against" if options.against else "--inputs"
        raise InputError(f"{bundle}: {given} is of one model, and it has several: {models[0]}, ...")
    compared = [_compare(each, options, thresholds, tests) for each in models]
    if form is OutputFormat.json:
        documents = {each.bundle.name: each.make_document(options.bisect) for each in compared}
        print_json(documents[bundle.name] if models == [bundle] else {"models": documents})
    else:
        for each in compared:
            print_verification(each.verification, str(each.bundle))
            _print_faults(each.verification, each.faults, options.bisect)
    tests.write(
        [reporting.make_verification_suite(str(each.bundle), each.verification) for each in compared]
    )
    for each in compared:
        byoc.verification.require_passed(each.verification)
    found = [each.verification for each in compared]
    _check_all_here(any(one.not_here or one.reach.never for one in found), allow_unverified)


@dataclass(frozen=True, eq=False)
class _Compared:
    """A bundle, or a model of a package, that was compared, and where regions of it go wrong."""

    bundle: Path
    verification: byoc.Verification
    faults: Mapping[str, tuple[byoc.Fault, Path] | str]

    def make_document(self, bisect: bool) -> dict[str, Any]:
        """Return it as plain data, with the faults where they were looked for."""
        told = [_make_fault_document(name, fault) for name, fault in self.faults.items()]
        document = reporting.make_full_verification_report(self.verification).to_json()
        return document | ({"faults": told} if bisect else {})


def _compare(
    bundle: Path, options: VerifyOptions, thresholds: byoc.Thresholds, tests: JUnitFile
) -> _Compared:
    """Compare a bundle with its model, and write the faults that --bisect finds. Raises InputError."""
    faults: dict[str, tuple[byoc.Fault, Path] | str] = {}
    folder = options.output or Path(f"{bundle.absolute().name}.faults")
    if options.bisect and options.output is None and folder.is_symlink():
        raise InputError(f"{folder}: cannot be written: it is a link; name a folder (-o)")
    here = Path.cwd()  # a codegen's code may change it
    with tests.record_errors(str(bundle)), show_status() as show, reserve_stdout():
        show("verify")
        opened = options.load.open_bundle(bundle)
        check = byoc.verification.BundleCheck(
            opened, options.against, options.inputs, options.seed, thresholds, options.runtime
        )
        with byoc.runtime.use_drivers(options.drivers):
            verification = check.verify(regions=True)
        wrong = [region.name for region in verification.regions if not region.within]
        for name in wrong if options.bisect else ():
            try:
                fault = check.bisect(name)
            except InputError as error:
                faults[name] = str(error)
                continue
            faults[name] = fault, folder / name
            byoc.verification.write_fault(fault, here / folder / name, check.region_thresholds)
    return _Compared(bundle, verification, faults)


def _refuse_ignored(kind: byoc.bundle.FolderKind | None, context: typer.Context) -> None:
    """Raise BadParameter for an option that says nothing about a folder of a kind."""
    if kind is None or kind not in _TAKEN:
        return
    called, taken = _TAKEN[kind]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and name not in ("bundle", "form", *taken):
            raise typer.BadParameter(f"{called} takes no such option", param_hint=parameter.opts[0])


def _check_all_here(left: object, allow_unverified: bool) -> None:
    """Leave where some regions were not compared, unless that is allowed.

    This machine cannot run them, or no inputs reach them.
    """
    if left and not allow_unverified:
        raise typer.Exit(NOT_VERIFIED)


def _verify_generation(
    bundle: Path,
    options: VerifyOptions,
    thresholds: byoc.Thresholds,
    tests: JUnitFile,
    form: OutputFormat,
) -> byoc.Generation:
    """Compare generated sequences, and print them."""
    others = {
        "--inputs": options.inputs is not None,
        "--bisect": options.bisect,
        "--runtime": options.runtime != byoc.runtime.RUNTIMES[0],
    }
    given = next((name for name, used in others.items() if used), None)
    if given is not None:
        raise typer.BadParameter("--generate takes no such option", param_hint=given)
    with tests.record_errors(str(bundle)):
        found = options.generation.verify(
            bundle, options.load, options.against, options.seed, thresholds
        )
    print_generation(found, str(bundle), form)
    tests.write([reporting.make_generation_suite(str(bundle), found)])
    return found


def print_verification(verification: byoc.Verification, bundle: str) -> None:
    """Print the errors of outputs, boundary tensors and regions, and whether all is right."""
    by = f", run by {verification.judge}" if verification.judge else ""
    print_line(f"{bundle} against {verification.against}{by}:")
    print_rows(reporting.make_error_rows("output", verification.outputs), OutputFormat.text)
    for note in verification.notes:
        print_line(f"note: {note}")
    for left in verification.accuracy:
        if left.exact:
            print_line(f"{left.name}: equal to {verification.original}")
            continue
        print_line(
            f"{left.name}: {left.signal_to_noise:.1f} dB signal-to-noise against "
            f"{verification.original}; the largest element is the same in "
            f"{format_share(left.same_class)} of the rows"
        )
    for name, reason in verification.not_here.items():
        print_line(f"{name} is compiled, not verified here: {reason}")
    if verification.not_compared:
        print_line(f"Regions are not compared: {verification.not_compared}")
    else:
        _print_regions(verification)
    if verification.passed:
        print_line(_format_verdict(verification))


def _print_regions(verification: byoc.Verification) -> None:
    """Print the errors of boundary tensors, and of each region alone."""
    if verification.boundary:
        print_line("Boundary tensors, against the same regions on plain onnxruntime:")
        # An error of a boundary tensor that no region makes alone comes from all regions before it.
        beyond = "adds up" if verification.passed else "NO"
        rows = reporting.make_error_rows("tensor", verification.boundary, beyond=beyond)
        print_rows(rows, OutputFormat.text)
    reached = [region for region in verification.regions if region.outputs]
    if reached:
        print_line("Each region alone, on what reaches it, against its own ONNX on plain onnxruntime:")
        rows = [row for r in reached for row in reporting.make_error_rows("output", r.outputs, r.name)]
        print_rows(rows, OutputFormat.text)
    for region in verification.regions:
        if region.problem or region.sample in _SAMPLES:
            print_line(f"{region.name} {region.problem or _SAMPLES[region.sample]}")
        if region.layers is not None:
            print_line(f"{region.name}: {region.layers}")
        if region.judge:
            print_line(f"{region.name} is compared with {region.judge}")


def _format_verdict(verification: byoc.Verification) -> str:
    """Format what was found to be right, and how many regions are not compared."""
    compared = {region.name for region in verification.regions if region.outputs}
    regions = {region.name for region in verification.regions} | set(verification.not_here)
    right = format_count(len(verification.outputs), "output")
    if compared:
        right += f" and {format_count(len(compared), 'region')} alone"
    left = len(regions - compared)
    more = f"; {format_count(left, 'region')} not compared" if left else ""
    large = verification.reach.too_large
    more += f"; {format_count(large, 'region')} too large to be asked special values" if large else ""
    if verification.layers_not_compared:
        more += f"; {verification.layers_not_compared}"
    return f"Verified: {right} within what is allowed{more}."


def _print_faults(
    verification: byoc.Verification, faults: Mapping[str, tuple[byoc.Fault, Path] | str], narrow: bool
) -> None:
    for fault in faults.values():
        if isinstance(fault, str):
            print_line(fault)
        else:
            print_line(f"{fault[0]}. Written to {fault[1]}")
    if narrow and not faults:
        why = "none is compared" if verification.not_compared else "each is within its tolerance"
        print_line(f"There is no region to narrow: {why}")


def _make_fault_document(region: str, fault: tuple[byoc.Fault, Path] | str) -> dict[str, Any]:
    if isinstance(fault, str):
        return {"region": region, "problem": fault}
    return reporting.make_fault_report(fault[0], str(fault[1])).to_json()


def _repeat_fault(folder: Path, options: LoadOptions, form: OutputFormat) -> None:
    """Compile and run a fault again that --bisect wrote."""
    with show_status() as show, reserve_stdout():
        show("verify")
        fault, region = byoc.verification.rerun_fault(
            folder, options.isolation, trust=options.trust, codegens=options.codegens
        )
    if form is OutputFormat.json:
        now = reporting.RegionErrorReport.model_validate(region).to_json()
        print_json({"fault": fault.model_dump(mode="json"), "now": now})
    else:
        print_lines([f"{fault.told}.", "Now:"])
        print_rows(reporting.make_error_rows("output", region.outputs), OutputFormat.text)
    byoc.verification.require_passed(byoc.Verification("", (), regions=(region,)))


def verify_exported(
    folder: Path, compiler: str | None, runner: str | None, trust: bool, form: OutputFormat
) -> None:
    """Build and run a program that `export-c` wrote; leave with 4 if an output is wrong."""
    programs = standalone.list_programs(folder)
    with show_status() as show, reserve_stdout():
        show("build and run")
        found = {each: byoc.verify_program(each, compiler, runner, trust=trust) for each in programs}
    if form is OutputFormat.json:
        documents = {
            each.relative_to(folder).as_posix(): {**asdict(one), "passed": one.passed}
            for each, one in found.items()
        }
        print_json(documents["."] if programs == [folder] else {"models": documents})
    else:
        for each, one in found.items():
            _print_verification(each, one)
    if not all(each.passed for each in found.values()):
        raise typer.Exit(NOT_VERIFIED)


def _print_verification(folder: Path, found: byoc.ProgramVerification) -> None:
    """Print the errors of a program's outputs, and what it needs."""
    rows = [
        {"output": each.name, "largest error": f"{each.error:.2e}", "allowed": f"{each.allowed:.2g}"}
        for each in found.outputs
    ]
    if rows:
        print_rows(rows, OutputFormat.text)
    sizes = {"arena": found.arena_bytes, "plan": found.plan_bytes, "binary": found.binary_bytes}
    parts = [f"{name} {size:,} bytes" for name, size in sizes.items()]
    if found.stack_bytes is not None:
        parts.append(f"stack at most {found.stack_bytes:,} bytes")
    if found.peak_bytes is not None:
        parts.append(f"memory in all {found.peak_bytes:,} bytes")
    print_line("; ".join(parts))
    print_line(f"{folder}: {found.problem or 'the outputs are right'}")
