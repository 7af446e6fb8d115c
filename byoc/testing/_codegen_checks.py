"""The checks of a codegen; each yields its problems, none when it passes."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from byoc._dataclasses import dataclass, field, replace
from byoc.codegen import (
    Artifact,
    Codegen,
    Executable,
    Executor,
    Measured,
    NotHereError,
    Oracle,
    Region,
    Stamped,
    TakesWeights,
    ask_verdicts,
    can_estimate,
    can_profile,
    can_trace,
    compile_region,
    compute_tensors,
    estimate_region,
    exchange_weights,
    find_alike,
    measure_seconds,
    profile_region,
    resolve_node_names,
    to_seconds,
    trace_region,
)
from byoc.errors import ByocError, InputError, Verdict, refuse
from byoc.onnxrt import without_optimizations
from byoc.rules import ArithmeticContract
from byoc.runtime import CheckedExecutor, load_executor
from byoc.testing._case_compiler import CompiledCase
from byoc.testing._executor_checks import (
    ExecutorCheck,
    RegionAnswer,
    RegionTask,
    error_reason,
    find_differences,
    hash_artifact,
    hash_files,
    run_fresh_process,
)
from byoc.verification import Thresholds, heed_contract, make_reference_executor, quantized_tensors_of

Values = Mapping[str, Any]

_OTHER_BYTES = (
    "other bytes (write no times, addresses, paths or sets into it, or claim `deterministic=False`)"
)


@dataclass(frozen=True, eq=False)
class CodegenChecks:
    """The checks of one codegen with its options.

    Results may differ within `thresholds`, and by what the contract of the target does not promise.
    """

    codegen: Codegen
    options: Any
    thresholds: Thresholds
    contract: ArithmeticContract
    _runs: dict[str, Executor] = field(default_factory=dict)

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Load a region as byoc does; the executor runs on copies of its inputs. Raises InputError."""
        run = self._load_without_copies(region, artifact)
        return lambda inputs: run({name: np.array(value) for name, value in inputs.items()})

    def _load_without_copies(self, region: Region, artifact: Artifact) -> CheckedExecutor:
        assert isinstance(self.codegen, Executable)
        return load_executor(self.codegen, self.codegen.name, region, artifact)

    def find_differences(self, region: Region, expected: Values, actual: Values) -> Iterator[str]:
        """Yield a sentence for each output that differs from the expected one."""
        allowed = self.allow(region)
        yield from find_differences(expected, actual, allowed, quantized_tensors_of(region))

    def allow(self, region: Region) -> Thresholds:
        """Return the largest errors of a region that its target's contract allows."""
        return heed_contract(self.contract, self.thresholds, region)

    def check_results(self, cut: CompiledCase) -> list[str]:
        """Check that each region computes what plain onnxruntime does, in two runs.

        Raises NotHereError where this machine cannot run an artifact.
        """
        problems: list[str] = []
        for region, artifact in cut.regions:
            try:
                run = self.load(region, artifact)
                for inputs, expected in cut.expected_runs[region.name].values * 2:
                    problems += self.find_differences(region, expected, run(inputs))
            except InputError as error:
                if isinstance(error.__cause__, NotHereError):
                    raise error.__cause__ from None
                if isinstance(error, NotHereError):
                    raise
                problems.append(error_reason(error))
        return list(dict.fromkeys(f"{cut.name}: {problem}" for problem in problems))

    def check_batch_sizes(self, cut: CompiledCase) -> Iterator[str]:
        """Check that an executor accepts other batch sizes where the batch is dynamic."""
        for region, artifact in cut.regions:
            run = self.load(region, artifact)
            for inputs, _ in cut.expected_runs[region.name].values:
                for size in (3, 1):
                    other = {name: np.resize(v, (size, *v.shape[1:])) for name, v in inputs.items()}
                    expected = make_reference_executor(region)(other)
                    for problem in self.find_differences(region, expected, run(other)):
                        yield f"{cut.name} of {size}: {problem}"

    def check_two_regions(self, first: CompiledCase, second: CompiledCase) -> Iterator[str]:
        """Check that two loaded regions do not affect each other."""
        both = [(cut, *cut.regions[0]) for cut in (first, second)]
        runs = [self.load(region, artifact) for _, region, artifact in both]
        for run, (cut, region, _) in [*zip(runs, both, strict=True)] * 2:
            inputs, expected = cut.expected_runs[region.name].values[0]
            for problem in self.find_differences(region, expected, run(inputs)):
                yield f"{cut.name}, with another region loaded: {problem}"

    def check_artifact_keys(self, cut: CompiledCase) -> Iterator[str]:
        """Check that recompiling gives the same file names and metadata keys."""
        for region, artifact in cut.regions:
            made = compile_region(self.codegen, region, self.options)
            found = [f"file '{name}'" for name in made.files.keys() ^ artifact.files.keys()]
            found += [f"metadata '{name}'" for name in made.metadata.keys() ^ artifact.metadata.keys()]
            for what in found:
                yield f"{cut.name}: the {what} is there at one of two compiles only"

    def check_files(self, cut: CompiledCase, runs: bool) -> Iterator[str]:
        """Check that compile does not change the region's files, nor load and run where it `runs`."""
        before = hash_files(cut.bundle.folder)
        for region, _ in cut.regions:
            artifact = compile_region(self.codegen, region, self.options)
            if runs:
                self.load(region, artifact)(cut.expected_runs[region.name].values[0][0])
        after = hash_files(cut.bundle.folder)
        for name in _differing_keys(before, after):
            yield f"{cut.name}: it changed '{name}', which is byoc's: work on a copy"

    def check_executor(self, cut: CompiledCase, check: type[ExecutorCheck]) -> Iterator[str]:
        """Check what an executor does to the arrays and threads of its caller, where its codegen is."""
        (region, artifact), inputs, expected = _first_run(cut)
        run = self._load_without_copies(region, artifact)
        given = {name: np.array(value) for name, value in inputs.items()}
        quantized = quantized_tensors_of(region)
        for problem in run.examine(given, check(expected, self.allow(region), quantized)):
            yield f"{cut.name}{problem}"

    def run_in_fresh_process(
        self, cuts: Sequence[CompiledCase], options: Mapping[str, str]
    ) -> "FreshResults":
        """Run the regions in a fresh process; return their answers. Raises InputError when it fails."""
        regions = [(cut, *each) for cut in cuts for each in cut.regions]
        tasks = [
            RegionTask(region, artifact, cut.expected_runs[region.name].values[0][0])
            for cut, region, artifact in regions
        ]
        return FreshResults(regions, run_fresh_process(self.codegen.name, options, tasks))

    def check_fresh_results(self, fresh: "FreshResults") -> Iterator[str]:
        """Check that an artifact computes the same in a fresh process as here."""
        for (cut, region, artifact), answer in fresh.pairs:
            if answer.problem:
                yield f"{cut.name}, in a fresh process: {answer.problem}"
                continue
            here = self.load(region, artifact)(cut.expected_runs[region.name].values[0][0])
            for problem in self.find_differences(region, here, answer.outputs):
                what = problem.replace("plain onnxruntime", "this process")
                yield f"{cut.name}: in a fresh process {what}"

    def check_determinism(self, fresh: "FreshResults") -> Iterator[str]:
        """Check that the same region compiles to the same bytes, here and in another process.

        The other process compiles all regions, in another order and with another hash seed. Here the
        first one is compiled again in another folder, the others only where their bytes differ there:
        the message says which it is.
        """
        for number, ((cut, region, artifact), answer) in enumerate(fresh.pairs):
            differs = answer.artifact_hash != hash_artifact(artifact)
            here = self._recompile_problems(cut, region, artifact) if differs or not number else []
            yield from here
            if differs and answer.artifact_hash and not here:
                yield f"{cut.name}: compiled in another process, its artifact has {_OTHER_BYTES}"

    def check_determinism_here(self, cut: CompiledCase) -> list[str]:
        """Check that the same region compiles to the same bytes in this process."""
        return [problem for each in cut.regions for problem in self._recompile_problems(cut, *each)]

    def _recompile_problems(self, cut: CompiledCase, region: Region, artifact: Artifact) -> list[str]:
        with TemporaryDirectory(prefix="byoc-") as folder:
            # Elsewhere: two partitions of a model write its regions into two folders.
            copy = Path(shutil.copytree(region.path.parent, Path(folder) / "elsewhere"))
            moved = replace(region, path=copy / region.path.name)
            again = compile_region(self.codegen, moved, self.options)
        if hash_artifact(again) == hash_artifact(artifact):
            return []
        found = [f"'{name}'" for name in _differing_keys(artifact.files, again.files)]
        found += [f"metadata '{key}'" for key in _differing_keys(artifact.metadata, again.metadata)]
        return [f"{cut.name}: compiled again, its artifact has {_OTHER_BYTES}: {', '.join(found)}"]

    def check_recompiled_results(self, cut: CompiledCase) -> Iterator[str]:
        """Check that a recompiled region computes the same."""
        ((region, _), inputs, expected) = _first_run(cut)
        run = self.load(region, compile_region(self.codegen, region, self.options))
        for problem in self.find_differences(region, expected, run(inputs)):
            yield f"{cut.name}, compiled again: {problem}"

    def check_compatible(self, cut: CompiledCase) -> list[str]:
        """Check that `compatible` accepts an artifact, and refuses one with changed metadata."""
        assert isinstance(self.codegen, Stamped)
        region, artifact = cut.regions[0]
        verdict = self.codegen.compatible(region, artifact)
        if not isinstance(verdict, Verdict):
            return [f"`compatible` gave a {type(verdict).__name__}, not a Verdict"]
        if not verdict:
            return [f"{cut.name}: what was compiled here does not fit here: {verdict}"]
        planted = [
            Artifact(artifact.files, {**artifact.metadata, key: f"not {value}"})
            for key, value in artifact.metadata.items()
        ]
        verdicts = [self._verdict(region, other) for other in planted]
        refused = [verdict for verdict in verdicts if not verdict]
        if not refused:
            return [
                f"{cut.name}: `compatible` takes any artifact: compile must write into its metadata "
                "what it depends on, and `compatible` must compare that"
            ]
        return [f"{cut.name}: `compatible` refuses without a reason" for v in refused if not str(v)]

    def check_oracle(self, cut: CompiledCase) -> list[str]:
        """Check that `check` gives a verdict on each node."""
        assert isinstance(self.codegen, Oracle)
        ask_verdicts(self.codegen, cut.regions[0][0].load(inline=True), self.options)
        return []

    def check_measured(self, cut: CompiledCase) -> list[str]:
        """Check that `cost` gives seconds."""
        assert isinstance(self.codegen, Measured)
        measure_seconds(self.codegen, cut.regions[0][0])
        return []

    def check_estimate(self, cut: CompiledCase) -> list[str]:
        """Check that `estimate` gives seconds or cycles of what was compiled."""
        assert can_estimate(self.codegen)
        estimate_region(self.codegen, cut.regions[0][0], self.options, cut.regions[0][1])
        return []

    def check_trace(self, cut: CompiledCase) -> Iterator[str]:
        """Check that `trace` gives tensors of the region, and each output's, as ONNX defines them."""
        for region, artifact in cut.regions:
            assert can_trace(self.codegen)
            inputs, _ = cut.expected_runs[region.name].values[0]
            shown = trace_region(self.codegen, region, artifact, inputs)
            with without_optimizations():
                expected = compute_tensors(region, inputs)
            for name in shown.keys() - expected.keys():
                yield f"{cut.name}: `trace` gives '{name}', which no node of the region makes"
            for name in {each.inner for each in region.outputs} & expected.keys() - shown.keys():
                yield f"{cut.name}: `trace` leaves out '{name}', which leaves the region"
            known = {name: expected[name] for name in shown if name in expected}
            for problem in self.find_differences(region, known, shown):
                yield f"{cut.name}: in its trace {problem}"

    def check_profile(self, cut: CompiledCase) -> Iterator[str]:
        """Check that `profile` gives times, and names nodes of the region alone."""
        for region, artifact in cut.regions:
            assert can_profile(self.codegen)
            inputs, _ = cut.expected_runs[region.name].values[0]
            times = profile_region(self.codegen, region, artifact, inputs)
            known = {name for node in region.nodes for name in (node.name, *node.output)}
            given = list(dict.fromkeys(name for each in times for name in each.nodes))
            unknown = [name for name in resolve_node_names(region, given) if name not in known]
            if unknown:
                yield f"{cut.name}: `profile` names '{unknown[0]}', which is no node of the region"

    def check_profiled(self, cut: CompiledCase) -> Iterator[str]:
        """Check that `profile` gives an operation that takes time."""
        (region, artifact), inputs, _ = _first_run(cut)
        assert can_profile(self.codegen)
        times = profile_region(self.codegen, region, artifact, inputs)
        if not any(to_seconds(each.time) for each in times):
            yield f"{cut.name}: `profile` gives no operation that takes time"

    def _verdict(self, region: Region, artifact: Artifact) -> Verdict:
        """Return the verdict of `compatible`; an exception is a refusal."""
        assert isinstance(self.codegen, Stamped)
        try:
            return self.codegen.compatible(region, artifact)
        except ByocError as error:
            return refuse(str(error))


@dataclass(frozen=True, eq=False)
class FreshResults:
    """The results of regions in a fresh process."""

    regions: Sequence[tuple[CompiledCase, Region, Artifact]]
    answers: Sequence[RegionAnswer]

    @property
    def pairs(self) -> Iterator[tuple[tuple[CompiledCase, Region, Artifact], RegionAnswer]]:
        """Pairs of a region and its answer."""
        return zip(self.regions, self.answers, strict=True)


def _first_run(cut: CompiledCase) -> tuple[tuple[Region, Artifact], Values, Values]:
    """Return the first region of a case, its inputs and its expected outputs."""
    region, artifact = cut.regions[0]
    return (region, artifact), *cut.expected_runs[region.name].values[0]


def _differing_keys(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


# The check of a codegen that makes of an artifact that of a region with other weights.

WEIGHT_FORMS = ("a large constant", "a shared constant", "a computed constant")
"""The forms of regions that are drawn a second time, with other names and weights."""


@dataclass(frozen=True, eq=False)
class WeightExchange:
    """An artifact of the region of `other`, made of that of the region of `first`.

    The two cases are one form with different names and weights.
    """

    first: CompiledCase
    other: CompiledCase
    artifact: Artifact

    @property
    def region(self) -> Region:
        """The region that the artifact is for."""
        return self.other.regions[0][0]

    def as_case(self) -> CompiledCase:
        """Return the other case with the artifact in the place of the one that was compiled for it."""
        name = f"{self.first.name}, with the weights of another region"
        case = replace(self.other.case, name=name)
        return replace(self.other, case=case, regions=((self.region, self.artifact),))

    def check(self, checks: CodegenChecks) -> Iterator[str]:
        """Check that the artifact has the keys of a compiled one, and computes with its own weights."""
        compiled = self.other.regions[0][1]
        found = [f"file '{name}'" for name in compiled.files.keys() ^ self.artifact.files.keys()]
        found += [
            f"metadata '{name}'" for name in compiled.metadata.keys() ^ self.artifact.metadata.keys()
        ]
        for what in found:
            yield f"{self.first.name}: of `compile` and `take_weights` only one gives the {what}"
        if not isinstance(checks.codegen, Executable):
            return
        run = checks.load(self.region, self.artifact)
        for inputs, expected in self.other.expected_runs[self.region.name].values:
            for problem in checks.find_differences(self.region, expected, run(inputs)):
                yield f"{self.first.name}, with the weights of another region: {problem}"


def exchange_case_weights(
    codegen: TakesWeights, checks: CodegenChecks, first: CompiledCase, other: CompiledCase
) -> WeightExchange | None:
    """Return the artifact of `take_weights` for another case, None where the region has to be compiled.

    Raises CompileError as the codegen does.
    """
    (region, artifact), (twin, _) = first.regions[0], other.regions[0]
    if not find_alike([region, twin]):
        return None
    made = exchange_weights(codegen, twin, region, artifact, checks.options)
    return None if made is None else WeightExchange(first, other, made)


# The check that a codegen with native code in its artifacts says so.

# How files begin that execute something when they are loaded.
_NATIVE = {
    b"\x7fELF": "a shared library",
    b"MZ": "a library of Windows",
    **dict.fromkeys((b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"), "a library of macOS"),
    **{b"\x80" + bytes([version]): "a pickle" for version in range(2, 6)},
}


def find_undeclared_code(codegen: Codegen, cut: CompiledCase) -> Iterator[str]:
    """Yield a sentence for each file of native code in an artifact of a codegen that declares none."""
    if getattr(codegen, "native", False) or not isinstance(codegen, Executable):
        return
    for _, artifact in cut.regions:
        for name, content in artifact.files.items():
            kind = next((kind for start, kind in _NATIVE.items() if content.startswith(start)), "")
            if kind:
                yield (
                    f"{cut.name}: '{name}' is {kind}: if `load` executes it, the class needs "
                    "`native = True`, so that it is loaded from trusted bundles alone"
                )
