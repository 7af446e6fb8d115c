"""Bundles held against their original models: `byoc.verify`, `byoc.verify_against`, `byoc.bisect`."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from byoc._dataclasses import dataclass, replace
from byoc.bundle import Bundle, open_bundle, require_consent
from byoc.codegen import choose_isolation
from byoc.errors import InputError
from byoc.model import Model, get_stated_types, prepare_model, read_tensor_types
from byoc.runtime import RUNTIMES, read_paddings, read_split, use_drivers
from byoc.samples import MAX_SAMPLES, Sample, fits_types, read_samples
from byoc.support import check_minimum, report_step
from byoc.verification._bisection import Fault, bisect_region
from byoc.verification._bundle_comparison import VerificationModels
from byoc.verification._bundle_runs import load_recorded_model
from byoc.verification._bundle_verification import (
    add_padded,
    make_inputs,
    verify_independence,
    verify_on_samples,
    verify_padding,
    verify_samples,
    verify_split,
    write_fault,
)
from byoc.verification._quantization_noise import DEFAULT_THRESHOLDS, Thresholds
from byoc.verification._region_verification import heed_promises
from byoc.verification._verification_result import OutputError, Verification
from byoc.zoo import ZOO

Inputs = Mapping[str, Any] | str | Path
"""The inputs of a model: arrays by name, an `.npz` file of them, or a folder of samples."""


@dataclass(frozen=True, eq=False)
class BundleCheck:
    """A bundle, its original as `find_original` takes it, what both are run on, and the runtime."""

    bundle: Bundle
    against: str | Path | None = None
    given: Inputs | Sequence[Sample] | None = None
    seed: int = 0
    thresholds: Thresholds = DEFAULT_THRESHOLDS
    runtime: str = RUNTIMES[0]

    def __post_init__(self) -> None:
        """Raise InputError for a seed below 0, and for a runtime that is not known."""
        check_minimum("seed", self.seed, 0)
        if self.runtime not in RUNTIMES:
            raise InputError(f"runtime is '{self.runtime}', but must be one of {', '.join(RUNTIMES)}")

    @cached_property
    def models(self) -> VerificationModels:
        """The model that the bundle is compared with. Raises InputError."""
        return find_original(self.bundle, self.against)

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of both. Raises InputError for a file that cannot be read."""
        if self.given is None:
            return make_inputs(self.models.model, self.seed)
        return self.samples[0].inputs

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        """The samples of the user. Raises InputError for a file that cannot be read or does not fit."""
        if self.given is None:
            return ()
        if isinstance(self.given, Mapping):
            return (Sample("", self.given),)
        if not isinstance(self.given, str | Path):
            return tuple(self.given)
        return read_samples(self.given, self.models.model, MAX_SAMPLES)

    @cached_property
    def variants(self) -> Mapping[str, "BundleCheck"]:
        """This check of each variant of the bundle, by name; one alone where only one is chosen."""
        return {each.variant.name: replace(self, bundle=each) for each in self.bundle.variants}

    def verify(self, regions: bool) -> Verification:
        """Compare the outputs, with `regions` also the boundary tensors and each region alone.

        All variants of the bundle are compared. Raises InputError with the name of the one that fails.
        """
        require_consent(self.bundle, by_drivers=self.runtime != RUNTIMES[0])
        if len(self.variants) == 1:
            return self._verify_variant(regions)
        found = {}
        for name, check in self._list_checks().items():
            report_step(f"verify {name}")
            try:
                found[name] = check._verify_variant(regions)
            except InputError as error:
                raise InputError(f"variant {name}: {error}") from error
        return merge_verifications(found)

    def _list_checks(self) -> Mapping[str, "BundleCheck"]:
        """Return the check of each variant; samples that are given are those of the one that takes them.

        Raises InputError for samples where the user asked for several variants.
        """
        if self.given is None:
            return self.variants
        if not self.bundle.manifest.variants[0].automatic:
            raise InputError(
                f"{self.bundle.display_path}: has several variants, and inputs are of one: give "
                f"--variant (open_bundle(variant=) in Python) one of {', '.join(self.variants)}"
            )
        left: Sequence[Sample] = [*self.variants.values()][-1].samples  # the open one's, of any size
        checks = {}
        for name, check in self.variants.items():
            types = read_tensor_types(get_stated_types(check.bundle.model()))
            own = [each for each in left if fits_types(each.inputs, types)]
            left = [each for each in left if not fits_types(each.inputs, types)]
            if own:
                checks[name] = replace(check, given=own)
        return checks or self.variants

    def _verify_variant(self, regions: bool) -> Verification:
        return self._verify_rows(self._verify_padding(self._verify_whole(regions)))

    def _verify_rows(self, verification: Verification) -> Verification:
        """Return a verification with the outputs of a batch that is run in several calls, if any is."""
        split = read_split(self.bundle)
        name = str(self.against or self.bundle.manifest.asked.get("model", ""))
        if split is None or self.given is not None or self.models.original is not None:
            return verification
        if self.against is None and not name.startswith(ZOO):
            note = "rows of a batch are not compared: that takes the original (--against)"
            return replace(verification, notes=(*verification.notes, note))
        variant = self.bundle.variant.variant
        batch = replace(variant, dims={**variant.dims, split.dim: min(split.most, 2 * split.size + 1)})
        model = load_recorded_model(self.bundle, name, batch)
        return add_padded(verification, verify_split(self.bundle, split, model, self.thresholds))

    def _verify_padding(self, verification: Verification) -> Verification:
        """Return a verification with the outputs on padded inputs, where the bundle's may be padded."""
        entry = self.bundle.variant.padding
        rule = None if entry is None else entry.rule
        if rule is None or self.given is not None:
            return verification
        read_paddings(self.bundle.variants)  # it fits the model
        name = str(self.against or self.bundle.manifest.asked.get("model", ""))
        found = self.models
        if found.original is not None or (self.against is None and not name.startswith(ZOO)):
            if rule.reads_values:
                note = "padding is not compared: that takes the original (--against)"
                return replace(verification, notes=(*verification.notes, note))
            return add_padded(verification, verify_independence(self.bundle, rule, self.inputs))

        def load(sizes: Mapping[str, int]) -> Model:
            variant = self.bundle.variant.variant
            smaller = replace(variant, dims={**variant.dims, **sizes})
            return load_recorded_model(self.bundle, name, smaller)

        padded = verify_padding(self.bundle, rule, load, self.thresholds, self.runtime)
        return add_padded(verification, padded)

    def _verify_whole(self, regions: bool) -> Verification:
        found = self.models
        if self.given is None and not self.seed:  # the samples of `byoc partition`
            source = found.original or found.model
            return verify_samples(
                self.bundle, found, (), source, self.thresholds, regions, regions, self.runtime
            )
        samples = [(sample.name, sample.inputs) for sample in self.samples] or [("", self.inputs)]
        return verify_on_samples(
            self.bundle, found, samples, self.thresholds, regions, regions, self.runtime
        )

    @property
    def region_thresholds(self) -> Thresholds:
        """The largest errors of a region by itself, the same in all variants."""
        first = next(iter(self.variants.values()))
        return self.thresholds.for_computation_in(first.models.computed)

    def bisect(self, region: str) -> Fault:
        """Narrow a region that is off to the operation at fault."""
        if len(self.variants) > 1:
            for check in self.variants.values():
                if any(entry.name == region for entry in check.bundle.variant.regions):
                    return check.bisect(region)
        return bisect_region(self.bundle, region, self.inputs, self.region_thresholds)


def verify(  # noqa: PLR0913 - each has a default
    bundle: str | Path | Bundle,
    against: str | Path | None = None,
    *,
    inputs: Inputs | None = None,
    seed: int = 0,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    regions: bool = True,
    isolate: bool | None = None,
    call_timeout: float | None = None,
    runtime: str = RUNTIMES[0],
    drivers: Mapping[str, str | Path] | None = None,
) -> Verification:
    """Check that a bundle computes what its model did, each region alone, too: `byoc verify`.

    The result says by `passed` whether every error is allowed.

    Args:
        bundle: a folder or packed file, or what `open_bundle` gave for one.
        against: the original, a path or `zoo:NAME`. Without it a zoo model is found by the name in the
            manifest; any other bundle is compared with its own partitioned model on plain onnxruntime.
        inputs: arrays by the names of the model's inputs, an `.npz` file, or a folder of samples; made
            ones unless given.
        seed: of these.
        thresholds: the largest errors, as shares of the range, in units of the last place, or in dB.
        regions: compare every tensor at a boundary and each region alone, not only the outputs.
        isolate: run the codegens in processes of their own; where one crashes or hangs, that is an
            InputError. By default they run so unless the bundle's maker is trusted.
        call_timeout: the most seconds that one of their calls may take, which implies `isolate`.
        runtime: `byoc`, or `ort-plugin`: onnxruntime runs the bundle's `model_ctx.onnx` with byoc's
            provider, and drivers run the regions; or `drivers`: byoc runs it, drivers the regions.
        drivers: the libraries of drivers by codegen, where they are not to be built of its sources.

    Raises InputError when the bundle, the original or the inputs cannot be read or run, and
    MissingRuntimeError without onnxruntime.
    """
    opened = open_given(bundle, isolate, call_timeout)
    check = BundleCheck(opened, against, inputs, seed, thresholds, runtime)
    with use_drivers(drivers or {}):
        return check.verify(regions)


def verify_against(
    bundle: str | Path | Bundle,
    against: str | Path | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    regions: bool = False,
) -> Verification:
    """Compare the outputs of a bundle with its original's: `verify` without the regions.

    `bundle`, `against`, `inputs`, `thresholds` and `regions` are those of `verify`, and so are the
    result and the errors raised.
    """
    return verify(bundle, against, inputs=inputs, thresholds=thresholds, regions=regions)


def bisect(  # noqa: PLR0913 - each has a default
    bundle: str | Path | Bundle,
    region: str,
    against: str | Path | None = None,
    *,
    inputs: Inputs | None = None,
    seed: int = 0,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    output: str | Path | None = None,
    isolate: bool | None = None,
    call_timeout: float | None = None,
) -> Fault:
    """Narrow a region that is wrong to the first operation at fault: `byoc verify --bisect`.

    Args:
        bundle: a folder or packed file, or what `open_bundle` gave for one.
        region: the region's name in the bundle.
        against: the original, as `verify` takes it.
        inputs: arrays by the names of the model's inputs, an `.npz` file, or a folder of samples; made
            ones unless given.
        seed: of these.
        thresholds: the largest errors; what is beyond them is wrong.
        output: a folder for the smallest model that shows the fault, its inputs and outputs, which
            `byoc verify` runs again.
        isolate: run the codegens in processes of their own; where one crashes or hangs, that is an
            InputError. By default they run so unless the bundle's maker is trusted.
        call_timeout: the most seconds that one of their calls may take, which implies `isolate`.

    Raises InputError when there is no such region, its codegen cannot run here, it is not wrong, or it
    is right when compiled again, and MissingRuntimeError without onnxruntime.
    """
    opened = open_given(bundle, isolate, call_timeout)
    check = BundleCheck(opened, against, inputs, seed, thresholds)
    fault = check.bisect(region)
    if output is not None:
        write_fault(fault, Path(output), heed_promises(opened, check.region_thresholds))
    return fault


def open_given(bundle: str | Path | Bundle, isolate: bool | None, call_timeout: float | None) -> Bundle:
    """Open a bundle, unless it is open; raises as `open_bundle`."""
    if isinstance(bundle, Bundle):
        return bundle
    return open_bundle(bundle, choose_isolation(isolate, call_timeout))


def find_original(bundle: Bundle, against: str | Path | None = None) -> VerificationModels:
    """Return the model to compare a bundle with.

    `against` is the original, a path or `zoo:NAME`. Without it a zoo model is found by the name in the
    manifest. Any other bundle is compared with its own partitioned model, run whole on plain
    onnxruntime; so is one of lower precision, whose accuracy against the original is told besides, and
    one whose caches have a fixed length, which is compared with the original by its padding.
    Raises InputError when the original cannot be read.
    """
    name = str(against or bundle.manifest.asked.get("model", ""))
    padding = bundle.variant.padding
    is_static = padding is not None and padding.rule is not None and padding.rule.is_static
    if is_static or (against is None and not name.startswith(ZOO)):
        return VerificationModels(
            prepare_model(bundle.model(), f"its own {bundle.variant.model}", bundle.folder)
        )
    original = load_recorded_model(bundle, name, bundle.variant.variant)
    precision = bundle.variant.report.precision
    if precision is None:
        return VerificationModels(original)
    names = {value.name for value in original.structure.graph.input}
    if padding is not None and padding.rule is not None:
        names |= {each for each, padded in padding.rule.inputs.items() if padded.made}
    strange = [value.name for value in bundle.model().graph.input if value.name not in names]
    if strange and against is not None:
        raise InputError(
            f"{name}: it has no input '{strange[0]}', which the bundle has: give the model that the "
            "bundle was made of (--against)"
        )
    whole = f"its own {bundle.variant.model}"
    own = replace(original, structure=bundle.model(), heavy=None, source=whole, folder=bundle.folder)
    return VerificationModels(own, original, precision.dtype or "")


# The verification of a bundle of several variants, put together from those of each.


def merge_verifications(found: Mapping[str, Verification]) -> Verification:
    """Return the verifications of variants, by name, as one, in which each is said by its name.

    It has passed where all have. Outputs and boundary tensors stand behind the name of their variant,
    `prefill: logits`; regions are called after it already.
    """
    each = found.items()
    first = next(iter(found.values()))
    return Verification(
        against=first.against,
        outputs=tuple(_name(error, name) for name, one in each for error in one.outputs),
        original=first.original,
        accuracy=tuple(
            replace(accuracy, name=f"{name}: {accuracy.name}")
            for name, one in each
            for accuracy in one.accuracy
        ),
        boundary=tuple(_name(error, name) for name, one in each for error in one.boundary),
        regions=tuple(region for _, one in each for region in one.regions),
        not_compared="; ".join(f"{name}: {one.not_compared}" for name, one in each if one.not_compared),
        samples=sum(one.samples for _, one in each),
        judge=next((one.judge for _, one in each if one.judge), ""),
        notes=tuple(f"{name}: {note}" for name, one in each for note in one.notes),
        not_here={region: why for _, one in each for region, why in one.not_here.items()},
    )


def _name(error: OutputError, variant: str) -> OutputError:
    return replace(error, name=f"{variant}: {error.name}")
