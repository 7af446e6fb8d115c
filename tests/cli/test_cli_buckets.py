"""`byoc buckets`: the table of what each further bucket buys, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import Ran, parse
from onnx import numpy_helper

import byoc as package
from byoc.errors import InputError

Cli = Callable[..., Ran]
RULES = "target: npu\ncost_model: openvino-cpu\ncodegen: reference\ndtype: any\nops: [{op: '*'}]\n"
HOST = """\
kind: linear
name: own
operators:
  MatMul: {operation: 4.38982e-12, byte: 9.78107e-12, together: 1.38069}
  Relu/fused: {operation: 1.6783e-12, byte: 8.79382e-12, together: 0.436575}
"""
TABLE = """\
 buckets   a call    saves     of the best   padding   sizes
 1         240 µs              2.523         60.4 %    4096
 2         100 µs    140 µs    1.053         5.0 %     512, 4096
 3         95.2 µs   5.00 µs   1.000         0.0 %     256, 512, 4096
--bucket n=256,512,4096
"""


@pytest.fixture
def asked(tmp_path: Path) -> tuple[object, ...]:
    proto = parse("g (float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, w) y = Relu(a) }")
    weights = np.ones((64, 64), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(proto, tmp_path / "m.onnx")
    (tmp_path / "npu.yaml").write_text(RULES)
    (tmp_path / "own.yaml").write_text(HOST)
    (tmp_path / "lengths.txt").write_text("256 2\n512 2\n4096 2\n")
    flags = ("--rules", tmp_path / "npu.yaml", "--host-cost-model", tmp_path / "own.yaml")
    return ("buckets", tmp_path / "m.onnx", *flags, "--lengths", tmp_path / "lengths.txt")


def squeeze(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip(" ─")]


def test_the_table_says_what_each_bucket_buys(asked: tuple[object, ...], byoc: Cli) -> None:
    ran = byoc(*asked, "--along", "n")
    assert squeeze(ran.out) == squeeze(TABLE), ran.err
    document = json.loads(byoc(*asked, "--along", "n", "--format", "json", "--max-buckets", 2).out)
    assert document["best"] == [512, 4096]
    assert [row["sizes"] for row in document["rows"]] == [[4096], [512, 4096]]
    assert list(document["predicted"]) == ["256", "512", "4096"]
    costly = byoc(*asked, "--along", "n", "--bucket-seconds", 1e-5)
    assert costly.out.endswith("--bucket n=512,4096\n")


def test_candidates_may_be_few_and_lie_between(asked: tuple[object, ...], byoc: Cli) -> None:
    ran = byoc(*asked, "--along", "n", "--candidates", "64,4096", "--interpolate")
    assert ran.out.endswith("--bucket n=256,512,4096\n")
    ran = byoc(*asked, "--along", "n", "--candidates", "64,128")
    assert (ran.code, ran.err) == (1, "byoc: no bucket holds the length 4096\n")
    assert byoc(*asked, "--along", "n", "--candidates", "a").code == 2
    ran = byoc(*asked, "--along", "k")
    assert ran.code == 1
    assert "no input has a dimension named 'k'" in ran.err
    assert byoc(*asked).code == 2


def test_python_takes_lengths_and_gives_what_partition_takes(asked: tuple[object, ...]) -> None:
    _, model, _, rules, *_ = asked
    found = package.choose_buckets(str(model), str(rules), along="n", lengths=[256, 512, 512, 4096])
    assert found.buckets == {"n": [256, 512, 4096]}
    with pytest.raises(InputError, match="lengths: 0 with the weight 1"):
        package.choose_buckets(str(model), str(rules), along="n", lengths=[0])
