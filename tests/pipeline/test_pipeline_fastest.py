"""Choosing by the clock: the fastest of several cuts is kept, and the others are told."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.cutting import CHAIN, HOST_ONLY, ramp, same_as_original
from helpers.support import VANILLA, Ran, parse

from byoc.bundle import Bundle
from byoc.comparison import Patience, fastest
from byoc.errors import InputError
from byoc.onnxrt import get_session_settings
from byoc.pipeline import partition
from byoc.runtime import Session, load_bundle


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what sets the seconds that each of the distinct cuts takes."""

    def replace(*seconds: float) -> None:
        def in_turn(runs: Sequence[Callable[[], Any]], *_: Any, **__: Any) -> list[list[float]]:
            assert len(runs) == len(seconds)
            for run in runs:
                run()
            return [[each - 0.001, each, each + 0.001] for each in seconds]

        monkeypatch.setattr("byoc.comparison._buckets.measure_in_turn", in_turn)

    return replace


@pytest.mark.parametrize(
    ("seconds", "strategy"), [((2.0, 1.0), "all-supported"), ((1.0, 2.0), "launch-aware")]
)
def test_the_fastest_is_written_as_its_strategy_alone_writes_it(
    seconds: tuple[float, ...], strategy: str, takes: Callable[..., None], tmp_path: Path
) -> None:
    takes(*seconds)  # for so small a model launch-aware does as host-only does
    model = parse(CHAIN)

    result = fastest(model, VANILLA, output=tmp_path / "b")

    partition(model, VANILLA, output=tmp_path / "alone", strategy=strategy)
    assert _content(tmp_path / "b") == _content(tmp_path / "alone")
    assert result.bundle == tmp_path / "b"
    assert result.plan.asked["strategy"] == strategy
    told = [(each.strategy, each.seconds, each.samples, each.regions) for each in result.report.measured]
    assert told == [("launch-aware", seconds[0], 3, 0), ("all-supported", seconds[1], 3, 2)]
    same_as_original(model, tmp_path / "b", {"x": ramp(1, 4)})


def test_cuts_that_are_the_same_run_once(takes: Callable[..., None], tmp_path: Path) -> None:
    takes(1.0)

    result = fastest(parse(HOST_ONLY), VANILLA, output=tmp_path / "b.zip")

    assert [each.strategy for each in result.report.measured] == ["launch-aware"]
    assert (tmp_path / "b.zip").is_file()


def test_what_goes_wrong_with_another_is_told(takes: Callable[..., None], tmp_path: Path) -> None:
    takes(1.0)

    result = fastest(parse(CHAIN), VANILLA, output=tmp_path / "b", others=("no-such",))

    assert "no-such" in result.report.measured[1].problem
    with pytest.raises(InputError, match="no-such"):
        fastest(parse(CHAIN), VANILLA, output=tmp_path / "c", strategy="no-such")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ([0.5, 0.5, 0.5, 0.5], "all-supported"),
        ([0.995, 0.995, 0.995, 0.995], "launch-aware"),  # less than a cut has to be worth
        ([0.4, 1.5, 0.5, 1.4], "launch-aware"),  # faster by the median, and within the noise
        ([1.1, 1.1, 1.1, 1.1], "launch-aware"),
    ],
)
def test_a_cut_is_kept_only_where_it_is_faster_beyond_the_noise(
    cut: list[float], kept: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "byoc.comparison._buckets.measure_in_turn", lambda *_, **__: [[1.0, 1.0, 1.0, 1.0], cut]
    )

    result = fastest(parse(CHAIN), VANILLA, output=tmp_path / "b")

    assert result.plan.asked["strategy"] == kept
    ratios = {each.strategy: each.ratio for each in result.report.measured}
    assert ratios[kept] == 1.0
    assert ratios["launch-aware"] == pytest.approx(1.0 if kept == "launch-aware" else 2.0)


def test_candidates_run_on_the_threads_of_the_codegen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    threads: list[int] = []
    real = load_bundle

    def load(bundle: Bundle) -> Session:
        threads.append(get_session_settings()[2])
        return real(bundle)

    monkeypatch.setattr("byoc.comparison._buckets.load_bundle", load)
    options = {"codegen_options": {"threads": "1"}, "output": tmp_path / "b"}

    result = fastest("zoo:shufflenet", "openvino-cpu", **options, patience=Patience(0, 1, 1))

    assert len(result.report.measured) >= 2
    assert threads == [1] * len(result.report.measured)


def test_it_is_run_for_real(tmp_path: Path) -> None:
    result = fastest(parse(CHAIN), VANILLA, output=tmp_path / "b")

    assert len(result.report.measured) == 2
    assert all(each.seconds > 0 and each.samples >= 9 for each in result.report.measured)


def test_the_command_tells_what_was_measured(
    byoc: Callable[..., Ran], takes: Callable[..., None], tmp_path: Path
) -> None:
    takes(0.002, 0.001)
    onnx.save(parse(CHAIN), tmp_path / "m.onnx")

    ran = byoc(
        *("partition", tmp_path / "m.onnx", "--rules", VANILLA, "--measure", "-o", tmp_path / "b")
    )

    lines = [line for line in ran.out.splitlines() if "measured" in line]
    assert lines[0].startswith("  all-supported: measured 1 ms (quartiles 1 ms apart, 3 runs)")
    assert lines[1].startswith("  launch-aware: measured 2 ms (quartiles 1 ms apart, 3 runs)")
    assert "1.000 times what is kept" in lines[0]
    assert "2.000 times what is kept" in lines[1]
    without = byoc("partition", tmp_path / "m.onnx", "--rules", VANILLA, "--measure-clock", "wall")
    assert without.code == 2
    without = byoc("partition", tmp_path / "m.onnx", "--rules", VANILLA, "--measure")
    assert without.code == 2
    assert "it runs the bundles that it writes: give -o, too" in without.err


def _content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
