"""The number of tokens that a bundle can generate behind a prompt, by shapes that its variants take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError
from byoc.model import to_numpy_dtype
from byoc.runtime import Session, VariantSession
from byoc.samples import DecoderInputs

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class GenerationLimit:
    """Counts the tokens that a loaded bundle of a decoder can choose; only shapes are looked at.

    `chosen` is the variant that the user named, empty for none.
    """

    session: Session | VariantSession
    decoder: DecoderInputs
    chosen: str = ""

    def check(self, prompt: int, tokens: int) -> None:
        """Raise InputError, which says how many do, where so many tokens do not fit behind a prompt."""
        most = self.count(prompt, tokens)
        if most >= tokens:
            return
        takes = "no variant takes"
        if isinstance(self.session, Session):
            takes = f"variant '{self.chosen}' alone" if self.chosen else "the bundle"
            takes += " does not take"
        behind = "so nothing can be generated behind the first token"
        if most == 0:
            raise InputError(f"{takes} a prompt of {prompt} without a past{self._explain()}")
        if not self._takes_past():
            raise InputError(f"{takes} a past, {behind}{self._explain() if self.chosen else ''}")
        if most == 1:
            raise InputError(f"{takes} a past of {prompt} and one token, {behind}{self._explain()}")
        raise InputError(f"at most {most} tokens fit behind a prompt of {prompt}, not {tokens}")

    def count(self, prompt: int, most: int) -> int:
        """Return the number of tokens that fit behind a prompt of `prompt` tokens, at most `most`."""
        kept = self.decoder.make_kept(0, prompt)
        if not self._can_run(0, prompt, kept):
            return 0
        steps = range(1, most)
        full = (count for count in steps if not self._can_run(prompt + count - 1, 1, kept))
        return next(full, most)

    def can_begin(self, prompt: int) -> bool:
        """Return whether a prompt of a length can be read."""
        return self.count(prompt, 1) == 1

    def _can_run(self, past: int, length: int, kept: Arrays) -> bool:
        """Return whether so many tokens can be read behind a past of others."""
        if past and not self._takes_past():
            return False
        tokens = np.zeros((self.decoder.draw_prompt(0, 1).shape[0], length), np.int64)
        inputs = {**self.decoder.make_step(tokens, past, kept), **self._make_state(past, length)}
        try:
            if isinstance(self.session, VariantSession):
                self.session.select(inputs)
            else:
                self.session.require_inputs(inputs)
        except InputError:
            return False
        return True

    def _takes_past(self) -> bool:
        """Return whether the state may have elements: not where an extent is 0 in each variant."""
        kinds = (self.session.types.get(pair.past) for pair in self.decoder.pairs)
        return not any(kind is not None and 0 in (kind.shape or ()) for kind in kinds)

    def _make_state(self, past: int, length: int) -> Arrays:
        """Return arrays of the dtypes and shapes of the state behind a past, which are not filled."""
        shapes = self.decoder.find_shapes(past, length)
        dtypes = {pair.past: self.session.types[pair.past].dtype for pair in self.decoder.pairs}
        return {
            name: np.broadcast_to(np.zeros((), to_numpy_dtype(dtype)), shapes[name])
            for name, dtype in dtypes.items()
        }

    def _explain(self) -> str:
        """Return the end of a sentence: what else to try, or why variants are not padded."""
        if self.chosen:
            return "; without --variant each step runs the variant that takes it"
        bundle = self.session.bundle
        entries = [each.variant for each in bundle.variants] if bundle is not None else []
        return "".join(
            f"; {entry.name} is not padded along {dim}: {reason}"
            for entry in entries
            for dim, reason in (entry.padding.refused if entry.padding else {}).items()
        )
