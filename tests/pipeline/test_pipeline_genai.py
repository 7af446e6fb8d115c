"""A folder of onnxruntime-genai in, a bundle that is such a folder out; genai runs both where it is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import byoc
from byoc import zoo
from byoc.errors import InputError

EVERYTHING = "target: npu\ncost_model: openvino-cpu\ncodegen: reference\ndtype: any\nops: [{op: '*'}]\n"
CONFIG: dict[str, Any] = {
    "model": {
        "bos_token_id": 1,
        "context_length": 512,
        "decoder": {
            "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
            "filename": "decoder.onnx",
            "head_size": 32,
            "hidden_size": 128,
            "inputs": {
                "input_ids": "input_ids",
                "attention_mask": "attention_mask",
                "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value",
            },
            "outputs": {
                "logits": "logits",
                "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
        },
        "eos_token_id": [1023],
        "pad_token_id": 0,
        "type": "llama",
        "vocab_size": 1024,
    },
    "search": {"max_length": 256, "do_sample": False, "past_present_share_buffer": True},
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as genai's model builder writes it, with rules beside it; not to be changed."""
    folder = tmp_path_factory.mktemp("genai")
    model = folder / "model"
    (model / "chat").mkdir(parents=True)
    onnx.save(
        zoo.load("decoder_int4"),
        model / "decoder.onnx",
        save_as_external_data=True,
        location="decoder.onnx.data",
    )
    (model / "genai_config.json").write_text(json.dumps(CONFIG))
    (model / "tokenizer.json").write_text('{"words": ["é"]}', encoding="utf-8")
    (model / "chat" / "template.jinja").write_text("{{ messages }}")
    (model / ".cache").write_text("hidden")
    (folder / "npu.yaml").write_text(EVERYTHING)
    return folder


@pytest.fixture(scope="module")
def bundle(given: Path) -> Path:
    rules, output = given / "npu.yaml", given / "out"
    result = byoc.partition(given / "model", rules, output=output, strategy="all-supported")
    assert result.verification is not None
    assert result.verification.passed
    assert result.report.nodes.offloaded == result.report.nodes.total > 30
    return output


def test_the_bundle_is_a_folder_of_genai(given: Path, bundle: Path) -> None:
    written = json.loads((bundle / "genai_config.json").read_text())
    assert written["model"]["decoder"].pop("filename") == "model.onnx"
    assert written["search"] == CONFIG["search"]
    for name in ("tokenizer.json", "chat/template.jinja"):
        assert (bundle / name).read_bytes() == (given / "model" / name).read_bytes()
    files = {path.name for path in bundle.iterdir()}
    assert files.isdisjoint({"decoder.onnx", "decoder.onnx.data", ".cache"})
    listed = byoc.inspect(bundle)["files"]
    assert {"genai_config.json", "tokenizer.json", "chat/template.jinja"} <= listed.keys()
    assert byoc.verify(bundle, given / "model", regions=False).passed


def generate(folder: Path, prompt: list[int], count: int) -> list[int]:
    genai = pytest.importorskip("onnxruntime_genai")
    model = genai.Model(str(folder))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=len(prompt) + count, do_sample=False)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(np.array([prompt], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)]


def test_genai_generates_the_same_tokens(given: Path, bundle: Path) -> None:
    prompt = [int(token) for token in np.random.default_rng(0).integers(2, 1000, 9)]
    expected = generate(given / "model", prompt, 200)
    assert len(expected) > len(prompt) + 1
    assert generate(bundle, prompt, 200) == expected


def test_what_genai_would_not_load_is_refused(given: Path, tmp_path: Path) -> None:
    rules = given / "npu.yaml"
    for options, reason in (
        (
            {"buckets": {"sequence_length": [1, 8]}},
            "variant sequence_length_8 reads 8 tokens, but onnxruntime-genai gives prompts of any",
        ),
        ({"dims": {"sequence_length": 1}}, "'input_ids' has 1 tokens, but onnxruntime-genai gives"),
        ({"weights": "reference"}, "onnxruntime-genai follows no path out of its folder"),
    ):
        with pytest.raises(InputError, match=reason):
            byoc.partition(given / "model", rules, output=tmp_path / "b", **options)
    assert not (tmp_path / "b").exists()


PROMPT = {"batch_size": 1}
TOKEN = {"batch_size": 1, "sequence_length": 1}


@pytest.mark.parametrize(
    ("decode", "weights"),
    [(TOKEN, "copy"), ({**TOKEN, "past_sequence_length": 256}, "link")],
    ids=["any cache", "a cache of max_length"],
)
def test_genai_runs_one_variant_on_prompts_and_one_on_tokens(
    decode: dict[str, int], weights: Any, given: Path, tmp_path: Path
) -> None:
    result = byoc.partition(
        given / "model",
        given / "npu.yaml",
        output=tmp_path / "b",
        strategy="all-supported",
        variants={"prefill": PROMPT, "decode": decode},
        weights=weights,
    )
    for variant in result.variants:
        assert variant.verification is not None
        assert variant.verification.passed
        assert variant.report.nodes.offloaded == variant.report.nodes.total > 30
    written = json.loads((tmp_path / "b" / "genai_config.json").read_text())["model"]
    assert written["type"] == "decoder-pipeline"
    assert "filename" not in written["decoder"]
    stages = [(name, each) for entry in written["decoder"]["pipeline"] for name, each in entry.items()]
    assert [
        (name, each["filename"], each["run_on_prompt"], each["run_on_token_gen"])
        for name, each in stages
    ] == [
        ("prefill", "prefill.model.onnx", True, False),
        ("decode", "decode.model.onnx", False, True),
    ]
    prompt = [int(token) for token in np.random.default_rng(1).integers(2, 1000, 9)]
    for tokens in (prompt, prompt[:1]):  # a prompt of one token runs on the variant for tokens
        count = 256 - len(tokens)  # to max_length, which a cache of fixed length has
        expected = generate(given / "model", tokens, count)
        assert len(expected) > len(tokens) + 20
        assert generate(tmp_path / "b", tokens, count) == expected


@pytest.mark.parametrize(
    ("variants", "config", "reason"),
    [
        ({"a": TOKEN}, {}, "runs two variants, one on prompts and one on single tokens, and not 1"),
        (
            {"a": TOKEN, "b": {**TOKEN, "past_sequence_length": 256}},
            {},
            "the number of tokens has to be open in one variant and 1 in the other",
        ),
        (
            {"a": PROMPT, "b": {**TOKEN, "total_sequence_length": 256}},
            {},
            "variant b: 'attention_mask' has 256 positions, but onnxruntime-genai's has one for each",
        ),
        (
            {"a": PROMPT, "b": {**TOKEN, "past_sequence_length": 128}},
            {},
            "variant b: 'past_key_values.0.key' has 128 positions, but onnxruntime-genai's has search",
        ),
        ({"a": PROMPT, "b": TOKEN}, {"vision": {}}, "a model with 'vision' has no pipeline"),
    ],
)
def test_variants_that_genai_would_not_run_are_refused(
    variants: Any, config: dict[str, Any], reason: str, given: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(given / "model", folder)
    changed = {**CONFIG, "model": {**CONFIG["model"], **config}}
    (folder / "genai_config.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match=reason):
        byoc.partition(folder, given / "npu.yaml", output=tmp_path / "b", variants=variants)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "genai_config.json: cannot be read: Expecting"),
        ("[]", "model.decoder: must be given, with the decoder's filename"),
        ('{"model": {"decoder": {}}}', "model.decoder.filename: must be given"),
        ('{"model": {"decoder": {"filename": 3}}}', "model.decoder.filename: must be given"),
        (
            '{"model": {"decoder": {"pipeline": [{"embed": {}}]}}}',
            "model.decoder.pipeline: partition its models one by one",
        ),
        ('{"model": {"decoder": {"filename": "no.onnx"}}}', "no.onnx: no such file"),
        (r'{"model": {"decoder": {"filename": "a"}}, "x": "\ud800"}', "genai_config.json: is not text"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(
    content: str, reason: str, given: Path, tmp_path: Path, byoc: Callable[..., Any]
) -> None:
    (tmp_path / "genai_config.json").write_text(content)
    ran = byoc("partition", tmp_path, "--rules", given / "npu.yaml")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert reason in ran.err


def test_a_file_with_a_name_of_the_bundles_is_refused(given: Path, tmp_path: Path) -> None:
    (tmp_path / "genai_config.json").write_text(json.dumps(CONFIG))
    onnx.save(zoo.load("decoder_int4"), tmp_path / "decoder.onnx")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"manifest\.json: cannot be passed through: the bundle has"):
        byoc.partition(tmp_path, given / "npu.yaml", output=tmp_path.parent / "b", verify=False)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder of genai whose model is one Relu."""
    folder = tmp_path / "small"
    folder.mkdir()
    net = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[b, n] input_ids) => (float[b, n] y) '
        "{ y = Relu(input_ids) }"
    )
    onnx.save(net, folder / "decoder.onnx")
    (folder / "genai_config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_a_bundle_in_its_own_folder_is_not_passed_through(small: Path, given: Path) -> None:
    for _ in range(2):
        byoc.partition(small, given / "npu.yaml", output=small / "out", verify=False)
    assert (small / "out" / "tokenizer.json").is_file()
    assert not (small / "out" / "out").exists()


def test_what_cannot_be_passed_through_is_refused(small: Path, given: Path, tmp_path: Path) -> None:
    def refuse(reason: str) -> None:
        with pytest.raises(InputError, match=f"cannot be passed through: it {reason}"):
            byoc.partition(small, given / "npu.yaml", output=tmp_path / "b", verify=False)
        assert not (tmp_path / "b").exists()

    (small / "chat").symlink_to(tmp_path, target_is_directory=True)
    refuse("is neither a file nor a folder")
    (small / "chat").unlink()
    (small / "lost.json").symlink_to("nowhere")
    refuse("is neither a file nor a folder")
    (small / "lost.json").unlink()
    (small / "a\nb").write_text("")
    refuse("does not have a plain name")


def test_the_name_of_the_tokens_may_be_of_any_type(small: Path, given: Path, tmp_path: Path) -> None:
    config = {"model": {"decoder": {"filename": "decoder.onnx", "inputs": {"input_ids": ["x"]}}}}
    (small / "genai_config.json").write_text(json.dumps(config))
    byoc.partition(small, given / "npu.yaml", output=tmp_path / "b", verify=False)
    assert json.loads((tmp_path / "b" / "genai_config.json").read_text())["model"]["decoder"]["inputs"]


def copy_folder(given: Path, place: Path) -> Path:
    """Copy the model's folder into a cache of huggingface_hub, as a snapshot of links to blobs."""
    snapshot, blobs = place / "models--x/snapshots/1", place / "models--x/blobs"
    shutil.copytree(given / "model", snapshot)
    blobs.mkdir()
    for file in sorted(snapshot.rglob("*")):
        if file.is_file():
            blob = blobs / file.name
            file.rename(blob)
            file.symlink_to(
                Path("../" * (len(file.relative_to(snapshot).parts) + 1), "blobs", file.name)
            )
    return snapshot


def test_a_snapshot_of_a_cache_is_passed_through(given: Path, bundle: Path, tmp_path: Path) -> None:
    snapshot = copy_folder(given, tmp_path)

    byoc.partition(snapshot, given / "npu.yaml", output=tmp_path / "out", verify=False)

    assert (tmp_path / "out/tokenizer.json").read_bytes() == (
        given / "model/tokenizer.json"
    ).read_bytes()
    assert not (tmp_path / "out/tokenizer.json").is_symlink()


@pytest.mark.parametrize("where", ["beside it", "in a folder of it", "by way of a link of its own"])
def test_a_link_out_of_the_folder_is_refused(where: str, given: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    folder = tmp_path / "model"
    shutil.copytree(given / "model", folder)
    if where == "beside it":
        (folder / "key").symlink_to(secret)
    elif where == "in a folder of it":
        (folder / "chat/key").symlink_to("../../secret")
    else:
        (folder / ".hidden").symlink_to(secret)
        (folder / "key").symlink_to(".hidden")

    with pytest.raises(InputError, match="cannot be passed through: it leads out of the folder"):
        byoc.partition(folder, given / "npu.yaml", output=tmp_path / "out", verify=False)

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../secret.onnx", "/etc/hostname", "link.onnx", "link.onnx/x", "a\0b"])
@pytest.mark.parametrize("key", ["filename", "custom_ops_library"])
def test_a_path_out_of_the_folder_is_refused(name: str, key: str, given: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(given / "model", folder)
    (tmp_path / "secret.onnx").write_bytes(b"key")
    (folder / "link.onnx").symlink_to(tmp_path / "secret.onnx")
    config = json.loads(json.dumps(CONFIG))
    place = (
        config["model"]["decoder"]
        if key == "filename"
        else config["model"]["decoder"]["session_options"]
    )
    place[key] = name
    (folder / "genai_config.json").write_text(json.dumps(config))

    with pytest.raises(InputError, match=rf"{key}: .* is not in the folder"):
        byoc.partition(folder, given / "npu.yaml", output=tmp_path / "out", verify=False)
