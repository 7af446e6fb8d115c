"""The check that an executor leaves its inputs alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class InputCheck:
    """An executor whose first call raises TypeError if it writes into its inputs.

    The host reads these tensors, too. A worker gets copies of them, so that such a region would be right
    there and wrong in this process. Later calls are not checked: a comparison costs two copies.
    """

    __slots__ = ("_is_checked", "_run")

    def __init__(self, run: Callable[[Mapping[str, Any]], Any]) -> None:
        """Check the executor at its first call."""
        self._run, self._is_checked = run, False

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Run it. Raises TypeError as said."""
        if self._is_checked:
            return self._run(inputs)
        arrays = {
            name: value
            for name, value in inputs.items()
            if isinstance(value, np.ndarray) and not value.dtype.hasobject
        }
        before = {name: array.tobytes() for name, array in arrays.items()}
        given = self._run(inputs)
        for name, content in before.items():
            if arrays[name].tobytes() != content:
                raise TypeError(f"it wrote into its input '{name}', which others read, too")
        self._is_checked = True
        return given

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        """Bind the executor to arrays; None where it has no `bind`. Nothing is checked then.

        A tensor that is an input and an output at once is written to by design.
        """
        bind = getattr(self._run, "bind", None)
        return None if bind is None else bind(inputs, outputs)

    def allocate(self, pairs: Mapping[str, str]) -> Any:
        """Make room for states on the device; None where the executor has no `allocate`."""
        allocate = getattr(self._run, "allocate", None)
        return None if allocate is None else allocate(pairs)
