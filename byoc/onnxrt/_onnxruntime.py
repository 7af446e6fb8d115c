"""Access to onnxruntime, an optional dependency: users install the build they need.

Tensors of element types that numpy lacks (bfloat16, float8, int4) are numpy arrays with the dtypes of
ml_dtypes, as in onnx. onnxruntime takes and returns them only as OrtValues, with elements below one byte
packed. A run that returns one is given and returns everything so. Models of one node make OrtValues of
text, sequences and optional values, and read sequences: onnxruntime's Python interface does neither.
"""

import ctypes
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, TypeProto, helper, numpy_helper

import byoc.model
from byoc.errors import InputError, MissingRuntimeError
from byoc.long_calls import can_stop, stopping_by
from byoc.model import DTYPE_NUMBERS, DTYPES, build_node, count_bits
from byoc.model.schemas import INSTALL_HINT
from byoc.onnxrt._exact_products import (
    computes_in_integers,
    has_negative_scale,
    is_exact,
    use_exact_products,
)
from byoc.support import find_library, return_free_memory

# Runs of onnxruntime that can be stopped: the command line does so when it is told to leave.

T = TypeVar("T")


def run_stoppable(run: Callable[[Any], T]) -> T:
    """Call `run` with the options of a run of onnxruntime, None for the usual ones; return its result.

    Where nobody may stop it, it costs nothing; else 2 microseconds. A run that is stopped ends after the
    node that is being computed, with onnxruntime's error.
    """
    if not can_stop():
        return run(None)
    import onnxruntime  # noqa: PLC0415 - optional, and there

    options = onnxruntime.RunOptions()

    def stop() -> None:
        options.terminate = True

    with stopping_by(stop):
        return run(options)


_FOREIGN_PREFIXES = ("bfloat16", "float8", "float4", "float6", "int4", "uint4", "int2", "uint2")
_FOREIGN_DTYPES = frozenset(name for name in DTYPE_NUMBERS if name.startswith(_FOREIGN_PREFIXES))
# onnxruntime names dtypes as C does where it can, and otherwise as ONNX.
_TYPE_NUMBERS = {**DTYPE_NUMBERS, "float": DTYPE_NUMBERS["float32"], "double": DTYPE_NUMBERS["float64"]}
_OPSET, _IR = 17, 10
# What a session may use where it lies, on machines whose bytes are in the order of ONNX. int64 is not
# among it: onnxruntime reads shapes while it loads a model, when what is lent is not there yet.
_NOT_LENT = _FOREIGN_DTYPES | {"string", "complex64", "complex128", "int64"}
_LENDABLE_DTYPES = frozenset(
    number for number, name in DTYPES.items() if name not in _NOT_LENT and sys.byteorder == "little"
)


def parse_type(text: str) -> TypeProto:
    """Parse a type as onnxruntime writes it, such as `seq(tensor(float))`."""
    kind, _, inner = text.removesuffix(")").partition("(")
    if kind == "seq":
        return helper.make_sequence_type_proto(parse_type(inner))
    if kind == "optional":
        return helper.make_optional_type_proto(parse_type(inner))
    if kind == "map":
        key, _, value = inner.partition(",")
        return helper.make_map_type_proto(_TYPE_NUMBERS[key], parse_type(value))
    return helper.make_tensor_type_proto(_TYPE_NUMBERS[inner], None)


def is_foreign_type(kind: str) -> bool:
    """Return whether onnxruntime's type name, such as `tensor(bfloat16)`, is one that numpy lacks."""
    return (
        kind.startswith("tensor(") and kind.removeprefix("tensor(").removesuffix(")") in _FOREIGN_DTYPES
    )


def run_foreign(ort: Any, session: Any, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
    """Run a session that has such tensors among its inputs or outputs; return the named outputs.

    Raises ValueError for an empty optional input where an output is one, at which onnxruntime 1.31 ends.
    """
    kinds = {value.name: value.type for value in session.get_inputs()}
    made = {value.name: value.type for value in session.get_outputs()}
    owners = {n: np.asarray(v, order="C") for n, v in inputs.items() if _is_plain_tensor(kinds[n])}
    if not any(is_foreign_type(made[name]) for name in names):
        held = {
            n: _hold_tensor(ort, v, kinds[n]) for n, v in owners.items() if is_foreign_type(kinds[n])
        }
        given = {name: held[name][0] if name in held else value for name, value in inputs.items()}
        return list(run_stoppable(lambda options: session.run(names, given, options)))
    held = {n: _hold_tensor(ort, v, kinds[n]) for n, v in owners.items()}
    empty = next((name for name, value in inputs.items() if value is None), "")
    if empty:
        raise ValueError(f"'{empty}' has no value, beside outputs of types that numpy lacks")
    values = {name: value for name, (value, _) in held.items()}
    values |= {n: _state_constant(ort, v, kinds[n]) for n, v in inputs.items() if n not in values}
    results = run_stoppable(lambda options: session.run_with_ort_values(names, values, options))
    return [_read_value(ort, value, made[name]) for name, value in zip(names, results, strict=True)]


def _is_plain_tensor(kind: str) -> bool:
    return kind.startswith("tensor(") and kind != "tensor(string)"


def _hold_tensor(ort: Any, array: Any, kind: str) -> tuple[Any, Any]:
    """Return an OrtValue and the array that owns its memory."""
    if not is_foreign_type(kind):
        return ort.OrtValue.ortvalue_from_numpy(array), array
    number = DTYPE_NUMBERS[kind.removeprefix("tensor(").removesuffix(")")]
    raw = numpy_helper.from_array(array).raw_data  # packed, as in onnxruntime
    carrier = np.empty(array.shape, helper.tensor_dtype_to_np_dtype(number))
    carrier.reshape(-1).view(np.uint8)[: len(raw)] = np.frombuffer(raw, np.uint8)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(carrier, number), carrier


def _state_constant(ort: Any, value: Any, kind: str) -> Any:
    """Return text, a sequence or an optional value as the output of a model that computes nothing."""
    graph = GraphProto(name="constant")
    graph.output.append(helper.make_value_info("value", parse_type(kind)))
    _add_constant(graph, value, graph.output[0].type, "value")
    (made,) = _open_small_session(ort, graph).run_with_ort_values(["value"], {})
    return made


def _add_constant(graph: GraphProto, value: Any, kind: TypeProto, name: str) -> None:
    if kind.HasField("optional_type"):
        _add_constant(graph, value, kind.optional_type.elem_type, f"{name}_element")
        graph.node.append(build_node("Optional", [f"{name}_element"], [name]))
    elif kind.HasField("sequence_type"):
        element = kind.sequence_type.elem_type
        if not len(value):
            number = element.tensor_type.elem_type
            graph.node.append(build_node("SequenceEmpty", [], [name], dtype=number))
            return
        elements = [f"{name}_{i}" for i in range(len(value))]
        for each, inner in zip(value, elements, strict=True):
            _add_constant(graph, each, element, inner)
        graph.node.append(build_node("SequenceConstruct", elements, [name]))
    else:
        array = np.asarray(value)
        array = array.astype(object) if array.dtype.kind in "US" else array
        graph.initializer.append(numpy_helper.from_array(array, f"{name}_stored"))
        graph.node.append(build_node("Identity", [f"{name}_stored"], [name]))


def _read_value(ort: Any, value: Any, kind: str) -> Any:
    if not value.has_value():
        return None
    if not value.is_tensor():
        kind = kind.removeprefix("optional(").removesuffix(")") if kind.startswith("optional") else kind
        (found,) = _open_passing(ort, kind).run(["value"], {"given": value})
        return found
    number = value.element_type()
    if DTYPES[number] not in _FOREIGN_DTYPES:
        return value.numpy()
    size = -(-prod(value.shape()) * count_bits(DTYPES[number]) // 8)
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return numpy_helper.to_array(TensorProto(data_type=number, dims=value.shape(), raw_data=raw))


@cache
def _open_passing(ort: Any, kind: str) -> Any:
    """Return a session that gives a value back, as what Python has for it."""
    graph = helper.make_graph(
        [build_node("Identity", ["given"], ["value"])],
        "passing",
        [helper.make_value_info("given", parse_type(kind))],
        [helper.make_value_info("value", parse_type(kind))],
    )
    return _open_small_session(ort, graph)


def _open_small_session(ort: Any, graph: GraphProto) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    imports = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(graph, ir_version=_IR, opset_imports=imports)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


# Access to onnxruntime, an optional dependency: users install the build they need.


# The modes in which sessions of onnxruntime compute.

SessionMode = Literal["definition", "exact", "fast"]
"""How sessions compute: operator by operator on one thread, to compare with (`definition`); as users run
models (`exact`): the same where activations are quantized, and optimized elsewhere; or optimized
everywhere (`fast`), where steps of quantization may come out one unit off."""


_KERNEL_SUFFIX = "_kernel_time"  # what the profiler adds to a node's name
_FATAL_ONLY = 4  # errors come back as exceptions, and need not be printed as well
_MIN_LENT_ELEMENTS = 1 << 14  # of a weight; copies of smaller ones take less than a millisecond together
_MAX_THREADS = 512  # of all sessions that are open together: a container may have no more
_mode: ContextVar[SessionMode | None] = ContextVar("mode", default=None)  # None: exact
_sessions: ContextVar[int] = ContextVar("sessions", default=1)
_threads: ContextVar[int] = ContextVar("threads", default=0)
_returning: ContextVar[bool] = ContextVar("returning", default=False)


@contextmanager
def without_optimizations() -> Iterator[None]:
    """Open sessions without graph optimizations, on one thread, to compare results.

    onnxruntime's optimizations change results slightly, those of quantized models most.
    """
    with with_session_mode("definition"):
        yield


@contextmanager
def with_session_mode(mode: SessionMode) -> Iterator[None]:
    """Open sessions that compute in a mode."""
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


@contextmanager
def with_default_mode(mode: SessionMode) -> Iterator[None]:
    """Open sessions that compute in a mode, unless the context around has chosen another."""
    with with_session_mode(_mode.get() or mode):
        yield


@contextmanager
def sharing_process(sessions: int) -> Iterator[None]:
    """Open `sessions` sessions that are alive together: one thread a core each, limited in total.

    They take memory from the heap, which all share. onnxruntime's arena would keep what a session took
    for its next run, each for itself, although one runs after the other; the heap is as fast.
    """
    token = _sessions.set(max(sessions, 1))
    try:
        yield
    finally:
        _sessions.reset(token)


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Open sessions with `count` threads each; 0 means one for each core."""
    token = _threads.set(count)
    try:
        yield
    finally:
        _threads.reset(token)


@contextmanager
def with_memory_returned() -> Iterator[None]:
    """Have each run of a session inside return the memory that is free behind it to the system.

    Of a prompt's tensors, whose shapes will not come again, that is a multiple of what a token needs.
    """
    token = _returning.set(True)
    try:
        yield
    finally:
        _returning.reset(token)


def finish_run() -> None:
    """Return free memory to the system behind a run, where the context wants that."""
    if _returning.get():
        return_free_memory()


def get_session_settings() -> tuple[SessionMode | None, int, int]:
    """Return the settings of sessions opened in this context, for `with_session_settings`."""
    return _mode.get(), _sessions.get(), _threads.get()


@contextmanager
def with_session_settings(settings: tuple[SessionMode | None, int, int]) -> Iterator[None]:
    """Open sessions as in the context, perhaps of another process, that the settings are from."""
    variables: tuple[ContextVar[Any], ...] = (_mode, _sessions, _threads)
    tokens = [variable.set(value) for variable, value in zip(variables, settings, strict=True)]
    try:
        yield
    finally:
        for variable, token in zip(variables, tokens, strict=True):
            variable.reset(token)


def has_runtime() -> bool:
    """Return whether onnxruntime can be imported."""
    try:
        import_onnxruntime()
    except MissingRuntimeError:
        return False
    return True


def open_session(model: Path | ModelProto, folder: Path | None = None) -> Any:
    """Return an onnxruntime session on the CPU for a model file or a model in memory.

    `folder` holds the external data of a model in memory. The session computes in the mode of the
    context (`SessionMode`); in every mode its products of integers are exact on this machine where
    onnxruntime has such a kernel. Raises MissingRuntimeError without onnxruntime, and InputError when
    onnxruntime refuses the model.
    """
    ort = import_onnxruntime()
    if isinstance(model, Path):
        path, folder, model = model, model.parent, onnx.load(model, load_external_data=False)
    else:
        path = None
    exact = use_exact_products(model, folder, is_fused(model))
    if path is not None and exact is model and _is_utf8(path):
        return create_session(ort, path, make_session_options(ort, model), ["CPUExecutionProvider"])
    options = make_session_options(ort, model, folder)
    return create_session(ort, exact, options, ["CPUExecutionProvider"])


def is_fused(model: ModelProto) -> bool:
    """Return whether sessions of this context may fuse operators of a model with its quantizers.

    They must not where a scale is negative: onnxruntime drops a Clip beside such a QuantizeLinear.
    """
    return _mode.get() == "fast" and not has_negative_scale(model)


def make_session_options(ort: Any, model: ModelProto, folder: Path | None = None) -> Any:
    """Return the options of a model's session as the context wants them; `folder` has external data."""
    options = _session_options(ort, folder)
    if _mode.get() == "definition":
        options.intra_op_num_threads = 1
    if _mode.get() == "definition" or (computes_in_integers(model) and not is_fused(model)):
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    elif computes_in_integers(model) and not is_exact("QLinearConv", "uint8", "int8"):
        # onnxruntime would make activations of int8 uint8, and multiply them by int8 all the same.
        options.add_session_config_entry("session.qdqisint8allowed", "1")
    return options


def _is_utf8(path: Path) -> bool:
    """Return whether a path is UTF-8 text, as onnxruntime wants the path of a model."""
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        return False
    return True


def profile_nodes(model: ModelProto, folder: Path | None, inputs: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds that a run spends on each node, in order, by its name or first output.

    The session is as `open_session` gives it: what it fused has names of onnxruntime's own. The first
    run does not count. Raises as `open_session` and a run do.
    """
    named = ModelProto()
    named.CopyFrom(model)
    for node in named.graph.node:
        node.name = node.name or next(filter(None, node.output), "")

    def run_twice(session: Any) -> None:
        for _ in range(2):
            run_session(session, inputs)

    runs = measure_node_seconds(named, folder, run_twice, optimized=True)
    return {name: sum(each[len(each) // 2 :]) for name, each in runs.items()}


def measure_node_seconds(
    model: ModelProto,
    folder: Path | None,
    use: Callable[[Any], object],
    optimized: bool = False,
) -> dict[str, list[float]]:
    """Measure the nodes of a model: return the seconds of each execution, by node name.

    `use` is called with a session on all threads with onnxruntime's profiler on, whose resolution is a
    microsecond: one without graph optimizations, or an `optimized` one as `open_session` gives it.
    Raises as `open_session` and `use` do.
    """
    ort = import_onnxruntime()
    if optimized:
        options = make_session_options(ort, model, folder)
    else:
        options = _session_options(ort, folder)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    with TemporaryDirectory(prefix="byoc-") as place:
        options.profile_file_prefix = str(Path(place) / "profile")
        exact = use_exact_products(model, folder, optimized and is_fused(model))
        session = create_session(ort, exact, options, ["CPUExecutionProvider"])
        try:
            use(session)
        finally:
            path = Path(session.end_profiling())
        events = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, list[float]] = {}
    for event in events:
        name = event.get("name", "")
        if event.get("cat") == "Node" and name.endswith(_KERNEL_SUFFIX):
            found.setdefault(name.removesuffix(_KERNEL_SUFFIX), []).append(event["dur"] * 1e-6)
    return found


def _session_options(ort: Any, folder: Path | None) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    share = max(1, _MAX_THREADS // _sessions.get())
    threads = _threads.get() or os.cpu_count() or 1
    if _threads.get() or share < threads:
        options.intra_op_num_threads = min(share, threads)
    options.enable_cpu_mem_arena = _sessions.get() == 1
    # Each session has its own threads; spinning threads of idle sessions slow down the others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # A MatMul behind a DequantizeLinear of blocks becomes a MatMulNBits, whose activations onnxruntime
    # would round to int8 unless told otherwise.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    if folder is not None:
        # As bytes: a folder's name need not be UTF-8 text.
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", os.fsencode(folder)
        )
    return options


def create_session(ort: Any, model: Path | ModelProto, options: Any, providers: Any) -> Any:
    """Open a session. Raises InputError when onnxruntime refuses the model.

    `providers` is None where the options name them. A model in memory lends its weights to the session,
    which has no copy of them then.
    """
    source, lent = (str(model), []) if isinstance(model, Path) else _lend_weights(ort, model, options)
    try:
        session = ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime's own exception types share no base but this
        raise InputError(f"onnxruntime cannot load the model: {describe_runtime_error(error)}") from None
    session.lent_by_byoc = lent  # onnxruntime does not keep them alive
    return session


def _lend_weights(ort: Any, model: ModelProto, options: Any) -> tuple[bytes, list[Any]]:
    """Return a model as bytes without its weights, and these as OrtValues, which the options name.

    To serialize and to parse 100 MB takes longer than all else that opening a session does. Only those
    in the raw form of a dtype that numpy has are lent; where there are few, all stay in the model.
    """
    model = byoc.model.state_function_defaults(model)
    any_weights = any(map(_is_lendable, model.graph.initializer))
    if not any_weights and model.ir_version <= byoc.model.MAX_IR:
        return model.SerializeToString(), []
    light = byoc.model.copy_without(model, *["initializer"] * any_weights)
    light.ir_version = min(model.ir_version, byoc.model.MAX_IR)
    if not any_weights:
        return light.SerializeToString(), []
    lent: dict[str, Any] = {}
    # A caller may give what is an input as well, and onnxruntime takes the last of two of a name.
    named = Counter(value.name for value in model.graph.input)
    named.update(each.name for each in model.graph.initializer)
    # One that nothing reads is dropped by onnxruntime, which then does not find what was lent.
    # Nor is one read by a body that has a tensor of its own by that name.
    read = {name for node in model.graph.node for name in byoc.model.list_reads(node)}
    read.update(value.name for value in model.graph.output)
    for tensor in model.graph.initializer:
        is_lent = named[tensor.name] == 1 and tensor.name in read and _is_lendable(tensor)
        data = tensor.raw_data if is_lent else b""
        if not data or len(data) != byoc.model.count_bytes(tensor):
            light.graph.initializer.append(tensor)
            continue
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        array = np.frombuffer(data, dtype).reshape(tuple(tensor.dims))
        lent[tensor.name] = ort.OrtValue.ortvalue_from_numpy(array)
        left = light.graph.initializer.add(
            name=tensor.name,
            data_type=tensor.data_type,
            dims=tensor.dims,
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in (("location", "lent"), ("offset", "0"), ("length", str(len(data)))):
            left.external_data.add(key=key, value=value)
    options.add_external_initializers([*lent], [*lent.values()])
    return light.SerializeToString(), [*lent.values()]


def _is_lendable(tensor: TensorProto) -> bool:
    # Raw data beside external data is what was there before the file was written: the file counts.
    return (
        tensor.data_type in _LENDABLE_DTYPES
        and tensor.HasField("raw_data")
        and tensor.data_location != TensorProto.EXTERNAL
        and prod(tensor.dims) > _MIN_LENT_ELEMENTS
        and min(tensor.dims) > 0
    )


def session_runner(session: Any) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that runs a session: from inputs by name to outputs by name.

    Outputs, and contiguous inputs, share memory with onnxruntime: nothing is copied, so IO binding would
    gain nothing. The function raises InputError when onnxruntime refuses to run.
    """
    names = [output.name for output in session.get_outputs()]
    foreign = any(is_foreign_type(v.type) for v in (*session.get_inputs(), *session.get_outputs()))
    # That of the object in C++ takes half as long as Python's method, which changes providers that fail.
    is_plain = session.get_providers() == ["CPUExecutionProvider"]
    direct = (getattr(session, "_sess", session) if is_plain else session).run
    count, array, only = len(session.get_inputs()), np.ndarray, names[0] if len(names) == 1 else None

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if foreign:
                values = run_foreign(import_onnxruntime(), session, names, inputs)
            else:
                call = direct if len(inputs) >= count else session.run  # which says what is missing
                made = partial(call, names, inputs if type(inputs) is dict else dict(inputs))
                values = run_stoppable(made) if can_stop() else made(None)
                if only is None or type(values[0]) is not array:
                    values = [*map(_make_dense, values)]
        except Exception as error:  # as above
            told = describe_runtime_error(error)
            raise InputError(f"onnxruntime cannot run the model: {told}") from None
        finish_run()
        return dict(zip(names, values, strict=True)) if only is None else {only: values[0]}

    return run


def _make_dense(value: Any) -> Any:
    """Return an output as an array: one that is a sparse initializer comes as a class of its own."""
    if isinstance(value, np.ndarray) or type(value).__name__ != "SparseTensor":
        return value
    stored = value.values()
    dense = np.zeros(value.dense_shape(), stored.dtype)
    dense.reshape(-1)[value.get_coo_data().indices()] = stored
    return dense


def run_session(session: Any, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, Any]:
    """Run a session once; return its outputs by name. Raises InputError when onnxruntime refuses."""
    return session_runner(session)(inputs)


def output_types(session: Any) -> dict[str, TypeProto]:
    """Return the types of a session's outputs by name, without shapes, since these may vary by run."""
    return {output.name: parse_type(output.type) for output in session.get_outputs()}


_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-qnn")


def describe_runtime() -> str:
    """Return the name of onnxruntime with its version, empty where it is missing; it is not imported."""
    version = find_library("onnxruntime", *_DISTRIBUTIONS)
    return "" if version is None else f"ONNX Runtime {version}".strip()


def import_onnxruntime() -> Any:
    """Return the module. Raises MissingRuntimeError where it is not installed."""
    try:
        import onnxruntime  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingRuntimeError(INSTALL_HINT) from None
    return onnxruntime


def describe_runtime_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    newer = re.search(r"Opset (\d+) is under development", text)
    if newer:
        return (
            f"it does not read operator set {newer[1]} yet (onnx.version_converter makes an older one)"
        )
    return text


# Running a session of onnxruntime with some tensors in arrays that stay the same from run to run.

_CPU = ("cpu", 0)
_LARGE = 1 << 16
"""Bytes of an input from which on a binding lets it go after a run, so that its memory is free."""

Arrays = Mapping[str, NDArray[Any]]


def bind_session(
    session: Any, inputs: Arrays, outputs: Arrays
) -> Callable[[Arrays], dict[str, Any]] | None:
    """Return a function that runs a session which reads `inputs` and writes `outputs` where they lie.

    The arrays are contiguous, and of the shapes that the tensors have in each run. One array may be an
    input and an output where the operators allow that. The function takes the inputs by name, contiguous
    too, of which it reads the others, and returns all outputs; one thread at a time may call it. It
    raises InputError when onnxruntime refuses to run.

    Returns None where a tensor is of a type that numpy lacks, or no tensor.
    """
    if not all(_is_bindable(value.type) for value in (*session.get_inputs(), *session.get_outputs())):
        return None
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, *_CPU, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in outputs.items():
        binding.bind_output(name, *_CPU, array.dtype.type, array.shape, array.ctypes.data)
    others = [value.name for value in session.get_inputs() if value.name not in inputs]
    made = [value.name for value in session.get_outputs() if value.name not in outputs]
    first = len(outputs)  # outputs come in the order in which they were bound
    for name in made:
        binding.bind_output(name)

    def run(given: Arrays) -> dict[str, Any]:
        for name in others:
            binding.bind_cpu_input(name, given[name])
        try:
            run_stoppable(lambda options: session.run_with_iobinding(binding, options))
        except Exception as error:  # onnxruntime's own exception types share no base but this
            raise InputError(
                f"onnxruntime cannot run the model: {describe_runtime_error(error)}"
            ) from None
        values = binding.get_outputs_as_ortvaluevector() if made else ()
        fresh = {name: values[first + i].numpy() for i, name in enumerate(made)}
        for name in made:  # without this, the next run would write over what this one gave
            binding.bind_output(name)
        for name in others:  # the binding keeps what it is given
            if given[name].nbytes > _LARGE:
                binding.bind_cpu_input(name, np.empty(0, given[name].dtype))
        finish_run()
        return {**outputs, **fresh}

    return run


def _is_bindable(kind: str) -> bool:
    """Return whether a type, as onnxruntime writes it, is that of a tensor that numpy can hold."""
    return _is_plain_tensor(kind) and not is_foreign_type(kind)
