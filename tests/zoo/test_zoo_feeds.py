"""Sample inputs from data: what each kind holds, and that a seed decides."""

import numpy as np
import pytest
from pydantic import ValidationError

from byoc.zoo._sample_inputs import InputSpec, make_inputs, make_integers, make_page, make_voice


def test_a_photo_has_the_mean_and_deviation_asked_for() -> None:
    feed = InputSpec(like="photo", shape=(1, 3, 512, 512), centre=120, scale=50)
    values = make_inputs({"x": feed}, 0)["x"]
    assert values.dtype == np.float32
    assert abs(values.mean() - 120) < 25
    assert 35 < values.std() < 65


def test_clipped_is_within_its_limits() -> None:
    feed = InputSpec(like="photo", shape=(1, 3, 64, 64), centre=120, scale=200, low=0, high=255)
    values = make_inputs({"x": feed}, 0)["x"]
    assert (values.min(), values.max()) == (0, 255)


def test_a_batch_holds_different_images() -> None:
    values = make_inputs({"x": InputSpec(like="photo", shape=(3, 1, 8, 8))}, 0)["x"]
    assert len(np.unique(values.reshape(3, -1), axis=0)) == 3


@pytest.mark.parametrize("shape", [(1, 76, 32, 1), (1, 80, 800), (1, 1, 149, 64), (2, 40, 64)])
def test_a_spectrogram_is_smooth_in_both_directions(shape: tuple[int, ...]) -> None:
    values = make_inputs({"x": InputSpec(like="photo", shape=shape)}, 0)["x"]
    assert values.shape == shape
    plane = values[0].squeeze()
    for first, second in ((plane[1:], plane[:-1]), (plane[:, 1:], plane[:, :-1])):
        assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.3


def test_a_page_is_paper_with_ink_on_it() -> None:
    sheet = make_page(0, 224, 224)
    assert set(np.unique(sheet).tolist()) == {-1, 1}
    assert 0.05 < (sheet < 0).mean() < 0.4
    assert not np.array_equal(sheet, make_page(1, 224, 224))
    assert make_page(0, 5, 5).shape == (1, 1, 5, 5)


def test_a_voice_is_periodic_and_within_range() -> None:
    wave = make_voice(0, 16_000)
    assert 0.3 < abs(wave).max() <= 1
    assert 110 <= np.argmax(abs(np.fft.rfft(wave))) < 240
    assert not np.array_equal(wave, make_voice(1, 16_000))


def test_integers_fill_their_range() -> None:
    assert set(make_integers(0, (10_000,), 3, 9).tolist()) == set(range(3, 10))
    assert make_integers(0, (2, 3), 5, 5).tolist() == [[5] * 3] * 2


def test_inputs_that_are_alike_differ_and_types_are_kept() -> None:
    token = InputSpec(like="integers", shape=(1, 64), type="int64", low=0, high=511)
    made = make_inputs({"a": token, "b": token, "rate": InputSpec(like="value", shape=(), value=8.5)}, 1)
    assert not np.array_equal(made["a"], made["b"])
    assert made["a"].dtype == np.int64
    assert (made["rate"].shape, float(made["rate"])) == ((), 8.5)
    again, other = make_inputs({"a": token}, 1), make_inputs({"a": token}, 2)
    assert np.array_equal(made["a"], again["a"])
    assert not np.array_equal(made["a"], other["a"])


def test_noise_has_its_deviation() -> None:
    values = make_inputs({"x": InputSpec(like="noise", shape=(10_000,), centre=2, scale=3)}, 0)["x"]
    assert values.mean() == pytest.approx(2, abs=0.1)
    assert values.std() == pytest.approx(3, rel=0.03)


def test_integers_without_a_range_are_refused() -> None:
    with pytest.raises(ValidationError, match="integers need low and high"):
        InputSpec(like="integers", shape=(1,))
