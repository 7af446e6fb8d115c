"""The abilities of codegens in worker processes, and the regions that are loaded there."""

from __future__ import annotations

import json
import re
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from unicodedata import normalize

import numpy as np
from onnx import ModelProto

from byoc import onnxrt
from byoc.codegen._calling import RemoteExecutor, run_executor, take_turns
from byoc.codegen._interface import CodegenFailedError
from byoc.codegen._isolation import (
    IsolatedCodegen,
    copy_region,
    read_artifacts,
    read_context,
    read_driver,
    read_estimate,
    read_fit,
    read_nothing,
    read_number,
    read_optional_artifact,
    read_optional_number,
    read_outputs,
    read_pairs_of_texts,
    read_seconds,
    read_sentences,
    read_times,
    read_verdict,
    read_verdicts,
)
from byoc.codegen.byoc_worker.link import write_array, write_files
from byoc.errors import escape_unprintable

if TYPE_CHECKING:
    from byoc.codegen._abilities import Context, DriverSources, Fit
    from byoc.codegen._interface import AnyArray, Artifact, Cycles, Executor, OperatorTime
    from byoc.codegen._isolation import Examine, Measure
    from byoc.codegen._region import Region
    from byoc.codegen._worker import Isolation, Reader, Worker
    from byoc.codegen.byoc_worker.link import SharedMemory
    from byoc.errors import Verdict

T = TypeVar("T")


# Names of a bundle's files: relative paths that are valid on every system and in a zip.
#
# Strict JSON (RFC 8259): no duplicate keys in an object, no NaN or infinity.

# A valid name in all common file systems: no separator, no drive, no control character, lone surrogate,
# invisible mark or one that turns the direction of writing, no space or dot at the end, which Windows
# drops. The schema of manifests has the same.
_NEVER = (
    r"\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\uffff"
    r'/\\:*?"<>|'
)
_PLAIN_NAME = re.compile(f"[^{_NEVER}]*[^{_NEVER}. ]")
MAX_PATH = 1_000
"""The most characters of a path in a bundle."""
# Windows reserves these for devices, with anything after the first dot (docs: "Naming Files, Paths, and
# Namespaces"); it takes the superscripts 1, 2 and 3 for digits.
_PORTS = (f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789\xb9\xb2\xb3")
_DEVICES = {"con", "prn", "aux", "nul", "conin$", "conout$", "clock$", *_PORTS}
_ROOTS = re.compile(r"[/\\]|[A-Za-z]:")
_MAX_CHARACTERS = 200  # of a vendor's text in a sentence of ours
MAX_JSON_VALUES = 1 << 22
"""The most values that JSON from elsewhere may have; a bundle of 10,000 regions has half as many."""
# There is one before or in each value but the first, and texts may hold more.
_VALUE_MARKS = (b",", b":", b"[", b"{")


def is_plain_name(name: str) -> bool:
    """Return whether a name is a valid file name, without a folder, on every system."""
    device = name.partition(".")[0].rstrip(" ").lower()
    return bool(_PLAIN_NAME.fullmatch(name)) and device not in _DEVICES


def describe_path_problem(path: str) -> str:
    """Describe the problem of a bundle's file path, to follow its name in a sentence; "" if valid."""
    parts = path.split("/")
    if _ROOTS.match(path) or ".." in re.split(r"[/\\]", path):
        return "is not inside the bundle"
    is_plain = len(path) <= MAX_PATH and all(map(is_plain_name, parts))
    return "" if is_plain else "does not have a plain name"


def find_same_paths(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return two paths that cannot both be files on every system, None if there are none.

    They differ in case or in the form of Unicode only, as a whole or in a folder (`A/x` and `a/y`), or
    one is a folder of the other. Systems differ: what one of them may take for the same is the same.
    """
    # By the number of the folder and the folded name: number, spelling, and the path seen first.
    seen: dict[tuple[int, str], tuple[int, str, str]] = {}
    for path in paths:
        *folders, file = path.split("/")
        above = 0
        for name in folders:
            above, spelt, first = seen.setdefault((above, _fold(name)), (len(seen) + 1, name, path))
            if spelt != name or above < 0:
                return first, path
        _, _, first = seen.setdefault((above, _fold(file)), (-1, file, path))
        if first != path:
            return first, path
    return None


def _fold(name: str) -> str:
    """Fold a name, so that names that differ in case or form only become equal (Unicode, D145)."""
    return normalize("NFD", normalize("NFD", name).casefold())


def quote_name(name: str) -> str:
    """Quote a name for an error message: on one line, shortened where it is long."""
    return f"'{escape_line(name)}'"


def escape_line(text: str) -> str:
    """Escape the unprintable characters of a text, and shorten it where it is long."""
    shown = escape_unprintable(text[:_MAX_CHARACTERS])
    return shown if len(text) <= _MAX_CHARACTERS else f"{shown}..."


def parse_strict_json(content: bytes) -> Any:
    """Parse JSON in UTF-8. Raises ValueError with a sentence on one line.

    JSON of more than `MAX_JSON_VALUES` values is refused before it is parsed: a value of a few bytes
    takes a hundred in memory.
    """
    # Each value has a mark of one byte: counting them takes time, and short files need none.
    if len(content) > MAX_JSON_VALUES and sum(map(content.count, _VALUE_MARKS)) > MAX_JSON_VALUES:
        raise ValueError(f"it has more than {MAX_JSON_VALUES} values")
    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_number,
            parse_float=_parse_finite,
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except ValueError as error:
        # Python refuses integers of thousands of digits. A hook for each integer would take as long as
        # all the rest.
        if "integer string conversion" in str(error):
            raise ValueError("an integer of thousands of digits is not a number that is read") from None
        raise


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {quote_name(twice)} stands twice")
    return result


def _parse_finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _refuse_number(text)


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{escape_line(text)} is not a number that is read")


class _Loads(IsolatedCodegen):
    def load(self, region: Region, artifact: Artifact) -> Executor:
        return _IsolatedExecutor(self, copy_region(region), artifact)


class _Checks(IsolatedCodegen):
    def check(
        self, model: ModelProto, options: Mapping[str, str] = MappingProxyType({})
    ) -> Sequence[Verdict]:
        return self.call("check", read_verdicts, model=model, options=dict(options))


class _Measures(IsolatedCodegen):
    def cost(self, region: Region) -> float:
        return self.call("cost", read_seconds, region=copy_region(region))


class _Estimates(IsolatedCodegen):
    def estimate(self, region: Region, options: Mapping[str, str], artifact: Artifact) -> float | Cycles:
        asked = {"region": copy_region(region), "options": dict(options)}
        return self.call("estimate", read_estimate, partial(_write_artifact, artifact), **asked)


class _Traces(IsolatedCodegen):
    def trace(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, AnyArray]
    ) -> Mapping[str, AnyArray]:
        write = partial(_write_call, artifact, inputs)
        return self.call("trace", read_outputs, write, region=copy_region(region))


class _Profiles(IsolatedCodegen):
    def profile(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, AnyArray]
    ) -> Sequence[OperatorTime]:
        write = partial(_write_call, artifact, inputs)
        return self.call("profile", read_times, write, region=copy_region(region))


class _Stamps(IsolatedCodegen):
    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        copied = copy_region(region)
        return self.call("compatible", read_verdict, partial(_write_artifact, artifact), region=copied)


class _Fits(IsolatedCodegen):
    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        return self.call("find_fit", read_fit, files=list(files), metadata=dict(metadata))


class _GivesKeys(IsolatedCodegen):
    def cache_key(self, options: Mapping[str, str]) -> Mapping[str, str]:
        return self.call("cache_key", read_pairs_of_texts, options=dict(options))


class _CompilesTogether(IsolatedCodegen):
    def compile_all(
        self, regions: Sequence[Region], options: Mapping[str, str]
    ) -> Mapping[str, Artifact]:
        copied = tuple(map(copy_region, regions))
        return self.call("compile_all", read_artifacts, regions=copied, options=dict(options))


class _TakesWeights(IsolatedCodegen):
    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: Mapping[str, str]
    ) -> Artifact | None:
        regions = (copy_region(region), copy_region(first))
        write = partial(_write_artifact, artifact)
        return self.call(
            "take_weights", read_optional_artifact, write, regions=regions, options=dict(options)
        )


class _GivesContexts(IsolatedCodegen):
    def context(self, artifact: Artifact) -> Context:
        return self.call("context", read_context, partial(_write_artifact, artifact))


class _HasDriver(IsolatedCodegen):
    def driver(self) -> DriverSources:
        return self.call("driver", read_driver)


class _Recovers(IsolatedCodegen):
    @property
    def recovery_options(self) -> Sequence[Mapping[str, str]]:
        return self.description.recovery_options


ABILITY_CLASSES: Mapping[str, type[IsolatedCodegen]] = {
    "executable": _Loads,
    "oracle": _Checks,
    "measured": _Measures,
    "estimate": _Estimates,
    "trace": _Traces,
    "profile": _Profiles,
    "fit": _Fits,
    "stamped": _Stamps,
    "keyed": _GivesKeys,
    "together": _CompilesTogether,
    "weights": _TakesWeights,
    "context": _GivesContexts,
    "driver": _HasDriver,
    "recovery": _Recovers,
}


def add_abilities(codegen: IsolatedCodegen) -> None:
    """Give a codegen in a worker process the methods that it has there."""
    abilities = [ABILITY_CLASSES[ability] for ability in codegen.description.abilities]
    kind = type(codegen)
    codegen.__class__ = type(kind.__name__, (*abilities, kind), {})


def find_isolated(name: str, isolation: Isolation) -> IsolatedCodegen:
    """Return the installed codegen of a name, which runs in a worker process and is imported only there.

    Raises InputError as `find_codegen` does, and when no process can be started.
    """
    found = IsolatedCodegen(name, isolation)
    add_abilities(found)
    return found


class _IsolatedExecutor(RemoteExecutor):
    """A region that is loaded in a codegen's process, and loaded again in the next one after it died."""

    def __init__(self, codegen: IsolatedCodegen, region: Region, artifact: Artifact) -> None:
        self.codegen = codegen
        self._region, self._artifact = region, artifact
        self._settings = onnxrt.get_session_settings()
        self._loaded_in: Worker | None = None
        self._number = 0
        self._load()

    @property
    def call_limit(self) -> float:
        return self.codegen.isolation.find_limit("run")

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, AnyArray]:
        with self.codegen.lock:
            return _run_remotely(self.codegen, self.load_again(), inputs)

    def bind(
        self, inputs: Mapping[str, AnyArray], outputs: Mapping[str, AnyArray]
    ) -> _BoundRemotely | None:
        """Bind the executor to arrays of its process, to and from which these are copied at each run.

        None where it cannot be bound, or where two of the arrays overlap without being the same.
        """
        places = _number_arrays([*inputs.values(), *outputs.values()])
        if places is None:
            return None
        bound = _BoundRemotely(self, inputs, outputs, places)
        return bound if bound.is_bound() else None

    def allocate(self, pairs: Mapping[str, str]) -> _RemoteState | None:
        """Make room for states in the executor's process, None where it keeps none."""
        with self.codegen.lock:
            asked: dict[str, Any] = {"executor": self.load_again(), "pairs": list(pairs.items())}
            number = self.codegen.call("allocate", read_optional_number, **asked)
            return None if number is None else _RemoteState(self.codegen, number)

    def measure(self, inputs: Mapping[str, Any], measure: Measure) -> list[float]:
        with self.codegen.lock:
            number = self.load_again()
            return self.codegen.measure(number, partial(_write_inputs, inputs), measure)

    def examine(self, inputs: Mapping[str, Any], examine: Examine) -> list[str]:
        codegen, write = self.codegen, partial(_write_inputs, inputs)
        if not codegen.examines:
            return list(examine(self, inputs))
        with codegen.lock:
            number = self.load_again()
            return codegen.call("examine", read_sentences, write, executor=number, examine=examine)

    def load_again(self) -> int:
        """Return its number; it is loaded where the process is not the one that it was loaded in."""
        if self._loaded_in is not self.codegen.worker:
            with onnxrt.with_session_settings(self._settings):
                self._load()
        return self._number

    def _load(self) -> None:
        codegen = self.codegen
        with codegen.lock:
            worker = codegen.worker
            write = partial(_write_artifact, self._artifact)
            self._number = codegen.call("load", read_number, write, region=self._region)
            self._loaded_in = worker
            _release_with(self, worker, self._number)


class _BoundRemotely(RemoteExecutor):
    """An executor that is bound to arrays of its process, and to the caller's here."""

    def __init__(
        self,
        executor: _IsolatedExecutor,
        inputs: Mapping[str, AnyArray],
        outputs: Mapping[str, AnyArray],
        places: Sequence[int],
    ) -> None:
        self._executor, self._inputs, self._outputs = executor, inputs, outputs
        self._places = places
        self._bound_in: Worker | None = None
        self._number: int | None = None

    @property
    def call_limit(self) -> float:
        return self._executor.call_limit

    def is_bound(self) -> bool:
        """Bind it in the process that there is now; return whether it could be."""
        codegen = self._executor.codegen
        with codegen.lock:
            number = self._executor.load_again()
            if self._bound_in is not codegen.worker:
                asked = {"executor": number, **self._name_places()}
                self._number = codegen.call("bind", read_optional_number, self._write_arrays, **asked)
                self._bound_in = codegen.worker
                if self._number is not None:
                    _release_with(self, codegen.worker, self._number)
            return self._number is not None

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, AnyArray]:
        codegen = self._executor.codegen
        with codegen.lock:
            if not self.is_bound() or self._number is None:
                raise CodegenFailedError("its process was started again, and does not bind it any more")
            made = _run_remotely(codegen, self._number, {**inputs, **self._inputs})
        for name, array in self._outputs.items():
            if name in made:
                array[...] = made[name]
        return {**made, **{name: each for name, each in self._outputs.items() if name in made}}

    def _name_places(self) -> dict[str, Any]:
        count = len(self._inputs)
        return {
            "bound_inputs": list(zip(self._inputs, self._places[:count], strict=True)),
            "bound_outputs": list(zip(self._outputs, self._places[count:], strict=True)),
        }

    def _write_arrays(self, memory: SharedMemory) -> dict[str, Any]:
        found = dict(zip(self._places, (*self._inputs.values(), *self._outputs.values()), strict=True))
        return {"arrays": [write_array(found[place], memory) for place in sorted(found)]}


class _RemoteState:
    """States of one sequence in the process of a codegen, which are lost where that ends."""

    def __init__(self, codegen: IsolatedCodegen, number: int) -> None:
        self._codegen, self._number = codegen, number
        self._worker = codegen.worker
        _release_with(self, self._worker, number)

    def reset(self, values: Mapping[str, AnyArray]) -> None:
        self._call("reset", read_nothing, values)

    def step(self, inputs: Mapping[str, AnyArray]) -> Mapping[str, AnyArray]:
        return self._call("step", read_outputs, inputs)

    def read(self) -> Mapping[str, AnyArray]:
        return self._call("read", read_outputs, {})

    def _call(self, method: str, read: Reader[T], inputs: Mapping[str, AnyArray]) -> T:
        with self._codegen.lock:
            if not self._worker.is_alive:
                raise CodegenFailedError("its process ended, and the states that it kept are lost")
            return self._codegen.call(method, read, partial(_write_inputs, inputs), state=self._number)


def _run_remotely(
    codegen: IsolatedCodegen, number: int, inputs: Mapping[str, Any]
) -> Mapping[str, AnyArray]:
    """Run an executor of a process by its number."""
    return codegen.call("run", read_outputs, partial(_write_inputs, inputs), executor=number)


def _release_with(owner: object, worker: Worker, number: int) -> None:
    """Have a process forget an executor or a state when its object here goes."""
    weakref.finalize(owner, worker.released.append, number).atexit = False


def _number_arrays(arrays: Sequence[AnyArray]) -> list[int] | None:
    """Return a number for each array, the same for those that are the same bytes.

    None where two overlap otherwise: another process cannot have them so.
    """
    first: list[AnyArray] = []
    found = []
    for array in arrays:
        same = [k for k, each in enumerate(first) if _is_same_array(each, array)]
        if not same and any(np.may_share_memory(each, array) for each in first):
            return None
        found.append(same[0] if same else len(first))
        if not same:
            first.append(array)
    return found


def _is_same_array(one: AnyArray, other: AnyArray) -> bool:
    places = [(each.ctypes.data, each.dtype, each.shape, each.strides) for each in (one, other)]
    return one is other or (places[0] == places[1] and one.size > 0)


def measure_executor(run: Executor, inputs: Mapping[str, Any], measure: Measure) -> list[float]:
    """Measure an executor on some inputs: return the seconds of its runs.

    It is called where the codegen is, so that runs in a worker process do not count the way there.
    """
    if isinstance(run, _IsolatedExecutor):
        return run.measure(inputs, measure)
    return list(measure(lambda: run_executor(run, inputs)))


def examine_executor(
    run: Executor,
    inputs: Mapping[str, Any],
    examine: Examine,
    lock: AbstractContextManager[Any],
) -> list[str]:
    """Examine an executor on some inputs: return the sentences. Each run holds `lock`.

    It is called where the codegen is, so that it sees what becomes of arrays and threads there; here for
    one in another Python, which has no functions of byoc.
    """
    if isinstance(run, _IsolatedExecutor):
        return run.examine(inputs, examine)
    return list(examine(take_turns(run, lock), inputs))


def _write_artifact(artifact: Artifact, memory: SharedMemory) -> dict[str, Any]:
    return {"files": write_files(artifact.files, memory), "metadata": dict(artifact.metadata)}


def _write_call(artifact: Artifact, inputs: Mapping[str, Any], memory: SharedMemory) -> dict[str, Any]:
    return {**_write_artifact(artifact, memory), **_write_inputs(inputs, memory)}


def _write_inputs(inputs: Mapping[str, Any], memory: SharedMemory) -> dict[str, Any]:
    return {"inputs": [(name, write_array(value, memory)) for name, value in inputs.items()]}
