"""Checks of executors: arrays and threads of the caller, and a fresh process that loads and runs.

They run in the process where the codegen is: what they see there does not cross to another one.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.codegen import (
    Artifact,
    Codegen,
    Codegens,
    Executor,
    Isolation,
    Keyed,
    RefusedError,
    Region,
    StatefulExecutor,
    ask_cache_key,
    compile_region,
    parse_codegen_options,
)
from byoc.errors import ByocError, describe_error
from byoc.runtime import RegionFailedError, find_executable, load_executor
from byoc.verification import Thresholds, compare_tensors

# A fresh process that loads artifacts, runs them, and compiles their regions again.

_TIMEOUT = 600.0  # seconds for a call, of compilers that take minutes
# Another hash seed: the iteration order of sets must not affect artifacts.
_ENVIRONMENT = {"PYTHONHASHSEED": "12345"}

TensorValues = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class RegionTask:
    """A compiled region, and the inputs to run it on."""

    region: Region
    artifact: Artifact
    inputs: TensorValues


@dataclass(frozen=True, eq=False)
class RegionAnswer:
    """A region's outputs in the fresh process, or the problem; `artifact_hash` is the artifact's."""

    outputs: TensorValues
    problem: str = ""
    artifact_hash: str = ""


def hash_artifact(artifact: Artifact) -> str:
    """Return a SHA-256 in hex of an artifact, its files and its metadata."""
    digest = hashlib.sha256(repr(sorted(artifact.metadata.items())).encode())
    for name, content in sorted(artifact.files.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file under a folder by relative path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def run_fresh_process(
    codegen: str, options: Mapping[str, str], tasks: Sequence[RegionTask]
) -> list[RegionAnswer]:
    """Run regions in one fresh process, the last first; return the answers in the order of the tasks.

    In another order what a codegen keeps from compile to compile is another. Raises InputError when the
    process cannot be started or does not find the codegen.
    """
    isolation = Isolation(call_timeout=_TIMEOUT, environment=_ENVIRONMENT)
    with closing(Codegens(isolation)) as codegens:
        find_executable(codegen, codegens)
        answers = [_run_task(codegens, codegen, options, task) for task in reversed(tasks)]
        return answers[::-1]


def check_cache_key(codegen: Keyed, name: str, options: Mapping[str, str]) -> Iterator[str]:
    """Check that `cache_key` gives the same texts twice here, and in a fresh process."""
    parsed = parse_codegen_options(cast(Codegen, codegen), options)
    here, again = (ask_cache_key(codegen, parsed) for _ in range(2))
    with closing(Codegens(Isolation(call_timeout=_TIMEOUT, environment=_ENVIRONMENT))) as codegens:
        there = ask_cache_key(cast(Keyed, codegens.find(name)), options)
    for where, other in (("the second time", again), ("in another process", there)):
        for key in sorted(here.keys() | other.keys()):
            if here.get(key) != other.get(key):
                yield (
                    f"`cache_key` has another '{key}' {where}, so that nothing would be found in the "
                    "cache: give no times, addresses or sets"
                )


def _run_task(
    codegens: Codegens, name: str, options: Mapping[str, str], task: RegionTask
) -> RegionAnswer:
    codegen = codegens.find(name)
    try:
        run = load_executor(find_executable(name, codegens), name, task.region, task.artifact)
        outputs = run(task.inputs)
        parsed = parse_codegen_options(codegen, options)
        again = compile_region(codegen, task.region, parsed)
    except ByocError as error:
        return RegionAnswer({}, error_reason(error))
    return RegionAnswer(outputs, "", hash_artifact(again))


def error_reason(error: ByocError) -> str:
    """Return the reason of an error, without the codegen's name."""
    if isinstance(error, RefusedError):
        return error.refusals[0].reason
    return error.reason if isinstance(error, RegionFailedError) else str(error)


Values = Mapping[str, Any]

_THREAD_CALLS = 32  # of an executor by two threads
_STEPS = 3  # of each sequence


@dataclass(frozen=True, eq=False)
class ExecutorCheck(ABC):
    """A check of an executor on some inputs, whose outputs are `expected` within `thresholds`.

    It is called with the executor and the inputs, and yields the ends of sentences, one for each
    problem. `quantized` names the outputs that are integers and stand for real numbers.
    """

    expected: Values
    thresholds: Thresholds
    quantized: Collection[str]

    @abstractmethod
    def __call__(self, run: Executor, inputs: Values) -> Iterator[str]:
        """Yield the problems."""

    def differences(self, expected: Values, actual: Values) -> list[str]:
        """Return a sentence for each output that differs from the expected one."""
        return list(find_differences(expected, actual, self.thresholds, self.quantized))


class InputsUntouched(ExecutorCheck):
    """Runs do not change their inputs, and take read-only ones."""

    def __call__(self, run: Executor, inputs: Values) -> Iterator[str]:
        """Yield the problems."""
        given = _copy(inputs)
        for _ in range(2):
            run(given)
        changed = [name for name, value in inputs.items() if not _same_bytes(given[name], value)]
        for name in changed:
            yield f": it writes to its input '{name}', which another stage may read: copy it first"
        for value in given.values():
            value.flags.writeable = False
        if changed:
            return
        try:
            run(given)
        except Exception as error:  # a plug-in can fail in any way
            yield f": it does not take inputs that are read-only: {describe_error(error)}"


class StridedInputs(ExecutorCheck):
    """Inputs may have any strides."""

    def __call__(self, run: Executor, inputs: Values) -> Iterator[str]:
        """Yield the problems."""
        given = {name: _with_strides(value) for name, value in inputs.items()}
        for problem in self.differences(self.expected, run(given)):
            yield f", inputs not contiguous: {problem}"


class OutputsLast(ExecutorCheck):
    """A run does not overwrite the outputs of the run before."""

    def __call__(self, run: Executor, inputs: Values) -> Iterator[str]:
        """Yield the problems."""
        first = run(inputs)
        kept = {name: np.array(value) for name, value in first.items()}
        run(roll_inputs(inputs, 1))
        for name, value in kept.items():
            if not _same_bytes(value, np.asarray(first[name])):
                yield f": the next run overwrites output '{name}' of the one before: give out copies"


class TwoThreads(ExecutorCheck):
    """Two threads that call one executor get the right results."""

    def __call__(self, run: Executor, inputs: Values) -> Iterator[str]:
        """Yield the problems."""
        given = [roll_inputs(inputs, number) for number in range(_THREAD_CALLS)]
        expected = [{n: np.array(v) for n, v in run(_copy(each)).items()} for each in given]
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda each: run(_copy(each)), given))
        pairs = zip(expected, found, strict=True)
        wrong = sum(bool(self.differences(one, other)) for one, other in pairs)
        if wrong:
            yield (
                f": {wrong} of {_THREAD_CALLS} calls by two threads gave other numbers: keep no state "
                "between calls, and nothing that belongs to the thread that loads"
            )


class StateKept(ExecutorCheck):
    """States on the device are what the executor would have been handed: several steps, two sequences.

    Inputs and outputs of the same type are taken for states, whatever they mean. An executor without
    `allocate`, or that keeps none of them, passes.
    """

    def __call__(self, run: Executor, inputs: Values) -> Iterator[str]:
        """Yield the problems."""
        pairs = self._choose_pairs(inputs)
        if not isinstance(run, StatefulExecutor) or not pairs:
            return
        one, other = run.allocate(pairs), run.allocate(pairs)
        if one is None or other is None:
            return
        others = {name: value for name, value in inputs.items() if name not in pairs}
        starts = [_copy({name: inputs[name] for name in pairs})]
        starts.append(roll_inputs(starts[0], 1))
        for _ in range(2):  # the second time from the beginning again
            given = [_copy(start) for start in starts]
            for state, values in zip((one, other), given, strict=True):
                state.reset(values)
                for value in values.values():
                    value[...] = 0  # the device has a copy
            kept = [dict(start) for start in starts]
            for step in range(_STEPS):
                for number, state in enumerate((one, other)):
                    made = dict(run({**others, **kept[number]}))
                    kept[number] = {past: np.array(made.pop(name)) for past, name in pairs.items()}
                    for problem in self.differences(made, state.step(others)):
                        yield f": step {step + 1} with states on the device: {problem}"
                    for problem in self.differences(kept[number], state.read()):
                        yield f": read after step {step + 1} from the device: {problem}"

    def _choose_pairs(self, inputs: Values) -> dict[str, str]:
        """Return inputs with outputs of the same dtype and shape, each output for one of them."""
        left, pairs = dict(self.expected), {}
        for name, value in inputs.items():
            same = (n for n, v in left.items() if (v.dtype, v.shape) == (value.dtype, value.shape))
            chosen = next(same, None)
            if chosen is not None:
                pairs[name] = chosen
                del left[chosen]
        return pairs


def find_differences(
    expected: Values, actual: Values, thresholds: Thresholds, quantized: Collection[str]
) -> Iterator[str]:
    """Yield a sentence for each output that differs from the expected one."""
    for error in compare_tensors(expected, actual, thresholds, quantized):
        if not error.within:
            problem = error.problem or f"differs from plain onnxruntime's {error.error_phrase}"
            yield f"output '{error.name}' {problem}"


def _copy(inputs: Values) -> dict[str, Any]:
    return {name: np.array(value) for name, value in inputs.items()}


def _same_bytes(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays have the same bytes."""
    return one.tobytes() == other.tobytes()


def roll_inputs(inputs: Values, number: int) -> dict[str, Any]:
    """Return other inputs of the same types, with all elements shifted by `number` places."""
    return {name: np.roll(value, number) for name, value in inputs.items()}


def _with_strides(value: NDArray[Any]) -> NDArray[Any]:
    """Return the same array with gaps between its elements."""
    if not value.ndim:
        return value
    wide = np.zeros((*value.shape[:-1], 2 * value.shape[-1]), value.dtype)
    wide[..., ::2] = value
    return wide[..., ::2]
