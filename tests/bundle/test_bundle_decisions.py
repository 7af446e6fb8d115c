"""Decisions files of strangers are read strictly, and end in one sentence if anything is off."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.support import VANILLA, parse

import byoc
from byoc.bundle import DecisionDocument, write_decisions
from byoc.errors import InputError
from byoc.reporting import make_decision_document

CHAIN = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Relu(x) b = Sin(a) y = Relu(b) }"
PATH = Path("b.byoc/decisions.json.gz")
BYTES, VALUES = 2**28, 2**23
"""The most that a decisions file may have (docs/bundle.md)."""


class Written(DecisionDocument):
    """A document that is one value too large."""

    def to_json(self) -> bytes:
        return b"[" + b"1," * VALUES


@pytest.fixture(scope="module")
def data() -> Any:
    plan = byoc.partition(parse(CHAIN), VANILLA, strategy="all-supported").plan
    return json.loads(make_decision_document(plan).to_json())


def read(data: Any) -> DecisionDocument:
    return DecisionDocument.read(gzip.compress(json.dumps(data).encode()), PATH)


def set_at(*path: Any) -> Callable[[Any], None]:
    *where, key, value = path

    def change(data: Any) -> None:
        for step in where:
            data = data[step]
        data[key] = value

    return change


WRONG = {
    "an unknown key": set_at("more", 1),
    "another format": set_at("format", 4),
    "a text for a number": set_at("graphs", 0, "nodes", "operators", 0, "1"),
    "an operator that is not there": set_at("graphs", 0, "nodes", "operators", 0, 7),
    "no operator": set_at("graphs", 0, "nodes", "operators", 0, -1),
    "a tensor that is not there": set_at("graphs", 0, "nodes", "inputs", 0, [99]),
    "a column that is short": set_at("graphs", 0, "nodes", "units", [0]),
    "a unit without nodes": set_at("graphs", 0, "nodes", "units", [0, 1, 1]),
    "units.seconds": set_at("graphs", 0, "units", "seconds", [[]]),
    "a row of costs too much": set_at("graphs", 0, "units", "seconds", 0, [1.0] * 9),
    "a device that is not there": set_at("graphs", 0, "units", "devices", 0, 2),
    "a region that is not there": set_at("graphs", 0, "units", "regions", 0, 5),
    "a reason that is not there": set_at("graphs", 0, "units", "reasons", 1, 5),
    "a region on the host": set_at("graphs", 0, "regions", 0, "device", 0),
    "a boundary that is not there": set_at("graphs", 0, "regions", 0, "boundary", 0, "tensor", 50),
    "no graph": set_at("graphs", []),
    "a main graph inside itself": set_at("graphs", 0, "around", [0, 0]),
}


def test_what_was_written_is_read(data: Any) -> None:
    assert read(data).graphs[0].path == ""


def test_what_an_older_byoc_wrote_has_no_attributes(data: Any) -> None:
    changed = json.loads(json.dumps(data))
    changed["format"] = 1
    del changed["attributes"], changed["graphs"][0]["nodes"]["attributes"]

    assert read(changed).graphs[0].nodes.attributes == ()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_document_is_refused_in_one_sentence(data: Any, name: str) -> None:
    changed = json.loads(json.dumps(data))
    WRONG[name](changed)
    with pytest.raises(InputError) as caught:
        read(changed)
    message = str(caught.value)
    assert message.startswith("b.byoc/decisions.json.gz: not byoc's decisions: ")
    assert "\n" not in message


def test_a_graph_may_have_no_units_and_no_units_without_nodes(data: Any) -> None:
    changed = json.loads(json.dumps(data))
    graph = changed["graphs"][0]
    for row in graph["nodes"]:
        graph["nodes"][row] = []
    with pytest.raises(InputError, match=r"graphs\.0\.nodes\.units"):
        read(changed)
    graph["units"] = {
        key: [[] for _ in column] if key == "seconds" else [] for key, column in graph["units"].items()
    }
    assert read(changed).graphs[0].nodes.names == ()


def test_a_node_is_on_the_device_of_its_unit(data: Any) -> None:
    changed = json.loads(json.dumps(data))
    nodes, units = changed["graphs"][0]["nodes"], changed["graphs"][0]["units"]
    for at, devices in (([0, 1, 2], [1, 0, 1]), ([2, 0, 1], [0, 0, 1]), ([-1, -1, -1], [])):
        nodes["units"] = at
        changed["graphs"][0]["units"] = {
            key: column[: len(devices)] if key != "seconds" else [row[: len(devices)] for row in column]
            for key, column in units.items()
        } | {"devices": devices}
        graph = read(changed).graphs[0]
        found = [graph.find_device(node) for node in range(3)]
        assert found == [devices[unit] if unit >= 0 else -1 for unit in at]


def test_it_is_said_whether_decisions_were_written(tmp_path: Path, data: Any) -> None:
    document = read(data)
    assert write_decisions(tmp_path, document) is True
    written = tmp_path / "decisions.json.gz"
    assert DecisionDocument.read(written.read_bytes(), PATH) == document
    written.unlink()
    assert write_decisions(tmp_path, Written(**dict(document))) is False
    assert not [*tmp_path.iterdir()]


def test_a_body_before_the_graph_around_it_is_refused(data: Any) -> None:
    changed = json.loads(json.dumps(data))
    changed["graphs"].append({**changed["graphs"][0], "around": [1, 0]})
    with pytest.raises(InputError, match=r"graphs\.1\.around"):
        read(changed)


@pytest.mark.parametrize(
    ("number", "around", "fits"),
    [
        (0, [-1, -1], True),
        (0, [-1, 0], False),
        (0, [-1, -2], False),
        (0, [-1, 1], False),
        (1, [0, 0], True),
        (1, [0, 2], True),
        (1, [0, -1], True),
        (1, [0, 3], False),  # of three nodes
        (1, [0, 4], False),
        (1, [0, -2], False),
        (1, [-1, -1], False),
        (1, [-1, 0], False),
    ],
)
def test_a_body_is_in_a_node(number: int, around: list[int], fits: bool, data: Any) -> None:
    changed = json.loads(json.dumps(data))
    if number:
        changed["graphs"].append({**changed["graphs"][0]})
    changed["graphs"][number]["around"] = around
    if fits:
        assert read(changed).graphs[number].around == tuple(around)
        return
    with pytest.raises(InputError, match=rf"graphs\.{number}\.around"):
        read(changed)


TABLES = (("nodes", "names"), ("units", "kinds"), ("tensors", "names"))
# The first element of each list of numbers, the least that it may be, and what it has to be below.
ENDS = [
    (("inputs",), 0, "tensors"),
    (("outputs",), 0, "tensors"),
    (("tensors", "types"), -1, "types"),
    (("nodes", "operators"), 0, "operators"),
    (("nodes", "inputs", 0), -1, "tensors"),
    (("nodes", "outputs", 0), -1, "tensors"),
    (("nodes", "units"), -1, "units"),
    (("nodes", "attributes"), -1, "attributes"),
    (("units", "composites"), -1, "composites"),
    (("units", "devices"), 0, "devices"),
    (("units", "regions"), -1, "regions"),
    (("units", "reasons"), -1, "reasons"),
    (("units", "rules", 0), 0, "rules"),
    (("tensors", "constant"), 0, "tensors"),
    (("nodes", "inserted"), 0, "nodes"),
    (("units", "estimated"), 0, "units"),
]


@pytest.mark.parametrize(("path", "least", "of"), ENDS)
def test_numbers_are_those_of_something(path: tuple[Any, ...], least: int, of: str, data: Any) -> None:
    data = json.loads(json.dumps(data))
    graph = data["graphs"][0]
    constant = {
        "names": "k",
        "operators": 0,
        "inputs": [],
        "outputs": [4],
        "units": -1,
        "attributes": -1,
    }
    for column, value in constant.items():
        graph["nodes"][column].append(value)  # so that there are as many nodes as units no more
    for column, value in {"names": ["k", "l"], "types": [-1, -1]}.items():
        graph["tensors"][column] += value
    assert len({len(graph[table][key]) for table, key in TABLES}) == len(TABLES)
    stop = {
        "tensors": len(graph["tensors"]["names"]),
        "nodes": len(graph["nodes"]["names"]),
        "units": len(graph["units"]["kinds"]),
        "regions": len(graph["regions"]),
    }.get(of, len(data.get(of, ())))
    name = ".".join(part for part in path if isinstance(part, str))
    for value in (least - 1, least, stop - 1, stop):
        changed = json.loads(json.dumps(data))
        column = changed["graphs"][0]
        for step in path:
            column = column[step]
        column[:1] = [value]
        if least <= value < stop:
            try:
                read(changed)
            except InputError as error:
                assert path == ("nodes", "units")
                assert "nodes.units" in str(error)  # its unit is without nodes
            continue
        with pytest.raises(InputError, match=rf"graphs\.0\.{name}"):
            read(changed)


@pytest.mark.parametrize("tensor", [-1, 0, 3, 4])
def test_what_crosses_a_boundary_is_a_tensor(tensor: int, data: Any) -> None:
    changed = json.loads(json.dumps(data))
    assert len(changed["graphs"][0]["tensors"]["names"]) == 4
    changed["graphs"][0]["regions"][0]["boundary"][-1]["tensor"] = tensor
    if 0 <= tensor < 4:
        assert read(changed).graphs[0].regions[0].boundary[-1].tensor == tensor
        return
    with pytest.raises(InputError, match=r"graphs\.0\.regions"):
        read(changed)


def test_costs_are_there_for_each_device_and_unit(data: Any) -> None:
    rows = data["graphs"][0]["units"]["seconds"]
    for wrong in ([*rows, rows[0]], rows[:1], [[*row, 1.0] for row in rows], [row[1:] for row in rows]):
        changed = json.loads(json.dumps(data))
        changed["graphs"][0]["units"]["seconds"] = wrong
        with pytest.raises(InputError, match=r"graphs\.0\.units\.seconds does not fit"):
            read(changed)


NO_DOCUMENTS = {
    "nothing": b"",
    "not packed": b"{}",
    "nothing inside": gzip.compress(b""),
    "nested too deep": gzip.compress(b"[" * 100_000),
    "no UTF-8": gzip.compress(b"\xff{}"),
    "cut short": gzip.compress(b"{}")[:-3],
    "more behind": gzip.compress(b"{}") + b"x",
    "another packing": zlib.compress(b"{}"),
    "no number": gzip.compress(b'{"format": NaN}'),
}


@pytest.mark.parametrize("name", NO_DOCUMENTS)
def test_what_is_no_document_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(InputError, match="not byoc's decisions: ") as caught:
        DecisionDocument.read(NO_DOCUMENTS[name], PATH)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("more", [0, 1])
def test_no_more_values_are_read_than_may_be(more: int) -> None:
    """As many are read, and found to be no document."""
    content = gzip.compress(b"[" + b"1," * (VALUES - 1 + more))
    with pytest.raises(
        InputError, match=f"they have more than {VALUES} values" if more else "Invalid JSON"
    ):
        DecisionDocument.read(content, PATH)


def test_no_more_is_unpacked_than_may_be() -> None:
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    block = bytes(1 << 20)
    first, other = (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    with pytest.raises(InputError, match=f"they have more than {BYTES} bytes"):
        DecisionDocument.read(first + other * (BYTES // len(block)), PATH)


def test_decisions_that_would_not_be_read_are_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(DecisionDocument, "to_json", Written.to_json)
    output = tmp_path / "b.byoc"
    byoc.partition(parse(CHAIN), VANILLA, output=output, codegen="reference")
    bundle = byoc.open_bundle(output)
    assert bundle.decisions() is None
    assert not (output / "decisions.json.gz").exists()


FLOATS = [
    ("graphs", 0, "trips"),
    ("graphs", 0, "units", "operations", 0),
    ("graphs", 0, "units", "seconds", 0, 0),
    ("graphs", 0, "regions", 0, "seconds"),
    ("graphs", 0, "regions", 0, "boundary", 0, "seconds"),
    ("graphs", 0, "regions", 0, "boundary", 0, "scale"),
]


@pytest.mark.parametrize("path", FLOATS)
@pytest.mark.parametrize("text", ["Infinity", "-Infinity", "NaN", "1e999"])
def test_no_cost_is_infinite_or_no_number(path: tuple[Any, ...], text: str, data: Any) -> None:
    changed = json.loads(json.dumps(data))
    set_at(*path, 0.5)(changed)
    assert read(changed)
    set_at(*path, "here")(changed)
    content = json.dumps(changed).replace('"here"', text).encode()
    with pytest.raises(InputError, match=".".join(map(str, path))):
        DecisionDocument.read(gzip.compress(content), PATH)


@pytest.mark.parametrize("path", [path for path in FLOATS if path[-1] not in {0, "scale"}])
def test_no_time_is_below_0(path: tuple[Any, ...], data: Any) -> None:
    changed = json.loads(json.dumps(data))
    for value in (0.0, None):
        if value is None and path == ("graphs", 0, "regions", 0, "seconds"):
            continue  # that of a region is always known
        set_at(*path, value)(changed)
        assert read(changed)
    set_at(*path, -1e-9)(changed)
    with pytest.raises(InputError, match=".".join(map(str, path))):
        read(changed)
