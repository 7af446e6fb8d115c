"""Cost files that build on others, and groups of operators."""

from pathlib import Path

import pytest

from byoc.costs import Roofline, load_cost_model, read_cost_file
from byoc.errors import InputError

BASE = """
kind: roofline
name: base
description: the first
peak: {int8: 2, default: 1}
bandwidth: 8
launch: 3
else: other.yaml
groups: {tables: [Sin, Cos], sums: [Add, Sub]}
operators:
  tables: {elements: 5, overhead: 0}
  Cos: {efficiency: 0.5}
  sums: {traffic: 2}
"""
CHILD = """
extends: base.yaml
name: child
peak: {int8: 4}
operators:
  tables: {elements: 7}
  Add: {overhead: 1}
"""


def write(folder: Path, **files: str) -> None:
    """Write cost files by name."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def test_a_file_has_what_it_does_not_state_from_another(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    write(
        tmp_path / "below",
        base=BASE,
        other="{kind: roofline, name: other, peak: {default: 1}, bandwidth: 1}",
    )
    write(tmp_path, child=CHILD.replace("base.yaml", "below/base.yaml"))
    found = read_cost_file(tmp_path / "child.yaml")
    assert isinstance(found, Roofline)
    assert (found.name, found.description, found.launch) == ("child", "", 3)
    assert found.peak == {"int8": 4, "default": 1}
    # A fallback is beside the file that names it.
    assert load_cost_model(str(tmp_path / "child.yaml")).name == "child"
    figures = {name: each.model_dump(exclude_defaults=True) for name, each in found.operators.items()}
    assert figures == {
        "Sin": {"elements": 7, "overhead": 0},
        "Cos": {"elements": 7, "overhead": 0, "efficiency": 0.5},
        "Add": {"traffic": 2, "overhead": 1},
        "Sub": {"traffic": 2},
    }


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"child": CHILD}, "extends: base.yaml: no such file and no installed cost model"),
        (
            {"child": CHILD, "base": BASE + "extends: child.yaml"},
            "extends: 'child.yaml' itself builds on",
        ),
        ({"child": "extends: child.yaml"}, "extends: 'child.yaml' itself builds on this file"),
        ({"child": "extends: [base]"}, "extends: expected the path or the name of a cost model"),
        (
            {"child": CHILD + "  Sin: {elements: -1}", "base": BASE},
            "operators.Sin.elements: input should be greater than 0",
        ),
        ({"child": CHILD + "groups: {lone: [Tan]}", "base": BASE}, "groups.lone: there are no figures"),
        ({"child": CHILD + "groups: {sums: [Sin]}", "base": BASE}, "'Sin' is in the group tables, too"),
        ({"child": CHILD + "groups: {twice: [Tan, Tan]}", "base": BASE}, "'Tan' is there twice"),
        (
            {"child": CHILD + "groups: {Tan: [Exp]}", "base": BASE},
            "groups.Tan: this is the name of",
        ),
        (
            {"child": CHILD + "groups: {own: [own]}", "base": BASE},
            "groups.own: this is the name of",
        ),
        ({"child": CHILD + "groups: {sums: Sin}", "base": BASE}, "groups.sums: expected a list"),
        ({"child": CHILD + "groups: [sums]", "base": BASE}, "groups: expected"),
    ],
)
def test_what_is_wrong_is_one_sentence(files: dict[str, str], sentence: str, tmp_path: Path) -> None:
    write(tmp_path, **files)
    with pytest.raises(InputError) as caught:
        read_cost_file(tmp_path / "child.yaml")
    first = caught.value.lines[0]
    assert first.startswith(str(tmp_path))
    assert sentence in first


def test_a_long_chain_is_refused(tmp_path: Path) -> None:
    write(tmp_path, **{f"c{i}": f"extends: c{i + 1}.yaml" for i in range(9)})
    with pytest.raises(InputError, match=r"c0\.yaml: extends: at most 8 files may build"):
        read_cost_file(tmp_path / "c0.yaml")
