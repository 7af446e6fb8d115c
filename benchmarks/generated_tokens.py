"""The tokens that bundles of decoders generate, against those of their models in plain onnxruntime.

    python benchmarks/generated_tokens.py [--tokens N] [--seeds N] [--codegens NAME,NAME] [--models NAME]
        [--static-cache] [--driver] [--float-activations]

The zoo's decoders, and decoders like Llama's, Qwen's and Phi's of several layers (`qwen_16_int4`), are
cut for codegens: those of onnxruntime-genai, whose caches are padded, into two variants that read
prompts and two that read a token; those that torch exports, whose caches a Concat makes longer, with
open lengths, or with `--static-cache` into variants that read prompts and one whose cache has one
length. With `--driver` the regions of `dla` run on its driver in C instead of the simulator. With
`--float-activations` onnxruntime, too, multiplies int4 weights by activations in float32, which it
rounds to int8 otherwise. Every operator is offered but GroupQueryAttention to `openvino`, which takes no
empty cache, and `dla` has its own rules; what a codegen refuses is on the host. Sequences are generated
behind prompts that reach every variant. A line is printed for each bundle.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import onnx
from byoc.codegens.dla import DLA

import byoc
from byoc import zoo
from byoc.codegen import Artifact, Executor, Region
from byoc.codegen.drivers import DriverLibrary, build_driver
from byoc.errors import InputError
from byoc.zoo import DecoderSize, make_decoder

_RULES = "target: npu\ncost_model: openvino-cpu\ndtype: any\nops: [{op: '*'}]\n"
_ON_HOST = {"openvino": "host: {ops: [com.microsoft.GroupQueryAttention]}\n"}
_OWN_RULES = ("dla",)  # its compiler takes no region with inputs of int64
_OPTIONS = {("openvino", "int4"): {"dynamic_quantization": "32"}}
_PADDED = ("decoder_int4", "decoder_fp16")
_OPEN = ("gpt2_cached", "t5_cached", "whisper_cached")
_ROWS = {"gpt2_cached": (32,)}  # whose prompts may be padded, so that one variant reads all
_STATIC_ROWS = (1, 4, 16)
_STATIC_PROMPTS = {"gpt2_cached": (1, 7, 32)}
_STATIC_LENGTH = 256
_FAMILIES = [
    f"{family}_{layers}_{kind}"
    for family in ("llama", "qwen", "phi")
    for layers in (2, 16)
    for kind in ("int4", "fp16")
]
_WEIGHTS = {"int4": "int4", "fp16": "float16"}
_LENGTHS = {"read_16": (16, 0), "read_64": (64, 0), "step_128": (1, 128), "step_320": (1, 320)}


@dataclass(frozen=True)
class Trial:
    """What is generated: tokens behind prompts of several seeds, and how models are made and run."""

    tokens: int
    seeds: int
    static_cache: bool
    driver: bool
    float_activations: bool


def main(trial: Trial, codegens: list[str], models: list[str]) -> None:
    """Print a line for each decoder and codegen."""
    print("| model | codegen | variants | nodes | regions | tokens | equal | ties | logits | state |")
    print("|" + "---|" * 10)
    with TemporaryDirectory() as place:
        folder = Path(place)
        for name in models:
            for codegen in codegens:
                is_driven = trial.driver and codegen == "dla"
                with _use_driver(folder) if is_driven else nullcontext():
                    cells = _measure(name, codegen, trial, folder)
                print(f"| `{name}` | `{codegen}` | {cells} |", flush=True)


def _measure(name: str, codegen: str, trial: Trial, folder: Path) -> str:
    """Write a bundle, generate sequences, and return the cells of its line."""
    rules = _write_rules(codegen, folder)
    output = folder / f"{name}-{codegen}.byoc"
    in_float = trial.float_activations
    is_stored = name in (*_PADDED, *_OPEN) and not in_float
    model = f"zoo:{name}" if is_stored else str(_write_decoder(name, folder, in_float))
    options = _choose_variants(name, trial.static_cache)
    prompts = _STATIC_PROMPTS.get(name, _STATIC_ROWS) if "static_cache" in options else ()
    try:
        byoc.partition(
            model,
            rules,
            codegen=codegen,
            codegen_options=None if in_float else _OPTIONS.get((codegen, name.rpartition("_")[2])),
            strategy="all-supported",
            what_if=False,
            output=output,
            **options,
        )
        found = byoc.verify_generation(
            output, model, tokens=trial.tokens, seeds=trial.seeds, prompts=prompts
        )
    except InputError as error:
        return f"{len(options.get('variants', ())) or 'open'} | {error}" + " |" * 6
    bundle = byoc.open_bundle(output)
    counts = [each.variant.report.nodes for each in bundle.variants]
    offloaded = sum(each.offloaded for each in counts)
    differing = sum(len(run.differences) for run in found.runs)
    choices = sum(run.choices for run in found.runs)
    worst_logits = max(run.worst_logits.relative for run in found.runs)
    worst_state = max(run.worst_state.relative for run in found.runs if run.worst_state)
    told = "" if found.passed else " WRONG"
    unreached = f", not reached: {', '.join(found.not_reached)}" if found.not_reached else ""
    return " | ".join(
        [
            f"{len(counts) if options else 'open'}{unreached}",
            f"{offloaded / sum(each.total for each in counts):.0%}",
            str(
                len(bundle.regions()) if not options else sum(len(b.regions()) for b in bundle.variants)
            ),
            f"{choices:,}",
            f"{choices - differing:,}{told}",
            str(sum(run.ties for run in found.runs)),
            f"{worst_logits:.1e}",
            f"{worst_state:.1e}",
        ]
    )


def _choose_variants(name: str, static_cache: bool) -> dict[str, Any]:
    """Return the options that say which lengths a bundle has; none for open ones."""
    if name not in _OPEN:
        lengths = {each: _give_sizes(*sizes) for each, sizes in _LENGTHS.items()}
        return {"dims": {"batch_size": 1}, "variants": lengths}
    if not static_cache:
        return {}
    rows = _ROWS.get(name, _STATIC_ROWS)
    lengths = {f"read_{count}": _give_sizes(count, 0) for count in rows}
    lengths["step"] = _give_sizes(1, _STATIC_LENGTH)
    if name == "t5_cached":  # which has no input that is as long as the total
        for sizes in lengths.values():
            del sizes["total_sequence_length"]
    return {"variants": lengths, "static_cache": True}


@contextmanager
def _use_driver(folder: Path) -> Iterator[None]:
    """Run regions of `dla` on its driver in C, in the place of the simulator."""
    driver = DriverLibrary(build_driver(DLA().driver(), folder / "libdla.so"))

    def load(self: DLA, region: Region, artifact: Artifact) -> Executor:
        return driver.open_region(region, artifact)

    with patch.object(DLA, "load", load):
        yield


def _write_decoder(name: str, folder: Path, in_float: bool) -> Path:
    """Write a decoder, of a family such as `qwen_16_int4` or the zoo's, and return its path."""
    path = folder / f"{name}.onnx"
    if name in (*_PADDED, *_OPEN):
        model = zoo.load(name)
    else:
        family, layers, kind = name.split("_")
        size = DecoderSize(layers=int(layers))
        model = make_decoder(_WEIGHTS[kind], size=size, family=family)
    levels = [a for n in model.graph.node for a in n.attribute if a.name == "accuracy_level"]
    for level in levels if in_float else ():
        level.i = 1  # float32
    onnx.save(model, path)
    return path


def _write_rules(codegen: str, folder: Path) -> str | Path:
    """Return the rule file of a codegen: its own, or one that offers everything."""
    if codegen in _OWN_RULES:
        return codegen
    rules = folder / f"{codegen}.yaml"
    rules.write_text(_RULES + _ON_HOST.get(codegen, ""), encoding="utf-8")
    return rules


def _give_sizes(sequence: int, past: int) -> dict[str, int]:
    return {
        "sequence_length": sequence,
        "past_sequence_length": past,
        "total_sequence_length": past or sequence,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--codegens", default="reference,c,openvino")
    parser.add_argument("--models", default=",".join((*_PADDED, *_OPEN, *_FAMILIES)))
    parser.add_argument("--static-cache", action="store_true", help="give caches one length")
    parser.add_argument("--driver", action="store_true", help="run dla's regions on its driver in C")
    parser.add_argument(
        "--float-activations", action="store_true", help="round no activations before int4 weights"
    )
    chosen = parser.parse_args()
    main(
        Trial(chosen.tokens, chosen.seeds, chosen.static_cache, chosen.driver, chosen.float_activations),
        chosen.codegens.split(","),
        chosen.models.split(","),
    )
