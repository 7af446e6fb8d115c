"""Samples that a model runs with, found by trial, and named samples that are read one at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.errors import InputError, suggest_nearest
from byoc.model import DTYPE_NUMBERS, Model, read_array
from byoc.onnxrt import (
    get_session_settings,
    has_runtime,
    open_session,
    run_session,
    without_optimizations,
)
from byoc.samples._input_sizes import find_open_sizes
from byoc.samples._input_values import Choice, InputMaker

if TYPE_CHECKING:
    from byoc.model import GraphIndex, TensorType


# Samples that a model runs with: sizes and values are tried on plain onnxruntime.
#
# Plausible sizes come first, then smaller and larger ones, at last each open dimension by itself.
# Where onnxruntime is not installed the plausible sizes are taken as they are.

_MAX_TRIALS = 48  # samples that are tried where the model refuses the first
_MAX_WEIGHTS, _MAX_EXTENTS = 16, 8
# After a poor trial (see `_Runner.grade`) so many more are run to find a good one.
_MAX_POOR = 8
# Sizes that a dimension may have when none of the plausible ones fits.
_OTHER_SIZES = (1, 2, 4, 8, 32, 64, 128, 256, 512, 3, 5, 7)
_LARGER, _SMALLER, _OFFSETS = (2, 4), (2, 4, 8), (1, 2, 3)
# Other samples of a model: other sizes, the other value of a condition.
_MAX_SAMPLES = 3
# Deviation of the values drawn for a variable constant whose own values are all equal.
_DEVIATION = 0.02


class NoSampleError(InputError):
    """No sample was found that plain onnxruntime runs the model with."""


@dataclass(frozen=True, eq=False)
class ModelSample:
    """Inputs of a model, and the sizes of its open dimensions that they have."""

    inputs: Mapping[str, Any]
    sizes: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class _Trial:
    """A sample to try: sizes of the free dimensions, and one of the values that inputs may have."""

    free: Mapping[str, int]
    choice: Choice


@dataclass(frozen=True, eq=False)
class _SearchResult:
    """A maker of samples, and the trials that the model runs with, the most plausible first.

    `problem` says why there is none.
    """

    maker: InputMaker
    trials: tuple[_Trial, ...]
    problem: str = ""


_results: WeakKeyDictionary[Model, _SearchResult] = WeakKeyDictionary()


def model_samples(model: Model, seed: int = 0) -> Mapping[str, Any]:
    """Return sample inputs for a model: its own where it brings some, otherwise seeded ones.

    These have sizes that plain onnxruntime runs the model with. Raises InputError as `sample_inputs`
    does, and NoSampleError when no sample runs.
    """
    if model.make_samples is not None:
        return model.make_samples(seed)
    result = _find_result(model)
    if result.problem:
        raise NoSampleError(result.problem)
    trial = result.trials[0]
    return result.maker.make(seed, trial.free, trial.choice)


def list_samples(model: Model, seed: int = 0) -> tuple[ModelSample, ...]:
    """Return samples of several sizes and choices, the one of `model_samples` first.

    A model without open dimensions, or with samples of its own, has one; a decoder has one without a
    past. One with variable constants has another, in which these have other values. Raises as
    `model_samples` does.
    """
    found = _list_samples(model, seed)
    if not model.variable:
        return found
    return (*found, ModelSample({**found[0].inputs, **_vary_constants(model, seed)}, found[0].sizes))


def _vary_constants(model: Model, seed: int) -> Mapping[str, Any]:
    """Return other values of a model's variable constants: theirs in another order."""
    stored = {tensor.name: tensor for tensor in model.proto.graph.initializer}
    random = np.random.default_rng(seed)
    found = {}
    for name in model.variable:
        value = read_array(stored[name], model.folder)
        mixed = random.permutation(value.reshape(-1)).reshape(value.shape)
        if value.size and value.dtype.kind == "f" and np.all(value == value.flat[0]):
            mixed = random.normal(0, _DEVIATION, value.shape).astype(value.dtype)
        found[name] = mixed
    return found


def _list_samples(model: Model, seed: int) -> tuple[ModelSample, ...]:
    first = model_samples(model, seed)
    if model.make_samples is not None:
        return (ModelSample(first, {}),)
    result = _find_result(model)
    sizes = result.maker.sizes
    others = [result.maker.make(seed, trial.free, trial.choice) for trial in result.trials[1:]]
    return tuple(
        ModelSample(inputs, sizes.complete(trial.free))
        for trial, inputs in zip(result.trials, (first, *others), strict=True)
    )


_kept: ContextVar[list[tuple[Any, Any]] | None] = ContextVar("kept", default=None)


@contextmanager
def keeping_sessions() -> Iterator[None]:
    """Keep each model open that `open_plain_session` opens inside, for who opens it again."""
    token = _kept.set([])
    try:
        yield
    finally:
        _kept.reset(token)


def open_plain_session(model: Model) -> Any:
    """Return an onnxruntime session of a model without optimizations, to compare with or to try samples.

    Raises as `byoc.onnxrt.open_session`.
    """
    with without_optimizations():
        key = (id(model.proto), model.folder, get_session_settings())
        kept = _kept.get()
        for known, session in kept or ():
            if known[1:] == key:
                return session
        session = open_session(model.proto, model.folder)
    if kept is not None:
        kept.append(((model.proto, *key), session))
    return session


def _find_result(model: Model) -> _SearchResult:
    if model not in _results:
        _results[model] = _try_sizes_and_values(model)
    return _results[model]


def _try_sizes_and_values(model: Model) -> _SearchResult:
    maker = InputMaker(find_open_sizes(model.index))
    plausible = _Trial(maker.sizes.suggested, Choice())
    maker.make(0, plausible.free)  # what cannot be made at all is said first
    if not has_runtime() or not _needs_trials(maker):
        return _SearchResult(maker, (plausible,))
    runner = _Runner(model, maker)
    best, problem = None, ""
    for count, trial in enumerate(islice(_list_trials(maker), _MAX_TRIALS)):
        if runner.loading_problem:
            break
        grade = runner.grade(trial)
        if grade is None:
            problem = problem or runner.problem
            continue
        if best is None or grade > best[0]:
            best = grade, trial, count
        if grade == _GOOD or count - best[2] >= _MAX_POOR:
            break
    if best is None:
        return _SearchResult(
            maker, (), runner.loading_problem or f"no inputs were found that it runs on: {problem}"
        )
    return _SearchResult(maker, (best[1], *_find_others(maker, best[1], best[0], runner)))


def _needs_trials(maker: InputMaker) -> bool:
    """Return whether plausible inputs could be wrong: not for floats of known sizes."""
    types = maker.sizes.traced.types.values()
    return bool(maker.sizes.names) or any(kind and "float" not in kind.dtype for kind in types)


_GOOD, _POOR = 2, 1


class _Runner:
    """Runs a model on trials; `problem` is why the last one failed, or none can be run."""

    def __init__(self, model: Model, maker: InputMaker) -> None:
        self._maker = maker
        self.problem = self.loading_problem = ""
        self._session: Any = None
        try:
            self._session = open_plain_session(model)
        except InputError as error:
            self.loading_problem = str(error)

    def grade(self, trial: _Trial) -> int | None:
        """Run a trial and grade it, None if it does not run.

        `_POOR` are outputs that are empty or not numbers, and windows larger than what they slide over.
        """
        if self._session is None:
            return None
        try:
            outputs = run_session(self._session, self._maker.make(0, trial.free, trial.choice))
        except InputError as error:
            self.problem = str(error)
            return None
        arrays = [value for value in outputs.values() if isinstance(value, np.ndarray)]
        sizes = self._maker.sizes
        is_good = all(map(_is_informative, arrays)) and sizes.relations.has_room(
            sizes.complete(trial.free)
        )
        return _GOOD if is_good else _POOR


def _is_informative(array: np.ndarray[Any, Any]) -> bool:
    return bool(array.size) and (array.dtype.kind != "f" or not bool(np.isnan(array).any()))


def _list_trials(maker: InputMaker) -> Iterator[_Trial]:
    """Yield trials, the most plausible first."""
    yield _Trial(maker.sizes.suggested, Choice())
    if maker.has_choices:
        yield _Trial(maker.sizes.suggested, Choice(1))
    for value in (1, 0) if maker.has_flags else ():
        yield _Trial(maker.sizes.suggested, Choice(0, value))
    for free in _list_sizes(maker):
        yield _Trial(maker.sizes.fill(free), Choice())


def _list_sizes(maker: InputMaker) -> Iterator[Mapping[str, int]]:
    suggested, kinds = maker.sizes.suggested, maker.sizes.kinds
    known = _list_known_extents(maker)
    grown = [name for name in suggested if kinds[name] not in ("batch", "channels")]
    plain = [name for name in grown if kinds[name] in ("count", "sequence")]
    yield maker.sizes.others
    for scale in _LARGER:
        yield {**suggested, **{name: suggested[name] * scale for name in grown}}
    for more in _OFFSETS:
        yield {**suggested, **{name: suggested[name] + more for name in grown}}
    for size in known if plain else ():
        yield {**suggested, **dict.fromkeys(plain, size)}
    for part in _SMALLER:
        yield {**suggested, **{name: max(1, suggested[name] // part) for name in grown}}
    yield dict.fromkeys(suggested, 1)
    for size in (*known, *_OTHER_SIZES):
        for name in suggested:
            if suggested[name] != size:
                yield {**suggested, name: size}


def _list_known_extents(maker: InputMaker) -> list[int]:
    """Return extents of inputs and weights, which open ones may have to be equal to."""
    traced = maker.sizes.traced
    shapes = [kind.shape for kind in traced.types.values() if kind and kind.shape]
    weights = islice(traced.index.proto.graph.initializer, _MAX_WEIGHTS)
    shapes += [tuple(tensor.dims) for tensor in weights]
    extents = (dim for shape in shapes for dim in shape if isinstance(dim, int) and dim > 1)
    return list(dict.fromkeys(extents))[:_MAX_EXTENTS]


def _find_others(maker: InputMaker, first: _Trial, least: int, runner: _Runner) -> Iterator[_Trial]:
    """Yield trials that differ from the first and are graded `least` or better, at most two.

    Of those that only change sizes, one is enough.
    """
    left = _MAX_SAMPLES - 1
    for trial in _list_changes(maker, first):
        if (runner.grade(trial) or 0) >= least:
            left -= 1
            yield trial
    if not left:
        return
    for free in _list_changed_sizes(maker, first.free):
        trial = _Trial(maker.sizes.fill(free), first.choice)
        if trial.free != first.free and (runner.grade(trial) or 0) >= least:
            yield trial
            return


def _list_changes(maker: InputMaker, first: _Trial) -> Iterator[_Trial]:
    """Yield a trial without a past, and one with other choices, where a model has such."""
    kinds, others = maker.sizes.kinds, maker.sizes.others
    if "past" in kinds.values():
        steps = {name: others[name] for name, kind in kinds.items() if kind in ("past", "step")}
        yield _Trial(maker.sizes.fill({**first.free, **steps}), first.choice)
    if maker.has_choices:
        yield _Trial(first.free, Choice(first.choice.number + 1, first.choice.integer))


def _list_changed_sizes(maker: InputMaker, free: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield other sizes: all but the past, each alone, and all a little larger."""
    others = {n: size for n, size in maker.sizes.others.items() if maker.sizes.kinds[n] != "past"}
    kept = {n: size for n, size in others.items() if maker.sizes.kinds[n] != "step"}
    yield {**free, **kept}
    for name, size in (*kept.items(), *others.items()):
        yield {**free, name: size}
    yield {**free, **{name: free[name] + 2 for name in kept}}


Inputs = Mapping[str, NDArray[Any]]
"""A sample: a value for each input of a model, by its name."""

RANDOM = "random"
DEFAULT_RANDOM = 32  # samples where their number is not given


@dataclass(frozen=True, eq=False)
class Sample:
    """A sample, and its name in errors."""

    name: str
    inputs: Inputs


@dataclass(frozen=True, eq=False)
class SampleSource:
    """Named samples: `read_from(number)` skips so many and yields the others, each time anew.

    `total` is their number, None if unknown. `identity` is equal for equal samples, and empty if that
    cannot be determined; `random` marks random data, and `once` data that can be started only once.
    """

    name: str
    read_from: Callable[[int], Iterator[Sample]]
    total: int | None
    identity: str = ""
    random: bool = False
    once: bool = False


def make_random_samples(model: Model, most: int | None = None) -> SampleSource:
    """Return random samples: the zoo's own for its models, seeded noise for others.

    Their seeds start at 1, since 0 is the one that results are verified on.
    """
    total = DEFAULT_RANDOM if most is None else most

    def start(number: int) -> Iterator[Sample]:
        for seed in range(number + 1, total + 1):
            yield Sample(f"{RANDOM} {seed}", model_samples(model, seed))

    return SampleSource(RANDOM, start, total, f"{RANDOM} {total}", random=True)


def wrap_samples(samples: Iterable[Inputs], model: Model, most: int | None = None) -> SampleSource:
    """Return the samples of a caller, one or more mappings of arrays.

    Raises InputError, once they are read, for samples that do not fit the model.
    """

    def start(number: int) -> Iterator[Sample]:
        for inputs in islice(samples, number, most):  # enumerate would hold two at a time
            number += 1
            name = f"sample {number}"
            check_inputs(inputs, model.index, name)
            yield Sample(name, inputs)
            del inputs

    total = len(samples) if isinstance(samples, Sized) else None
    total = total if total is None or most is None else min(total, most)
    return SampleSource("samples", start, total, once=iter(samples) is samples)


def hash_values(parts: Iterable[object]) -> str:
    """Return a hash of values by their representation."""
    result = hashlib.sha256()
    for part in parts:
        result.update(repr(part).encode())
    return result.hexdigest()


def check_inputs(inputs: Mapping[str, object], index: GraphIndex, where: str) -> None:
    """Raise InputError, beginning with `where`, unless a sample has the inputs of the model.

    An input with a default may be left out, and open dimensions may have any size.
    """
    if not isinstance(inputs, Mapping):
        raise InputError(f"{where}: expected arrays by the names of the model's inputs")
    defaults = {tensor.name for tensor in index.graph.initializer}
    missing = [name for name in index.inputs if name not in inputs and name not in defaults]
    unknown = [name for name in inputs if name not in index.inputs]
    if unknown:
        hint = suggest_nearest(unknown[0], index.inputs)
        raise InputError(f"{where}: the model has no input '{unknown[0]}'{hint}")
    if missing:
        raise InputError(f"{where}: there is no value for the input '{missing[0]}'")
    for name, value in inputs.items():
        check_array(value, name, index.types.get(name), where)


def check_array(value: object, name: str, kind: TensorType | None, where: str) -> None:
    """Raise InputError, beginning with `where`, for a value that does not have an input's type."""
    if kind is None or not isinstance(value, np.ndarray):
        raise InputError(
            f"{where}: the input '{name}' needs a NumPy array, or is not a tensor in the model"
        )
    found = f"is {value.dtype}{list(value.shape)}, and the model takes {kind}"
    if value.dtype != numpy_dtype(kind) and not (kind.dtype == "string" and value.dtype.kind in "OU"):
        raise InputError(f"{where}: the input '{name}' {found}")
    if kind.shape is None:
        return
    fits = len(value.shape) == len(kind.shape) and all(
        want == have for want, have in zip(kind.shape, value.shape, strict=True) if isinstance(want, int)
    )
    if not fits:
        raise InputError(f"{where}: the input '{name}' {found}")


def numpy_dtype(kind: TensorType) -> np.dtype[Any]:
    """Return NumPy's dtype of a tensor's elements."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(DTYPE_NUMBERS[kind.dtype]))
