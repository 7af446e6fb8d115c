"""The protocol of stages, and chains of them: what one makes is what the next one reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from byoc.errors import InputError

if TYPE_CHECKING:
    from byoc.model import Variant
    from byoc.stages._state import Resolved

ReadT = TypeVar("ReadT")
MadeT = TypeVar("MadeT")
NextT = TypeVar("NextT")
ReadT_contra = TypeVar("ReadT_contra", contravariant=True)
MadeT_co = TypeVar("MadeT_co", covariant=True)
VariantT = TypeVar("VariantT", bound="Resolved")


class Stage(Protocol[ReadT_contra, MadeT_co]):
    """A step of the pipeline; its fields, if any, are its options.

    A *joint* stage takes and returns the states of all variants of a bundle, the others that of one.
    """

    def run(self, state: ReadT_contra, /) -> MadeT_co:
        """Return the state with what this stage makes; the one that is given stays as it is."""


@dataclass(frozen=True)
class Chain(Generic[ReadT, MadeT]):
    """Stages one after the other, which are a stage again: `Chain.of(Annotate()) >> Group()`.

    A type checker rejects a stage that reads what none before it makes. Iterating gives the stages,
    those of chains inside, too.
    """

    stages: tuple[Stage[Any, Any], ...]

    @classmethod
    def of(cls, stage: Stage[ReadT, MadeT]) -> Chain[ReadT, MadeT]:
        """Return the chain of one stage."""
        return cls((stage,))

    def __rshift__(self, stage: Stage[MadeT, NextT]) -> Chain[ReadT, NextT]:
        """Return the chain with one more stage at the end."""
        return Chain((*self.stages, stage))

    def __iter__(self) -> Iterator[Stage[Any, Any]]:
        """Yield the stages in order."""
        for stage in self.stages:
            inner = stage.stage if isinstance(stage, Each) else stage
            yield from inner if isinstance(inner, Chain) else (inner,)

    def run(self, state: ReadT) -> MadeT:
        """Run the stages. Raises what they raise."""
        made: Any = state
        for stage in self.stages:
            made = _run(stage, made)
        return made  # type: ignore[no-any-return]  # the last stage's, by how chains are made


@dataclass(frozen=True)
class Each(Generic[VariantT, MadeT]):
    """A stage for each variant of a bundle, as a joint stage."""

    stage: Stage[VariantT, MadeT]

    def run(self, states: Sequence[VariantT]) -> list[MadeT]:
        """Run the stage on each state. Raises as it does, InputError with the variant's name first."""
        made = []
        for state in states:
            with _naming_variant(state.request.variant):
                made.append(_run(self.stage, state))
        return made


@contextmanager
def _naming_variant(variant: Variant) -> Iterator[None]:
    """Put the name of a variant, if it has one, in front of the message of an InputError."""
    try:
        yield
    except InputError as error:
        if not variant.name or type(error) is not InputError:  # others say more than a message
            raise
        raise InputError(f"variant {variant.name}: {error}") from error


Watcher = Callable[[Stage[Any, Any], Any], None]
_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watch_stages(watch: Watcher) -> Iterator[None]:
    """Call `watch` after each stage that runs in the block, with the stage and the state that it made.

    A joint stage makes a list of states, one for each variant.
    """
    token = _WATCHER.set(watch)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def _run(stage: Stage[ReadT, MadeT], state: ReadT) -> MadeT:
    made = stage.run(state)
    watch = _WATCHER.get()
    if watch is not None and not isinstance(stage, Chain | Each):  # their stages are told by themselves
        watch(stage, made)
    return made
