"""What a transfer keeps busy: stated in cost files, by plug-ins, and what it does to a makespan."""

from math import inf
from pathlib import Path

import pytest
from helpers.support import prepared

import byoc
from byoc.boundary.convert import BoundaryFormat
from byoc.comparison import write_costs
from byoc.costs import (
    CostSettings,
    Fallback,
    HostLink,
    PlacementDevice,
    Roofline,
    build_problem,
    read_cost_file,
    with_link,
)
from byoc.errors import YES, InputError
from byoc.patterns import Mark, group_units, join_units
from byoc.placement import ListScheduler, Occupancy

TEXT = """
kind: roofline
name: toy
peak: {default: 8.0}
bandwidth: .inf
link: {bandwidth: 8.0, latency: 1.0%s}
"""


HOST = Roofline(kind="roofline", name="host", peak={"default": 2.0}, bandwidth=inf)


NET = """
g (float[16] x, float[16] y) => (float[16] p, float[16] q) {
  p = Relu (x)
  q = Relu (y)
}
"""


def read(folder: Path, more: str) -> Roofline:
    path = folder / "toy.yaml"
    path.write_text(TEXT % more, encoding="utf-8")
    found = read_cost_file(path)
    assert isinstance(found, Roofline)
    return found


def measure_makespan(occupies: Occupancy) -> float:
    """Both units on the device, each launched by itself."""
    link = HostLink(bandwidth=8.0, latency=1.0, occupies=occupies)
    model = Roofline(kind="roofline", name="toy", peak={"default": 8.0}, bandwidth=inf, link=link)
    index = prepared(NET).index
    marks = [Mark(YES, "operators")] * 2
    units = join_units(index, [group_units(index, [], marks)], [marks])
    settings = CostSettings(HOST, [PlacementDevice("toy", model, wants=BoundaryFormat())])
    problem = build_problem(index, units, settings).problem
    assert problem.occupies == (occupies,)
    schedule = ListScheduler(problem).schedule([1, 1], [0, 1])
    assert schedule is not None
    return schedule.makespan


@pytest.mark.parametrize("occupies", list(Occupancy))
def test_a_cost_file_says_what_a_transfer_occupies(tmp_path: Path, occupies: Occupancy) -> None:
    assert read(tmp_path, "").occupies() is Occupancy.nothing
    model = read(tmp_path, f", occupies: {occupies}")
    assert model.occupies() is occupies
    assert with_link(model, 3.0).occupies() is occupies
    assert Fallback(model, HOST).occupies() is occupies
    write_costs(tmp_path / "again.yaml", model)
    assert read_cost_file(tmp_path / "again.yaml") == model


def test_a_word_that_is_no_resource_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"toy\.yaml.*link\.occupies.*'nothing', 'link', 'device' or 'host'"
    ):
        read(tmp_path, ", occupies: everything")


def test_the_makespan_of_two_units_by_hand() -> None:
    """64 bytes each, 9 s there and 9 s back; 16 operations, 2 s."""
    # Both inputs arrive at 9; units run to 11 and 13; the second result is there at 22.
    assert measure_makespan(Occupancy.nothing) == 22
    # Inputs arrive at 9 and 18; the units run to 11 and 20; the results take the link in turn.
    assert measure_makespan(Occupancy.link) == 36
    assert measure_makespan(Occupancy.host) == 36
    # Twice 9 + 2 + 9.
    assert measure_makespan(Occupancy.device) == 40


def test_compare_measures_makespans_with_it(tmp_path: Path) -> None:
    """The same model and placement: what occupies more never takes less time."""
    text = Path("cost_models/dla.yaml").read_text(encoding="utf-8")
    found = {}
    for kind in ("nothing", "link", "device"):
        path = tmp_path / f"{kind}.yaml"
        path.write_text(
            text.replace("latency: 5.0e-6", f"latency: 5.0e-6, occupies: {kind}"), encoding="utf-8"
        )
        assert read_cost_file(path).occupies() is Occupancy(kind)
        rows = byoc.compare(
            ["zoo:squeezenet"], "dla", strategies=["makespan"], cost_model=str(path), links=[0.5], jobs=1
        )
        assert rows[0]["error"] is None
        assert rows[0]["measure"] == "makespan"
        found[kind] = rows[0]["objective"]
    assert found["nothing"] <= found["link"] <= found["device"]
