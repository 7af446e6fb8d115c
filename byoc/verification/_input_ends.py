"""The ends of what inputs can be: from the roles of the model's inputs, and from ranges of values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from byoc.bundle import Bundle
from byoc.errors import InputError
from byoc.model import GraphIndex, Model, inline_functions, prepare_model
from byoc.samples import find_domains
from byoc.verification._region_verification import find_outer_names

Values = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class InputEnds:
    """The least and the largest value of inputs: of a model, and of the regions of a bundle of it."""

    bundle: Bundle
    model: Model

    def find_of_model(self, name: str, value: Any) -> tuple[float, float]:
        """Return the ends of an input of the model, which has a value in a realistic sample."""
        domain = self._domains.get(name, (-inf, inf))
        return _find_ends(value) if domain is None else domain

    def find_of_region(self, region: str, name: str, value: Any) -> tuple[float, float]:
        """Return the ends of an input of a region, which has a value in a realistic sample."""
        outer = self._outer.get(region, {}).get(name, "")
        low, high = self.find_of_model(outer, value) if outer in self._domains else (-inf, inf)
        if np.asarray(value).dtype.kind not in "iu":
            return low, high
        ranges = next((each.value_ranges for each in self._graphs if outer in each.types), None)
        if ranges is None:
            return _find_ends(value)
        found = ranges.find_interval(outer)
        return max(low, found.low), min(high, found.high)

    @cached_property
    def _domains(self) -> Mapping[str, tuple[float, float] | None]:
        try:
            return find_domains(self.model.index)
        except InputError:  # inputs that no sample can be made for
            return dict.fromkeys(self.model.index.inputs)

    @cached_property
    def _graphs(self) -> Sequence[GraphIndex]:
        """The partitioned model's graphs, with regions in place of their calls."""
        try:
            flat = inline_functions(self.bundle.model())
            return tuple(prepare_model(flat, self.model.source, self.bundle.folder).index.walk())
        except InputError:  # ONNX's inliner confuses names in bodies
            return ()

    @cached_property
    def _outer(self) -> Mapping[str, Mapping[str, str]]:
        names = {entry.name for entry in self.bundle.variant.regions}
        return find_outer_names(GraphIndex(self.bundle.model(), {}), names)


def _find_ends(value: Any) -> tuple[float, float]:
    """Return the ends of the values of an array, which stays as it is where it has none."""
    array = np.asarray(value)
    if not array.size or array.dtype.kind in "OUSc":
        return 0.0, 0.0
    return float(array.min()), float(array.max())
