"""Version 2 of `byoc_driver.h`: which functions are there, and what the dla's driver makes of each."""

import ctypes as c
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import onnx
import pytest
from drivers_of_tests import DOUBLING
from helpers.support import parse

from byoc.codegen import Artifact, DriverSources, Region, find_codegen, read_region
from byoc.codegen.drivers import (
    DONE,
    DeviceTensor,
    DriverCall,
    DriverError,
    DriverLibrary,
    DriverTable,
    DriverTable2,
    OpenedRegion,
    build_driver,
)
from byoc.errors import InputError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
NET = """net (float[2, 8] x) => (float[2, 8] y) {
    a = Relu(x)
    y = Sigmoid(a)
}"""
FUNCTIONS = [name for name, _ in DriverTable2._fields_[1:]]
BYTES = 2 * 8 * 4
Compiled = tuple[Region, Artifact]


def compile_text(text: str, folder: Path, name: str = "dla_0", **options: Any) -> Compiled:
    onnx.save(parse(text), folder / f"{name}.onnx")
    region = read_region(folder / f"{name}.onnx", name, "dla")
    codegen = find_codegen("dla")
    return region, codegen.compile(region, codegen.Options(**options))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return compile_text(NET, tmp_path_factory.mktemp("region"))


@pytest.fixture(scope="module")
def long_region(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """A region of some hundred commands, so that one is cancelled before it ends."""
    steps = "\n".join(f"a{i + 1} = Tanh(a{i})" for i in range(40))
    text = f"net (float[256, 256] x) => (float[256, 256] a40) {{ a0 = Relu(x) {steps} }}"
    return compile_text(text, tmp_path_factory.mktemp("long"), scratchpad=65536)


@pytest.fixture(scope="module")
def driver(dla_library: Path) -> DriverLibrary:
    return DriverLibrary(dla_library)


def floats(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((2, 8)).astype(np.float32)


@contextmanager
def changing_calls(driver: DriverLibrary, change: Callable[[DriverCall], None]) -> Iterator[None]:
    """Let a function change each call that is submitted, as a program in C could make it."""
    submit = driver.functions["submit"]

    def submit_changed(handle: Any, call: Any) -> int:
        change(call._obj)
        return int(submit(handle, call))

    driver.functions["submit"] = submit_changed
    try:
        yield
    finally:
        driver.functions["submit"] = submit


def calling_back(driver: DriverLibrary, done: Any, users: Iterator[int]) -> AbstractContextManager[None]:
    """Give calls a function that is called at their ends, and what it is called with."""

    def add_callback(call: DriverCall) -> None:
        call.done, call.user = done, next(users)

    return changing_calls(driver, add_callback)


# Which functions are there.


def test_a_driver_of_version_1_runs_as_it_did(doubling_library: Path, compiled: Compiled) -> None:
    library = DriverLibrary(doubling_library)
    opened = library.open_region(*compiled)
    np.testing.assert_array_equal(opened({"x": floats()})["y"], 2 * floats())
    assert (library.abi_version, library.has_buffers) == (1, False)
    assert not library.functions.keys() & set(FUNCTIONS)
    with pytest.raises(InputError, match=r"driver doubling has no open_buffer"):
        library.open_buffer(64)
    with pytest.raises(InputError, match="doubling: dla_0: it takes no options, and so not priority"):
        library.open_region(*compiled, {"priority": "high"})


def test_a_driver_of_version_2_serves_a_program_that_knows_version_1(dla_library: Path) -> None:
    get = c.CDLL(str(dla_library)).byoc_get_driver
    get.restype, get.argtypes = c.POINTER(DriverTable), (c.c_uint32,)
    old, new = get(1).contents, get(2).contents
    assert (old.abi_version, old.struct_size) == (1, c.sizeof(DriverTable))
    assert (new.abi_version, new.struct_size) == (2, c.sizeof(DriverTable2))
    assert not get(3)
    assert not get(0)


@pytest.mark.parametrize("variable", ["CHOSEN_WITHOUT", "CHOSEN_END"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_may_be_missing(
    name: str, variable: str, chosen_library: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, name)
    library = DriverLibrary(chosen_library)
    gone = [name] if variable == "CHOSEN_WITHOUT" else FUNCTIONS[FUNCTIONS.index(name) :]
    assert library.functions.keys() & set(FUNCTIONS) == set(FUNCTIONS) - set(gone)
    opened = library.open_region(*compiled)
    np.testing.assert_array_equal(opened({"x": floats()})["y"], floats())
    kept = {"submit", "wait", "open_buffer", "read_buffer", "close_buffer"}
    assert library.has_buffers == kept.isdisjoint(gone)
    asked: Mapping[str, Callable[[], object]] = {
        "submit": lambda: opened.submit({"x": floats()}),
        "cancel": opened.cancel,
        "open_buffer": lambda: library.open_buffer(64),
        "read_counters": opened.read_counters,
        "list_events": opened.list_events,
        "read_versions": library.read_versions,
    }
    for function, ask in asked.items():
        if function in gone:
            with pytest.raises(InputError, match=f"driver chosen has no {function}"):
                ask()


def test_a_table_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "new.c"
    text = DOUBLING.read_text().replace(
        "sizeof(byoc_driver), BYOC_ABI_VERSION,", "sizeof(byoc_driver), 9,"
    )
    source.write_text(text.replace("abi_version == BYOC_ABI_VERSION ? &driver : NULL", "&driver"))
    library = build_driver(DriverSources("new", (source,)), tmp_path / "new.so")
    with pytest.raises(InputError, match=r"new\.so: the driver's table is of no version of byoc_driver"):
        DriverLibrary(library)


@pytest.mark.parametrize(
    ("written", "instead", "sentence"),
    [
        *(
            (f"{kept},", "NULL,", f"the driver's table has no {name}")
            for kept, name in {
                '"doubling"': "name",
                "check_compatible": "compatible",
                "get_arena_size": "arena_size",
                "open_region": "open",
                "run_region": "run",
                "close_region": "close",
                "get_error": "error",
            }.items()
        ),
        ("sizeof(byoc_driver),", "0,", "of no version of byoc_driver.h that is known here"),
        ("return sizeof(byoc_region)", "return (size_t)1 << 62", "no memory for its arena of 4611"),
        ("return sizeof(byoc_region)", "return SIZE_MAX - 1", "no memory for its arena of 1844"),
        ("return fails ? BYOC_FAILED : BYOC_OK", "return -1", "driver doubling: dla_0: status -1"),
    ],
)
def test_a_driver_that_breaks_a_rule_is_one_sentence(
    written: str, instead: str, sentence: str, compiled: Compiled, tmp_path: Path
) -> None:
    before, table = DOUBLING.read_text().rsplit("static const byoc_driver driver", 1)
    in_table = written.endswith(",")
    source = tmp_path / "wrong.c"
    text = (table if in_table else before).replace(written, instead)
    source.write_text(
        (before if in_table else text)
        + "static const byoc_driver driver"
        + (text if in_table else table)
    )
    library = build_driver(DriverSources("wrong", (source,)), tmp_path / "wrong.so")
    with pytest.raises((InputError, DriverError)) as caught:
        DriverLibrary(library).open_region(*compiled)({"x": floats()})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


# What the dla's driver makes of them.


def test_two_regions_pass_a_tensor_that_the_host_never_sees(
    driver: DriverLibrary, compiled: Compiled
) -> None:
    first, second = (driver.open_region(*compiled) for _ in range(2))
    expected = second({"x": first({"x": floats()})["y"]})["y"]
    before = [opened.read_counters() for opened in (first, second)]
    passed = first({"x": floats()}, on_device=["y"])["y"]
    assert isinstance(passed, DeviceTensor)
    found = second({"x": passed})["y"]
    np.testing.assert_array_equal(found, expected)
    after = [opened.read_counters() for opened in (first, second)]
    moved = [
        tuple(
            getattr(later, name) - getattr(earlier, name)
            for name in ("runs", "bytes_from_program", "bytes_to_program", "bytes_on_device")
        )
        for earlier, later in zip(before, after, strict=True)
    ]
    assert moved == [(1, BYTES, 0, BYTES), (1, 0, BYTES, BYTES)]
    np.testing.assert_array_equal(np.asarray(passed), first({"x": floats()})["y"])


def test_buffers_are_used_again(driver: DriverLibrary, compiled: Compiled) -> None:
    opened = driver.open_region(*compiled)
    one = opened({"x": floats(1)}, ["y"])["y"]
    two = opened({"x": floats(2)}, ["y"])["y"]
    kept = np.array(one)
    handles = {each.buffer.handle.value for each in (one, two)}
    assert len(handles) == 2
    del two
    three = opened({"x": floats(3)}, ["y"])["y"]
    assert three.buffer.handle.value in handles
    np.testing.assert_array_equal(np.asarray(one), kept)


@pytest.mark.parametrize("kind", ["device", "program", "shared"])
def test_memory_of_each_kind_is_read_and_written(
    kind: str, driver: DriverLibrary, tmp_path: Path
) -> None:
    memory = np.zeros(512 + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :][:512]
    with (tmp_path / "shared").open("w+b") as file:
        file.truncate(512)
        given = {"device": {}, "program": {"memory": memory}, "shared": {"descriptor": file.fileno()}}
        buffer = driver.open_buffer(512, **given[kind])
        buffer.write(floats(), 64)
        shared = os.pread(file.fileno(), 512, 0)
    found = np.empty((2, 8), np.float32)
    buffer.read(found, 64)
    np.testing.assert_array_equal(found, floats())
    content = {"device": b"", "program": memory.tobytes(), "shared": shared}[kind]
    assert kind == "device" or content[64 : 64 + BYTES] == floats().tobytes()
    for offset in (512 - BYTES + 1, 513, 2**63):
        with pytest.raises(DriverError, match="a buffer of 512 bytes: bad argument"):
            buffer.read(found, offset)
        with pytest.raises(DriverError, match="a buffer of 512 bytes: bad argument"):
            buffer.write(found, offset)


def test_buffers_that_cannot_be(driver: DriverLibrary, tmp_path: Path) -> None:
    with (
        (tmp_path / "short").open("w+b") as file,
        pytest.raises(DriverError, match="cannot be mapped, or is smaller than the buffer"),
    ):
        driver.open_buffer(64, descriptor=file.fileno())
    with pytest.raises(DriverError, match="cannot be mapped"):
        driver.open_buffer(64, descriptor=9999)
    with pytest.raises(DriverError, match="a buffer of 0 bytes: a buffer has no bytes"):
        driver.open_buffer(0)
    with pytest.raises(DriverError, match="the device has no memory left"):
        driver.open_buffer(2**62)
    memory = np.zeros(256, np.uint8)
    with pytest.raises(DriverError, match="is not aligned to 64 bytes"):
        driver.open_buffer(64, memory=memory[-memory.ctypes.data % 64 :][1:])
    with pytest.raises(InputError, match="a buffer of 512 bytes is not in an array of 256"):
        driver.open_buffer(512, memory=memory)


def test_runs_of_several_regions_go_on_at_once(driver: DriverLibrary, long_region: Compiled) -> None:
    """Each is submitted before the end of any is waited for, and their results are not mixed."""
    regions = [driver.open_region(*long_region, {"cores": "3"}) for _ in range(3)]
    inputs = [np.full((256, 256), 0.1 * number, np.float32) for number in range(3)]
    for opened, given in zip(regions, inputs, strict=True):
        opened.submit({"x": given})
    found = [opened.wait() for opened in regions]
    for opened, given, made in zip(regions, inputs, found, strict=True):
        assert made is not None
        np.testing.assert_array_equal(made["a40"], opened({"x": given})["a40"])


def test_a_run_is_waited_for_in_pieces(driver: DriverLibrary, long_region: Compiled) -> None:
    opened = driver.open_region(*long_region)
    opened.submit({"x": np.ones((256, 256), np.float32)})
    assert opened.wait(0) is None  # a run of 160 million cycles does not end at once
    with pytest.raises(InputError, match="dla_0: a run has not been waited for"):
        opened.submit({"x": np.ones((256, 256), np.float32)})
    assert opened.wait() is not None
    with pytest.raises(InputError, match="dla_0: no run was submitted"):
        opened.wait()


def test_a_run_is_cancelled_and_the_next_one_is_right(
    driver: DriverLibrary, long_region: Compiled
) -> None:
    opened = driver.open_region(*long_region)
    given = {"x": np.full((256, 256), 0.5, np.float32)}
    expected = opened(given)["a40"]
    opened.cancel()  # nothing runs
    opened.submit(given)
    waiting = Thread(target=opened.cancel)
    waiting.start()
    with pytest.raises(
        DriverError, match=r"dla_0: program\.bin: command \d+: the run was cancelled"
    ) as caught:
        opened.wait()
    waiting.join()
    assert caught.value.status == "cancelled"
    assert opened.read_counters().runs == 1
    np.testing.assert_array_equal(opened(given)["a40"], expected)
    opened.submit(given)
    del opened  # closing ends what runs


def test_the_program_is_called_when_a_run_ends(driver: DriverLibrary, long_region: Compiled) -> None:
    opened = driver.open_region(*long_region)
    ended: list[tuple[int, int]] = []
    done = DONE(lambda user, answer: ended.append((user, answer)))
    given = {"x": np.ones((256, 256), np.float32)}
    with calling_back(driver, done, iter((7, 8))):
        opened.submit(given)
        assert opened.wait() is not None
        assert ended == [(7, 0)]  # before `wait` has returned
        opened.submit(given)
        opened.cancel()
        with pytest.raises(DriverError, match="cancelled"):
            opened.wait()
    assert ended == [(7, 0), (8, 6)]


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("cores", "0"), "option cores: a mask of the cores 0 to 3 is expected, from 1 to 15"),
        (("cores", "16"), "option cores: "),
        (("cores", "0x1"), "option cores: "),
        (("cores", ""), "option cores: "),
        (("cores", "4294967297"), "option cores: "),
        (("priority", "urgent"), "option priority: low, normal or high is expected"),
        (("clock", "0"), "option clock: 1 to 100 percent is expected"),
        (("clock", "101"), "option clock: "),
        (("events", "yes"), "option events: 0 or 1 is expected"),
        (("voltage", "1"), "an option that the dla does not have: it has cores, priority, clock and"),
    ],
)
def test_wrong_options_are_one_sentence(
    option: tuple[str, str], sentence: str, driver: DriverLibrary, compiled: Compiled
) -> None:
    with pytest.raises(DriverError) as caught:
        driver.open_region(*compiled, dict([option]))
    assert sentence in str(caught.value)
    assert caught.value.status == "bad argument"
    opened = driver.open_region(*compiled)
    with pytest.raises(DriverError) as caught:
        opened.submit({"x": floats()}, options=dict([option]))
    assert sentence in str(caught.value)
    assert opened({"x": floats()})["y"].any()


def test_options_do_not_change_what_is_computed(driver: DriverLibrary, compiled: Compiled) -> None:
    expected = driver.open_region(*compiled)({"x": floats()})["y"]
    options = {"cores": "8", "priority": "low", "clock": "50", "events": "1"}
    opened = driver.open_region(*compiled, options)
    np.testing.assert_array_equal(opened({"x": floats()})["y"], expected)
    opened.submit({"x": floats()}, options={"priority": "high", "clock": "100"})
    made = opened.wait()
    assert made is not None
    np.testing.assert_array_equal(made["y"], expected)


def test_a_core_goes_to_the_highest_priority(driver: DriverLibrary, compiled: Compiled) -> None:
    """The first region keeps core 0 until it is called back; another core is free meanwhile."""
    go_on = Event()
    ended: list[int] = []

    def note_end(number: int, answer: int) -> None:
        ended.append(number)
        assert number or go_on.wait(60)

    options = [
        {"cores": "1"},
        {"cores": "1", "priority": "low"},
        {"cores": "1", "priority": "high"},
        {"cores": "2", "priority": "low"},
    ]
    regions = [driver.open_region(*compiled, each) for each in options]
    done = DONE(lambda number, answer: note_end(number or 0, answer))
    with calling_back(driver, done, iter(range(4))):
        for opened in regions:
            opened.submit({"x": floats()})
            if opened is regions[0]:
                while not ended:
                    opened.wait(0.001)
        assert regions[3].wait() is not None
        assert [opened.wait(0.2) for opened in regions[1:3]] == [None, None]
        go_on.set()
        assert all(opened.wait() is not None for opened in regions[:3])
    assert ended == [0, 3, 2, 1]


def test_layers_have_the_names_of_the_models_nodes(driver: DriverLibrary, tmp_path: Path) -> None:
    model = parse(
        """net (float[1, 3, 8, 8] x) => (float[1, 3, 4, 4] y) {
        a = Relu(x)
        b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
        y = Tanh(b)
    }"""
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"block/{number} é"
    onnx.save(model, tmp_path / "dla_0.onnx")
    region = read_region(tmp_path / "dla_0.onnx", "dla_0", "dla")
    codegen = find_codegen("dla")
    artifact = codegen.compile(region, codegen.Options())
    opened = driver.open_region(region, artifact, {"events": "1"})
    given = {"x": np.ones((1, 3, 8, 8), np.float32)}
    assert opened.list_events() == []
    for _ in range(2):
        opened(given)
        events = opened.list_events()
        names = dict.fromkeys(name for event in events for name in event.nodes)
        assert [*names] == [node.name for node in model.graph.node]
        starts = [event.start_ns for event in events]
        assert starts == sorted(starts)
        assert sum(event.duration_ns for event in events) <= opened.read_counters().busy_ns
    without = driver.open_region(region, artifact)
    without(given)
    assert without.list_events() == []
    files = {name: content for name, content in artifact.files.items() if name != "layers.bin"}
    nameless = driver.open_region(region, Artifact(files, artifact.metadata), {"events": "1"})
    assert nameless(given)["y"].any()
    with pytest.raises(DriverError, match="dla_0: incompatible"):
        nameless.list_events()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "layers.bin is not of version 1"),
        (b"DLAL\2\0\0\0\0\0\0\0\0\0\0\0", "layers.bin is not of version 1"),
        (b"DLAL\1\0\0\0\1\0\0\0\0\0\0\0", "layers.bin breaks off"),
        (b"DLAL\1\0\0\0\xff\xff\xff\xff\0\0\0\0", "layers.bin breaks off"),
        (b"DLAL\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0a\0", "layers.bin has other names than it says"),
        (b"DLAL\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0a\0b\0c", "layers.bin has other names than it says"),
        (b"DLAL\1\0\0\0\1\0\0\0\2\0\0\0\1\0\0\0a\0b\0c\0", "layers.bin has other names than it says"),
    ],
)
def test_wrong_names_of_layers(
    content: bytes, sentence: str, driver: DriverLibrary, compiled: Compiled
) -> None:
    region, artifact = compiled
    wrong = Artifact({**artifact.files, "layers.bin": content}, artifact.metadata)
    with pytest.raises(DriverError) as caught:
        driver.open_region(region, wrong)
    assert str(caught.value) == f"driver dla: dla_0: {sentence}"


def test_versions_are_told_before_there_is_a_device(driver: DriverLibrary, compiled: Compiled) -> None:
    region, artifact = compiled
    runs, needs = driver.read_versions(), driver.read_versions(region, artifact)
    isa = artifact.metadata["isa"]
    assert (runs.oldest_artifact, runs.newest_artifact, runs.firmware) == ("4", "7", "7")
    assert (needs.oldest_artifact, needs.newest_artifact, needs.oldest_firmware) == (isa, isa, isa)
    other = {
        **artifact.files,
        "program.bin": artifact.files["program.bin"][:4] + bytes([9, 0, 0, 0] * 5),
    }
    with pytest.raises(DriverError, match="incompatible"):
        driver.read_versions(region, Artifact(other))
    with pytest.raises(DriverError, match="bad artifact"):
        driver.read_versions(region, Artifact({}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda call: setattr(call, "struct_size", 8), "the call is of another version"),
        (lambda call: setattr(call.inputs[0], "data", None), "has neither an address nor a buffer"),
        (lambda call: setattr(call.outputs[0], "offset", 64), "is not inside its buffer"),
        (lambda call: setattr(call.outputs[0], "offset", 2**64 - 64), "is not inside its buffer"),
        (lambda call: setattr(call.outputs[0], "offset", 1), "is not inside its buffer"),
    ],
)
def test_calls_that_break_a_rule_are_not_begun(
    change: Callable[[DriverCall], None], sentence: str, driver: DriverLibrary, compiled: Compiled
) -> None:
    opened: OpenedRegion = driver.open_region(*compiled)
    with changing_calls(driver, change), pytest.raises(DriverError) as caught:
        opened({"x": floats()}, on_device=["y"])
    assert sentence in str(caught.value)
    assert np.asarray(opened({"x": floats()}, on_device=["y"])["y"]).any()
