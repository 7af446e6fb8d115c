"""Sessions of bundles with several variants: each call runs the one that takes inputs of its shapes."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from byoc.bundle import Bundle, open_bundle
from byoc.codegen import choose_isolation
from byoc.errors import InputError
from byoc.runtime._device_turns import DeviceTurns, run_in_pipeline
from byoc.runtime._session import Session, load_bundle
from byoc.runtime._stage_program import StageValues
from byoc.runtime._trace import Trace


@dataclass(frozen=True, eq=False)
class VariantSession:
    """A loaded bundle of several variants. Call it with inputs by name to get outputs by name.

    `sessions` has the session of each variant by its name. A call runs the first whose inputs have the
    dtypes and shapes that are given, exactly: nothing is padded.
    """

    sessions: Mapping[str, Session]
    bundle: Bundle

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, the same in all variants."""
        return next(iter(self.sessions.values())).inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return next(iter(self.sessions.values())).outputs

    def __call__(self, inputs: StageValues) -> dict[str, Any]:
        """Return the outputs for inputs given as numpy arrays. Raises as `choose`, and as a session."""
        return self.run(inputs)

    def run(self, inputs: StageValues, trace: Trace | None = None) -> dict[str, Any]:
        """Return the outputs, and record each stage, with its variant, in a trace. Raises as a call."""
        return self.choose(inputs).run(inputs, trace)

    def run_pipeline(
        self, inputs: Iterable[StageValues], in_flight: int = 4, trace: Trace | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the outputs for each of several inputs, as `Session.run_pipeline` does."""
        return run_in_pipeline(partial(self._run_in_turn, trace=trace), inputs, in_flight)

    def _run_in_turn(
        self, inputs: StageValues, number: int, turns: DeviceTurns, trace: Trace | None
    ) -> dict[str, Any]:
        return self.choose(inputs).run_in_turn(inputs, number, turns, trace)

    def tensors(self, inputs: StageValues, names: Collection[str] | None = None) -> dict[str, Any]:
        """Return the values of tensors by name, as `Session.tensors` does."""
        return self.choose(inputs).tensors(inputs, names)

    def choose(self, inputs: StageValues) -> Session:
        """Return the session of the variant that takes the inputs.

        Raises InputError, which says what each variant takes, where none does.
        """
        for session in self.sessions.values():
            if session.fits(inputs):
                return session
        problems: dict[str, str] = {}
        for name, session in self.sessions.items():  # slower: inputs that have to be copied
            try:
                session.check_inputs(inputs)
            except InputError as error:
                problems[name] = str(error)
            else:
                return session
        if len({*problems.values()}) == 1:  # such as an input that is missing
            raise InputError(next(iter(problems.values())))
        variants = {entry.name: entry.variant for entry in self.bundle.manifest.variants}
        told = "; ".join(f"{variants[name]}: {problem}" for name, problem in problems.items())
        raise InputError(f"no variant takes these inputs: {told}")


def load(  # noqa: PLR0913 - each has a default
    path: str | Path,
    *,
    isolate: bool | None = None,
    call_timeout: float | None = None,
    trust: bool = False,
    codegens: Iterable[str] | str | None = None,
    variant: str | None = None,
) -> Session | VariantSession:
    """Load the bundle at `path`, a folder or a packed file, to run it.

    Where it has several variants, each call chooses one by the shapes of its inputs, unless one
    `variant` is named.

    With `isolate` its codegens run in processes of their own: where one crashes or hangs, that is an
    InputError. By default they do unless its maker is trusted, as below. `call_timeout` is the most
    seconds that one of their calls may take, and implies it.

    A bundle with native code is loaded only where its maker is trusted: made on this machine, signed by
    a key that the user trusts, or with `trust`. `codegens` names those that may load its regions.

    Raises InputError when it is not a complete bundle or not trusted, or a codegen is missing, not
    allowed or cannot run artifacts, and MissingRuntimeError when the host needs onnxruntime and it is
    not installed.
    """
    isolation = choose_isolation(isolate, call_timeout)
    bundle = open_bundle(Path(path), isolation, trust=trust, codegens=codegens, variant=variant)
    return load_variants(bundle)


def load_variants(bundle: Bundle) -> Session | VariantSession:
    """Load an opened bundle to run it, all variants that it has; raises as `load` does."""
    variants = bundle.variants
    if len(variants) == 1:
        return load_bundle(bundle)
    return VariantSession({each.variant.name: load_bundle(each) for each in variants}, bundle)
