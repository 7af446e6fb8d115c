"""annotations/iree-cpu.yaml: what IREE said of ONNX's operator tests, each limit on both sides.

`tests/iree_rules/run.py` asks IREE. What stands here are its answers, in small models.
"""

import pytest
from shipped_rules import plain, taken, verdict

FILE = "iree-cpu"
X = "float[1,2,6,6] x"
SEQUENCE = "float[5,2,3] x"
GRU = "float[1,12,3] w, float[1,12,4] r"
LSTM = "float[1,16,3] w, float[1,16,4] r"
PEEPHOLES = f"{LSTM}, float[1,32] b, int32[2] n, float[1,2,4] h, float[1,2,4] c, float[1,12] p"
HALF = "float[4] k = {1, 1, 0.5, 0.5}"
LESS = "float[4] k = {1, 1, 0.6, 0.6}"
TWICE = "float[4] k = {1, 1, 2, 2}"
LINEAR = 'y = Resize <mode = "linear", coordinate_transformation_mode = "{}"{}> (x, , k)'
POOL = "kernel_shape = [3, 3], strides = [2, 2]"

CASES = [
    # types
    (X, "y = Relu (x)", "", 17, "yes"),
    ("float16[N,2] x", "y = Relu (x)", "", 17, "yes"),
    ("uint8[3] x", "y = Max (x, x)", "", 17, "yes"),
    ("float x", "y = Neg (x)", "", 17, "yes"),
    ("double[3] x", "y = Relu (x)", "", 17, "X is float64; supported: float32, float16"),
    # elementwise
    (f"{X}, float[2,1,1] s", "y = PRelu (x, s)", "", 17, "yes"),
    (f"{X}, float[1] s", "y = PRelu (x, s)", "", 6, "yes"),
    (f"{X}, float[2] s", "y = PRelu (x, s)", "", 6, "slope must have exactly one element"),
    ("int32[3] x", 'y = BitShift <direction = "LEFT"> (x, k)', "int32[3] k = {1, -1, 40}", 17, "yes"),
    ("int32[3] x, int32[3] k", 'y = BitShift <direction = "RIGHT"> (x, k)', "", 17, "yes"),
    ("int32[3] x", 'y = BitShift <direction = "RIGHT"> (x, k)', "int32[3] k = {1, 0, 7}", 17, "yes"),
    (
        "int32[3] x",
        'y = BitShift <direction = "RIGHT"> (x, k)',
        "int32[3] k = {1, 0, -1}",
        17,
        "direction is RIGHT",
    ),
    ("float[N,4] x, float[N,4] k", "y = Add (x, k)", "", 17, "yes"),
    ("float[N,4] x, float[4] k", "y = Mul (x, k)", "", 17, "yes"),
    ("float[N,4] x, float[M,4] k", "y = Add (x, k)", "", 17, "how B broadcasts is not known"),
    ("float[N,4] x, float[M,4] k", "y = Max (x, k)", "", 17, "broadcasts is not known"),
    # views
    ("int64[2] x", "y = ConstantOfShape (x)", "", 17, "yes"),
    ("int64[N] x", "y = ConstantOfShape (x)", "", 17, "is not fixed"),
    *(
        (
            f"float[4,4{more}] x, int64[4] k",
            f"y = ReverseSequence <time_axis = {time}, batch_axis = {1 - time}> (x, k)",
            "",
            17,
            "yes" if time else "time_axis is 0",
        )
        for time in (0, 1)
        for more in ("", ",3")
    ),
    *(
        ("float[2,3,4] x", f"y = LpNormalization <axis = {axis}, p = {p}> (x)", "", 17, "not among")
        for axis in (-1, 0, 1, 2)
        for p in (1, 2)
    ),
    # values
    ("uint8[3] x", "y = Clip (x)", "", 17, "input is uint8; supported"),
    ("int32[3] x", "y = Clip (x)", "", 17, "yes"),
    ("uint32[3] x, uint32[3] k", "y = Div (x, k)", "", 17, "is uint32; supported"),
    ("float[3] x, float[3] k", "y = Mod <fmod = 1> (x, k)", "", 17, "is float32; supported"),
    ("float[3] x", "y = Pow (x, k)", "float k = {2}", 17, "yes"),
    ("float[3] x, float[3] k", "y = Pow (x, k)", "", 17, "Y must be a constant"),
    (X, "y = LRN <size = 3> (x)", "", 17, "yes"),
    (X, "y = LRN <size = 4> (x)", "", 17, "only an odd size is supported"),
    ("float[2,3,4] x", "y = Hardmax (x)", "", 13, "yes"),
    ("float[2,3,4] x", "y = Hardmax (x)", "", 11, "the operator set is 11"),
    ("float[1,4,2,2] x", "y = DepthToSpace <blocksize = 2> (x)", "", 17, "yes"),
    ("float[1,4,2,2] x", 'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)', "", 17, "mode is CRD"),
    ("float[3,2] x", "y, i = TopK (x, k)", "int64[1] k = {1}", 17, "TopK is not among"),
    ("float[3] x", "y = Sin (x)", "", 17, "Sin is not among"),
    # products
    ("float[N,S,3] x", "y = MatMul (x, w)", "float[3,5] w", 17, "yes"),
    ("float[N,2,S,3] x, float[N,2,3,S] w", "y = MatMul (x, w)", "", 17, "yes"),
    ("float[N,2,3] x, float[M,3,5] w", "y = MatMul (x, w)", "", 17, "dimension 0 of B"),
    (X, "y = Conv (x, w)", "float[4,2,3,3] w", 17, "yes"),
    (X, "y = Conv <group = 2> (x, w)", "float[2,1,3,3] w", 17, "yes"),
    (X, "y = ConvTranspose (x, w)", "float[2,4,3,3] w", 17, "yes"),
    (X, "y = ConvTranspose <group = 2> (x, w)", "float[2,1,3,3] w", 17, "group is 2; supported: 1"),
    (X, 'y = ConvTranspose <auto_pad = "SAME_UPPER"> (x, w)', "float[2,4,3,3] w", 17, "auto_pad is"),
    ("float[4,2,3] x, float[4,3,5] w", "y = MatMul (x, w)", "", 17, "yes"),
    ("float[3] x, float[3] w", "y = MatMul (x, w)", "", 17, "yes"),
    ("float[3] x, float[4,3,5] w", "y = MatMul (x, w)", "", 17, "has rank"),
    ("float[4,2,3] x, float[3] w", "y = MatMul (x, w)", "", 17, "has rank"),
    # pools
    (X, f"y = MaxPool <{POOL}> (x)", "", 17, "yes"),
    (X, f"y, indices = MaxPool <{POOL}> (x)", "", 17, "Indices is given, but must be absent"),
    (X, f"y = AveragePool <{POOL}, pads = [1, 1, 1, 1]> (x)", "", 17, "yes"),
    (X, f"y = AveragePool <{POOL}, ceil_mode = 1> (x)", "", 17, "yes"),
    (X, f"y = AveragePool <{POOL}, ceil_mode = 1, pads = [1, 1, 1, 1]> (x)", "", 17, "ceil_mode is 1"),
    (X, f"y = AveragePool <{POOL}, ceil_mode = 1, count_include_pad = 1> (x)", "", 17, "ceil_mode is 1"),
    (X, "y = LpPool <kernel_shape = [2, 2]> (x)", "", 17, "yes"),
    (X, 'y = LpPool <kernel_shape = [2, 2], auto_pad = "SAME_LOWER"> (x)', "", 17, "auto_pad is"),
    # reductions
    (X, "y = ReduceMean <axes = [2, 3]> (x)", "", 17, "yes"),
    (X, "y = ReduceSum (x)", "", 17, "yes"),
    (X, "y = ReduceSum (x, k)", "int64[1] k = {1}", 17, "yes"),
    (f"{X}, int64[0] k", "y = ReduceSum (x, k)", "", 17, "yes"),
    (f"{X}, int64[1] k", "y = ReduceSum (x, k)", "", 17, "axes must be a constant"),
    # views
    (f"{X}, int64[4] k", "y = Expand (x, k)", "", 17, "yes"),
    (f"{X}, int64[3] k", "y = Expand (x, k)", "", 17, "fewer dimensions than the input"),
    (f"{X}, int64[2] k", "y = Reshape (x, k)", "", 17, "yes"),
    (f"{X}, int64[2] k", "y = Reshape <allowzero = 1> (x, k)", "", 17, "allowzero is 1"),
    (X, "y = Slice (x, k, e)", "int64[1] k = {0}, int64[1] e = {1}", 17, "yes"),
    (f"{X}, int64[1] k", "y = Slice (x, k, e)", "int64[1] e = {1}", 17, "starts must be a constant"),
    (
        X,
        "y = Slice (x, k, e, a, d)",
        "int64[1] k={5}, int64[1] e={0}, int64[1] a={2}, int64[1] d={-1}",
        17,
        "steps",
    ),
    (X, "y = SpaceToDepth <blocksize = 2> (x)", "", 17, "yes"),
    (X, "y = Pad (x, k)", "int64[8] k = {0, 0, 1, 1, 0, 0, 1, 1}", 17, "yes"),
    (f"{X}, int64[8] k", 'y = Pad <mode = "edge"> (x, k)', "", 17, "mode is edge"),
    ("float16 x, float16 e, float16 d", "y = Range (x, e, d)", "", 17, "is float16"),
    ("float x, float e, float d", "y = Range (x, e, d)", "", 17, "yes"),
    (
        "float[3,4] x, int64[4] n",
        "y = ReverseSequence <time_axis = 1, batch_axis = 0> (x, n)",
        "",
        17,
        "yes",
    ),
    ("float[3,4] x, int64[4] n", "y = ReverseSequence <time_axis = 0> (x, n)", "", 17, "time_axis is 0"),
    # resampling
    (X, LINEAR.format("half_pixel", ""), LESS, 17, "yes"),
    (X, LINEAR.format("half_pixel", ", exclude_outside = 1"), LESS, 17, "exclude_outside is 1"),
    (X, LINEAR.format("align_corners", ""), TWICE, 17, "yes"),
    (X, LINEAR.format("align_corners", ""), HALF, 17, "coordinate_transformation_mode is align_corners"),
    (X, LINEAR.format("tf_half_pixel_for_nn", ""), TWICE, 17, "coordinate_transformation_mode is"),
    (X, LINEAR.format("half_pixel", ", antialias = 1"), LESS, 18, "antialias is 1"),
    (
        X,
        LINEAR.format("half_pixel", ", axes = [2, 3]"),
        "float[2] k = {2, 2}",
        18,
        "axes must be absent",
    ),
    (f"{X}, float[1,3,3,2] k", "y = GridSample <align_corners = 1> (x, k)", "", 17, "yes"),
    (f"{X}, float[1,3,3,2] k", "y = GridSample (x, k)", "", 17, "align_corners is 0"),
    (
        f"{X}, float[1,3,3,2] k",
        'y = GridSample <align_corners = 1, mode = "nearest"> (x, k)',
        "",
        17,
        "mode is nearest",
    ),
    (
        f"{X}, float[1,3,3,2] k",
        'y = GridSample <align_corners = 1, padding_mode = "border"> (x, k)',
        "",
        17,
        "padding_mode is",
    ),
    # recurrent
    (SEQUENCE, "y = GRU <hidden_size = 4> (x, w, r)", GRU, 17, "yes"),
    (SEQUENCE, 'y = GRU <hidden_size = 4, direction = "reverse"> (x, w, r)', GRU, 17, "direction is"),
    (SEQUENCE, "y = LSTM <hidden_size = 4> (x, w, r)", LSTM, 17, "yes"),
    (SEQUENCE, 'y = LSTM <hidden_size = 4, direction = "reverse"> (x, w, r)', LSTM, 17, "direction is"),
    (SEQUENCE, "y = LSTM <hidden_size = 4> (x, w, r, b, , h, c, p)", PEEPHOLES, 17, "P is given"),
    # what is on the host as a whole
    (
        SEQUENCE,
        "y = RNN <hidden_size = 4, clip = 0.1> (x, w, r)",
        "float[1,4,3] w, float[1,4,4] r",
        17,
        "clip",
    ),
    (
        f"{SEQUENCE}, int32[2] n",
        "y = GRU <hidden_size = 4> (x, w, r, , n)",
        GRU,
        17,
        "sequence_lens is given",
    ),
    ("float[3,3] x", "y = Det (x)", "", 17, "Det is not among the operators of iree-cpu"),
    (X, "y = LpNormalization (x)", "", 17, "LpNormalization is not among the operators of iree-cpu"),
    (X, "y = ReduceLogSumExp (x)", "", 17, "ReduceLogSumExp is not among the operators of iree-cpu"),
    (X, "y = Dropout (x)", "", 17, "yes"),
    (X, "y = Dropout (x, , k)", "bool k = {1}", 17, "training_mode"),
]


@pytest.mark.parametrize(("inputs", "line", "constants", "opset", "expected"), CASES)
def test_a_limit_that_iree_showed(
    inputs: str, line: str, constants: str, opset: int, expected: str
) -> None:
    told = verdict(FILE, plain(inputs, line, constants, opset))
    assert (told == expected) if expected == "yes" else (expected in told != "yes"), told


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_all_of_a_network_is_taken(name: str) -> None:
    _, refused = taken(FILE, name)
    assert not refused
