"""Cost models in files: what is said of wrong ones, fallbacks, plug-ins."""

import sys
from importlib.metadata import EntryPoint
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.installing import add_entry_points
from helpers.support import VANILLA

from byoc.costs import (
    Price,
    Roofline,
    Task,
    Unknown,
    Work,
    load_cost_model,
    load_device_costs,
    load_host_costs,
    read_cost_file,
)
from byoc.errors import InputError
from byoc.model import TensorType
from byoc.support import COSTS

ROOFLINE = "kind: roofline\nname: a\npeak: {float32: 1e9}\nbandwidth: 1e9\n"
ENTRY = "{op: Relu, types: 'float32[4] -> float32[4]', seconds: 1e-3}"
TABLE = f"kind: table\nname: t\nentries:\n- {ENTRY}\n"
LINEAR = "kind: linear\nname: l\noperators: {Relu: {byte: 1e-9, call: 1e-6, r2: 0.9, samples: 4}}\n"
TYPE = TensorType("float32", (4,))
RELU = Task("Relu", Work(4, 32), inputs=(TYPE,), outputs=(TYPE,))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("name: a\n", ["kind: must be given; known: roofline, table, linear"]),
        (
            "kind: tables\n",
            ["kind: no such kind 'tables' (did you mean table?); known: roofline, table, linear"],
        ),
        (
            "kind: [table]\n",
            ["kind: no such kind '['table']' (did you mean table?); known: roofline, table, linear"],
        ),
        ("[]\n", ["expected a mapping of keys at the top, `key: value` line by line"]),
        ("kind: roofline\n", ["name: must be given", "peak: must be given", "bandwidth: must be given"]),
        (
            ROOFLINE.replace("bandwidth: 1e9", "bandwidth: 0") + "overhead: -1\nlaunch: .nan\n",
            [
                "launch: must be at least 0",
                "bandwidth: input should be greater than 0",
                "overhead: must be at least 0",
            ],
        ),
        (ROOFLINE.replace("{float32: 1e9}", "{}"), ["peak: must not be empty"]),
        (
            ROOFLINE.replace("float32: 1e9", "float32: fast, int8: -1"),
            ["peak.float32: expected a number", "peak.int8: input should be greater than 0"],
        ),
        (
            ROOFLINE.replace("float32: 1e9", "flaot32: 1, int8: 2"),
            ["peak: no such data type 'flaot32' (did you mean float32?)"],
        ),
        (
            ROOFLINE.replace("float32: 1e9", "defalt: 1"),
            ["peak: no such data type 'defalt' (did you mean default?)"],
        ),
        (
            ROOFLINE + "overhed: 1\n",
            [
                "overhed: no such key (did you mean overhead?); known: name, extends, description, "
                "launch, link, energy, else, beside, margin, engine, interference, replicas, "
                "reload, threads, kind, peak, bandwidth, constants, tile, overhead, groups, operators",
            ],
        ),
        (
            ROOFLINE + "link: {bandwith: 1, latency: -1}\n",
            [
                "link.bandwidth: must be given",
                "link.latency: must be at least 0",
                "link.bandwith: no such key (did you mean bandwidth?); known: bandwidth, latency, "
                "conversion, occupies",
            ],
        ),
        (
            ROOFLINE + "link: fast\n",
            ["link: expected a mapping of keys (bandwidth, latency, conversion, occupies)"],
        ),
        *(
            (f"{ROOFLINE}{key}: {value}\n", [f"{at}: must not be empty"])
            for key, at in (("engine", "engine"), ("beside", "beside"), ("else", "else"))
            for value in ("''", "' '")
        ),
        (ROOFLINE.replace("name: a", "name: ''"), ["name: must not be empty"]),
        (ROOFLINE + "threads: {2: ' '}\n", ["threads[2]: must not be empty"]),
        (
            ROOFLINE + "reload: .inf\n",
            [
                "reload: must be finite, or loading would cost nothing; "
                "leave out the limit on memory instead"
            ],
        ),
        (
            ROOFLINE + "operators: {Conv: {efficiency: 2}}\nenergy: {byte: .inf, operation: -1}\n",
            [
                "energy.operation: must be at least 0",
                "energy.byte: expected a finite number",
                "operators.Conv.efficiency: must be at most 1",
            ],
        ),
        (TABLE.replace(f"\n- {ENTRY}", " []"), ["entries: must not be empty"]),
        (TABLE.replace(f"\n- {ENTRY}", " {}"), ["entries: expected a list"]),
        (
            TABLE.replace("1e-3", "1e30"),
            ["entries[0].seconds: expected less than a thousand years, in seconds"],
        ),
        (
            TABLE.replace("1e-3", ".nan"),
            ["entries[0].seconds: must be at least 0"],
        ),
        (
            TABLE.replace("float32[4] ->", "->").replace("op: Relu, ", "samples: 0, "),
            [
                "entries[0].op: must be given",
                "entries[0].samples: must be at least 1",
            ],
        ),
        (
            TABLE.replace("float32[4] -> float32[4]", "float32[4]"),
            [
                "entries[0].types: expected types of inputs -> of outputs, such as float32[1, 8] -> "
                "int8[2]"
            ],
        ),
        (
            TABLE.replace("-> float32[4]", "-> float33[4]"),
            ["entries[0].types: no such data type 'float33' (did you mean float32?)"],
        ),
        (
            TABLE.replace("-> float32[4]", "-> float32[N]"),
            ["entries[0].types: 'float32[N]' is no type such as float32[1, 8], nor - for one left out"],
        ),
        (
            TABLE.replace("seconds", "attributes: {pads: [1, [2]]}, seconds"),
            ["entries[0].attributes: pads: expected a number, text, or a list of these"],
        ),
        (TABLE + f"- {ENTRY}\n", ["entries: [1] has the operator, types and attributes of [0]"]),
        (
            LINEAR.replace("byte", "bytes"),
            [
                "operators.Relu.bytes: no such key (did you mean byte?); known: operation, byte, call, "
                "together, joules, r2, samples"
            ],
        ),
        (
            LINEAR.replace("1e-9", "-1").replace("0.9", "1.5"),
            [
                "operators.Relu.byte: must be at least 0",
                "operators.Relu.r2: must be at most 1",
            ],
        ),
        (LINEAR + "together: 0\n", ["together: input should be greater than 0"]),
        (LINEAR + "together: .inf\n", ["together: expected a finite number"]),
        (ROOFLINE + "launch: true\n", ["launch: expected a number"]),
        (ROOFLINE.replace("1e9}", "true}"), ["peak.float32: expected a number"]),
        (LINEAR.replace("samples: 4", "samples: true"), ["operators.Relu.samples: expected a number"]),
        (
            TABLE.replace("1e-3}", "1e-300, operations: 1e308, bytes: 1e308}"),
            [
                "entries[0].operations: expected at most 1e+30",
                "entries[0].bytes: expected at most 1e+30",
            ],
        ),
        (
            LINEAR + "machine: {host: me}\n",
            ["machine.host: no such key (did you mean os?); known: cpu, cores, threads, os, versions"],
        ),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, lines: list[str]) -> None:
    path = tmp_path / "cost.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_cost_model(str(path))
    assert str(caught.value).splitlines() == [f"{path}: {line}" for line in lines]


def test_right_files(tmp_path: Path) -> None:
    path = tmp_path / "cost.yaml"
    path.write_text(ROOFLINE)
    found = read_cost_file(path)
    assert isinstance(found, Roofline)
    assert found.peak == {"float32": 1e9}
    for text, seconds in ((TABLE, 1e-3), (LINEAR, 1e-6 + 32e-9)):
        path.write_text(text)
        answer = load_cost_model(str(path)).execution(RELU)
        assert isinstance(answer, Price)
        assert answer.seconds == pytest.approx(seconds, rel=1e-12)


def test_a_fallback_answers_what_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "table.yaml").write_text(TABLE + "else: flat.yaml\nlaunch: 3\nlink: {bandwidth: 2}\n")
    (tmp_path / "flat.yaml").write_text(ROOFLINE)
    model = load_cost_model(str(tmp_path / "table.yaml"))
    assert model.name == "t"
    assert model.execution(RELU).seconds == 1e-3  # type: ignore[union-attr]
    assert model.execution(Task("Tanh", Work(2e9, 0))).seconds == 2.0  # type: ignore[union-attr]
    odd = Task("Odd", Work(2e9, 0, estimated=True))
    assert model.execution(odd) == Unknown("t has no costs of Odd on ->")
    assert model.estimate(odd).seconds == 2.0  # type: ignore[attr-defined]
    assert (model.launching().seconds, model.transfer(4).seconds) == (3.0, 2.0)


def test_fallbacks_by_name_in_a_circle_and_missing(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(TABLE + "else: host\n")
    assert load_cost_model(str(one)).execution(Task("Tanh", Work(1e11, 0)))
    one.write_text(TABLE + "else: two.yaml\n")
    two.write_text(TABLE + "else: one.yaml\n")
    with pytest.raises(InputError) as caught:
        load_cost_model(str(one))
    assert str(caught.value) == (
        f"{one}: else: {two}: else: the fallbacks go in a circle: one.yaml -> two.yaml -> one.yaml"
    )
    two.write_text(TABLE + "else: three.yaml\n")
    with pytest.raises(InputError, match=r"one.yaml: else: .*two.yaml: else: three.yaml: no such file"):
        load_cost_model(str(one))


def test_a_row_of_fallbacks_has_an_end(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.yaml" for number in range(10)]
    for path, following in pairwise(files):
        path.write_text(TABLE + f"else: {following.name}\n")
    files[-1].write_text(ROOFLINE)
    assert load_cost_model(str(files[1])).name == "t"
    with pytest.raises(InputError) as caught:
        load_cost_model(str(files[0]))
    assert str(caught.value) == f"{files[0].resolve()}: more than 8 files ask one another (else)"


def test_a_file_names_others_for_runs_on_several_threads(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(TABLE + "threads: {2: two.yaml, 8: many.yaml}\n")
    (tmp_path / "two.yaml").write_text(TABLE.replace("name: t", "name: two") + "else: flat.yaml\n")
    (tmp_path / "many.yaml").write_text(ROOFLINE.replace("name: a", "name: many"))
    (tmp_path / "flat.yaml").write_text(ROOFLINE + "threads: {4: many.yaml}\n")
    one = str(tmp_path / "one.yaml")
    names = {count: load_host_costs(one, threads=count).name for count in (1, 2, 7, 8, 99, None)}
    assert names == {1: "t", 2: "two", 7: "two", 8: "many", 99: "many", None: "many"}
    slow, fast = "peak: {float32: 1e9}", "peak: {float32: 4e9}"
    (tmp_path / "many.yaml").write_text(ROOFLINE.replace(slow, fast))
    tanh = Task("Tanh", Work(4e9, 0))
    found = [load_cost_model(one, threads=count).execution(tanh) for count in (2, 4)]
    assert [price.seconds for price in found if isinstance(price, Price)] == [4.0, 1.0]  # of else


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("threads: {2: gone}", "{one}: threads.2: gone: no such file"),
        (
            "threads: {2: two.yaml, 0x2: many.yaml}",
            "{one}:5:24: not valid YAML: the key '0x2' stands twice",
        ),
        ("threads: {2: two.yaml, '02': many.yaml}", "{one}: threads.02: expected a whole number"),
        ("threads: {2: two.yaml, 4: gone.yaml}", "{one}: threads.4: gone.yaml: no such file"),
        ("threads: {1: two.yaml}", "{one}: threads: 1: the file itself is for fewer than 2 threads"),
        ("threads: {many: two.yaml}", "{one}: threads.many: expected a whole number"),
        ("threads: two.yaml", "{one}: threads: expected"),
        ("threads: {2: three.yaml}", "{one}: threads: {three} names files for threads itself"),
        ("threads: {2: wrong.yaml}", "{wrong}: kind: must be given"),
        (
            "threads: {2: linked.yaml}",
            "{one}: threads: {linked} has a link, the file itself has none",
        ),
    ],
)
def test_wrong_files_for_threads(tmp_path: Path, line: str, message: str) -> None:
    one, three = tmp_path / "one.yaml", tmp_path / "three.yaml"
    one.write_text(TABLE + line + "\n")
    (tmp_path / "two.yaml").write_text(TABLE)
    three.write_text(TABLE + "threads: {4: two.yaml}\n")
    (tmp_path / "wrong.yaml").write_text("name: a\n")
    (tmp_path / "linked.yaml").write_text(TABLE + "link: {bandwidth: .inf}\n")
    with pytest.raises(InputError) as caught:
        load_cost_model(str(one), threads=3)
    paths = {"one": one, "three": three, "wrong": tmp_path / "wrong.yaml"}
    paths["linked"] = tmp_path / "linked.yaml"
    assert str(caught.value).startswith(message.format(**paths))


class Flat:
    """A cost model as somebody else might write it."""

    name = "flat"
    answer: Any = Price(2.0)

    def execution(self, task: Task) -> Any:
        return self.answer

    def transfer(self, size: int, converted: int = 0) -> Price:
        return Price(float(size))

    def launching(self) -> Price:
        return Price(1.0)


class Called(Flat):
    """One with another name, or none."""

    def __init__(self, name: Any) -> None:
        self.given = name

    @property
    def name(self) -> Any:  # type: ignore[override]
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def install(monkeypatch: pytest.MonkeyPatch, **models: Any) -> None:
    """Register classes as cost models, beside those that are installed."""
    module = ModuleType("models_of_this_test")
    for name, value in models.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points = [EntryPoint(name, f"{module.__name__}:{name}", COSTS) for name in models]
    add_entry_points(monkeypatch, points)


def test_a_plug_in(monkeypatch: pytest.MonkeyPatch, byoc: Any) -> None:
    install(monkeypatch, flat=Flat)
    found = load_cost_model("flat").execution(RELU)
    assert isinstance(found, Price)
    assert found.seconds == 2.0
    assert "flat" in byoc("cost-models").out
    ran = byoc(
        "partition", "zoo:squeezenet", "--rules", VANILLA, "--cost-model", "flat", "--format", "json"
    )
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("flat", object, "is not one: it needs a `name` and the methods"),
        ("flat", lambda: 1 / 0, "cannot be loaded: ZeroDivisionError: division by zero"),
        ("flat", lambda: Called(None), "its name is not a text"),
        (
            "flat",
            lambda: Called(ZeroDivisionError("a\nb")),
            "its name failed with ZeroDivisionError: a b",
        ),
        ("host", Flat, "brings a cost model of this name, and so does"),
        (
            "flat2",
            Flat,
            "installed: dla, ethos-u55, ethos-u55-128, ethos-u55-32, ethos-u55-64, ethos-u65, "
            "ethos-u65-512, ethos-u85, ethos-u85-1024, ethos-u85-128, ethos-u85-2048, ethos-u85-512, "
            "flat2, host, "
            "iree-cpu, nnpa, onnxruntime-cpu, onnxruntime-cpu-2-threads, openvino-cpu, "
            "openvino-cpu-2-threads, openvino-cpu-roofline, ort-ep, qnn-htp, rknn-rk3588, "
            "tensorrt-dla, tvm-cpu",
        ),
    ],
)
def test_plug_ins_that_are_wrong(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any, sentence: str
) -> None:
    install(monkeypatch, **{name: value})
    with pytest.raises(InputError) as caught:
        load_cost_model("host" if name == "host" else "flat")
    assert sentence in str(caught.value)


def test_the_files_in_the_documentation_are_right(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "cost_files.md").read_text(encoding="utf-8")
    blocks = [part.partition("```")[0] for part in text.split("```yaml\n")[1:]]
    shared = next(block for block in blocks if not block.startswith("kind:"))
    kinds = set()
    for block in (b for b in blocks if b.startswith("kind:")):
        path = tmp_path / "cost.yaml"
        path.write_text(block + (shared if block.startswith("kind: roofline") else ""), encoding="utf-8")
        assert (
            load_device_costs(str(path)) if "link:" in path.read_text() else load_host_costs(str(path))
        )
        kinds.add(getattr(read_cost_file(path), "kind", ""))
    assert kinds == {"roofline", "table", "linear"}
