"""What rule files, cost files and studies may name: what is beside, below, or installed."""

from pathlib import Path

import pytest
import yaml

from byoc.comparison import study
from byoc.costs import find_host_beside, load_cost_model
from byoc.errors import InputError
from byoc.rules import load_rules

SECRET = "root_password: hunter2\n"
RULES = "target: t\ncost_model: {costs}\ncodegen: reference\ndtype: float32\nops: [{{op: Relu}}]\n"
ROOFLINE = """
kind: roofline
name: n
peak: {float32: 1.0e+12}
bandwidth: 1.0e+10
operators: {default: {efficiency: 0.5}}
"""
REFUSED = "a file may name those beside and below it"


@pytest.fixture(name="near")
def make_folder(tmp_path: Path) -> Path:
    """A folder with a link out of it, beside a file with a secret and a good cost model."""
    near = tmp_path / "near"
    (near / "below").mkdir(parents=True)
    for name, text in (("secret", SECRET), ("good", ROOFLINE)):
        (tmp_path / f"{name}.yaml").write_text(text)
        (near / f"{name}_link.yaml").symlink_to(tmp_path / f"{name}.yaml")
    return near


def list_names(near: Path, stem: str) -> list[str]:
    """Return three names of a file that is beside the folder; and of one that is not there."""
    far = str(near.parent / f"{stem}.yaml")
    return [far, f"../{stem}.yaml", f"{stem}_link.yaml", "below/../../nothing.yaml"]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("number", range(4))
def test_rules_and_costs_read_no_file_elsewhere(number: int, near: Path) -> None:
    secret, good = (list_names(near, stem)[number] for stem in ("secret", "good"))
    with pytest.raises(InputError, match=REFUSED) as caught:
        load_rules(write(near / "r.yaml", f"extends: {secret}\n"))
    assert str(caught.value).startswith(f"{near / 'r.yaml'}: extends: ")
    assert "root_password" not in str(caught.value)
    for key in ("extends: {}", "else: {}", "threads: {{2: {}}}", "beside: {}"):
        for name in (secret, good):
            path = write(near / "c.yaml", f"{ROOFLINE}{key.format(name)}\n")
            with pytest.raises(InputError, match=REFUSED) as caught:
                load_cost_model(str(path), threads=2)
            assert str(caught.value).startswith(f"{path}: {key.split(':')[0]}")
            assert "root_password" not in str(caught.value)
    target = load_rules(write(near / "t.yaml", RULES.format(costs=good)))
    with pytest.raises(InputError, match=f"cost_model: .*{REFUSED}"):
        _ = target.cost_model


def test_what_an_extended_cost_file_names_is_held_to_its_own_folder(near: Path) -> None:
    write(near / "below" / "base.yaml", f"{ROOFLINE}else: ../c.yaml\n")
    path = write(near / "c.yaml", "extends: below/base.yaml\nname: c\n")
    with pytest.raises(InputError, match=f"base.yaml: else: .*{REFUSED}"):
        load_cost_model(str(path))


def test_files_beside_and_below_and_installed_ones_are_read(
    near: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(near.parent)
    write(near / "below" / "host.yaml", ROOFLINE)
    write(near / "below" / "base.yaml", f"{ROOFLINE}else: host.yaml\nbeside: host.yaml\n")
    absolute = near / "below" / "base.yaml"
    for name in ("below/base.yaml", str(absolute), "../near/below/base.yaml"):
        path = write(near / "c.yaml", f"extends: {name}\nname: c\nthreads: {{2: {name}}}\n")
        costs = load_cost_model(str(path))
        beside = Path(find_host_beside([costs]) or "")
        assert beside.resolve() == (near / "below" / "host.yaml").resolve()
    assert load_cost_model(str(write(near / "c.yaml", "extends: ethos-u55\nname: c\nelse: host\n")))
    (near / "link.yaml").symlink_to("below/base.yaml")
    assert load_cost_model(str(write(near / "c.yaml", "extends: link.yaml\nname: c\n")))


def test_a_study_names_rules_and_costs_of_its_folder(
    near: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(near.parent)
    start = {"models": "zoo:squeezenet", "rules": "dla", "strategies": "min-cut"}
    wrong: list[tuple[str, object]] = [("rules", ["dla", ["../secret.yaml"]]), ("rules", "../s.yaml:v2")]
    wrong += [("costs", name) for name in list_names(near, "good")]
    wrong += [("costs", {"host": "../good.yaml"}), ("costs", {"options": {"a": "../secret.yaml"}})]
    wrong += [("strategies", {"name": "min-cut", "options": {"a": "../secret.yaml"}})]
    for key, value in wrong:
        path = write(near / "study.yaml", yaml.safe_dump({**start, key: value}))
        with pytest.raises(InputError, match=REFUSED) as caught:
            study(path)
        assert str(caught.value).startswith(f"{path}: {key}[")
    path = write(near / "study.yaml", yaml.safe_dump({**start, "costs": "good.yaml"}))
    with pytest.raises(InputError, match="is beside the current folder, not the study"):
        study(path)
