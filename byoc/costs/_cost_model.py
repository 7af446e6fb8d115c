"""The cost model protocol and its questions: seconds and joules of tasks and transfers."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import isnan, nan, prod
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import AfterValidator, BeforeValidator, Field

from byoc._dataclasses import dataclass, field
from byoc.costs._work import Work
from byoc.errors import suggest_nearest
from byoc.model import DTYPE_NUMBERS, TensorType
from byoc.placement import Occupancy
from byoc.support import StrictModel, has_unit

# Tasks, the questions to a cost model: an operator or a composite on tensors of certain types.

Attributes = Mapping[str, Any]

_FEW_CHANNELS = 4  # of an image; blocked layouts have 8 or 16 channels side by side
_USUAL_STRIDE = 3  # the largest that convolution arrays commonly step by
_MANY_WEIGHTS = 1 << 23  # 32 MiB in float32, about what the last cache of a processor holds
_PRODUCTS = frozenset({"Gemm", "MatMul"})
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_OTHER_RANKS = {3: "1d", 5: "3d"}  # of weights; those of images have four dimensions


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


FAMILIES = (
    "1d",
    "3d",
    "computed",
    "depthwise",
    "first",
    "fused",
    "grouped",
    "large",
    "pointwise",
    "strided",
)
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
    or none of these, before that `Conv/strided` where a stride is above 3, and before all of them
    `Conv/1d` and `Conv/3d`, of which libraries have other kernels than of images; an operator that is
    `fused` (see `Task`) is `Relu/fused`; one of several tensors that are all `computed`, none a
    constant, is `MatMul/computed`. A product of more than 8 Mi weights is `MatMul/large`: they come from
    memory at each run, those of smaller ones from caches.
    """
    kinds = ["fused"] if fused else []
    kinds += ["computed"] if computed else []
    if op in _CONVOLUTIONS and weights is not None and len(weights) in _OTHER_RANKS:
        kinds.append(_OTHER_RANKS[len(weights)])
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


# Fields that all cost model files share: name, launch, link, energy, machine, and fallback.


def _check_seconds(seconds: float) -> float:
    if not seconds <= THOUSAND_YEARS:  # false for NaN too
        raise ValueError("expected less than a thousand years, in seconds")
    return seconds


def _check_finite(value: float) -> float:
    if not value < float("inf"):
        raise ValueError("expected a finite number")
    return value


def _check_reload(rate: float) -> float:
    if not rate < float("inf"):
        raise ValueError(
            "must be finite, or loading would cost nothing; leave out the limit on memory instead"
        )
    return rate


def _check_text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


_LEAST_SEVERAL = 2  # threads: the file itself is for one

DEFAULT = "default"
"""The name, among data types, of all those that are not named."""


def check_dtypes(figures: dict[str, float]) -> dict[str, float]:
    """Return figures by data type. Raises ValueError for a name that is of none."""
    for name in figures:
        if name != DEFAULT and name not in DTYPE_NUMBERS:
            raise ValueError(
                f"no such data type '{name}'{suggest_nearest(name, (*DTYPE_NUMBERS, DEFAULT))}"
            )
    return figures


def _check_number(value: object) -> object:
    if isinstance(value, bool):  # a bool is an int in Python
        raise ValueError("expected a number")
    if isinstance(value, str) and has_unit(value):
        raise ValueError(
            f"expected a number without a unit, not '{value[:20]}': figures are in seconds, bytes, "
            "operations and joules, 10 us is 1.0e-5 and 4 GB/s is 4.0e+9"
        )
    return value


Number = BeforeValidator(_check_number)
Positive = Annotated[float, Number, Field(gt=0)]
Text = Annotated[str, AfterValidator(_check_text)]
Seconds = Annotated[float, Number, Field(ge=0), AfterValidator(_check_seconds)]
Count = Annotated[int, Field(strict=True)]  # a text '02' would be the same count as 2
Amount = Annotated[float, Number, Field(ge=0), AfterValidator(_check_finite)]


def _check_threads(models: dict[int, str]) -> dict[int, str]:
    for count in models:
        if count < _LEAST_SEVERAL:
            raise ValueError(f"{count}: the file itself is for fewer than 2 threads; expected 2 or more")
    return models


class HostLink(StrictModel):
    """The connection between the host and the device."""

    bandwidth: Positive
    """bytes per second"""
    latency: Seconds = 0.0
    """seconds per transfer"""
    conversion: Positive | None = None
    """bytes per second that change dtype or layout on the way; the host's costs if not given"""
    occupies: Occupancy = Occupancy.nothing
    """the resource that nothing else uses during a transfer"""


class Energy(StrictModel):
    """Joules: for each operation, byte, second of work, byte moved over the link, and launch."""

    operation: Amount = 0.0
    by_dtype: Annotated[dict[str, Amount], AfterValidator(check_dtypes)] = Field(default_factory=dict)
    """joules for each operation of these data types, in place of `operation`"""
    byte: Amount = 0.0
    second: Amount = 0.0
    moved: Amount = 0.0
    launch: Amount = 0.0

    def compute_joules(self, task: Task, seconds: float) -> float:
        """Return the joules of a task that takes so many seconds."""
        spent = min(seconds, THOUSAND_YEARS)  # as for prices; keeps 0 joules per second at 0
        each = self.by_dtype.get(task.dtype, self.by_dtype.get(DEFAULT, self.operation))
        work = task.work
        return each * work.operations + self.byte * work.bytes + self.second * spent


class MeasuredMachine(StrictModel):
    """The machine on which a model was measured; nothing here identifies its owner."""

    cpu: str = ""
    cores: Annotated[int, Number, Field(ge=0)] = 0
    threads: Annotated[int, Number, Field(ge=0)] = 0
    """number of threads that were measured; 0 for all cores, or where it is not known"""
    os: str = ""
    versions: dict[str, str] = Field(default_factory=dict)


class CostFile(StrictModel):
    """Fields shared by every kind of cost file."""

    name: Text
    extends: Text | None = None
    """the file that this one builds on, read before: a path relative to this file, or a name"""
    description: str = ""
    launch: Seconds = 0.0
    """seconds per region"""
    link: HostLink | None = None
    """absent for the host"""
    energy: Energy | None = None
    otherwise: Text | None = Field(None, alias="else")
    """the model that answers what this one does not know: a path relative to this file, or a name"""
    beside: Text | None = None
    """of an accelerator: the host's cost model, which holds unless the user names another"""
    margin: Annotated[float, Number, Field(ge=0, lt=1)] = 0.0
    """of an accelerator: the share of the time that a mixture has to save to be chosen"""
    engine: Text | None = None
    """of an accelerator: what it runs on, where others run on the same (states of one, a shared array);
    accelerators of one engine never run at once, and never beside the host on the engine `host`"""
    interference: dict[str, Annotated[float, Number, Field(ge=1, le=1e6)]] = Field(default_factory=dict)
    """of an accelerator: how many times as long it takes while another one, or the host, computes"""
    replicas: Annotated[int, Number, Field(ge=1, le=64)] = 1
    """of an accelerator: how many there are of it, which take turns at the inferences of a pipeline"""
    reload: Annotated[Positive, AfterValidator(_check_reload)] | None = None
    """of an accelerator: bytes a second at which weights beyond its memory are loaded in each run"""
    threads: Annotated[dict[Count, Text], AfterValidator(_check_threads)] = Field(default_factory=dict)
    """the models for runs on several threads, by the number that they begin at: a path or a name"""

    def find_for_threads(self, count: int | None) -> str | None:
        """Return the model for runs on so many threads; None where it is this one.

        None as the number stands for all cores, of which the model for the most threads is taken.
        """
        fitting = [least for least in self.threads if count is None or least <= count]
        return self.threads[max(fitting)] if fitting else None

    @property
    def operator_names(self) -> Collection[str]:
        """The operators and composites that the file has figures of, as it spells them."""
        return ()

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return latency plus size over the link's bandwidth; zero without a link."""
        if self.link is None:
            return Price(0.0, 0.0)
        seconds = self.link.latency + size / self.link.bandwidth
        if self.link.conversion is not None:
            seconds += converted / self.link.conversion
        return Price(seconds, self.energy.moved * size if self.energy else nan)

    def converting(self) -> bool:
        """Return whether the link states the cost of conversions."""
        return self.link is not None and self.link.conversion is not None

    def occupies(self) -> Occupancy:
        """Return the resource that a transfer keeps busy; nothing without a link."""
        return self.link.occupies if self.link else Occupancy.nothing

    def launching(self) -> Price:
        """Return the cost of starting a region."""
        return Price(self.launch, self.energy.launch if self.energy else nan)

    def make_price(self, task: Task, seconds: float, joules: float = nan) -> Price:
        """Return a price; joules that are not given are computed from the file's energy."""
        if isnan(joules) and self.energy is not None:
            joules = self.energy.compute_joules(task, seconds)
        return Price(seconds, joules)


class MeasuredCostFile(CostFile):
    """Fields shared by the kinds of measured cost files."""

    machine: MeasuredMachine | None = None
    together: Annotated[Positive, AfterValidator(_check_finite)] = 1.0
    """time of operators that run together over the sum of their separate times; scales every cost"""
