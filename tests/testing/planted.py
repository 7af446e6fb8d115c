"""Codegens that each do one thing wrong, registered as a vendor's are, for the tests to find."""

import os
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx

from byoc.codegen import (
    Artifact,
    CompileError,
    Cycles,
    DriverSources,
    Executor,
    NoOptions,
    NotHereError,
    OperatorTime,
    Region,
    compute_tensors,
)
from byoc.errors import YES, InputError, Verdict, refuse
from byoc.onnxrt import open_session, session_runner

_MODEL = "model.onnx"


class Honest:
    """Keeps a region's model in the artifact, and runs that."""

    name = "honest"
    Options = NoOptions

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        return Artifact({_MODEL: region.load().SerializeToString(deterministic=True)}, {"made": "1"})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        return session_runner(open_session(onnx.load_from_string(artifact.files[_MODEL])))

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        made = artifact.metadata["made"]
        return YES if made == "1" else refuse(f"it was made by version {made}")


class ShowsInside(Honest):
    """Shows the tensors inside of regions, and what each node takes."""

    name = "shows_inside"

    def trace(self, region: Region, artifact: Artifact, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return compute_tensors(region, inputs)

    def profile(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, Any]
    ) -> list[OperatorTime]:
        return [OperatorTime((node.output[0],), Cycles(3, 1e9)) for node in region.nodes]


class ShowsOthers(ShowsInside):
    name = "shows_others"

    def trace(self, region: Region, artifact: Artifact, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        found = super().trace(region, artifact, inputs)
        return {name: value + value.dtype.type(1) for name, value in found.items()}


class ShowsNoOutput(ShowsInside):
    name = "shows_no_output"

    def trace(self, region: Region, artifact: Artifact, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}


class TimesOthers(ShowsInside):
    name = "times_others"

    def profile(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, Any]
    ) -> list[OperatorTime]:
        return [OperatorTime(("elsewhere",), 0.5)]


class TimesNothing(ShowsInside):
    name = "times_nothing"

    def profile(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, Any]
    ) -> list[OperatorTime]:
        return []


class Undeclared(Honest):
    """Brings a library along, and does not say that loading executes what a bundle holds."""

    name = "undeclared"

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        made = super().compile(region, options)
        return Artifact({**made.files, "region.so": b"\x7fELF\x02\x01\x01"}, made.metadata)


class Declared(Undeclared):
    name = "declared"
    native = True


class WrongOrder(Honest):
    name = "wrong_order"

    def load(self, region: Region, artifact: Artifact) -> Executor:
        run = super().load(region, artifact)
        names = [value.name for value in region.outputs]
        return lambda inputs: dict(zip(names, reversed(list(run(inputs).values())), strict=True))


class SharedState(Honest):
    name = "shared_state"
    concurrent = True

    def load(self, region: Region, artifact: Artifact) -> Executor:
        run = super().load(region, artifact)
        memory: dict[str, Any] = {}

        def execute(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            memory.update(inputs)
            time.sleep(0.001)
            return run(memory)

        return execute


class WritesInputs(Honest):
    name = "writes_inputs"
    first = 0  # the run from which on it does

    def load(self, region: Region, artifact: Artifact) -> Executor:
        run = super().load(region, artifact)
        runs = count()

        def execute(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            outputs = run(inputs)
            number = next(runs)
            for value in inputs.values():
                if value.flags.writeable and number >= self.first:
                    value[...] = 7
            return outputs

        return execute


class WritesLater(WritesInputs):
    """Writes into inputs where byoc does not look any more."""

    name = "writes_later"
    first = 1


class ReadOnly(Honest):
    """Wants inputs that it may write into."""

    name = "read_only"

    def load(self, region: Region, artifact: Artifact) -> Executor:
        run = super().load(region, artifact)

        def execute(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            for value in inputs.values():
                value.flags.writeable = True
            return run(inputs)

        return execute


class Dies(Honest):
    """Ends its process when it compiles a MaxPool."""

    name = "dies"

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        if any(node.op_type == "MaxPool" for node in region.nodes):
            os.abort()
        return super().compile(region, options)


class Hangs(Honest):
    """Never ends when it runs a MaxPool."""

    name = "hangs"

    def load(self, region: Region, artifact: Artifact) -> Executor:
        while any(node.op_type == "MaxPool" for node in region.nodes):
            time.sleep(1)
        return super().load(region, artifact)


class Elsewhere(Honest):
    """Compiles for a machine that this is not."""

    name = "elsewhere"

    def load(self, region: Region, artifact: Artifact) -> Executor:
        raise NotHereError("it is compiled for a board")


class NonDeterministic(Honest):
    name = "non_deterministic"

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        made = super().compile(region, options)
        return Artifact({**made.files, "salt": os.urandom(8)}, made.metadata)


class CountsConstants(Honest):
    """Numbers the constants of all compiles of a process; a region without any is always the same."""

    name = "counts_constants"
    seen: ClassVar[list[str]] = []

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        made = super().compile(region, options)
        constants = [each.name for each in region.load().graph.initializer]
        self.seen.extend(constants)
        files = {"last": str(len(self.seen)).encode()} if constants else {}
        return Artifact({**made.files, **files}, made.metadata)


class Varies(Honest):
    """Writes something else than the region into an artifact, which the classes below choose."""

    name = "varies"

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        made = super().compile(region, options)
        return Artifact({**made.files, "salt": self.salt(region).encode()}, made.metadata)

    def salt(self, region: Region) -> str:
        raise NotImplementedError


class ByTime(Varies):
    name = "by_time"

    def salt(self, region: Region) -> str:
        return str(time.time_ns())


class ByProcess(Varies):
    name = "by_process"

    def salt(self, region: Region) -> str:
        return str(os.getpid())


class ByFolder(Varies):
    """Writes where the region lies, which is elsewhere each time that a model is partitioned."""

    name = "by_folder"

    def salt(self, region: Region) -> str:
        return str(region.path)


class CountsCompiles(Varies):
    """Numbers the compiles of a process."""

    name = "counts_compiles"
    numbers: ClassVar[Iterator[int]] = count()

    def salt(self, region: Region) -> str:
        return str(next(self.numbers))


class ByOrder(Varies):
    """Differs by the region before it, and not where the same one is compiled twice in a row."""

    name = "by_order"
    compiled: ClassVar[list[str]] = [""]

    def salt(self, region: Region) -> str:
        nodes = str([node.op_type for node in region.nodes])
        if self.compiled[-1] != nodes:
            self.compiled.append(nodes)
        return self.compiled[-2]


class FirstOfProcess(Varies):
    """Differs at the first compile of a process."""

    name = "first_of_process"
    compiled: ClassVar[list[str]] = []

    def salt(self, region: Region) -> str:
        self.compiled.append(region.name)
        return str(len(self.compiled) == 1)


class ByHashOrder(Honest):
    """Differs from process to process only."""

    name = "by_hash_order"

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        made = super().compile(region, options)
        return Artifact(
            {**made.files, "names": str({f"name{i}" for i in range(99)}).encode()}, made.metadata
        )


class Garbage(Honest):
    name = "garbage"

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        return Artifact(super().compile(region, options).files, {"made": 1})  # type: ignore[dict-item]


class WrongDtype(Honest):
    name = "wrong_dtype"

    def load(self, region: Region, artifact: Artifact) -> Executor:
        run = super().load(region, artifact)
        return lambda inputs: {name: value.astype(np.float64) for name, value in run(inputs).items()}


class WrongNumbers(Honest):
    name = "wrong_numbers"

    def load(self, region: Region, artifact: Artifact) -> Executor:
        run = super().load(region, artifact)
        return lambda inputs: {name: value * 1.01 + 0.01 for name, value in run(inputs).items()}


class ForgetsReload(Honest):
    """Runs what it compiled in this process only."""

    name = "forgets_reload"
    made: ClassVar[dict[str, bytes]] = {}

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        made = super().compile(region, options)
        self.made[str(region.path)] = made.files[_MODEL]
        return Artifact({"handle": str(region.path.name).encode()}, made.metadata)

    def load(self, region: Region, artifact: Artifact) -> Executor:
        return session_runner(open_session(onnx.load_from_string(self.made[str(region.path)])))


class OneBuffer(Honest):
    name = "one_buffer"

    def load(self, region: Region, artifact: Artifact) -> Executor:
        run = super().load(region, artifact)
        buffers: dict[str, Any] = {}

        def execute(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            for name, value in run(inputs).items():
                if name not in buffers or buffers[name].shape != value.shape:
                    buffers[name] = np.empty_like(value)
                buffers[name][...] = value
            return dict(buffers)

        return execute


class KeepsState(Honest):
    """Has states on its device, each sequence those of its own."""

    name = "keeps_state"
    together = False

    def load(self, region: Region, artifact: Artifact) -> Executor:
        return HeldExecutor(super().load(region, artifact), {} if self.together else None)


class MixesStates(KeepsState):
    """Has room for the states of one sequence alone."""

    name = "mixes_states"
    together = True


class HeldExecutor:
    """An executor that keeps states as a device does, those of all sequences in `shared` if there is."""

    def __init__(self, run: Executor, shared: dict[str, Any] | None) -> None:
        self.run, self.shared = run, shared

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.run(inputs)

    def allocate(self, pairs: Mapping[str, str]) -> "HeldState":
        return HeldState(self.run, pairs, {} if self.shared is None else self.shared)


class HeldState:
    def __init__(self, run: Executor, pairs: Mapping[str, str], kept: dict[str, Any]) -> None:
        self.run, self.pairs, self.kept = run, pairs, kept

    def reset(self, values: Mapping[str, Any]) -> None:
        self.kept.update((name, np.array(value)) for name, value in values.items())

    def step(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        made = dict(self.run({**inputs, **self.kept}))
        self.kept.update((past, made.pop(name)) for past, name in self.pairs.items())
        return made

    def read(self) -> Mapping[str, Any]:
        return {name: np.array(value) for name, value in self.kept.items()}


class Contiguous(Honest):
    name = "contiguous"

    def load(self, region: Region, artifact: Artifact) -> Executor:
        run = super().load(region, artifact)

        def execute(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            return run(
                {
                    name: value if value.flags.c_contiguous else np.resize(value.base, value.shape)
                    for name, value in inputs.items()
                }
            )

        return execute


class Litters(Honest):
    name = "litters"

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        Path(region.path.parent / "scratch.tmp").write_bytes(b"mine")
        return super().compile(region, options)


class Crashes(Honest):
    name = "crashes"

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        codes = {"": "standard", "byoc.planted": "composite"}
        assert [codes[node.domain] for node in region.nodes]
        return super().compile(region, options)


class NoScalars(Honest):
    name = "no_scalars"

    def load(self, region: Region, artifact: Artifact) -> Executor:
        if any(value.type.shape == () for value in region.inputs):
            raise InputError("there is no code for scalars")
        return super().load(region, artifact)


class AnyStamp(Honest):
    name = "any_stamp"

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        return YES


class OtherKeys(Honest):
    name = "other_keys"

    def cache_key(self, options: NoOptions) -> Mapping[str, str]:
        return {"compiler": "4.2", "process": str(os.getpid())}


class FixedBatch(Honest):
    name = "fixed_batch"

    def load(self, region: Region, artifact: Artifact) -> Executor:
        run = super().load(region, artifact)
        first: dict[str, Any] = {}

        def execute(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            for name, value in inputs.items():
                first.setdefault(name, value.shape)
            return run({name: np.resize(value, first[name]) for name, value in inputs.items()})

        return execute


class OneDevice(Honest):
    """Runs what was loaded last, whichever executor is called."""

    name = "one_device"
    loaded: ClassVar[list[Executor]] = []

    def load(self, region: Region, artifact: Artifact) -> Executor:
        self.loaded[:] = [super().load(region, artifact)]
        return lambda inputs: self.loaded[-1](inputs)  # noqa: PLW0108 - what is there when it is called


class TakesWeights(Honest):
    """Makes of an artifact that of another region, as it would compile it."""

    name = "takes_weights"

    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: NoOptions
    ) -> Artifact | None:
        return self.compile(region, options)


class KeepsWeights(Honest):
    """Makes of an artifact one with another region's names, and leaves the weights as they are."""

    name = "keeps_weights"

    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: NoOptions
    ) -> Artifact | None:
        model, old = region.load(), onnx.load_from_string(artifact.files[_MODEL])
        for tensor, stored in zip(model.graph.initializer, old.graph.initializer, strict=True):
            tensor.raw_data = stored.raw_data
        return Artifact({_MODEL: model.SerializeToString(deterministic=True)}, artifact.metadata)


class LosesMetadata(TakesWeights):
    name = "loses_metadata"

    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: NoOptions
    ) -> Artifact | None:
        return Artifact(self.compile(region, options).files)


class WantsToCompile(Honest):
    name = "wants_to_compile"

    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: NoOptions
    ) -> Artifact | None:
        return None


class Doubling(Honest):
    """Has a driver that computes something else."""

    name = "doubling"
    api = 2
    source = "doubling_driver.c"

    def driver(self) -> DriverSources:
        return DriverSources("doubling", (Path(__file__).parents[1] / "drivers" / self.source,))


class NoDriver(Doubling):
    """Has a driver of a file that there is not."""

    name = "no_driver"
    source = "no_driver.c"


class CompilesOnly:
    """Has no `load`."""

    name = "compiles_only"
    Options = NoOptions

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        if any(node.domain.startswith("org.") for node in region.nodes):
            raise CompileError("operators of other domains are not for it")
        return Artifact({"firmware.bin": b"\x00\x01"})


ALL = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, type) and value.__module__ == __name__ and hasattr(value, "name")
)
