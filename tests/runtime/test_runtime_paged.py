"""Caches in blocks, with a table of each row's blocks as an input, are a state as any other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.support import parse
from numpy.typing import NDArray

import byoc

RULES = "target: npu\ncost_model: openvino-cpu\ndtype: any\nops: [{op: '*'}]\n"
PAGED = """
paged (int64[2, 1] ids, int64[2, 3] table, int64[2] lengths, float[8, 4, 2, 4] keys,
       float[8, 4, 2, 4] values)
  => (float[2, 2, 1, 4] y, float[8, 4, 2, 4] new_keys, float[8, 4, 2, 4] new_values)
  <float[32, 8] wq = {WQ}, float[32, 8] wk = {WK}, float[32, 8] wv = {WV}, int64[4] query = {2, 1, 2, 4},
   int64[1] block = {4}, int64[1] one = {1}, int64[3] entry = {2, 2, 4}, int64[4] cache = {2, 12, 2, 4},
   int64[1, 12] places = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, float low = {-1000000000.0}> {
  q0 = Gather (wq, ids)
  k0 = Gather (wk, ids)
  v0 = Gather (wv, ids)
  q1 = Reshape (q0, query)
  q = Transpose <perm = [0, 2, 1, 3]> (q1)
  k = Reshape (k0, entry)
  v = Reshape (v0, entry)
  length = Unsqueeze (lengths, one)
  number = Div (length, block)
  inside = Mod (length, block)
  own = GatherElements <axis = 1> (table, number)
  at = Concat <axis = 1> (own, inside)
  new_keys = ScatterND (keys, at, k)
  new_values = ScatterND (values, at, v)
  kg = Gather (new_keys, table)
  vg = Gather (new_values, table)
  kr = Reshape (kg, cache)
  vr = Reshape (vg, cache)
  kt = Transpose <perm = [0, 2, 3, 1]> (kr)
  vt = Transpose <perm = [0, 2, 1, 3]> (vr)
  scores = MatMul (q, kt)
  behind = Greater (places, length)
  floats = Cast <to = 1> (behind)
  lowered = Mul (floats, low)
  a = Unsqueeze (lowered, one)
  b = Unsqueeze (a, one)
  masked = Add (scores, b)
  weights = Softmax <axis = -1> (masked)
  y = MatMul (weights, vt)
}
"""


@pytest.mark.parametrize("codegen", ["reference", "c", "dla"])
def test_a_table_of_blocks_gives_what_contiguous_caches_do(codegen: str, tmp_path: Path) -> None:
    """Two rows share the block of their first four tokens, and the caller chooses the others."""
    random = np.random.default_rng(0)
    weights = {name: random.integers(-9, 10, (32, 8)) / 8 for name in ("WQ", "WK", "WV")}
    text = PAGED
    for name, values in weights.items():
        text = text.replace(name, ", ".join(map(str, values.ravel())))
    (tmp_path / "npu.yaml").write_text(RULES, encoding="utf-8")
    byoc.partition(
        parse(text, opset=18),
        "dla" if codegen == "dla" else tmp_path / "npu.yaml",
        codegen=codegen,
        strategy="all-supported",
        verify=False,
        what_if=False,
        output=tmp_path / "b",
    )
    loaded = byoc.load(tmp_path / "b")
    session = byoc.open_stateful(loaded, {"keys": "new_keys", "values": "new_values"})
    table = np.array([[5, 1, 6], [5, 7, 0]])
    ids = random.integers(0, 32, (2, 12))
    ids[1, :4] = ids[0, :4]
    for count in range(12):
        inputs = {"ids": ids[:, count : count + 1], "table": table, "lengths": np.full(2, count)}
        found = session(inputs)["y"]
        np.testing.assert_allclose(found, attend(weights, ids[:, : count + 1]), rtol=1e-4, atol=1e-5)


def attend(weights: dict[str, NDArray[Any]], ids: NDArray[Any]) -> NDArray[Any]:
    """Return the attention of the last of some tokens to all of them, `[rows, heads, 1, size]`."""
    shape = (*ids.shape, 2, 4)
    q, k, v = (weights[name][ids].reshape(shape).swapaxes(1, 2) for name in ("WQ", "WK", "WV"))
    scores = q[:, :, -1:] @ k.swapaxes(2, 3)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    found: NDArray[Any] = shares / shares.sum(-1, keepdims=True) @ v
    return found
