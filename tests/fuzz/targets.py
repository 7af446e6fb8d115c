"""What is held against hostile input: each gives its outcome, or lets out what must never come out.

The only exception that may come out of byoc is InputError.
"""

import functools
import sys
from dataclasses import dataclass
from pathlib import Path

import onnx
from cutting import planned

from byoc.costs import _load_cost_model
from byoc.errors import InputError
from byoc.model import Model, prepare_model, read_model_file
from byoc.patterns import group_units
from byoc.placement import Strategy
from byoc.placement.strategies import AllSupported
from byoc.placement.strategies._optimizing import MinCut
from byoc.rules import Target, annotate_graph, load_rules

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
            _check_sentence(error)
            return REFUSED
        outcome = "planned"
        strategies: tuple[Strategy, ...] = (MinCut(), AllSupported())
        for target, strategy in zip(self._targets(), strategies, strict=True):
            try:
                planned(model, target, strategy)
            except InputError as error:
                _check_sentence(error)
                outcome = "loaded, plan refused"
        return outcome

    def _targets(self) -> tuple[Target, ...]:
        return _read_targets(self.folder / "permissive.yaml")


@functools.cache
def _read_targets(path: Path) -> tuple[Target, ...]:
    return load_rules("dla"), load_rules(str(path))


@dataclass(frozen=True)
class Rules:
    """Text of a rule file: read, and applied to a small model when it is one."""

    folder: Path
    suffix: str = ".yaml"

    def prepare(self) -> None:
        """Read the model that rules are applied to."""
        _small()

    def __call__(self, data: bytes) -> str:
        """Return what became of it, for the count."""
        path = self.folder / f"r{self.suffix}"
        path.write_bytes(data)
        try:
            target = load_rules(str(path))
        except InputError as error:
            if len(str(error).splitlines()) > 60:
                raise AssertionError("more lines than the limit on problems") from error
            return REFUSED
        index = _small().index
        group_units(index, target.patterns, annotate_graph(index, target))
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


def _check_sentence(error: InputError) -> None:
    text = str(error)
    if not text or "\n" in text or "Traceback" in text:
        raise AssertionError(f"not one sentence: {text!r}") from error


def read_costs_once() -> None:
    """Keep cost models in memory from now on: reading YAML takes longer than planning a small model."""
    _load_cost_model.load_cost_model = functools.cache(_load_cost_model.load_cost_model)


TARGETS: dict[str, type[Models] | type[Rules]] = {"models": Models, "rules": Rules}


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
