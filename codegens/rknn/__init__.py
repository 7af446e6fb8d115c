"""The codegen for Rockchip's NPUs (RK3588 and others), by rknn-toolkit2.

The toolkit lives in an interpreter of its own, which BYOC_RKNN_PYTHON names. The artifact is the .rknn
file that the chip's runtime loads, by the driver in the folder beside this file. The toolkit's simulator
runs only what was just built, so that `load` builds again.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import onnx
from onnx import numpy_helper

from byoc.codegen import (
    ON_OWN_CPU,
    YES,
    AnyArray,
    Artifact,
    CompileError,
    Cycles,
    DriverSources,
    Executor,
    Fit,
    MissingRuntimeError,
    Region,
    TensorContract,
    Verdict,
    check_each_node,
    find_refused_nodes,
    format_options,
    is_qdq_node,
    read_region,
    read_stored_options,
    refuse,
    to_numpy_dtype,
)

from .sdk_process import (
    Network,
    SimulatorRun,
    ToolkitProcess,
    describe_toolkit,
    find_toolkit,
    find_version,
)

__all__ = ["RKNN"]


_FILE = "region.rknn"
_HERTZ = 1e9  # of the NPU, which the toolkit counts cycles of
_OPSETS = (12, 19)  # that the toolkit reads
_IR_VERSION = 10  # the newest that the onnx it pins reads
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_EXPLICIT = ("LayerNormalization",)  # whose defaults the toolkit does not know
_HELP = "seconds that building a region, or a run on the simulator, may take"


@dataclass(frozen=True)
class RKNNOptions:
    """Options of the codegen `rknn`.

    `platform` is the chip, `optimization` the toolkit's `optimization_level`. `cores` is what the driver
    runs a region on; `auto` leaves it to the runtime. `timeout` is in seconds.
    """

    platform: Literal["rk3588", "rk3576", "rk3568", "rk3566", "rk3562"] = field(
        default="rk3588", metadata={"help": "the chip to compile for"}
    )
    optimization: Literal["0", "1", "2", "3"] = field(
        default="3", metadata={"help": "how much the toolkit rewrites the network: 3 most"}
    )
    cores: Literal["auto", "0", "1", "2", "0_1", "0_1_2"] = field(
        default="auto", metadata={"help": "cores of the NPU that the driver runs a region on"}
    )
    timeout: float = field(default=600.0, metadata={"help": _HELP})

    def __post_init__(self) -> None:
        """Raise ValueError for a timeout that is not positive."""
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout:g} s, but must be more than 0")

    @property
    def settings(self) -> dict[str, Any]:
        """The toolkit's own configuration."""
        return {"target_platform": self.platform, "optimization_level": int(self.optimization)}


class RKNN:
    """Codegen that compiles regions with rknn-toolkit2, and runs them on its simulator."""

    name = "rknn"
    api = 4
    Options = RKNNOptions
    native = True  # commands for the NPU, which the driver's library reads
    concurrent = True  # the toolkit's process takes one call after the other

    def __init__(self) -> None:
        """Begin without a network that is traced."""
        self._lock = threading.Lock()
        self._traced: tuple[tuple[Path, bytes], SimulatorRun] | None = None

    def compile(self, region: Region, options: RKNNOptions) -> Artifact:
        """Return the .rknn file, with the toolkit's count of cycles.

        Raises CompileError with the toolkit's reason and the nodes at fault, and MissingRuntimeError
        without the toolkit.
        """
        version = find_version()
        toolkit = find_toolkit()
        try:
            network = toolkit.build(_load_model(region), options.settings, options.timeout)
        except CompileError as error:
            nodes = find_refused_nodes(region.load, lambda model: self.check(model, options))
            raise CompileError(str(error), nodes, lasting=error.lasting) from error
        toolkit.release(network)
        return Artifact({_FILE: network.content}, _describe(network, options, version))

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the region on the simulator, which builds it again.

        Raises NotHereError without the toolkit, and CompileError where what is built is not what the
        artifact holds.
        """
        run = _open_simulator(region, artifact)

        def execute(inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
            made = run([np.asarray(inputs[each.name]) for each in region.inputs])
            return {
                each.name: _give_form(array, each)
                for each, array in zip(region.outputs, made, strict=True)
            }

        return execute

    def trace(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, AnyArray]
    ) -> Mapping[str, AnyArray]:
        """Return the outputs and the quantized tensors that the simulator computes; raises as `load`.

        Left out are those that the toolkit gives other scales or fuses away, as a Concat before a
        convolution of one pixel, of which it makes a sum of convolutions.
        """
        run = self._find_traced_run(region, artifact)
        tensors = list(_list_quantized(region, run.model))
        made, shown = run.trace([np.asarray(inputs[each.name]) for each in region.inputs], tensors)
        outputs = zip(region.outputs, made, strict=True)
        left = {each.name: _give_form(array, each) for each, array in outputs if each.name == each.inner}
        return {**shown, **left}

    def _find_traced_run(self, region: Region, artifact: Artifact) -> SimulatorRun:
        """Return the simulator's network of a region, built once for traces that follow each other."""
        key = (region.path, artifact.files[_FILE])
        with self._lock:
            if self._traced is None or self._traced[0] != key:
                self._traced = (key, _open_simulator(region, artifact))
            return self._traced[1]

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        """Return whether an interpreter with the toolkit is named; what it has is not asked."""
        made = metadata.get("toolkit", "")
        accepts = f"rknn-toolkit2 {made}" if made else ""
        return replace(describe_toolkit(), accepts=accepts, machine=metadata.get("platform", ""))

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the file is of the toolkit that is here; where there is none, it is."""
        try:
            here = find_version()
        except MissingRuntimeError:
            return YES
        made = artifact.metadata.get("toolkit", "nothing")
        return (
            YES if made == here else refuse(f"it was made by rknn-toolkit2 {made}, but this is {here}")
        )

    def estimate(self, region: Region, options: RKNNOptions, artifact: Artifact) -> Cycles:
        """Return the toolkit's cycles. Raises CompileError where it has none, as of the chip's CPU."""
        own = artifact.metadata["own_cpu"]
        if own:
            raise CompileError(f"rknn-toolkit2 counts no cycles of what the chip's CPU computes: {own}")
        if not artifact.metadata["cycles"]:
            raise CompileError("rknn-toolkit2 counts cycles of convolutions and products alone")
        return Cycles(float(artifact.metadata["cycles"]), _HERTZ)

    def cache_key(self, options: RKNNOptions) -> dict[str, str]:
        """Return the toolkit's version. Raises MissingRuntimeError as `compile` does."""
        return {"toolkit": find_version()}

    def check(self, model: onnx.ModelProto, options: RKNNOptions) -> Sequence[Verdict]:
        """Return for each node whether the toolkit builds it alone, or its reason."""
        find_version()
        toolkit = find_toolkit()
        whole = _ask_toolkit(model, toolkit, options)
        if whole and not whole.own_cpu:
            return [YES] * len(model.graph.node)
        return check_each_node(model, lambda single: _ask_toolkit(single.model, toolkit, options))

    def driver(self) -> DriverSources:
        """Return the driver, which calls the chip's runtime `librknnrt`."""
        folder = Path(__file__).parent / "driver"
        return DriverSources(self.name, (folder / "rknn_driver.c",), libraries=("rknnrt",))


def _open_simulator(region: Region, artifact: Artifact) -> SimulatorRun:
    """Build a region for the simulator; raises as `RKNN.load` does."""
    options = read_stored_options(RKNNOptions, artifact.metadata)
    run = SimulatorRun(find_toolkit(), _load_model(region), options.settings, options.timeout)
    built = _describe(run.network, options, find_version())
    for name in ("cycles", "layers"):
        if built[name] != artifact.metadata.get(name):
            raise CompileError(
                f"the simulator would run another network than the artifact: {name} are "
                f"{built[name]}, and in the artifact {artifact.metadata.get(name)}"
            )
    return run


def _list_quantized(region: Region, model: onnx.ModelProto) -> Iterator[dict[str, Any]]:
    """Yield the tensors that the model of a region quantizes, as `ToolkitProcess.trace` takes them.

    The toolkit knows the real values by the name that they have before they are quantized, and those
    that leave the region by the name of their integers.
    """
    known = {name for operation in region.operations() for name in operation.outputs}
    stored = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        name, kind = node.output[0], region.type(node.output[0])
        if node.op_type != "QuantizeLinear" or name not in known or kind is None:
            continue
        if len(node.input) < 3 or not all(each in stored for each in node.input[1:3]):
            continue  # scales that are computed
        scale, point = (numpy_helper.to_array(stored[each]) for each in node.input[1:3])
        if scale.size == 1 and kind.shape is not None:
            yield {
                "name": name,
                "computed": [node.input[0], name],
                "scale": float(scale.item()),
                "zero_point": int(point.item()),
                "dtype": kind.dtype,
                "shape": list(kind.shape),
            }


def _load_model(region: Region) -> onnx.ModelProto:
    """Return a region in the form that the toolkit reads. Raises CompileError for a node without one."""
    opset = _choose_opset(region.model)
    quantized = any(is_qdq_node(node) for node in region.nodes)  # weights then stay integers
    model = region.load(
        inline=True,
        fold=not quantized,
        opset=opset,
        ir_version=_IR_VERSION,
        wants=("zero_points", "constants"),
    )
    for node in model.graph.node:
        if node.op_type in _EXPLICIT:
            _state_defaults(node, opset)
    _rescale_weights(model.graph)
    return model


def _rescale_weights(graph: onnx.GraphProto) -> None:
    """State int8 weights so that the toolkit's own integers are the model's.

    It quantizes weights of scale s anew: as round(w * 127 / 128), of scale s * 128 / 127, since it takes
    their range to begin at -128 * s. So it is given round(w * 128 / 127) and the scale s * 127 / 128, of
    which it makes w and s again; 127 alone becomes 126.
    """
    stored = {each.name: each for each in graph.initializer}
    readers = {name: node.op_type for node in graph.node for name in node.input[1:2]}
    for node in graph.node:
        names = list(node.input)
        if node.op_type != "DequantizeLinear" or readers.get(node.output[0]) not in _WEIGHTED:
            continue
        if len(names) < 3 or not all(name in stored for name in names):
            continue
        weights, scale, point = (numpy_helper.to_array(stored[name]) for name in names)
        if weights.dtype != np.int8 or np.any(point) or scale.dtype != np.float32:
            continue
        moved = np.clip(np.rint(weights * (128 / 127)), -128, 127).astype(np.int8)
        stated: tuple[AnyArray, AnyArray] = (moved, (scale * (127 / 128)).astype(np.float32))
        for place, value in enumerate(stated):
            name = f"{names[place]}_for_{node.output[0]}"
            node.input[place] = name
            graph.initializer.append(numpy_helper.from_array(value, name))


def _state_defaults(node: onnx.NodeProto, opset: int) -> None:
    """Add the attributes of a node that have their defaults."""
    given = {each.name for each in node.attribute}
    for name, attribute in onnx.defs.get_schema(node.op_type, opset).attributes.items():
        if name not in given and attribute.default_value.type:
            node.attribute.append(attribute.default_value)


def _choose_opset(model: onnx.ModelProto) -> int:
    """Return the operator set that the toolkit reads and that is nearest to a model's."""
    low, high = _OPSETS
    opset = next((each.version for each in model.opset_import if each.domain == ""), high)
    return min(max(opset, low), high)


def _ask_toolkit(model: onnx.ModelProto, toolkit: ToolkitProcess, options: RKNNOptions) -> Verdict:
    """Return whether the toolkit builds a model."""
    with TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        try:
            form = _load_model(read_region(path, "model", "rknn"))
            network = toolkit.build(form, options.settings, options.timeout)
        except CompileError as error:
            return refuse(str(error))
    toolkit.release(network)
    return ON_OWN_CPU if network.own_cpu else YES


def _describe(network: Network, options: RKNNOptions, version: str) -> dict[str, str]:
    """Return the metadata of an artifact."""
    return {
        **format_options(options),
        "toolkit": version,
        "cycles": "" if network.cycles is None else str(network.cycles),
        "layers": str(len(network.layers)),
        "own_cpu": ", ".join(network.own_cpu),
    }


def _give_form(array: AnyArray, contract: TensorContract) -> AnyArray:
    """Return an output as the contract says: the simulator has float16 as float32, and no rank 0.

    An output of another size stays as it is, of which byoc says what it should be.
    """
    kind = contract.type
    dtype = to_numpy_dtype(kind.dtype)
    if array.dtype.kind == dtype.kind == "f":
        array = array.astype(dtype)
    if kind.shape is None or array.ndim == len(kind.shape) or array.size != kind.elements:
        return array  # extents that are not known are those that the simulator gives
    return array.reshape([extent for extent in kind.shape if isinstance(extent, int)])
