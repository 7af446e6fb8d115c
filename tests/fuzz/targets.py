"""Models and texts that are held against byoc: each gives its outcome, or raises what it must not.

The only exception that may come out of byoc is InputError.
"""

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from helpers.cutting import planned

from byoc.costs import CostModel, Task, _load_cost_model, build_tasks, load_cost_model
from byoc.errors import InputError, escape_unprintable
from byoc.model import Model, prepare_model, read_model_file
from byoc.patterns import find_near_misses, group_units
from byoc.placement import Strategy
from byoc.placement.strategies import AllSupported, MinCut
from byoc.quantization import read_ranges, write_ranges
from byoc.rules import Target, annotate_graph, load_rules
from byoc.support import _plugins
from byoc.support.expressions import NumberRange, compile_expression

PERMISSIVE = """
target: all
cost_model: dla
dtype: any
ops: [{op: '*'}]
composites:
- {name: conv_relu, pattern: "c = Conv(x, w, b?)\\ny = Relu(c)"}
- {name: two, pattern: "a = Add|Mul(x, z)\\ny = Relu|Neg(a)"}
"""
REFUSED = "refused"
MAX_LINES = 60
"""The most lines of an error about a file of many entries."""


@dataclass(frozen=True)
class Models:
    """Bytes of a model: read, checked, and planned for two targets when they are one."""

    folder: Path
    suffix: str = ".onnx"

    def prepare(self) -> None:
        """Write what stands beside the models, and read what is the same for all."""
        (self.folder / "w.bin").write_bytes(bytes(16))
        path = self.folder / "permissive.yaml"
        path.write_text(PERMISSIVE, encoding="utf-8")
        self._targets()

    def __call__(self, data: bytes) -> str:
        """Return what became of it, for the count."""
        path = self.folder / f"m{self.suffix}"
        path.write_bytes(data)
        try:
            model = prepare_model(read_model_file(path), "m.onnx", self.folder)
        except InputError as error:
            check_sentence(error)
            return REFUSED
        outcome = "planned"
        strategies: tuple[Strategy, ...] = (MinCut(), AllSupported())
        for target, strategy in zip(self._targets(), strategies, strict=True):
            try:
                planned(model, target, strategy)
            except InputError as error:
                check_sentence(error)
                outcome = "loaded, plan refused"
        return outcome

    def _targets(self) -> tuple[Target, ...]:
        return _read_targets(self.folder / "permissive.yaml")


@functools.cache
def _read_targets(path: Path) -> tuple[Target, ...]:
    return load_rules("dla"), load_rules(str(path))


@dataclass(frozen=True)
class Rules:
    """Text of a rule file: read, and applied to two small models when it is one."""

    folder: Path
    suffix: str = ".yaml"

    def prepare(self) -> None:
        """Read the models that rules are applied to."""
        _small()
        _quantized()

    def __call__(self, data: bytes) -> str:
        """Return what became of it, for the count."""
        path = self.folder / f"r{self.suffix}"
        path.write_bytes(data)
        try:
            target = load_rules(str(path))
        except InputError as error:
            check_sentence(error, MAX_LINES)
            return REFUSED
        for index in (_small().index, _quantized().index):
            marks = annotate_graph(index, target)
            group_units(index, target.patterns, marks)
            find_near_misses(index, target.patterns, marks)
        return "applied"


@functools.cache
def _small() -> Model:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
        g (float[1, 3, 8, 8] x, float[4, 3, 3, 3] w, float[N] n) => (float[1, 4, 6, 6] y, float[N] z) {
          c = Conv <kernel_shape = [3, 3], auto_pad = "VALID"> (x, w)
          r = Relu (c)
          y = Mul (r, r)
          a = Add (n, n)
          s = Sum (a, n)
          t = Sub (s, n)
          o = acme.Op <mode = "a", some = [1, 2], number = 1.5> (t)
          g = Sigmoid (t)
          z = Softmax <axis = 0> (g)
        }""")
    return prepare_model(proto, "small")


@functools.cache
def _quantized() -> Model:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y)
          <float s = {0.1}, int8 z = {0}, float[4] per = {0.1, 0.2, 0.3, 0.4}> {
          q = QuantizeLinear (x, s, z)
          d = DequantizeLinear (q, s, z)
          w = DequantizeLinear <axis = 0> (k, per)
          c = Conv (d, w)
          r = Relu (c)
          p = QuantizeLinear (r, s, z)
          f = DequantizeLinear (p, s, z)
          m = Mul (f, f)
          n = QuantizeLinear (m, s, z)
          y = DequantizeLinear (n, s, z)
        }""")
    weights = bytes(range(108))
    proto.graph.initializer.add(
        name="k", data_type=onnx.TensorProto.INT8, dims=[4, 3, 3, 3], raw_data=weights
    )
    return prepare_model(proto, "quantized")


@dataclass(frozen=True)
class Conditions:
    """Text of a condition of a rule file: compiled, and decided on known, open and missing facts."""

    folder: Path
    suffix: str = ".cel"

    def prepare(self) -> None:
        """Do nothing: a condition needs no files."""

    def __call__(self, data: bytes) -> str:
        """Return what became of it, for the count."""
        try:
            condition = compile_expression(data.decode("utf-8", "surrogateescape"))
        except ValueError:
            return REFUSED
        results = [condition.decide(facts)[0] for facts in _FACTS]
        return "not decided" if None in results else "decided"


_FACTS: tuple[dict[str, Any], ...] = (
    {
        "X": {"shape": [1, 3, 8, 8], "rank": 4, "dtype": "float32", "given": True, "elements": 192},
        "W": {"shape": [4, 3, 3, 3], "rank": 4, "constant": True, "value": [0.5, -1.0, 3e38]},
        "attr": {"kernel_shape": [3, 3], "group": 1, "auto_pad": "VALID", "alpha": 0.1},
        "name": "aab",
        "op": "Conv",
        "opset": 17,
    },
    {
        "X": {"shape": [NumberRange(1, 64), None, 8], "rank": 3, "given": True},
        "W": {"given": False},
        "attr": {"kernel_shape": [], "group": NumberRange(2, 2**62)},
        "name": "a" * 200 + "\u202e",
    },
    {},
)


@dataclass(frozen=True)
class Costs:
    """Text of a cost file: read, with what it refers to, and asked for prices where it is one."""

    folder: Path
    suffix: str = ".yaml"

    def prepare(self) -> None:
        """Read the operations whose prices are asked for."""
        _tasks()

    def __call__(self, data: bytes) -> str:
        """Return what became of it, for the count."""
        path = self.folder / f"c{self.suffix}"
        path.write_bytes(data)
        try:
            costs = load_cost_model(str(path))
        except InputError as error:
            check_sentence(error, MAX_LINES)
            return REFUSED
        prices = [costs.launching(), costs.transfer(1), costs.transfer(2**40, 2**40)]
        prices += [price for task in _tasks() if (price := costs.execution(task))]
        if any(not price.seconds >= 0 for price in prices):
            raise AssertionError(f"a price that is no time: {prices}")
        return "priced"


@functools.cache
def _tasks() -> tuple[Task, ...]:
    return tuple(build_tasks(_small().index).distinct)


@dataclass(frozen=True)
class Calibrations:
    """Text of a calibration file: read, written and read again, and held to a model where it is one."""

    folder: Path
    suffix: str = ".yaml"

    def prepare(self) -> None:
        """Read the model that the names of tensors are looked up in."""
        _small()

    def __call__(self, data: bytes) -> str:
        """Return what became of it, for the count."""
        path, again = self.folder / f"r{self.suffix}", self.folder / f"a{self.suffix}"
        path.write_bytes(data)
        try:
            ranges = read_ranges(path)
            write_ranges(again, ranges)
            if read_ranges(again) != ranges:
                raise AssertionError("what was written is not read back")
            ranges.check_names(_small(), path)
        except InputError as error:
            check_sentence(error, MAX_LINES)
            return REFUSED
        return "read"


def check_sentence(error: Exception, most_lines: int = 1) -> None:
    """Raise AssertionError unless an error says something on few lines of printable text."""
    lines = str(error).split("\n")
    wrong = [line for line in lines if not line.strip() or line != escape_unprintable(line)]
    if len(lines) > most_lines or wrong or "Traceback" in lines[0]:
        raise AssertionError(f"not {most_lines} printable lines: {str(error)!r}") from error


def look_up_once() -> None:
    """Keep cost models and entry points in memory: to find them takes longer than a small model does."""
    load = _load_cost_model.load_cost_model
    load_plainly = functools.cache(load)

    def load_with(
        name: str, options: Mapping[str, str] | None = None, threads: int | None = None
    ) -> CostModel:
        return load(name, options, threads) if options else load_plainly(name, threads=threads)

    _load_cost_model.load_cost_model = load_with
    _plugins.find_entry_points = functools.cache(_plugins.find_entry_points)


def signature(error: BaseException) -> str:
    """Return what makes two findings one: the exception, and where in byoc it came from."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if "byoc" in path.parts and "tests" not in path.parts[path.parts.index("byoc") :]:
            places.append(f"{path.name}:{trace.tb_frame.f_code.co_name}")
        trace = trace.tb_next
    return f"{type(error).__name__} in {places[-1] if places else 'the fuzzer'}"


def peak_bytes() -> int:
    """Return the most memory that this process has had resident so far."""
    import resource  # noqa: PLC0415 - not on every platform

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
