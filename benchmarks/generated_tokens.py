"""The tokens that bundles of decoders generate, against those of their models in plain onnxruntime.

    python benchmarks/generated_tokens.py [--tokens N] [--seeds N] [--codegens NAME,NAME] [--models NAME]

The zoo's decoders, and decoders like Llama's, Qwen's and Phi's of several layers (`qwen_16_int4`), are
cut for codegens: those of onnxruntime-genai, whose caches are padded, into two variants that read
prompts and two that read a token; those that torch exports, whose caches a Concat makes longer, with
open lengths. Every operator is offered but GroupQueryAttention to `openvino`, which takes no empty
cache, and `dla` has its own rules; what a codegen refuses is on the host. Sequences are generated
behind prompts that reach every variant. A line is printed for each bundle.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

import byoc
from byoc.errors import InputError
from byoc.zoo._decoder_families import make_family_decoder
from byoc.zoo._decoders import OPEN, DecoderSize

_RULES = "target: npu\ncost_model: openvino-cpu\ndtype: any\nops: [{op: '*'}]\n"
_ON_HOST = {"openvino": "host: {ops: [com.microsoft.GroupQueryAttention]}\n"}
_OWN_RULES = ("dla",)  # its compiler takes no region with inputs of int64
_OPTIONS = {("openvino", "int4"): {"dynamic_quantization": "32"}}
_PADDED = ("decoder_int4", "decoder_fp16")
_OPEN = ("gpt2_cached", "t5_cached", "whisper_cached")
_FAMILIES = [
    f"{family}_{layers}_{kind}"
    for family in ("llama", "qwen", "phi")
    for layers in (2, 16)
    for kind in ("int4", "fp16")
]
_WEIGHTS = {"int4": "int4", "fp16": "float16"}
_LENGTHS = {"read_16": (16, 0), "read_64": (64, 0), "step_128": (1, 128), "step_320": (1, 320)}


def main(tokens: int, seeds: int, codegens: list[str], models: list[str]) -> None:
    """Print a line for each decoder and codegen."""
    print("| model | codegen | variants | nodes | regions | tokens | equal | ties | logits | state |")
    print("|" + "---|" * 10)
    with TemporaryDirectory() as place:
        for name in models:
            for codegen in codegens:
                print(
                    f"| `{name}` | `{codegen}` | {_measure(name, codegen, tokens, seeds, Path(place))} |"
                )


def _measure(name: str, codegen: str, tokens: int, seeds: int, folder: Path) -> str:
    """Write a bundle, generate sequences, and return the cells of its line."""
    rules = _write_rules(codegen, folder)
    output = folder / f"{name}-{codegen}.byoc"
    variants = {each: _give_sizes(*lengths) for each, lengths in _LENGTHS.items()}
    options = {} if name in _OPEN else {"dims": {"batch_size": 1}, "variants": variants}
    model = f"zoo:{name}" if name in (*_PADDED, *_OPEN) else str(_write_decoder(name, folder))
    try:
        byoc.partition(
            model,
            rules,
            codegen=codegen,
            codegen_options=_OPTIONS.get((codegen, name.rpartition("_")[2])),
            strategy="all-supported",
            what_if=False,
            output=output,
            **options,
        )
        found = byoc.verify_generation(output, model, tokens=tokens, seeds=seeds)
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


def _write_decoder(name: str, folder: Path) -> Path:
    """Write a decoder of a family, as `qwen_16_int4` or `phi_2_fp16`, and return its path."""
    family, layers, kind = name.split("_")
    path = folder / f"{name}.onnx"
    size = DecoderSize(layers=int(layers))
    onnx.save(make_family_decoder(family, _WEIGHTS[kind], OPEN, size), path)
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
    chosen = parser.parse_args()
    main(chosen.tokens, chosen.seeds, chosen.codegens.split(","), chosen.models.split(","))
