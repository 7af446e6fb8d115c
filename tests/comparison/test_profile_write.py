"""A written cost model is read back; a file is replaced as a whole or not at all."""

import stat
from pathlib import Path
from typing import Any

import pytest
from comparison_parts import MeasurementRecords, describe_machine

from byoc.comparison import write_costs
from byoc.costs import (
    CostTable,
    HostLink,
    MeasuredMachine,
    Price,
    Task,
    Work,
    fit_linear_model,
    load_cost_model,
    read_cost_file,
)
from byoc.errors import InputError
from byoc.model import TensorType
from byoc.support import COST_MODELS, check_output, find_file

SHAPE = TensorType("float32", (1, 8))


RELU = Task("Relu", Work(8, 64), inputs=(SHAPE,), outputs=(SHAPE,))


NORM = Task(
    "BatchNormalization",
    Work(16, 96),
    inputs=(SHAPE, None),
    outputs=(SHAPE,),
    attributes={"epsilon": 9.9999997e-06, "name": "it: 'is' [text]", "axes": [0, 1]},
)


MACHINE = MeasuredMachine(cpu="A 'CPU': {1}", cores=2, os="Linux", versions={"python": "3.11"})


def make_records(**more: Any) -> CostTable:
    records = MeasurementRecords()
    records.add(RELU, [3e-6, 1e-6, 2e-6])
    records.add(NORM, [4.0 / 3])
    records.add(RELU, [2.5e-6, 10e-6])
    assert len(records) == 2
    assert RELU in records
    assert records.cheapest() == 2.5e-6
    return records.make_table("host", "measured", MACHINE, **more)


def test_the_medians_come_back(tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    write_costs(path, make_records(launch=1e-6, link=HostLink(bandwidth=float("inf"), latency=2e-6)))
    model = load_cost_model(str(path))
    found = model.execution(RELU)
    assert isinstance(found, Price)
    assert found.seconds == pytest.approx(1.5e-6)  # a launch is no part of it
    assert model.execution(NORM).seconds == pytest.approx(4.0 / 3 - 1e-6, rel=1e-5)  # type: ignore[union-attr]
    assert model.launching().seconds == 1e-6
    assert model.transfer(10**9).seconds == 2e-6
    back = read_cost_file(path)
    assert isinstance(back, CostTable)
    assert back.machine == MACHINE
    assert [(e.op, e.samples, e.operations, e.bytes) for e in back.entries] == [
        ("BatchNormalization", 1, 16, 96),
        ("Relu", 5, 8, 64),
    ]
    assert back.entries[1].spread == pytest.approx(1e-6)


def test_every_kind_is_written_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    table = make_records(otherwise="host", together=0.5)
    write_costs(path, table)
    path.write_text(path.read_text() + "energy: {operation: 1.0e-12}\n")
    energy = read_cost_file(path)
    for costs in (table, fit_linear_model(table), energy, read_cost_file(find_file(COST_MODELS, "dla"))):
        write_costs(path, costs)
        text = path.read_text()
        write_costs(path, read_cost_file(path))
        assert path.read_text() == text
        assert type(read_cost_file(path)) is type(costs)
    assert list(tmp_path.iterdir()) == [path]


def test_an_entry_is_a_line(tmp_path: Path, golden: Any) -> None:
    path = tmp_path / "costs.yaml"
    write_costs(path, make_records(launch=1e-6, together=0.75))
    golden("costs_table.yaml", path.read_text())
    write_costs(path, fit_linear_model(make_records()))
    golden("costs_linear.yaml", path.read_text())


def test_others_may_read_the_file(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.touch()
    write_costs(tmp_path / "costs.yaml", make_records())
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (beside, tmp_path / "costs.yaml")]
    assert modes[0] == modes[1]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: it is a folder"):
        check_output(tmp_path)
    with pytest.raises(InputError, match="cannot be written: there is no folder"):
        write_costs(tmp_path / "no" / "costs.yaml", make_records())


def test_the_machine_is_described_without_a_name() -> None:
    found = describe_machine()
    assert found.cores >= 1
    assert set(found.versions) >= {"python", "numpy", "onnx"}
    import platform  # noqa: PLC0415

    assert not platform.node() or platform.node() not in str(found)
