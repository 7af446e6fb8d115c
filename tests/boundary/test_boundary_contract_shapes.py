"""Contracts where inference of ONNX's leaves shapes open: what is not known is no disagreement."""

from pathlib import Path

import pytest
from contract_views import AxisStep, AxisTerm, AxisTerms
from helpers.support import parse
from test_boundary_contract import DOMAIN, Bounded

import byoc
from byoc.boundary.contracts import check_contracts, read_region_contracts
from byoc.bundle import open_bundle
from byoc.model import GraphIndex, get_stated_types, infer_types, read_type

BLOCKS = "NCHW4c"
LAYOUTS = ["NHWC", BLOCKS]
BODY = """<body = b (int64 i, bool ci, float[1,2,4,4] v) => (bool co, float[1,2,4,4] vo) {
    co = Identity(ci)
    vo = Relu(v)
}>"""
COUNTED = "int64 n = {2}, bool c = {1}"
CONV = "float[1,2,1,1] w = {1,2}"
FOUR = "float[4] a = {1,2,3,4}"
STATISTICS = "float[2] a = {1,2}, float[2] b = {1,2}, float[2] m = {1,2}, float[2] s = {1,2}"

LOOP = f"""g (float[1,2,4,4] x) => (float[1,1,4,4] y, float[1,2,1,1] p)
    <{CONV}, {COUNTED}, float[1,1,4,4] k, float[1,2,1,1] q> {{
    l = Loop(n, c, x){BODY}
    k = Conv(l, w)
    q = GlobalMaxPool(l)
    y = Tanh(k)
    p = Tanh(q)
}}"""

# A text, and the operators that stay on the host.
MODELS = {
    "a region reads what a loop makes": (
        f"(float[1,2,4,4] x) => (float[1,1,4,4] y) <{CONV}, {COUNTED}>"
        f"{{ l = Loop(n, c, x){BODY} y = Conv(l, w) }}",
        "Loop",
    ),
    "a loop with regions inside": (
        f"(float[1,2,4,4] x) => (float[1,1,4,4] y) <{CONV}, {COUNTED}>"
        f"{{ l = Loop(n, c, x){BODY} y = Conv(l, w) }}",
        "Tanh",
    ),
    "a region that holds a loop": (
        f"(float[1,4,4,4] x) => (float[1,4,4,4] y) <{FOUR}, {COUNTED}>"
        f"{{ l = Loop(n, c, x){BODY.replace('1,2', '1,4')} y = BatchNormalization(l, a, a, a, a) }}",
        "Tanh",
    ),
    "an input is an output": (
        f"(float[1,2,4,4] x) => (float[1,1,4,4] y, float[1,2,4,4] x) <{CONV}>"
        "{ h = Tanh(x) y = Conv(h, w) }",
        "Tanh",
    ),
    "a symbolic input is an output": (
        "(float[N,3,8,8] x) => (float[M,3,1,1] y, float[K,3,8,8] x) { y = GlobalMaxPool(x) }",
        "Tanh",
    ),
    "an initializer is an output": (
        f"(float[1,2,4,4] x) => (float[1,1,4,4] y, float[1,2,1,1] w) <{CONV}> {{ y = Conv(x, w) }}",
        "Tanh",
    ),
    "a shape is computed": (
        f"(float[1,2,4,4] x, float[1,32] v) => (float[1,2,4,4] y) <{STATISTICS}>"
        "{ z = Shape(x) r = Reshape(v, z) y = BatchNormalization(r, a, b, m, s) }",
        "Shape",
    ),
    "scales may be overridden": (
        "(float[1,3,8,8] x, float[4] s) => (float[1,3,16,16] y) <float[4] s = {1,1,2,2}>"
        '{ y = Resize<mode = "nearest">(x, , s) }',
        "Tanh",
    ),
    "branches read what a region makes": (
        "(float[1,2,4,4] x, bool k) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}>"
        "{ r = Relu(x) q = Conv(r, w) y = If(k)"
        "<then_branch = t () => (float[1,2,4,4] o) { p = MaxPool<kernel_shape = [2,2]>(q) o = Neg(r) },"
        " else_branch = e () => (float[1,2,4,4] u) { u = Neg(q) }> }",
        "If",
    ),
}


def partitioned(tmp_path: Path, model: str, layout: str, precision: str = "") -> list[str]:
    """Partition a model, which holds the bundle against it, and return its regions' layouts."""
    text, host = MODELS[model]
    rules = tmp_path / "npu.yaml"
    rules.write_text(
        f"target: npu\ncost_model: dla\ndtype: {precision or 'any'}\n"
        f"layout: {{activations: {layout}, weights: OHWI}}\n"
        f"host: {{ops: [{host}]}}\nops: [{{op: '*'}}]\n"
    )
    result = byoc.partition(
        parse(f"agraph {text}", ir=8),
        rules,
        output=tmp_path / "m.byoc",
        strategy="all-supported",
        precision=byoc.Precision(quantize=precision or None),
        verify=not precision,  # not every machine's onnxruntime computes all of a model in 16 bits
    )
    assert precision or (result.verification is not None and result.verification.passed)
    regions = [region for _, region, _ in open_bundle(tmp_path / "m.byoc").regions()]
    return [c.layout for r in regions for c in (*r.inputs, *r.outputs)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_what_inference_leaves_open_is_no_disagreement(tmp_path: Path, model: str, layout: str) -> None:
    words = partitioned(tmp_path, model, layout)
    assert layout in words
    assert set(words) <= {"", layout}


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("model", ["scales may be overridden", "branches read what a region makes"])
def test_nor_is_it_in_another_float_type(tmp_path: Path, model: str, precision: str) -> None:
    assert set(partitioned(tmp_path, model, BLOCKS, precision)) == {"", BLOCKS}


@pytest.mark.parametrize("where", ["", "dla_0"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_wrong_order_shows_all_the_same(layout: str, where: str) -> None:
    model = Bounded(LOOP, (1,), layout=layout)
    assert model.check()["dla_0"].outputs[0].layout == layout
    order = model.node("Transpose", where).attribute[0].ints
    order[-1], order[-2] = order[-2], order[-1]
    assert "the host has" in model.refusal()


@pytest.mark.parametrize("regions", [((1, 2),), ((0, 1, 2),), ((0,), (1, 2))])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_region_alone_says_the_same_of_its_layouts(
    layout: str, regions: tuple[tuple[int, ...], ...]
) -> None:
    """Without a type of the user's model: what inference does not find is stated in it."""
    model = Bounded(LOOP, *regions, layout=layout)
    for region in check_contracts(model.proto, {DOMAIN}, model.known).values():
        index = GraphIndex.of_model(region.model)
        alone = read_region_contracts(region.model, {}, index=index)
        for one, other in (
            (region.contracts.inputs, alone.inputs),
            (region.contracts.outputs, alone.outputs),
        ):
            assert [each.layout for each in one] == [each.layout for each in other]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_so_does_a_crossed_wire(layout: str) -> None:
    model = Bounded(LOOP, (1, 2), layout=layout)
    one, other = model.call().output
    model.call().output[:] = [other, one]
    assert "the host has" in model.refusal()


@pytest.mark.parametrize(
    "outputs", ["float[1,2,4,4] x", "float[1,2,1,1] w", "float[5,5] x", "float[1,2,4,4] x, float[7] w"]
)
def test_an_output_that_is_given_takes_no_shape_from_what_is_behind_it(outputs: str) -> None:
    model = parse(
        f"agraph (float[1,2,4,4] x) => (float y, {outputs}) <{CONV}> {{ y = Conv(x, w) }}", ir=8
    )
    found = infer_types(model, get_stated_types(model)).type_protos["y"]
    assert str(read_type(found)) == "float32[1, 1, 4, 4]"


def test_blocks_are_put_together_forwards_and_split_backwards() -> None:
    packed = AxisTerms((AxisTerm(0), AxisTerm(1), AxisTerm(1, 4), AxisTerm(2), AxisTerm(3)))
    merge = AxisStep(None, (1, 2, 4, 3, 3), (1, 8, 3, 3))
    split = AxisStep(None, merge.after, merge.before)
    turn = AxisStep((0, 1, 4, 2, 3), (1, 2, 3, 3, 4), merge.before)
    assert packed.apply(merge) == AxisTerms.of_plain(4)
    assert AxisTerms.of_plain(4).revert(merge) == packed
    assert packed.revert(split) == AxisTerms.of_plain(4)
    assert str(packed.revert(turn)) == "NCHW4c"
    # Blocks of another axis are not put together with this one.
    others = AxisTerms((AxisTerm(0), AxisTerm(1), AxisTerm(2, 4), AxisTerm(2), AxisTerm(3)))
    assert others.apply(merge) is None
