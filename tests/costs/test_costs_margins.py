"""The margins of shipped cost files: half of the error, as a factor, of predictions that are measured.

What is measured stands in the tables of the documentation: predictions beside the simulator's cycles,
and beside what Vela estimates.
"""

import re
from collections.abc import Iterator
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean

import pytest

from byoc.costs import find_margin, load_cost_model

DOCS = Path(__file__).parents[2] / "docs"
FITTED = {"openvino-cpu": 0.1, "openvino-cpu-2-threads": 0.1}  # benchmarks/RESULTS.md says how
IREE_FACTOR = 1.39  # cost_models/iree-cpu.yaml
TVM_FACTOR = 1.31  # cost_models/tvm-cpu.yaml
HOSTS = {"host", "onnxruntime-cpu", "onnxruntime-cpu-2-threads"}


def read_rows(page: str, section: str) -> Iterator[list[str]]:
    """Yield the rows of the tables of a section of a page, its subsections included, as texts."""
    text = (DOCS / page).read_text(encoding="utf-8")
    level = len(re.match("#+", section)[0])  # type: ignore[index]
    body = text.partition(f"\n{section}\n")[2]
    body = re.split(rf"^#{{1,{level}}} ", body, maxsplit=1, flags=re.MULTILINE)[0]
    for line in body.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def choose_margin(pairs: list[tuple[float, float]]) -> float:
    """Return the margin of predictions and measurements, as `byoc profile --fit` has it."""
    factor = exp(fmean(abs(log(predicted / measured)) for predicted, measured in pairs))
    return round(1 - 1 / sqrt(factor), 2)


def read_margin(name: str) -> float:
    """Return the margin of an installed cost model."""
    return find_margin([load_cost_model(name)])


def read_pairs_of_dla() -> list[tuple[float, float]]:
    """Return the predicted and the simulated time of each network, however often it stands there."""
    found: dict[str, tuple[float, float]] = {}
    columns: tuple[int, int] | None = None
    for row in read_rows("../benchmarks/RESULTS.md", "## Predicted and simulated"):
        names = [cell.replace("predicted region", "predicted") for cell in row]
        if "predicted" in names:
            simulated = next(
                (names.index(each) for each in ("simulated", "512 KiB") if each in names), None
            )
            own = "of it the region" if "of it the region" in names else "predicted"
            columns = None if simulated is None else (names.index(own), simulated)
        elif columns is not None and not row[0].startswith("-"):
            predicted, simulated_time = (float(row[column].replace(",", "")) for column in columns)
            found[row[0]] = predicted, simulated_time
    return list(found.values())


def read_pairs_of_vela(target: str) -> list[tuple[float, float]]:
    """Return the predicted and the estimated time of each network on an Ethos-U."""
    first = {"ethos-u55": 1, "ethos-u65": 4, "ethos-u85": 7}[target]
    found = []
    for row in read_rows("../benchmarks/RESULTS.md", "### Against Vela"):
        if len(row) == 10 and re.fullmatch(r"[\d.]+", row[first]):
            found.append((float(row[first]), float(row[first + 1])))
    return found


def test_the_margin_of_dla_is_that_of_the_simulated_networks() -> None:
    pairs = read_pairs_of_dla()

    assert len(pairs) >= 15
    assert read_margin("dla") == pytest.approx(choose_margin(pairs))


@pytest.mark.parametrize("target", ["ethos-u55", "ethos-u65", "ethos-u85"])
def test_the_margins_of_ethos_u_are_those_of_networks_that_vela_estimated(target: str) -> None:
    pairs = read_pairs_of_vela(target)

    assert len(pairs) >= 13
    assert read_margin(target) == pytest.approx(choose_margin(pairs))


def test_every_shipped_file_of_an_accelerator_has_a_margin() -> None:
    """Those of which nothing was measured have that of `iree-cpu`, the least exact that was."""
    folder = Path(__file__).parents[2] / "cost_models"
    iree = round(1 - 1 / sqrt(IREE_FACTOR), 2)

    for name in sorted(path.stem for path in folder.glob("*.yaml")):
        margin = read_margin(name)
        if name in HOSTS:
            assert margin == 0
        elif name in FITTED:
            assert margin == FITTED[name]
        elif name == "tvm-cpu":
            assert margin == round(1 - 1 / sqrt(TVM_FACTOR), 2)
        elif not name.startswith(("dla", "ethos")):
            assert margin == iree, name
        else:
            assert 0 < margin < iree, name
