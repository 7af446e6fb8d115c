"""A codegen for another Python, from 3.8 on: a table of operators, run by the numpy that is there.

`ACME_DOES` in the environment says what it does wrong, and in which method: `compile segv`.
"""

import ctypes
import json
import os
import struct
import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Optional

import numpy as np
from byoc_worker import (
    ON_OWN_CPU,
    YES,
    Artifact,
    Bytes,
    CompileError,
    Context,
    Cycles,
    DriverSources,
    Emitters,
    NotHereError,
    ResourceError,
    refuse,
)

RUNS = {
    "Add": np.add,
    "Mul": np.multiply,
    "Sub": np.subtract,
    "MatMul": np.matmul,
    "Relu": lambda x: np.maximum(x, x.dtype.type(0)),
}
KEPT = []  # regions of earlier calls


def _write(content):
    os.write(int(sys.argv[2]), len(content).to_bytes(8, "little") + content)


def _raise(error):
    raise error


WAYS = {
    "segv": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(7),
    "sys.exit": lambda: sys.exit(3),
    "hang": lambda: time.sleep(600),
    "garbage": lambda: os.write(int(sys.argv[2]), b"\xff" * 64),
    "answer": lambda: _write(b'{"number": 2, "result": {"start": -1}}'),
    "question": lambda: _write(b'{"number": 2, "question": {"region": 99}}'),
    "other": lambda: _write(
        b'{"number": 2, "question": {"region": 1, "method": "load", "arguments": {}}}'
    ),
    "raise": {}.popitem,
    "refuse": lambda: _raise(CompileError("it is\nFriday", ["a"], lasting=False)),
    "traceback": lambda: _raise(
        CompileError(
            'Traceback (most recent call last):\n  File "importer.py", line 1\nValueError: no zero point'
        )
    ),
    "large": lambda: _raise(ResourceError("too many")),
    "absent": lambda: _raise(NotHereError("no device")),
    "print": lambda: print("noise"),  # noqa: T201
    "constant": lambda: KEPT[-1].constant("no_such"),
}


def _misbehave(method):
    asked = os.environ.get("ACME_DOES", "").split()
    if asked[:1] == [method]:
        WAYS[asked[1]]()


_misbehave("import")


class Mode(Enum):
    fast = "fast"
    small = "small"


@dataclass(frozen=True)
class Options:
    speed: int = field(default=3, metadata={"help": "From 1 to 5."})
    mode: Mode = Mode.fast
    memory: Bytes = Bytes(1024)  # noqa: RUF009
    license: Optional[str] = None
    tool: str = field(default="cc", metadata={"executes": True})

    def __post_init__(self):
        if not 1 <= self.speed <= 5:
            raise ValueError(f"speed is {self.speed}, at most 5")


class Acme:
    """Computes a table of operators. It does so in numpy."""

    name = "acme-elsewhere"
    api = 2
    Options = Options
    libraries = ("numpy",)

    def compile(self, region, options):
        KEPT.append(region)
        if "RECORD" in os.environ:
            with Path(os.environ["RECORD"]).open("a") as file:
                file.write("compiled\n")
        _misbehave("compile")
        operations = region.operations()
        unknown = [each for each in operations if each.op not in RUNS]
        if unknown:
            raise CompileError(f"no {unknown[0].op}", [each.name for each in unknown])
        table = [[each.op, each.inputs, each.outputs] for each in operations]
        stored = sorted({name for each in operations for name in each.constants})
        constants = {name: region.constant(name) for name in stored}
        weights = b"".join(np.ascontiguousarray(each).tobytes() for each in constants.values())
        places = [[name, str(each.dtype), each.shape] for name, each in constants.items()]
        metadata = {
            "mode": options.mode.value,
            "memory": str(int(options.memory)),
            "numpy": np.__version__,
        }
        return Artifact(
            {"code.json": json.dumps([table, places]).encode(), "weights": weights}, metadata
        )

    def load(self, region, artifact):
        _misbehave("load")
        table, places = json.loads(artifact.files["code.json"].decode())
        constants, start = {}, 0
        for name, dtype, shape in places:
            count = int(np.prod(shape, dtype=int))
            found = np.frombuffer(artifact.files["weights"], dtype, count, start)
            constants[name] = found.reshape(shape)
            start += found.nbytes

        def run(inputs):
            _misbehave("run")
            values = dict(constants, **inputs)
            for op, reads, (made,) in table:
                values[made] = RUNS[op](*(values[name] for name in reads))
            return {each.name: values[each.name] for each in region.outputs}

        return run

    def check(self, region):
        _misbehave("check")
        operations = region.operations(fold=False, boundary=True)
        found = [YES if each.op in RUNS else refuse("no " + each.op) for each in operations]
        return [ON_OWN_CPU if each.op == "Add" else verdict for each, verdict in zip(operations, found)]

    def estimate(self, region, options, artifact):
        _misbehave("estimate")
        return Cycles(100.0 * len(region.operations()), 1e6 * options.speed)

    def cost(self, region):
        return 0.25

    def compatible(self, region, artifact):
        there = "numpy " + np.__version__
        return YES if artifact.metadata["numpy"] == np.__version__ else refuse("it is for " + there)

    def cache_key(self, options):
        return {"tool": "1"}


EMIT = Emitters()


@EMIT.op("MatMul", "Relu")
def emit_float(operation, mark):
    return f"{operation.op} {mark} {operation.outputs[0]}"


@EMIT.op("DequantizeLinear", "QuantizeLinear")
def emit_integers(operation, mark):
    return operation.attributes["axis"]


class Reader(Acme):
    """Writes down what it is told of a region."""

    name = "reader"
    calibrates = True

    def compile(self, region, options):
        import onnx  # noqa: PLC0415

        files = {
            "operations.txt": repr(region.operations()),
            "quantized.txt": repr(region.operations(fold=True, quantized=True)),
            "contracts.txt": repr((region.inputs, region.outputs, region.constants)),
            "type.txt": repr(region.type(region.inputs[0].name)),
            "constants.txt": repr([region.constant(each.name).tolist() for each in region.constants]),
            "arena.txt": repr(region.arena(16).size),
            "samples.txt": repr([{k: v.tolist() for k, v in each.items()} for each in region.samples()]),
            "path.txt": str(region.path.is_file()),
        }
        found = {name: text.encode() for name, text in files.items()}
        found["whole.onnx"] = region.load().SerializeToString()
        saved = region.save(inline=True, fold=True, opset=13, ir_version=7)
        found["saved.onnx"] = onnx.load(str(saved)).SerializeToString()
        files_of_saved = " ".join(each.name for each in saved.parent.iterdir())
        wanted = region.load(opset=13, ir_version=7, wants=["zero_points"])
        found["wanted.onnx"] = wanted.SerializeToString()
        found["emitted.txt"] = repr(EMIT(region, "to", fold=False)).encode()
        return Artifact(found, {"onnx": onnx.__version__, "saved": str(saved), "files": files_of_saved})


class FromTheFuture(Acme):
    """Speaks a version of the interface that there is not."""

    name = "future"
    api = 5


class NoCodegen:
    """Cannot compile."""

    name = "none"


class OddOptions(Acme):
    """Has an option that cannot be given as text."""

    name = "odd-options"

    @dataclass(frozen=True)
    class Options:
        table: dict = field(default_factory=dict)


class Writer(Acme):
    """Writes into its inputs."""

    name = "writer"

    def load(self, region, artifact):
        def run(inputs):
            inputs["x"] *= 2
            return {"y": inputs["x"]}

        return run


class Passing(Acme):
    """Gives its constant, and what it got, whatever the type."""

    name = "passing"

    def compile(self, region, options):
        stored = region.constant("w")
        return Artifact({}, {"dtype": str(stored.dtype)})

    def load(self, region, artifact):
        stored = region.constant("w")
        return lambda inputs: {"y": inputs["x"], "z": stored}


class OldInterface(Acme):
    """Speaks version 1, which has no estimates."""

    name = "old-interface"
    api = 1


class Together(Acme):
    """Compiles all regions in one call, and takes other weights."""

    name = "together"

    def compile_all(self, regions, options):
        found, names = {}, []
        for region in regions:
            names.append(region.name)
            made = self.compile(region, options)
            found[region.name] = Artifact(made.files, {"with": ", ".join(names)})
        return found

    def take_weights(self, region, first, artifact, options):
        if region.name == first.name:
            return None
        weights = self.compile(region, options).files["weights"]
        return Artifact(dict(artifact.files, weights=weights), artifact.metadata)


class Careless(Acme):
    """Gives a dictionary where an artifact is asked for, and text where a number is."""

    name = "careless"

    def compile(self, region, options):
        return {"code": b""}

    def cost(self, region):
        return "much"

    def load(self, region, artifact):
        return 3


class DoublingExecutor:
    """Doubles its input, also where that lies, and counts a state up on its device."""

    def __init__(self, region):
        self.given, self.made = region.inputs[0].name, region.outputs[0].name

    def __call__(self, inputs):
        _misbehave("run")
        return {self.made: inputs[self.given] * np.float32(2)}

    def bind(self, inputs, outputs):
        _misbehave("bind")

        def run(given):
            np.multiply(inputs.get(self.given, given[self.given]), np.float32(2), out=outputs[self.made])
            return {self.made: outputs[self.made]}

        return run if self.made in outputs else None

    def allocate(self, pairs):
        return HeldState(self) if pairs == {self.given: self.made} else None


class HeldState:
    """Keeps what `DoublingExecutor` made."""

    def __init__(self, run):
        self.run, self.kept = run, None

    def reset(self, values):
        self.kept = np.array(values[self.run.given])

    def step(self, inputs):
        self.kept = self.run({self.run.given: self.kept})[self.run.made]
        return {}

    def read(self):
        return {self.run.given: self.kept}


class Doubling:
    """Doubles, here and by a driver in C."""

    name = "doubling-elsewhere"
    api = 3

    def compile(self, region, options):
        return Artifact({"code.bin": b"add"}, {"compiler": "1"})

    def load(self, region, artifact):
        return DoublingExecutor(region)

    def driver(self):
        _misbehave("driver")
        source = Path(__file__).parent / "driver" / "doubling_elsewhere.c"
        return DriverSources(self.name, (source,), ("m",))


class DoublingByContext(Doubling):
    """Doubles, by a provider of its vendor's."""

    def context(self, artifact):
        names = ("s",), ("y",)
        return Context("vendor", "code.bin", *names, sdk_version="7", more={"priority": 3})


class Rockchip:
    """Computes Relu as the stand-in of Rockchip's runtime does, whose files it writes."""

    name = "rockchip"
    api = 3

    def compile(self, region, options):
        shape = region.inputs[0].type.shape
        head = struct.pack("<iif", 0, 0, 1.0)  # float32, without a zero point and a scale
        extents = struct.pack("<%dI" % (1 + len(shape)), len(shape), *shape)  # noqa: UP031
        return Artifact({"region.rknn": b"RKNN" + head + extents}, {"cores": "auto"})

    def load(self, region, artifact):
        given, made = region.inputs[0].name, region.outputs[0].name
        return lambda inputs: {made: RUNS["Relu"](inputs[given])}


class DriverOfAnother(Doubling):
    """Gives sources under another name."""

    def driver(self):
        return DriverSources("another", ("nowhere.c",))


class DriverWithoutSources(Doubling):
    """Gives sources that are not there."""

    def driver(self):
        return DriverSources(self.name, ("/nowhere/driver.c",))


class NoDriverSources(Doubling):
    """Gives a path where it should give sources."""

    def driver(self):
        return "driver.c"
