"""A package of three models for five devices against single bundles: bytes, copies, compiles, loading.

    python benchmarks/package_sizes.py [MODEL...]

Each model is quantized to int8 by onnxruntime, with ranges of random data, and cut for `dla`,
`openvino-cpu`, two generations of `ethos-u55`, and C. A single bundle is that of one model for one
device. Compiles are counted without a cache. Times are of the processor, the least of ten, in turn with
those of a bundle of one model for the same devices.
"""

import hashlib
import logging
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
import onnx
from onnx.version_converter import convert_version
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import byoc
from byoc.bundle import list_models, open_bundle
from byoc.codegen import Codegens
from byoc.model import find_external_data, walk_tensors

_MODELS = ("zoo:squeezenet", "zoo:mobilenet_v3_large", "zoo:yunet")
_GENERATIONS = ("u55-128", "u55-256")
_LEAST_VERSION = 13  # of ONNX's operators, for onnxruntime's quantization
_RULES = "extends: dla\ntarget: host_c\ncodegen: c\n"


def main(models: list[str]) -> None:
    """Print the sizes, the number of copies of weights, compiles, and times."""
    logging.disable(logging.WARNING)  # onnxruntime's, on how it would rather quantize
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "host_c.yaml").write_text(_RULES)
        devices = {"board": "dla", "pc": "openvino-cpu", "host": str(folder / "host_c.yaml")}
        devices |= {name.replace("-", "x"): f"ethos-u55:{name}" for name in _GENERATIONS}
        options = {"cache": False, "verify": False, "strategy": "all-supported", "what_if": False}
        models = [str(_quantize(name, folder / f"{number}.onnx")) for number, name in enumerate(models)]
        models = [f"m{number}={path}" for number, path in enumerate(models)]
        singles = 0
        for model in models:
            for name, rules in devices.items():
                output = folder / f"{model.partition('=')[0]}_{name}"
                byoc.partition(model.partition("=")[2], rules, output=output, **options)
                singles += _measure(output)
        with _CompileCount() as compiles:
            byoc.package(models, output=folder / "p", devices=devices, **options)
        found = [open_bundle(each, trust=True) for each in list_models(folder / "p")]
        regions = sum(len(each.manifest.regions) for each in found)
        whole = _measure(folder / "p")
        print(f"{len(models)} models, {len(devices)} devices: {whole:,} bytes, {whole / singles:.3f} of")
        print(f"the {singles:,} of {len(models) * len(devices)} single bundles")
        copies = _count_copies(folder / "p")
        print(f"{len(copies)} weights, at most {max(copies.values())} copy of each")
        print(f"{compiles.count} compiles for {regions} regions")
        first = list_models(folder / "p")[0]
        variants = {name: {"rules": rules} for name, rules in devices.items()}
        byoc.partition(models[0].partition("=")[2], variants=variants, output=folder / "b", **options)
        for what, ask in (("byoc.load", byoc.load), ("byoc.find_fitting", byoc.find_fitting)):
            single, packed = _time_in_turn(lambda ask=ask: ask(folder / "b"), lambda ask=ask: ask(first))
            times = f"{single * 1e3:.1f} ms of a bundle, {packed * 1e3:.1f} ms of a package"
            print(f"{what}: {times}, {packed / single:.3f}")


class _RandomReader(CalibrationDataReader):
    """Gives a few random inputs of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        random = np.random.default_rng(0)
        (value,) = model.graph.input
        shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
        samples = (random.random(shape, dtype=np.float32) for _ in range(4))
        self._samples = iter([{value.name: sample} for sample in samples])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


def _quantize(name: str, path: Path) -> Path:
    """Write a model in int8, with QuantizeLinear and DequantizeLinear around each operator."""
    loaded = byoc.simplify(name).model.proto
    if loaded.opset_import[0].version < _LEAST_VERSION:
        loaded = convert_version(loaded, _LEAST_VERSION)
    onnx.save(loaded, path)
    quantize_static(
        path,
        path,
        _RandomReader(loaded),
        extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
    )
    return path


class _CompileCount:
    """Counts the calls of `compile` of all codegens while the block runs."""

    def __enter__(self) -> "_CompileCount":
        self.count = 0
        self._patched = []
        for name in ("dla", "openvino", "c", "ethos_u"):
            kind = type(Codegens().find(name))
            self._patched.append((kind, kind.compile))
            kind.compile = self._wrap(kind.compile)
        return self

    def _wrap(self, compile_region: object) -> object:
        def count(*arguments: object) -> object:
            self.count += 1
            return compile_region(*arguments)

        return count

    def __exit__(self, *_: object) -> None:
        for kind, before in self._patched:
            kind.compile = before


def _time_in_turn(one: object, other: object) -> tuple[float, float]:
    best = [float("inf")] * 2
    for _ in range(10):
        for number, run in enumerate((one, other)):
            before = process_time()
            run()
            best[number] = min(best[number], process_time() - before)
    return best[0], best[1]


def _measure(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def _count_copies(folder: Path) -> dict[bytes, int]:
    """Return the number of places of each weight in files beside models, by its SHA-256."""
    places = defaultdict(set)
    for path in folder.glob("*.onnx"):
        for tensor in walk_tensors(onnx.load(path, load_external_data=False)):
            found = find_external_data(tensor, folder)
            if found is not None:
                with found.path.open("rb") as file:
                    file.seek(found.offset)
                    digest = hashlib.sha256(file.read(found.length)).digest()
                places[digest].add((found.path, found.offset))
    return {digest: len(each) for digest, each in places.items()}


if __name__ == "__main__":
    main(sys.argv[1:] or list(_MODELS))
