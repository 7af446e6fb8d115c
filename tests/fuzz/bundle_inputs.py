"""Bundles that are nearly right: written by byoc, then changed in one of their files.

An input is a zip, whatever the target makes of it: a folder, the packed bundle itself, or an artifact.
Most of the changed manifests state the right sizes and hashes, so that what lies behind them is reached.
"""

import gzip
import hashlib
import io
import json
import random
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import model_inputs
import word_inputs
from helpers.cutting import CHAIN, UNLIKE, cut, number_regions, without_what_ifs
from helpers.support import parse
from text_inputs import TextInputs

from byoc import partition

MANIFEST, SIGNATURE = "manifest.json", "signature.json"
DEFLATED = zipfile.ZIP_DEFLATED

_BRANCHES = """
branches (float[N, 4] x, bool c) => (float[N, 4] y) <float[300] w> {
  a = Relu(x)
  b = If(c) <
    then_branch = t () => (float[N, 4] p) { p = Relu(a) },
    else_branch = e () => (float[N, 4] q) { r = Sigmoid(a) q = Relu(r) }
  >
  d = Sigmoid(b)
  y = Add(d, a)
}
"""
_STEPS = """
steps (float[2, 4] x, float[N, 2, 4] s) => (float[2, 4] y, float[N, 2, 4] z) {
  y, z = Scan <
    num_scan_inputs = 1,
    body = b (float[2, 4] p, float[2, 4] q) => (float[2, 4] r, float[2, 4] t) {
      r = Add(p, q)
      u = Sigmoid(r)
      t = Relu(u)
    }
  > (x, s)
}
"""
_LAYERS = """
layers (float[1, 3, 8, 8] x) => (float[1, 4] y) <float[4, 3, 3, 3] w, float[4] v> {
  c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w, v)
  r = Relu (c)
  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
  g = GlobalAveragePool (p)
  s = Shape <end = 2> (g)
  y = Reshape (g, s)
}
"""
_SUMS = """
sums (float[1, 4, 6, 6] x, float[1, 4, 6, 6] z) => (float[1, 4, 6, 6] y) {
  a = Add(x, z)
  y = Mul(a, x)
}
"""
_ATTENTION = """
attention (float[1, 2, 4, 6] x, float[1, 2, 6, 4] z) => (float[1, 4, 2, 6] y) <float[6] w> {
  p = MatMul(x, z)
  s = Softmax <axis = -1> (p)
  c = MatMul(s, x)
  n = LayerNormalization <axis = -1> (c, w)
  y = Transpose <perm = [0, 2, 1, 3]> (n)
}
"""
_WORDS: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2,
    2**31,
    2**63,
    10**30,
    0.5,
    1e308,
    "",
    "x",
    "a",
    "b",
    "y",
    "NHWC",
]
_WORDS += [
    "float32",
    "float16",
    "int8",
    "string",
    "N",
    "N + 1",
    "host",
    "device",
    "model",
    "layout",
    "cast",
]
_WORDS += [
    "dla_0",
    "dla_1",
    "dla",
    "reference",
    "openvino",
    "model.onnx",
    "dla_0.onnx",
    "weights.bin",
    "\x1b[2J",
]
_WORDS += [
    "../x",
    "/etc/passwd",
    "nul",
    "a\nb",
    "\u202e",
    "scale",
    "zero_point",
    "same_as",
    "program.bin",
    "é",
]
_WORDS += [
    "artifacts/dla_0/program.bin",
    "references",
    "path",
    "n" * 3000,
    [],
    {},
    [1],
    [None],
    ["N"],
    "version",
    "C:x",
    "[[x]]",
]
_HOSTILE = (b'{"a": 1, "a": 2}', b"[" * 3000, b'{"a": NaN}', b"\xff\xfe", b"9" * 5000, b"")


@cache
def seeds() -> tuple[bytes, ...]:
    """Return zips of bundles of small models, compiled by `reference` and by `dla`."""
    # The words above are names of regions.
    with (
        tempfile.TemporaryDirectory(prefix="byoc-fuzz-") as name,
        without_what_ifs(),
        number_regions(),
    ):
        folder = Path(name)
        for number, text in enumerate((CHAIN, UNLIKE, _BRANCHES, _STEPS)):
            cut(_fill(text), folder / f"b{number}", cache=False)
        for number, text in enumerate((_LAYERS, _SUMS, _ATTENTION)):
            given = {"strategy": "all-supported", "strict": True, "cache": False, "no_passes": ["all"]}
            partition(_fill(text), "dla", output=folder / f"d{number}", **given)
        return tuple(join(_read_folder(path)) for path in sorted(folder.iterdir()))


def _fill(text: str) -> Any:
    model = parse(text)
    model_inputs.fill(model, {"w", "v"})
    return model


def _read_folder(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def join(files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip of files, the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            archive.writestr(info, content)
    return buffer.getvalue()


def split(data: bytes) -> dict[str, bytes] | None:
    """Return the files of a zip as `join` writes them, None for any other bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > 1 << 20:
                return None
            return {info.filename: archive.read(info) for info in archive.infolist()}
    except Exception:  # zipfile raises whatever damaged bytes lead to
        return None


def make(chance: random.Random) -> bytes:
    """Return one bundle in a zip."""
    return mutate(chance.choice(seeds()), chance)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return a bundle changed in its manifest, in another file, or in the bytes of its zip."""
    files = split(data)
    if not files or chance.random() < 0.05:
        return model_inputs.mutate_bytes(data, chance)
    while True:
        _change_files(files, chance)
        if chance.random() < 0.6:
            break
    if chance.random() < 0.9:
        _state_hashes(files)
    joined = join(files, DEFLATED if chance.random() < 0.1 else zipfile.ZIP_STORED)
    return joined if len(joined) < 1 << 17 else data


def _change_files(files: dict[str, bytes], chance: random.Random) -> None:
    name = MANIFEST if chance.random() < 0.5 and MANIFEST in files else chance.choice(list(files))
    action = chance.random()
    if action < 0.03 and len(files) > 1:
        del files[name]
    elif action < 0.06:
        files[str(chance.choice([word for word in _WORDS if word and isinstance(word, str)]))] = files[
            name
        ]
    elif action < 0.1:
        other = split(chance.choice(seeds())) or {}
        files[name] = other.get(name) or chance.choice(list(other.values()))
    elif name == MANIFEST or name.endswith(".json"):
        files[name] = change_json(files[name], chance)
    elif name.endswith(".json.gz") and chance.random() < 0.8:
        with suppress(OSError, EOFError, zlib.error):  # it was changed before
            changed = change_json(gzip.decompress(files[name]), chance)
            files[name] = gzip.compress(changed, mtime=0)
    elif name.endswith(".onnx"):
        files[name] = model_inputs.mutate(files[name], chance)
    else:
        files[name] = word_inputs.mutate_words(files[name], chance)


@cache
def _json_inputs() -> TextInputs:
    each = (item for data in seeds() for item in (split(data) or {}).items())
    files = [content for name, content in each if name.endswith(".json")]
    return TextInputs(tuple(files), tuple(_WORDS))


def change_json(content: bytes, chance: random.Random) -> bytes:
    action = chance.random()
    if action < 0.03:
        return chance.choice(_HOSTILE)
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        parsed = None
    if action < 0.15 or parsed is None:
        return _json_inputs().mutate_text(content, chance)
    if action < 0.65 and isinstance(parsed, dict):  # what is read behind the hashes
        part = parsed.get("regions") or parsed.get("inputs") or parsed
        _json_inputs().change(part, chance)
    else:
        parsed = _json_inputs().change(parsed, chance)
    return json.dumps(parsed, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")


def _state_hashes(files: dict[str, bytes]) -> None:
    """Write sizes and hashes of all files into the manifest, if it is one."""
    try:
        manifest = json.loads(files.get(MANIFEST, b""))
        stated = manifest["files"]
        for name, content in files.items():
            if name not in (MANIFEST, SIGNATURE):
                stated[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        files[MANIFEST] = json.dumps(manifest).encode("utf-8", "surrogatepass")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return
