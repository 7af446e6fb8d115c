"""The tokens that bundles of decoders generate, against those of their models in plain onnxruntime.

    python benchmarks/generated_tokens.py [--tokens N] [--seeds N] [--codegens NAME,NAME] [--models NAME]
        [--static-cache] [--driver] [--float-activations]
        [--exports FOLDER] [--prompts N,N] [--batches N,N] [--buckets N,N] [--cache N]

The zoo's decoders, and decoders like Llama's, Qwen's and Phi's of several layers (`qwen_16_int4`), are
cut for codegens: those of onnxruntime-genai, whose caches are padded, into two variants that read
prompts and two that read a token; those that torch exports, whose caches a Concat makes longer, with
open lengths, or with `--static-cache` into variants that read prompts and one whose cache has one
length. With `--driver` the regions of `dla` run on its driver in C instead of the simulator. With
`--float-activations` onnxruntime, too, multiplies int4 weights by activations in float32, which it
rounds to int8 otherwise. Every operator is offered but GroupQueryAttention to `openvino`, which takes no
empty cache, and `dla` has its own rules; what a codegen refuses is on the host. Sequences are generated
behind prompts that reach every variant. A line is printed for each bundle.

With `--exports` the models are the files of a folder: decoders whose cache a Concat makes longer,
whatever their exporter calls the lengths. With `--static-cache` a bundle of one has a variant without
a past for each bucket, one that reads the largest bucket behind a past, and one for a token, with
caches of `--cache` positions. In a batch of several rows these are beams besides: the best
continuations of one prompt, `reorder` between tokens, against onnxruntime with its caches gathered.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
from byoc.codegens.dla import DLA
from numpy.typing import NDArray

import byoc
from byoc import zoo
from byoc.codegen import Artifact, Executor, Region
from byoc.codegen.drivers import DriverLibrary, build_driver
from byoc.errors import InputError
from byoc.padding import list_cache_lengths
from byoc.samples import find_decoder_inputs
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


@dataclass(frozen=True)
class ExportTrial:
    """How exported decoders are tried: lengths of prompts, batches, and the lengths of variants."""

    prompts: Sequence[int]
    batches: Sequence[int]
    buckets: Sequence[int]
    cache: int


def main(trial: Trial, codegens: list[str], models: list[str]) -> None:
    """Print a line for each decoder of the zoo and codegen."""
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


# Decoders that were exported into a folder.


def try_exports(
    folder: Path, trial: Trial, sizes: ExportTrial, codegens: list[str], models: list[str]
) -> None:
    """Print a line for each exported decoder, codegen and batch."""
    print("| model | codegen | caches | batch | regions | tokens | equal | ties | logits | beams |")
    print("|" + "---|" * 10)
    with TemporaryDirectory() as given:
        place = Path(given)
        for path in sorted(folder.glob("*.onnx")):
            if models and path.stem not in models:
                continue
            for codegen in codegens:
                form = sizes.cache if trial.static_cache else "open"
                for batch in sizes.batches:
                    rules = _write_rules(codegen, place)
                    options = _choose_export_variants(path, batch, trial, sizes)
                    is_driven = trial.driver and codegen == "dla"
                    with _use_driver(place) if is_driven else nullcontext():
                        output = place / f"{path.stem}-{codegen}-{batch}.byoc"
                        options |= {"rules": rules, "codegen": codegen, "output": output}
                        cells = _try_export(path, options, trial, sizes.prompts)
                    print(f"| `{path.stem}` | `{codegen}` | {form} | {batch} | {cells} |", flush=True)


def _try_export(path: Path, options: dict[str, Any], trial: Trial, prompts: Sequence[int]) -> str:
    """Write a bundle of an exported decoder, generate, and return the cells of its line."""
    output, batch = options["output"], max(options["dims"].values())
    try:
        # Not verified: the tokens say more.
        byoc.partition(path, strategy="all-supported", what_if=False, verify=False, **options)
        found = byoc.verify_generation(
            output, path, tokens=trial.tokens, seeds=trial.seeds, prompts=tuple(prompts)
        )
        beams = _follow_beams(output, path, batch, trial.tokens) if batch > 1 else ""
    except InputError as error:
        return f"{error}" + " |" * 5
    differing = sum(len(run.differences) for run in found.runs)
    choices = sum(run.choices for run in found.runs)
    regions = sum(len(each.regions()) for each in byoc.open_bundle(output).variants)
    told = "" if found.passed else " WRONG"
    worst = max(run.worst_logits.relative for run in found.runs)
    ties = sum(run.ties for run in found.runs)
    return f"{regions} | {choices:,} | {choices - differing:,}{told} | {ties} | {worst:.1e} | {beams}"


def _choose_export_variants(path: Path, batch: int, trial: Trial, sizes: ExportTrial) -> dict[str, Any]:
    """Return the options that say which lengths a bundle has, by the names that an export gives them."""
    model = zoo.load_model(path)
    decoder = find_decoder_inputs(model)
    past = list_cache_lengths(model)[0]
    shapes = (model.index.get_shape(name) or () for name in model.index.inputs)
    options: dict[str, Any] = {"dims": {shape[0]: batch for shape in shapes}}
    if trial.static_cache:
        largest = max(sizes.buckets)
        lengths = {f"read_{size}": (size, 0) for size in sizes.buckets}
        lengths |= {f"go_on_{largest}": (largest, sizes.cache), "step": (1, sizes.cache)}
        options["static_cache"] = True
        options["variants"] = {
            name: {decoder.sequence: size, past: before} for name, (size, before) in lengths.items()
        }
    return options


def _follow_beams(output: Path, path: Path, width: int, tokens: int) -> str:
    """Return of how many steps the beams of a bundle are those of onnxruntime, which both follow."""
    decoder = find_decoder_inputs(zoo.load_model(path))
    plain = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in plain.get_outputs()]
    session = byoc.open_stateful(byoc.load(output))
    prompt = np.tile(decoder.draw_prompt(0, 17)[:1], (width, 1))
    state = {name: _repeat_rows(each, width) for name, each in decoder.make_empty_state(17).items()}
    scores = np.array([0.0, *[-np.inf] * (width - 1)])  # the rows are the same at first
    equal = ties = past = 0
    for _ in range(tokens):
        step = decoder.make_step(prompt, past, {})
        inputs = {name: _repeat_rows(array, width) for name, array in step.items()}
        past += prompt.shape[1]
        found = dict(zip(names, plain.run(names, {**inputs, **state}), strict=True))
        own, other = (
            _list_continuations(scores, logits[decoder.logits][:, -1])
            for logits in (found, session(inputs))
        )
        best, theirs = (np.argsort(-each, kind="stable")[:width] for each in (own, other))
        equal += np.array_equal(best, theirs)
        margin = np.abs(own[best] - own[theirs]).max()
        ties += bool(np.any(best != theirs) and margin <= 1e-5 * np.abs(own[best]).max())
        scores = own[best]
        rows, chosen = np.divmod(best, own.size // width)
        session.reorder(rows.tolist())
        state = {pair.past: found[pair.present][rows] for pair in decoder.pairs}
        prompt = chosen[:, None]
    return f"{equal} of {tokens}" + (f", {ties} ties" if ties else "")


def _repeat_rows(array: NDArray[Any], width: int) -> NDArray[Any]:
    return array if len(array) == width else np.repeat(array[:1], width, axis=0)


def _list_continuations(scores: NDArray[Any], logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return the logarithm of the probability of each row with each token behind it, flat."""
    numbers = logits.astype(np.float64)
    numbers -= numbers.max(axis=-1, keepdims=True)
    numbers -= np.log(np.exp(numbers).sum(axis=-1, keepdims=True))
    return (scores[:, None] + numbers).ravel()


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
    parser.add_argument("--models", help="all unless given; of exports the names of files")
    parser.add_argument("--static-cache", action="store_true", help="give caches one length")
    parser.add_argument("--driver", action="store_true", help="run dla's regions on its driver in C")
    parser.add_argument(
        "--float-activations", action="store_true", help="round no activations before int4 weights"
    )
    parser.add_argument("--exports", type=Path, help="a folder of exported decoders")
    parser.add_argument("--prompts", default="1,15,16,17,63,64,65,200,500")
    parser.add_argument("--batches", default="1,3")
    parser.add_argument("--buckets", default="16,64")
    parser.add_argument("--cache", type=int, default=768)
    chosen = parser.parse_args()
    trial = Trial(
        chosen.tokens, chosen.seeds, chosen.static_cache, chosen.driver, chosen.float_activations
    )
    codegens = chosen.codegens.split(",")
    models = chosen.models.split(",") if chosen.models else []
    if chosen.exports:
        prompts, batches, buckets = (
            [int(number) for number in text.split(",")]
            for text in (chosen.prompts, chosen.batches, chosen.buckets)
        )
        sizes = ExportTrial(prompts, batches, buckets, chosen.cache)
        try_exports(chosen.exports, trial, sizes, codegens, models)
    else:
        main(trial, codegens, models or [*_PADDED, *_OPEN, *_FAMILIES])
