"""The files that pages take for granted, such as a reader's own model: made by name.

The names are those of `MAKERS`, and `NAME.byoc` is a bundle of `model.onnx`. `NAME=OTHER` is made as the
other one is, `NAME=zoo:MODEL` is a model of the zoo, or a bundle of it, and `NAME=PATH` is a copy out of
the repository.
"""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from helpers.installing import install
from onnx.parser import parse_model
from pages import ROOT

import byoc
from byoc import zoo

_CLASSIFIER = """<ir_version: 8, opset_import: ["" : 17]>
classifier (float[batch, 3, 32, 32] image) => (float[batch, 10] scores) {
    c1 = Conv <pads = [1, 1, 1, 1]> (image, w1)
    r1 = Relu(c1)
    c2 = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (r1, w2)
    r2 = Relu(c2)
    pooled = GlobalAveragePool(r2)
    flat = Flatten(pooled)
    logits = Gemm <transB = 1> (flat, w3)
    scores = Softmax(logits)
}"""
_DECODER = """<ir_version: 8, opset_import: ["" : 17]>
decoder (float[1, seq, 64] x, float[1, past, 64] cache, float[1, seq, total] mask)
    => (float[1, seq, 64] y, float[1, total, 64] present) {
    keys = MatMul(x, w1)
    present = Concat <axis = 1> (cache, keys)
    turned = Transpose <perm = [0, 2, 1]> (present)
    fit = MatMul(x, turned)
    masked = Add(fit, mask)
    chosen = Softmax(masked)
    y = MatMul(chosen, present)
}"""
_ENCODER = """<ir_version: 8, opset_import: ["" : 17]>
encoder (float[1, seq, 64] x) => (float[1, seq, 64] y) {
    a = MatMul(x, w1)
    b = Relu(a)
    c = MatMul(b, w2)
    y = Add(c, x)
}"""
_ADAPTER = """<ir_version: 8, opset_import: ["" : 17]>
adapter (float[1, 64] x) => (float[1, 64] y) {
    a = MatMul(x, w)
    b = MatMul(x, lora_a)
    c = MatMul(b, lora_b)
    y = Add(a, c)
}"""
_SQUARE = (64, 64)


def _draw(seed: int = 0) -> np.random.Generator:
    """Return a fresh generator: a file is the same whatever was made before it."""
    return np.random.default_rng(seed)


def write_model(text: str, **shapes: tuple[int, ...]) -> Callable[[Path], None]:
    """Return what writes a model with random weights of these shapes."""

    def write(path: Path) -> None:
        model, random = parse_model(text), _draw()
        for name, shape in shapes.items():
            values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
            model.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), name))
        onnx.save(model, path)

    return write


def make_samples(folder: Path) -> None:
    """Write two samples for the classifier."""
    folder.mkdir()
    for number in range(2):
        image = _draw(number).standard_normal((1, 3, 32, 32)).astype(np.float32)
        np.savez(folder / f"{number}.npz", image=image)


def make_photos(folder: Path) -> None:
    """Write four images."""
    from PIL import Image  # noqa: PLC0415 - where a page needs it

    folder.mkdir()
    for number in range(4):
        pixels = _draw(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def make_inputs(path: Path) -> None:
    """Write inputs of the classifier: by name, or the image alone."""
    image = _draw().standard_normal((1, 3, 32, 32)).astype(np.float32)
    if path.suffix == ".npy":
        np.save(path, image)
    else:
        np.savez(path, image=image)


def write_text(text: str) -> Callable[[Path], None]:
    """Return what writes a text."""
    return lambda path: void(path.write_text(text))


def void(_: object) -> None:
    """Return nothing."""


def make_lengths(path: Path) -> None:
    """Write lengths of a hundred prompts."""
    lengths = np.minimum(_draw().lognormal(6, 1, 100).astype(int) + 1, 4096)
    path.write_text("".join(f"{length}\n" for length in lengths))


def make_genai(folder: Path) -> None:
    """Write a folder as the model builder of onnxruntime-genai does."""
    folder.mkdir()
    onnx.save(zoo.load("decoder_int4"), folder / "model.onnx")
    decoder = {"filename": "model.onnx", "inputs": {}, "outputs": {}}
    config = {"model": {"type": "llama", "decoder": decoder}, "search": {"max_length": 256}}
    (folder / "genai_config.json").write_text(json.dumps(config))


def make_multimodal(folder: Path) -> None:
    """Write a folder of onnxruntime-genai with a model for images, embeddings and tokens."""
    folder.mkdir()
    tensors = {
        "vision": ("pixel_values", "image_features"),
        "embedding": ("image_features", "inputs_embeds"),
        "decoder": ("inputs_embeds", "logits"),
    }
    for name, (read, made) in tensors.items():
        types = f"g (float[1, 4, 16] {read}) => (float[1, 4, 16] {made})"
        text = f"{types} {{ r = Relu({read}) {made} = Add(r, r) }}"
        header = '<ir_version: 8, opset_import: ["" : 17]>'
        onnx.save(onnx.parser.parse_model(f"{header} {text}"), folder / f"{name}.onnx")
    sections = {name: {"filename": f"{name}.onnx"} for name in tensors}
    (folder / "genai_config.json").write_text(json.dumps({"model": {"type": "phi3v", **sections}}))


def install_for_page(project: Path, folder: Path) -> None:
    """Install a package of a page's folder beside that folder, as `pip install -e` does."""
    site = find_site(folder)
    site.mkdir(exist_ok=True)
    install(project, site)
    for module in project.glob("*/__init__.py"):
        (site / module.parent.name).symlink_to(module.parent)


def find_site(folder: Path) -> Path:
    """Return the folder of the import path for a page's folder."""
    return folder.with_name(f"{folder.name}-site")


def make_acme(folder: Path) -> None:
    """Write the package of `byoc new-codegen acme`, and install it for the page."""
    byoc.new_codegen("acme", folder)
    install_for_page(folder, folder.parent)


MAKERS: dict[str, Callable[[Path], None]] = {
    "model.onnx": write_model(_CLASSIFIER, w1=(64, 3, 3, 3), w2=(64, 64, 3, 3), w3=(10, 64)),
    "decoder.onnx": write_model(_DECODER, w1=_SQUARE),
    "encoder.onnx": write_model(_ENCODER, w1=_SQUARE, w2=_SQUARE),
    "adapter.onnx": write_model(_ADAPTER, w=_SQUARE, lora_a=(64, 4), lora_b=(4, 64)),
    "samples": make_samples,
    "photos": make_photos,
    "x.npz": make_inputs,
    "image.npy": make_inputs,
    # Rule files of a reader's own: of less than `dla` takes, of everything, and of half precision.
    "mine.yaml": write_text(
        "target: mine\ndtype: any\nops: [{op: Conv}, {op: Relu}]\ncost_model: dla\n"
    ),
    "npu.yaml": write_text("target: npu\ncost_model: openvino-cpu\ndtype: any\nops: [{op: '*'}]\n"),
    "half.yaml": write_text("target: half\ncost_model: dla\ndtype: float16\nops: [{op: '*'}]\n"),
    "study.yaml": write_text(
        "models: [zoo:squeezenet]\nrules: [dla]\nlinks: [1, 10]\n"
        "strategies: [launch-aware, all-supported]\n"
    ),
    "measured.csv": write_text(
        "model,strategy,link,measured_seconds\nzoo:squeezenet,all-supported,1,0.0041\n"
    ),
    "app.yaml": write_text(
        "devices: {pc: openvino-cpu, board: dla}\n"
        "models: {detector: detector.onnx, recognizer: recognizer.onnx}\n"
    ),
    "lengths.txt": make_lengths,
    "genai": make_genai,
    "multimodal": make_multimodal,
    "acme": make_acme,
}


def make_file(name: str, folder: Path) -> None:
    """Make a file of a page in its folder. Raises KeyError for one that nothing makes."""
    name, _, source = name.partition("=")
    path = folder / name.rstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    if path.suffix == ".byoc" and source:
        byoc.partition(source, "dla", output=path, verify=False)
    elif source.startswith("zoo:"):
        onnx.save(zoo.load(source.removeprefix("zoo:")), path)
    elif source in MAKERS:
        MAKERS[source](path)
    elif source:
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, path)
    elif path.suffix == ".byoc":
        make_file("model.onnx", folder)
        with contextlib.chdir(folder):
            byoc.partition("model.onnx", "dla", output=name)
    else:
        MAKERS[path.name](path)
