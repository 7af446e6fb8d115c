"""The cost model protocol and its questions: seconds and joules of tasks and transfers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan, prod
from typing import Any, Literal, Protocol, runtime_checkable

from byoc.costs._work import Work
from byoc.model import TensorType
from byoc.placement import Occupancy

# Tasks, the questions to a cost model: an operator or a composite on tensors of certain types.

Attributes = Mapping[str, Any]

_FEW_CHANNELS = 4  # of an image; blocked layouts have 8 or 16 channels side by side
_USUAL_STRIDE = 3  # the largest that convolution arrays commonly step by
_MANY_WEIGHTS = 1 << 23  # 32 MiB in float32, about what the last cache of a processor holds
_PRODUCTS = frozenset({"Gemm", "MatMul"})


@dataclass(frozen=True, eq=False)
class Task:
    """A node, or a whole composite, as a cost model sees it.
    `op` is the operator (`Conv`, with its domain if that is not ONNX's own: `acme::Odd`) or the
    composite's name; `inputs` and `outputs` are the types, None if a tensor is absent or its type
    unknown. `dtype` is that of the first result, float32 if unknown. `attributes` are those that differ
    from the operator's defaults, numbers, texts and lists of them only; a composite's are prefixed by
    the number of the node in it (`0.strides`). `sized` states whether every shape is known, `parts` has
    the nodes of a composite. `fused` marks an elementwise operator that alone reads what another node
    makes: libraries compute it as that node writes, and it costs next to nothing there. A QDQ group is
    fused where what it dequantizes is read by it alone.
    """

    op: str
    work: Work
    dtype: str = "float32"
    inputs: tuple[TensorType | None, ...] = ()
    outputs: tuple[TensorType | None, ...] = ()
    attributes: Attributes = field(default_factory=dict)
    sized: bool = True
    view: bool = False
    parts: tuple["Task", ...] = ()
    fused: bool = False

    @cached_property
    def types(self) -> str:
        """The types as a cost table writes them: `float32[1, 8], - -> float32[1, 8]`."""
        return " -> ".join(
            ", ".join("-" if kind is None else str(kind) for kind in side)
            for side in (self.inputs, self.outputs)
        ).strip()

    @property
    def families(self) -> tuple[str, ...]:
        """The keys of linear models, from the narrowest to the operator: see `list_families`."""
        weights = self.inputs[1] if len(self.inputs) > 1 else None
        shape = weights.shape if weights is not None else None
        computed = sum(each is not None for each in self.inputs) > 1 and not self.work.constants
        return list_families(self.op, self.attributes, shape, self.fused, computed)

    @cached_property
    def key(self) -> tuple[str, str, str]:
        """The key of cost tables: equal for equal tasks."""
        return self.op, self.types, canonical_attributes(self.attributes)

    def __str__(self) -> str:
        """Return for instance `Relu on float32[1, 8] -> float32[1, 8]`."""
        return f"{self.op} on {self.types}"


FAMILIES = ("computed", "depthwise", "first", "fused", "grouped", "large", "pointwise", "strided")
"""The kinds of operators that `list_families` tells apart."""


def list_families(
    op: str,
    attributes: Attributes,
    weights: Sequence[Any] | None,
    fused: bool = False,
    computed: bool = False,
) -> tuple[str, ...]:
    """Return the kinds of an operator that run at rates of their own, the narrowest first.

    `weights` is the shape of the second input, None if unknown. Convolutions are `Conv/depthwise`,
    `Conv/grouped`, `Conv/pointwise` (all extents of the kernel are 1), `Conv/first` (at most 4 channels)
    or none of these, and before that `Conv/strided` where a stride is above 3; an operator that is
    `fused` (see `Task`) is `Relu/fused`; one of several tensors that are all `computed`, none a
    constant, is `MatMul/computed`. A product of more than 8 Mi weights is `MatMul/large`: they come from
    memory at each run, those of smaller ones from caches.
    """
    kinds = ["fused"] if fused else []
    kinds += ["computed"] if computed else []
    if op == "Conv" and any(step > _USUAL_STRIDE for step in attributes.get("strides", ())):
        kinds.append("strided")
    if op in _PRODUCTS and weights is not None and _count_known(weights) > _MANY_WEIGHTS:
        kinds.append("large")
    if attributes.get("group", 1) != 1:
        kinds += ["depthwise"] if weights is not None and weights[1:2] == (1,) else []
        kinds.append("grouped")
    elif op == "Conv" and weights is not None and all(isinstance(each, int) for each in weights[1:]):
        if all(extent == 1 for extent in weights[2:]):
            kinds.append("pointwise")
        elif weights[1] <= _FEW_CHANNELS:
            kinds.append("first")
    return (*(f"{op}/{kind}" for kind in kinds), op)


def _count_known(shape: Sequence[Any]) -> int:
    """Return the number of elements of a shape, 0 where an extent is open."""
    return prod(shape) if all(isinstance(each, int) for each in shape) else 0


def canonical_attributes(attributes: Attributes) -> str:
    """Return attributes as one text, equal for equal attributes: sorted by name, 1.0 as 1."""
    return json.dumps({name: _simplify_numbers(attributes[name]) for name in sorted(attributes)})


def _simplify_numbers(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_simplify_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


THOUSAND_YEARS = 3.2e10
"""Seconds; with larger costs, sums would not be finite."""

MAX_JOULES = 1e30
"""Joules; with larger costs, sums would not be finite."""


@dataclass(frozen=True, slots=True)
class Price:
    """A cost in seconds and joules; joules are NaN if the model does not give them."""

    seconds: float
    joules: float = nan


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer of a model that does not know a cost; `why` is a sentence. It is falsy."""

    why: str

    def __bool__(self) -> Literal[False]:
        """Return False."""
        return False


FREE = Price(0.0, 0.0)


@runtime_checkable
class CostModel(Protocol):
    """The costs of a device.

    A third-party model is a class registered by entry point under `byoc.costs`, made without arguments.
    Where it is a dataclass its fields are its options (`--cost-option`).
    """

    @property
    def name(self) -> str:
        """The name of the device."""
        ...

    def execution(self, task: Task) -> Price | Unknown:
        """Return the cost of a task. Not called for views (`task.view`), which are free."""
        ...

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the cost of sending a tensor of `size` bytes to the device, or back.
        `converted` is the number of bytes whose dtype or layout the host changes on the way; 0 for a
        model that leaves conversions to the host's costs (`Converting`).
        """
        ...

    def launching(self) -> Price:
        """Return the cost of starting one region."""
        ...


@runtime_checkable
class EstimatingCosts(Protocol):
    """A cost model that can estimate costs it does not know."""

    def estimate(self, task: Task) -> Price:
        """Return an estimate of the cost of a task."""
        ...


@runtime_checkable
class Converting(Protocol):
    """A cost model that states whether its transfers include conversions at the boundary."""

    def converting(self) -> bool:
        """Return False if the host's cost model must be asked for conversions instead."""
        ...


@runtime_checkable
class Occupying(Protocol):
    """A cost model that states what its transfers keep busy."""

    def occupies(self) -> Occupancy:
        """Return the resource that nothing else uses while a tensor is sent to the device, or back."""
        ...


def find_occupancy(model: CostModel) -> Occupancy:
    """Return the resource that a model's transfers keep busy; nothing if it does not state it."""
    return model.occupies() if isinstance(model, Occupying) else Occupancy.nothing


def includes_conversions(model: CostModel) -> bool:
    """Return whether a model's transfers include conversions; True if it does not state it."""
    return not isinstance(model, Converting) or bool(model.converting())


class _EstimatingModel(CostModel, EstimatingCosts, Protocol):
    """A cost model that makes estimates as well."""


def price_parts(model: _EstimatingModel, task: Task) -> Price:
    """Return the total cost of a composite's nodes, estimated where the model does not know."""
    found = [FREE if part.view else model.execution(part) or model.estimate(part) for part in task.parts]
    return Price(sum(price.seconds for price in found), sum(price.joules for price in found))
