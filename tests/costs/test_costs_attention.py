"""Attention counted pair by pair, as the operators' documentation says which query sees which key."""

import pytest
from counting import count

PAIR = 1 + 5  # the scale, and softmax: maximum, difference, exponential, sum, division


def count_pairs(  # noqa: PLR0917 - what an attention is
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    before: int,
    causal: bool,
    left: int = -1,
) -> int:
    """Count the keys that each query sees: not later ones if causal, at most `left` before its own."""
    seen = 0
    for _batch in range(batch):
        for _head in range(heads):
            for query in range(queries):
                for key in range(keys):
                    late = causal and key > query + before
                    early = left >= 0 and key < query + before - left
                    seen += not late and not early
    return seen


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [0, 5])
def test_attention_of_onnx(causal: int, past: int) -> None:
    """Of rank 4, with grouped heads, and a mask."""
    pairs = count_pairs(2, 6, 4, 7 + past, past, bool(causal))
    shapes = ["2x6x4x8", "2x3x7x8", "2x3x7x16", f"4x{7 + past}"]
    shapes += [f"2x3x{past}x8", f"2x3x{past}x16"] if past else []
    work = count("Attention", shapes, ("2x6x4x16",), opset=24, is_causal=causal)
    assert work.operations == pairs * (2 * 8 + 2 * 16 + PAIR + 1)


def test_attention_of_onnx_without_heads() -> None:
    pairs = count_pairs(2, 6, 4, 7, 0, False)
    shapes = ("2x4x48", "2x7x24", "2x7x48")
    attributes = {"q_num_heads": 6, "kv_num_heads": 3, "softcap": 2.0}
    work = count("Attention", shapes, ("2x4x96",), opset=24, **attributes)
    assert work.operations == pairs * (2 * 8 + 2 * 16 + PAIR + 3)


@pytest.mark.parametrize(("past", "window"), [(0, -1), (6, -1), (0, 3), (6, 3), (6, 100), (6, 8)])
def test_grouped_queries(past: int, window: int) -> None:
    """Causal always; a window of w lets a query see itself and the w - 1 keys before it."""
    queries, heads, kv_heads, size = 5, 4, 2, 8
    left = window - 1 if window > 0 else -1
    pairs = count_pairs(1, heads, queries, past + queries, past, causal=True, left=left)
    shapes = [f"1x{queries}x{heads * size}", *[f"1x{queries}x{kv_heads * size}"] * 2]
    shapes += [f"1x{kv_heads}x{past}x{size}"] * 2 if past else ["", ""]
    shapes += ["int32 1", "int32 1", "64x4", "64x4"]
    cache = f"1x{kv_heads}x{past + queries}x{size}"
    work = count(
        "com.microsoft.GroupQueryAttention",
        shapes,
        (f"1x{queries}x{heads * size}", cache, cache),
        num_heads=heads,
        kv_num_heads=kv_heads,
        local_window_size=window,
        do_rotary=1,
    )
    turned = queries * size * (heads + kv_heads)
    assert work.operations == pairs * (4 * size + PAIR) + 3 * turned


def test_a_shared_cache_is_read_and_written_in_place() -> None:
    """One token, the total length known: 10 of 64 rows are there, 9 of them from before."""
    shapes = ("float16 1x1x64", "float16 1x1x16", "float16 1x1x16")
    cache = "float16 1x2x64x8"
    work = count(
        "com.microsoft.GroupQueryAttention",
        (*shapes, cache, cache, "int32 1", "int32 1"),
        ("float16 1x1x64", cache, cache),
        values={6: [10]},
        num_heads=8,
        kv_num_heads=2,
    )
    assert work.operations == 8 * 10 * (4 * 8 + PAIR)
    row = 2 * 2 * 8
    assert work.bytes == 2 * (64 + 16 + 16) + 2 * 9 * row + 4 + 8 + 2 * 64 + 2 * row
    unknown = count(
        "com.microsoft.GroupQueryAttention",
        (*shapes, cache, cache, "int32 1", "int32 1"),
        ("float16 1x1x64", cache, cache),
        num_heads=8,
        kv_num_heads=2,
    )
    assert unknown.operations == 8 * 64 * (4 * 8 + PAIR)  # the buffer as full


def test_multi_head_attention_packed_or_not() -> None:
    pairs = count_pairs(2, 4, 5, 7, 0, False)
    separate = ("2x5x32", "2x7x32", "2x7x64")
    work = count("com.microsoft.MultiHeadAttention", separate, ("2x5x64",), num_heads=4)
    assert work.operations == pairs * (2 * 8 + 2 * 16 + PAIR)
    crossed = ("2x5x32", "2x4x7x8", "2x4x7x16")
    cross = count("com.microsoft.MultiHeadAttention", crossed, ("2x5x64",), num_heads=4)
    assert cross.operations == work.operations
    packed = count("com.microsoft.MultiHeadAttention", ("2x5x4x3x8",), ("2x5x32",), num_heads=4)
    assert packed.operations == count_pairs(2, 4, 5, 5, 0, False) * (4 * 8 + PAIR)
    pair = count("com.microsoft.MultiHeadAttention", ("2x5x32", "2x7x4x2x8"), ("2x5x32",), num_heads=4)
    assert pair.operations == pairs * (4 * 8 + PAIR)
    past = (*("2x5x32", "2x5x32", "2x5x32", "96", "", ""), *["2x4x3x8"] * 2)
    after = count(
        "com.microsoft.MultiHeadAttention",
        past,
        ("2x5x32", *["2x4x8x8"] * 2),
        num_heads=4,
        unidirectional=1,
    )
    assert after.operations == count_pairs(2, 4, 5, 8, 3, True) * (4 * 8 + PAIR) + 2 * 5 * 96


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_its_projections(causal: int) -> None:
    tokens, hidden, heads, size = 2 * 5, 12, 3, 8
    projections = sum(2 * hidden + 1 for _ in range(tokens * 3 * heads * size))
    pairs = count_pairs(2, heads, 5, 5, 0, bool(causal))
    shapes = ("2x5x12", "12x72", "72", "int32 2x5")
    work = count("com.microsoft.Attention", shapes, ("2x5x24",), num_heads=heads, unidirectional=causal)
    assert work.operations == projections + pairs * (4 * size + PAIR + 1)


def test_a_window_on_both_sides() -> None:
    """LongformerAttention: each token sees the 2 before, itself, and the 2 after."""
    pairs = sum(abs(query - key) <= 2 for query in range(8) for key in range(8))
    shapes = ("1x8x4", "4x12", "12", "1x8", "4x12", "12", "int32 1x8")
    work = count("com.microsoft.LongformerAttention", shapes, ("1x8x4",), num_heads=2, window=2)
    assert work.operations == 8 * 12 * (2 * 4 + 1) + 2 * pairs * (4 * 2 + PAIR + 1)


def test_rotations_read_a_row_of_their_caches_for_each_token() -> None:
    work = count(
        "com.microsoft.RotaryEmbedding",
        ("1x4x6x8", "int64 1x6", "2048x4", "2048x4"),
        ("1x4x6x8",),
    )
    assert work.operations == 4 * 6 * 8 * 3
    assert work.bytes == 4 * 4 * 6 * 8 * 2 + 8 * 6 + 2 * 4 * 6 * 4
    part = count(
        "com.microsoft.RotaryEmbedding",
        ("1x6x32", "int64 1x6", "2048x2", "2048x2"),
        ("1x6x32",),
        num_heads=4,
        rotary_embedding_dim=4,
    )
    assert part.operations == 4 * 6 * 4 * 3


def test_linear_attention() -> None:
    """For each token and head: decay, k^T S, the rate and difference, the outer product, then q^T S."""
    operations = 0
    for _token in range(6):
        for _head in range(2):
            operations += 4 * 3 * (1 + 2 + 2) + 2 * 3
        for _query_head in range(2):
            operations += 3 * (2 * 4 + 1)
    attributes = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "gated_delta"}
    shapes = ("1x6x8", "1x6x8", "1x6x6")
    assert (
        count("com.microsoft.LinearAttention", shapes, ("1x6x6",), **attributes).operations == operations
    )
