"""What the zoo draws for a stripped weight: the same numbers everywhere, every time."""

import hashlib

import numpy as np
import onnx
import pytest

from byoc.errors import InputError
from byoc.zoo import load, sample_inputs


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("mobilenet_v3_large", "7b0960bae524c74871ea0b252aecae0c39c812461d61969fa0957991173d2b9e"),
        ("segformer_b0", "b1eaa09bf7554cce214cfcafeeabe69f5bbf7f3ea89077d3f61b27bf41cc9185"),
    ],
)
def test_a_structure_has_the_same_weights_everywhere(name: str, digest: str) -> None:
    total = hashlib.sha256()
    for tensor in sorted(load(name).graph.initializer, key=lambda tensor: tensor.name):
        if tensor.data_type == onnx.TensorProto.FLOAT:
            total.update(tensor.name.encode() + b"\0" + tensor.raw_data)
    assert total.hexdigest() == digest


def test_loading_twice_gives_equal_bytes() -> None:
    first, again = (load("segformer_b0").SerializeToString(deterministic=True) for _ in "12")
    assert first == again


def test_samples_are_seeded() -> None:
    first, again, other = (sample_inputs("bert", seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["input_ids"], other["input_ids"])


def test_samples_make_sense() -> None:
    sample = sample_inputs("bert", 0)
    assert {name: array.dtype.name for name, array in sample.items()} == dict.fromkeys(sample, "int64")
    assert 0 <= sample["input_ids"].min() <= sample["input_ids"].max() < 30522
    assert len(set(sample["input_ids"].ravel().tolist())) > 50
    assert (sample["attention_mask"] == 1).all()


def test_an_unknown_name_lists_the_nearest() -> None:
    for function in (
        load,
        lambda name: sample_inputs(name, 0),
    ):
        with pytest.raises(InputError, match=r"'brt' \(did you mean bert\?\); available: "):
            function("brt")
