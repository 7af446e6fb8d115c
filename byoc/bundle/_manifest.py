"""The manifest of a bundle: arguments, variants with their regions and reports, every file's hash.

It is the JSON file `manifest.json` in the bundle's folder. Its paths are relative to that folder and
stay inside it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import Field, PrivateAttr, WithJsonSchema

from byoc.boundary.contracts import TensorContract
from byoc.bundle._report import Report
from byoc.codegen import quote_name
from byoc.errors import InputError
from byoc.model import DTYPES, VARIANT_NAME, Dim, TensorType, Variant, evaluate_dim, list_dim_names
from byoc.padding import FirstValue, PaddedInput, PaddingDecision, PaddingRule, RowSplit
from byoc.rules import ArithmeticClause, ArithmeticContract
from byoc.support import StrictModel

# A manifest's entry for padding: which dimensions of a variant may be smaller, and what is done.

_LARGEST_EXTENT = 2**31 - 1
_Extent = Annotated[int, Field(ge=0, le=_LARGEST_EXTENT)] | str


class FirstValueEntry(StrictModel):
    """A condition on an input; the fields are those of `FirstValue`."""

    axis: Annotated[int, Field(ge=0)] = Field(description="The axis.")
    value: Literal[0, 1] = Field(description="What the input has at index 0 of it.")


class PaddedInputEntry(StrictModel):
    """The padding of an input; the fields are those of `PaddedInput`."""

    shape: tuple[_Extent, ...] = Field(
        description="The unpadded extents, expressions of the dimensions."
    )
    value: Literal["edge", 0, 1] = Field(
        description="What stands behind it along its last padded axis: a number, or its last entries."
    )
    first: FirstValueEntry | None = Field(
        description="What a caller's array has to have; null for nothing."
    )
    room: Annotated[int, Field(ge=0, le=_LARGEST_EXTENT)] = Field(
        0, description="The entries at its end that the caller's array lacks: the model writes them."
    )
    made: bool = Field(False, description="Whether it is no caller's, but ones of its shape.")


class PaddingEntry(StrictModel):
    """The padding of a variant; the fields are those of `PaddingRule` and `PaddingDecision`."""

    dims: dict[str, Annotated[int, Field(ge=1, le=_LARGEST_EXTENT)]] = Field(
        description="The dimensions that may be smaller, and their sizes in the variant."
    )
    equal: dict[str, str] = Field(
        description="Dimensions that have the size of another one, or of an expression."
    )
    inputs: dict[str, PaddedInputEntry] = Field(description="The inputs that are padded.")
    outputs: dict[str, tuple[_Extent, ...]] = Field(description="The outputs that are cut, to what.")
    reads_values: bool = Field(description="Whether the proof rests on values.")
    refused: dict[str, str] = Field(description="Why other dimensions are not padded.")
    least: Annotated[int, Field(ge=0, le=_LARGEST_EXTENT)] = Field(
        1, description="The smallest size of each that is padded; 0 for a cache."
    )

    @property
    def decision(self) -> PaddingDecision:
        """The decision that it describes."""
        return PaddingDecision(self.rule, self.refused)

    @property
    def rule(self) -> PaddingRule | None:
        """The rule, None where nothing is padded."""
        if not self.dims:
            return None
        return PaddingRule(
            self.dims,
            {name: _read_input(each) for name, each in self.inputs.items()},
            self.outputs,
            self.equal,
            self.reads_values,
            self.least,
        )


def _read_input(entry: PaddedInputEntry) -> PaddedInput:
    first = None if entry.first is None else FirstValue(entry.first.axis, entry.first.value)
    return PaddedInput(entry.shape, entry.value, first, entry.room, entry.made)


class RowSplitEntry(StrictModel):
    """The split of a batch into calls of a row, or some, each; the fields are those of `RowSplit`."""

    dim: str = Field(description="The dimension that is the batch.")
    most: Annotated[int, Field(ge=1, le=_LARGEST_EXTENT)] = Field(description="The largest batch.")
    inputs: dict[str, Annotated[int, Field(ge=0)]] = Field(
        min_length=1, description="The axis of rows of each input that has one."
    )
    outputs: dict[str, Annotated[int, Field(ge=0)]] = Field(
        min_length=1, description="The axis of rows of each output."
    )
    size: Annotated[int, Field(ge=1, le=_LARGEST_EXTENT)] = Field(
        default=1, description="The rows of a call."
    )

    @property
    def split(self) -> RowSplit:
        """The split that it describes."""
        return RowSplit(self.dim, self.most, self.inputs, self.outputs, self.size)


def describe_split(split: RowSplit) -> RowSplitEntry:
    """Return the manifest's entry for a split."""
    return RowSplitEntry.model_validate(vars(split))


def check_split(
    entry: RowSplitEntry,
    types: Mapping[str, TensorType | None],
    outputs: Mapping[str, TensorType | None],
    place: Path,
) -> None:
    """Raise InputError, which begins with `place`, unless an entry fits a model of a call's rows.

    Each axis has to have that length, as far as an output's shape is known; each output needs one.
    """
    for side, axes, known in (("input", entry.inputs, types), ("output", entry.outputs, outputs)):
        for name, axis in axes.items():
            kind = known.get(name)
            shape = None if kind is None else kind.shape
            is_known = side == "input" or shape is not None
            extent = shape[axis] if shape is not None and axis < len(shape) else 0
            is_open = side == "output" and not isinstance(extent, int)
            if name not in known or (is_known and extent != entry.size and not is_open):
                where = f"{place}: split: {side} {quote_name(name)}"
                raise InputError(
                    f"{where}: the model has no axis {axis} there that is {entry.size} long"
                )
    missing = sorted(outputs.keys() - entry.outputs.keys())
    if missing:
        raise InputError(f"{place}: split: nothing is said of output {quote_name(missing[0])}")


def describe_padding(decision: PaddingDecision) -> PaddingEntry:
    """Return the manifest's entry for a decision."""
    rule = decision.rule or PaddingRule({}, {}, {})
    return PaddingEntry.model_validate(
        {
            "dims": dict(rule.dims),
            "equal": dict(rule.equal),
            "inputs": {
                name: {
                    "shape": each.shape,
                    "value": each.value,
                    "first": None if each.first is None else vars(each.first),
                    "room": each.room,
                    "made": each.made,
                }
                for name, each in rule.inputs.items()
            },
            "outputs": dict(rule.outputs),
            "reads_values": rule.reads_values,
            "refused": dict(decision.refusals),
            "least": rule.least,
        }
    )


def check_padding(
    entry: PaddingEntry,
    types: Mapping[str, TensorType | None],
    outputs: Mapping[str, TensorType | None],
    place: Path,
) -> None:
    """Raise InputError, which begins with `place`, unless an entry fits a model's inputs and outputs.

    At the largest sizes each shape has to be that of the model, as far as that is known of an output,
    and expressions may speak of the entry's dimensions alone.
    """
    sides = (
        ("input", {n: e.shape for n, e in entry.inputs.items()}, types),
        ("output", entry.outputs, outputs),
    )
    for side, shapes, known in sides:
        for name, shape in shapes.items():
            where = f"{place}: padding: {side} {quote_name(name)}"
            kind = known.get(name)
            stated = None if kind is None else kind.shape
            if name not in known or (stated is None and side == "input"):
                raise InputError(f"{where}: the model has none of that name, or not of a known shape")
            if not all(list_dim_names(dim) <= entry.dims.keys() for dim in shape):
                raise InputError(f"{where}: it speaks of a dimension that is not padded")
            whole = tuple(evaluate_dim(dim, entry.dims) for dim in shape)
            if stated is not None and not _fits(whole, stated, side == "input"):
                raise InputError(f"{where}: it is {list(whole)} there, and {kind} in the model")
            if side == "input":
                _check_input(entry.inputs[name], whole, kind, where)


def _check_input(
    entry: PaddedInputEntry, whole: Sequence[int | None], kind: TensorType | None, where: str
) -> None:
    """Raise InputError unless an input has what is said of its axes and of how it is made."""
    if entry.first is not None and entry.first.axis >= len(whole):
        raise InputError(f"{where}: it has no axis {entry.first.axis}")
    open_extents = [
        size or 0 for dim, size in zip(entry.shape, whole, strict=True) if isinstance(dim, str)
    ]
    if entry.room and not (open_extents and entry.room < open_extents[-1]):
        raise InputError(f"{where}: it has no room for {entry.room} entries")
    if entry.made and (kind is None or kind.dtype != "bool"):
        raise InputError(f"{where}: it is made, and not of bool")


def _fits(whole: Sequence[int | None], stated: Sequence[Dim], is_input: bool) -> bool:
    """Return whether extents are those of the model; the open ones of an output may be any."""
    if len(whole) != len(stated):
        return False
    pairs = zip(whole, stated, strict=True)
    return all(own == dim or not (is_input or isinstance(dim, int)) for own, dim in pairs)


_Dim = Annotated[int, Field(ge=0)] | str | None


class TypeEntry(StrictModel):
    """A tensor's dtype and shape; a variable extent is a name or null, an unknown shape is null."""

    dtype: Literal[tuple(DTYPES.values())] = Field(  # type: ignore[valid-type]
        description="The element type."
    )
    shape: tuple[_Dim, ...] | None = Field(description="The extents.")


class ContractEntry(StrictModel):
    """A boundary tensor or a stored tensor of a region; the fields are those of `TensorContract`."""

    tensor: str = Field(description="The name in the user's model.")
    name: str = Field(description="The name in the region's model, as an input, output or initializer.")
    inner: str = Field(description="The name in the region's model inside of byoc's own conversions.")
    type: TypeEntry = Field(description="Its type at the boundary.")
    logical: TypeEntry = Field(description="Its type in the user's model.")
    layout: str = Field(description="The layout at the boundary, such as NHWC; empty for ONNX's.")
    scale: tuple[float, ...] | None = Field(
        description="Real value = (stored - zero point) * scale; null where it is not quantized."
    )
    zero_point: tuple[int, ...] | None = Field(description="As many values as scales.")
    axis: int | None = Field(
        description="The dimension of `logical` that has a scale for each element; null for one scale."
    )
    converts: dict[str, Literal["host", "device", "model"]] = Field(
        description="The side that converts it, by `layout`, `quantize` and `cast`, where needed."
    )


def contract_to_entry(contract: TensorContract) -> ContractEntry:
    """Return the manifest's entry for a contract."""
    types = {
        name: {"dtype": kind.dtype, "shape": kind.shape}
        for name, kind in (("type", contract.type), ("logical", contract.logical))
    }
    return ContractEntry.model_validate({**vars(contract), **types})


def entry_to_contract(entry: ContractEntry) -> TensorContract:
    """Return the contract of a manifest's entry; the inverse of `contract_to_entry`."""
    types = {
        name: TensorType(kind.dtype, kind.shape)
        for name, kind in (("type", entry.type), ("logical", entry.logical))
    }
    return TensorContract(**{**vars(entry), **types})


MANIFEST_FORMAT = 4  # raised whenever an older byoc would read a bundle wrongly
EARLIER_ALTERNATIVES_FORMAT = 5  # of bundles for several accelerators, as they were written before 7
PACKAGE_FORMAT: Literal[6] = 6  # of packages of several models
ALTERNATIVES_FORMAT = 7  # of bundles for several accelerators, whose regions' constants are not listed
MANIFEST_FILE = "manifest.json"
MODEL_FILE = "model.onnx"
"""The file of the partitioned model, where it is of no variant and no package."""
_LARGEST_SIZE = 2**63 - 1
_BLOCK = 1 << 20


class FileEntry(StrictModel):
    """A file of the bundle."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = Field(description="The hash, in hex.")
    bytes: Annotated[int, Field(ge=0, le=_LARGEST_SIZE)] = Field(description="The size.")


class ReferenceEntry(FileEntry):
    """A file of the user's outside of the bundle, which it needs: weights of the original model."""

    path: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="Where it is, from the bundle's folder, or an absolute path."
    )


class UnlistedConstants(StrictModel):
    """The tensors stored in a region, of which its model states all but what is here.

    Of several variants one is loaded, so that lists for the others would be read in vain.
    """

    count: Annotated[int, Field(ge=0)] = Field(description="How many there are.")
    layout: str = Field(description="The layout of convolution weights; empty for ONNX's.")
    names: dict[str, str] = Field(
        description="The names in the user's model of those that the region's model calls otherwise."
    )

    def list_contracts(self, found: tuple[TensorContract, ...]) -> tuple[TensorContract, ...]:
        """Return the contracts, from those that the region's model states.

        Raises LookupError where that has others than those that are here.
        """
        if len(found) != self.count or not self.names.keys() <= {each.name for each in found}:
            raise LookupError("other constants")
        return tuple(replace(each, tensor=self.names.get(each.name, each.tensor)) for each in found)


class RegionEntry(StrictModel):
    """A region: its model, the contracts of its boundary tensors, and its artifact."""

    name: str = Field(description="The name, also of its function in the partitioned model.")
    target: str = Field(description="The accelerator.")
    model: str = Field(description="The file with the region as a separate model.")
    codegen: str = Field(description="The codegen that compiled it, and loads it.")
    composites: tuple[str, ...] = Field(description="The composites in it, in order of execution.")
    inputs: tuple[ContractEntry, ...] = Field(description="Its inputs, in order.")
    outputs: tuple[ContractEntry, ...] = Field(description="Its outputs, in order.")
    constants: tuple[ContractEntry, ...] | UnlistedConstants = Field(
        description="The tensors stored in it; of several variants without those that its model states."
    )
    codegen_options: dict[str, str] = Field(
        default_factory=dict,
        description="The options of the codegen, including those of the rule file.",
    )
    same_as: str = Field(
        default="",
        description=(
            "The earlier region whose artifact runs this one too, tensors by position; else empty."
        ),
    )
    artifact_files: dict[str, str] = Field(
        description="The codegen's names of its files, to paths in the bundle."
    )
    artifact_metadata: dict[str, str] = Field(
        description="The metadata that the codegen needs to load the artifact."
    )

    @property
    def constant_count(self) -> int:
        """The number of tensors stored in it."""
        constants = self.constants
        return constants.count if isinstance(constants, UnlistedConstants) else len(constants)

    @property
    def weight_layout(self) -> str:
        """The layout of its convolution weights; empty for ONNX's."""
        if isinstance(self.constants, UnlistedConstants):
            return self.constants.layout
        layouts = {each.layout for each in self.constants if each.layout}
        return layouts.pop() if len(layouts) == 1 else ""

    def list_constants(self, found: tuple[TensorContract, ...]) -> tuple[TensorContract, ...]:
        """Return the contracts of the tensors stored in it, of which its model states those `found`.

        Raises LookupError and ValueError where they are none.
        """
        if isinstance(self.constants, UnlistedConstants):
            return self.constants.list_contracts(found)
        return tuple(map(entry_to_contract, self.constants))

    @property
    def boundary_contracts(self) -> dict[str, TensorContract]:
        """The contracts of its inputs and outputs, by their names in the model and inside of it.

        A quantized tensor has another name inside: that of the model after quantization.
        """
        entries = (*self.inputs, *self.outputs)
        return {name: entry_to_contract(each) for each in entries for name in (each.tensor, each.inner)}


class HostEntry(StrictModel):
    """The mode of the host, and the kernels that were wrong on the machine that made the bundle."""

    mode: Literal["exact", "fast"] = Field(
        default="exact",
        description="exact: quantized activations as ONNX defines them; fast: as the runtime fuses.",
    )
    machine: str = Field(default="", description="The runtime and the processor, for people.")
    inexact: tuple[str, ...] | None = Field(
        default=None,
        description="Products of integers that the runtime computed wrong on that processor, such as "
        "`MatMulInteger uint8 int8`; null where the model has none, or nobody looked.",
    )


class VariantEntry(StrictModel):
    """A variant: the model at sizes of its own for open dimensions, cut into regions."""

    name: Annotated[str, Field(pattern=rf"^({VARIANT_NAME})?$")] = Field(
        description="The name; empty where the bundle has no variants."
    )
    dims: dict[str, int | str] = Field(description="The open dimensions that are given for it alone.")
    model: str = Field(description="The file with the partitioned model.")
    regions: tuple[RegionEntry, ...] = Field(description="The regions, in order of execution.")
    report: Annotated[Report, WithJsonSchema({"additionalProperties": True, "type": "object"})] = Field(
        description="The report, as `byoc partition --format json` prints it."
    )
    padding: PaddingEntry | None = Field(
        default=None,
        description="Which dimensions may be smaller, by padding; null where nobody looked.",
    )
    split: RowSplitEntry | None = Field(
        default=None,
        description="How a larger batch is run as calls of one row each, where that is proven right and "
        "predicted to be faster than the open variant; else null.",
    )
    automatic: bool = Field(
        default=False,
        description="Whether nobody asked for it: the first of two such has sizes that byoc chose, the "
        "second is open and takes all others.",
    )
    rules: tuple[str, ...] = Field(
        default=(),
        description="Its own rule files, by name, in a bundle for several accelerators, whose variants "
        "of equal dimensions are alternatives; left out where it has those of all.",
        exclude_if=lambda rules: not rules,  # readers of format 4 know no such key
    )

    @property
    def variant(self) -> Variant:
        """The name, the dimensions and the rule files; in a package the model's name as well."""
        of_bundle = f".{Variant(self.name).name_file(MODEL_FILE)}"
        component = self.model.removesuffix(of_bundle) if self.model.endswith(of_bundle) else ""
        return Variant(self.name, self.dims, self.automatic, self.rules, component)

    @property
    def targets(self) -> tuple[str, ...]:
        """The accelerators of its regions, in the order of the regions."""
        return tuple(dict.fromkeys(region.target for region in self.regions))


class Manifest(StrictModel):
    """The contents of a bundle. All paths are relative to the bundle's folder, with `/`."""

    format: int = Field(description="The version of this format.")
    versions: dict[str, str] = Field(description="The versions of the packages that made it.")
    asked: dict[str, Any] = Field(description="The arguments of the partition.")
    targets: tuple[str, ...] = Field(description="The accelerators, in the order of the arguments.")
    variants: Annotated[tuple[VariantEntry, ...], Field(min_length=1)] = Field(
        description="The variants; a bundle without any has one, whose name is empty."
    )
    files: dict[str, FileEntry] = Field(description="Every other file of the bundle, by path.")
    references: dict[str, ReferenceEntry] = Field(
        default_factory=dict,
        description="Files outside of the bundle, by the paths in it by which its models name them.",
    )
    state: dict[str, str] = Field(
        default_factory=dict,
        description="Inputs that take what outputs gave in the last call, to these; empty where nobody "
        "declared any, and a session looks for them.",
    )
    arithmetic: dict[str, tuple[ArithmeticClause, ...]] = Field(
        default_factory=dict,
        description="What targets promise of values where it is not what ONNX defines, by target: the "
        "clauses of rule files.",
    )
    host: HostEntry = Field(default=HostEntry(), description="What runs the nodes on the host.")
    _digest: bytes = PrivateAttr(default=b"")

    @property
    def regions(self) -> tuple[RegionEntry, ...]:
        """The regions of all variants."""
        return tuple(region for variant in self.variants for region in variant.regions)

    def read_arithmetic(self, target: str) -> ArithmeticContract:
        """Return a target's arithmetic contract; without a record, ONNX's definition."""
        return ArithmeticContract(self.arithmetic.get(target, ()))

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the file that it was parsed from; empty where there is none."""
        return self._digest


class PackageManifest(StrictModel):
    """The contents of a package: a manifest for each model, of whose files several may be the same."""

    format: Literal[6] = Field(default=PACKAGE_FORMAT, description="The version of this format.")
    devices: tuple[str, ...] = Field(
        description="The devices; of a model a device has the variant of its name, or those whose names "
        "begin with it and an underscore."
    )
    models: Annotated[
        dict[Annotated[str, Field(pattern=rf"^{VARIANT_NAME}$")], FileEntry], Field(min_length=1)
    ] = Field(
        description="The models by name. The manifest of `detector`, as that of a bundle, is the file "
        "`detector.manifest.json`, of this hash and size."
    )
    _digest: bytes = PrivateAttr(default=b"")

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the file that it was parsed from; empty where there is none."""
        return self._digest


def describe_file(path: Path) -> FileEntry:
    """Return a file's size and hash."""
    with path.open("rb") as file:
        return copy_and_hash(file)


def copy_and_hash(
    source: IO[bytes], target: IO[bytes] | None = None, most: int = _LARGEST_SIZE
) -> FileEntry:
    """Copy a file to another, if given, in blocks; return the size and hash of its content.

    Stops after more than `most` bytes; the returned size is then larger than `most`.
    """
    digest, size = hashlib.sha256(), 0
    while size <= most and (block := source.read(_BLOCK)):
        digest.update(block)
        size += len(block)
        if target is not None and size <= most:
            target.write(block)
    return FileEntry(sha256=digest.hexdigest(), bytes=size)
