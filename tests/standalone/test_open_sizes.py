"""Programs with open dimensions: steps for each combination of sizes, one arena, the same weights."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.c_libraries import build_library, run_library
from helpers.support import parse
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from small_programs import planning_quickly

from byoc.errors import InputError
from byoc.standalone import export_c, verify_program

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

# Attention of two heads over the tokens that a mask leaves, and what embeds and classifies them.
ENCODER = """encoder (int64[batch, length] ids, int64[batch, length] mask)
        => (float[batch, length, 8] hidden, float[batch, 3] scores) {
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    extents = Shape (ids)
    count = Slice (extents, one, two)
    places = Slice (positions, zero, count, zero)
    words = Gather (table, ids)
    embedded = Add (words, places)
    x = LayerNormalization (embedded, gain, shift)
    heads = Constant <value_ints = [0, 0, 2, 4]> ()
    q0 = MatMul (x, wq)
    q1 = Reshape (q0, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)
    k0 = MatMul (x, wk)
    k1 = Reshape (k0, heads)
    k = Transpose <perm = [0, 2, 3, 1]> (k1)
    v0 = MatMul (x, wv)
    v1 = Reshape (v0, heads)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)
    s = MatMul (q, k)
    kept = Cast <to = 1> (mask)
    unit = Constant <value_float = 1.0> ()
    lost = Sub (unit, kept)
    low = Constant <value_float = -10000.0> ()
    bias0 = Mul (lost, low)
    inner = Constant <value_ints = [1, 2]> ()
    bias = Unsqueeze (bias0, inner)
    masked = Add (s, bias)
    p = Softmax <axis = -1> (masked)
    o0 = MatMul (p, v)
    o1 = Transpose <perm = [0, 2, 1, 3]> (o0)
    whole = Constant <value_ints = [0, 0, 8]> ()
    o2 = Reshape (o1, whole)
    hidden = Add (x, o2)
    sums = ReduceMean <axes = [1], keepdims = 0> (hidden)
    scores = Gemm (sums, wo)
}"""
CONVOLUTION = """net (float[N, 2, 6, 6] x) => (float[N, 3] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Relu (a)
    c = GlobalAveragePool (b)
    d = Flatten (c)
    y = Gemm (d, w)
}"""


def add_weights(model: onnx.ModelProto, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """Add constants to a model, which is returned."""
    random = np.random.default_rng(5)
    for name, shape in shapes.items():
        value = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def make_encoder() -> onnx.ModelProto:
    shapes = dict.fromkeys(("wq", "wk", "wv"), (8, 8))
    found = add_weights(
        parse(ENCODER), table=(11, 8), positions=(16, 8), gain=(8,), shift=(8,), wo=(8, 3), **shapes
    )
    found.graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
    return found


def make_convolution() -> onnx.ModelProto:
    return add_weights(parse(CONVOLUTION), k=(3, 2, 3, 3), w=(3, 3))


def compare_at(
    model: onnx.ModelProto, library: Path, inputs: dict[str, np.ndarray], sizes: tuple[int, ...]
) -> None:
    """Compare a run with ONNX's definition; what lies behind each output has to stay as it is."""
    names = [output.name for output in model.graph.output]
    expected = dict(zip(names, ReferenceEvaluator(model).run(None, inputs), strict=True))
    room = {name: np.full(value.size + 64, 77, value.dtype) for name, value in expected.items()}
    run_library(library, list(inputs.values()), room, sizes)
    for name, value in expected.items():
        found = room[name][: value.size].reshape(value.shape)
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
        assert (room[name][value.size :] == 77).all()


def draw_texts(batch: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(batch * 100 + length)
    mask = (random.random((batch, length)) < 0.7).astype(np.int64)
    mask[:, 0] = 1
    return {"ids": random.integers(0, 11, (batch, length)), "mask": mask}


def test_a_batch_of_images_is_right_at_each_size(tmp_path: Path) -> None:
    model = make_convolution()
    made = export_c(model, output=tmp_path / "out", dims={"N": "1..4"})
    assert (made.combinations, made.arena_bytes) == (4, made.bound)
    largest = export_c(model, output=tmp_path / "four", dims={"N": 4})
    assert (made.arena_bytes, made.weight_bytes) == (largest.arena_bytes, largest.weight_bytes)
    library = build_library(tmp_path / "out", ["cc", "-O1"])
    for batch in range(1, 5):
        image = np.random.default_rng(batch).standard_normal((batch, 2, 6, 6)).astype(np.float32)
        compare_at(model, library, {"x": image}, (batch,))
    for batch in (0, 5, -1, 2**32 + 1):
        with pytest.raises(ValueError, match="the sizes are out of bounds: there are N 1 to 4"):
            run_library(library, [np.zeros(0)], {"y": np.zeros(0)}, (batch,))


def test_an_encoder_is_right_at_each_length(tmp_path: Path) -> None:
    model = make_encoder()
    with planning_quickly():
        made = export_c(model, output=tmp_path / "out", dims={"batch": 2, "length": "1..8"}, threads=2)
        alone = export_c(model, output=tmp_path / "one", dims={"batch": 2, "length": 8}, threads=2)
    assert (made.combinations, made.arena_bytes) == (8, alone.arena_bytes)
    assert made.weight_bytes == alone.weight_bytes  # also of the table whose first rows are read
    library = build_library(tmp_path / "out", ["cc", "-O1", "-pthread"])
    for length in range(1, 9):
        compare_at(model, library, draw_texts(2, length), (length,))
    # The self-test runs all sizes.
    sanitized = "cc -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -pthread"
    found = verify_program(tmp_path / "out", sanitized)
    assert found.passed, found.problem
    assert [each.name for each in found.outputs[:2]] == ["hidden at length = 1", "scores at length = 1"]
    assert len(found.outputs) == 16


# A cache that grows by what is new, and a dimension with a name that C cannot have.
CACHE = """net (float[2, past, 4] old, float[2, new_rows, 4] rows, float[total, 1] mask)
        => (float[2, total, 4] cache, float[2, new_rows, 1] sums) {
    all = Concat <axis = 1> (old, rows)
    cache = Mul (all, mask)
    axes = Constant <value_ints = [2]> ()
    sums = ReduceSum (rows, axes)
}"""
APPLICATION = r"""#include "grown.h"
#include <stdio.h>
#include <stdlib.h>
static void *allocate(size_t bytes) {
    return aligned_alloc(64, (bytes + 127) / 64 * 64);
}
int main(int count, char **arguments) {
    static grown opened;
    unsigned char *weights = allocate(GROWN_WEIGHT_BYTES), *arena = allocate(GROWN_PLAN_BYTES);
    FILE *file = fopen(arguments[count - 1], "rb");
    if (!file || fread(weights, 1, GROWN_WEIGHT_BYTES, file) != GROWN_WEIGHT_BYTES) return 1;
    fclose(file);
    if (grown_open(&opened, weights, GROWN_WEIGHT_BYTES, arena, GROWN_PLAN_BYTES)) return 2;
    for (int64_t past = -1; past < 5; past++) {
        for (int64_t rows = 0; rows < 4; rows++) {
            grown_sizes sizes = {.past = past, .new_rows = rows};
            const grown_tensor *given = grown_inputs_at(&sizes), *made = grown_outputs_at(&sizes);
            if (!given || !made) {
                /* Nothing is read or written: the pointers are none. */
                if (!grown_run(&opened, &sizes, NULL, NULL)) return 3;
                printf("refused %d %d\n", (int)past, (int)rows);
                continue;
            }
            /* As many bytes as are said, so that the sanitizer finds others. */
            float *old = malloc(given[0].bytes), *added = malloc(given[1].bytes);
            float *mask = malloc(given[2].bytes);
            float *cache = malloc(made[0].bytes), *sums = malloc(made[1].bytes);
            for (size_t i = 0; i < given[0].elements; i++) old[i] = (float)i;
            for (size_t i = 0; i < given[1].elements; i++) added[i] = -(float)i;
            for (size_t i = 0; i < given[2].elements; i++) mask[i] = (float)i;
            const void *inputs[] = {old, added, mask};
            void *outputs[] = {cache, sums};
            if (grown_run(&opened, &sizes, inputs, outputs)) return 4;
            printf("%d %d %d:", (int)past, (int)rows, (int)made[0].shape[1]);
            for (size_t i = 0; i < made[0].elements; i++) printf(" %g", cache[i]);
            for (size_t i = 0; i < made[1].elements; i++) printf(" %g", sums[i]);
            printf("\n");
            free(old), free(added), free(mask), free(cache), free(sums);
        }
    }
    free(weights), free(arena);
    printf("%s\n", grown_error(&opened));
    return 0;
}
"""
MACHINES = {
    "host": ("cc -fsanitize=address,undefined -fno-sanitize-recover=all", ""),
    "aarch64": ("aarch64-linux-gnu-gcc -static", "qemu-aarch64"),
}


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with two open dimensions and one that follows from them."""
    folder = tmp_path_factory.mktemp("grown") / "out"
    dims = {"past": "1..3", "new-rows": "1..2", "total": "past + new-rows"}
    export_c(make_cache(), output=folder, dims=dims, prefix="grown")
    (folder.parent / "app.c").write_text(APPLICATION)
    return folder


def make_cache() -> onnx.ModelProto:
    model = parse(CACHE)
    for value in (model.graph.input[1], model.graph.output[1]):
        value.type.tensor_type.shape.dim[1].dim_param = "new-rows"
    return model


@pytest.mark.parametrize("machine", list(MACHINES))
def test_an_application_gives_sizes_and_is_told_shapes(machine: str, grown: Path) -> None:
    compiler, runner = MACHINES[machine]
    for command in filter(None, (compiler.split()[0], runner)):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not installed")
    sources = [str(each) for each in grown.glob("*.c") if each.name != "main.c"]
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-O1", f"-I{grown}"]
    binary = grown.parent / f"app_{machine}"
    command = [
        *compiler.split(),
        *flags,
        str(grown.parent / "app.c"),
        *sources,
        "-lm",
        "-o",
        str(binary),
    ]
    subprocess.run(command, check=True)
    ran = subprocess.run(
        [*runner.split(), str(binary), str(grown / "weights.bin")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    *lines, error = ran.stdout.splitlines()
    assert error == "the sizes are out of bounds: there are past 1 to 3, new-rows 1 to 2"
    expected = [tell(past, rows) for past in range(-1, 5) for rows in range(4)]
    assert lines == expected


def tell(past: int, rows: int) -> str:
    """Return the line that the application prints, by ONNX's definition."""
    if not (1 <= past <= 3 and 1 <= rows <= 2):
        return f"refused {past} {rows}"
    old, added = (
        sign * np.arange(2 * n * 4, dtype=np.float32).reshape(2, n, 4)
        for sign, n in ((1, past), (-1, rows))
    )
    mask = np.arange(past + rows, dtype=np.float32)[:, None]
    cache, sums = ReferenceEvaluator(make_cache()).run(None, {"old": old, "rows": added, "mask": mask})
    return " ".join([f"{past} {rows} {past + rows}:", *(f"{v:g}" for v in (*cache.flat, *sums.flat))])


def test_what_a_program_cannot_have_is_refused(tmp_path: Path) -> None:
    def refuse(model: onnx.ModelProto, words: str, **dims: int | str) -> None:
        with pytest.raises(InputError, match=re.escape(words)):
            export_c(model, output=tmp_path / "out", dims=dims)
        assert not (tmp_path / "out").exists()

    images, texts = make_convolution(), make_encoder()
    counted = "a program has steps for each combination of sizes, at most 64, and these are"
    refuse(images, f"net: dimension N=1..65: {counted} 65", N="1..65")
    refuse(texts, f"dimensions batch=1..9, length=1..8: {counted} 72", batch="1..9", length="1..8")
    unknown = "an extent is not known, which --dim batch=SIZE may settle"
    refuse(texts, f"at length = 4: encoder: 'words' is float32[batch, 4, 8]: {unknown}", length="3..4")
    refuse(texts, "at length = 17: onnxruntime cannot load the model", length="15..17", batch=1)
