"""Write decoders as people export them: seven families of transformers, by both exporters of torch.

    python benchmarks/decoder_exports.py FOLDER [--models NAME,NAME] [--exporters old,dynamo]
        [--train FILE-OR-FOLDER --steps N]

It takes `pip install torch transformers onnxscript` in an environment of its own; byoc is not imported.
Every decoder has two layers of 64, a vocabulary of 256, a cache of keys and values that a Concat makes
longer, and seeded weights. `NAME_old.onnx` is of the exporter that traces, `NAME_dynamo.onnx` of the one
that is built on torch.export, which calls each open length by a name of its own. Both are compared with
torch in onnxruntime, on a prompt and on tokens behind it; a difference ends the program with code 1.

With `--train` a decoder like Llama's learns the bytes of texts, those of a file or
of `*.md`, `*.rst`, `*.txt` and `*.py` below a folder, and is written as `trained_old.onnx` and
`trained_dynamo.onnx`; without `--models` it is the only one. What it has not seen, a tenth of the texts,
gives the loss that is printed.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

_SIZE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm": (
        "Llama",
        {
            "hidden_size": 72,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
    ),
    "llama": ("Llama", {"rope_theta": 500000.0}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 32,
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 32,
        },
    ),
    "gpt2": ("GPT2", {"num_key_value_heads": 4, "n_positions": 1024}),
    "mistral": ("Mistral", {"sliding_window": 64, "head_dim": 16}),
    "phi3": ("Phi3", {}),
}
_TEXTS = ("*.md", "*.rst", "*.txt", "*.py")
_TOLERANCE = 2e-5
"""The largest difference between torch and onnxruntime, as a share of the range of the logits."""

Arrays = dict[str, "np.ndarray[Any, Any]"]


class CachedDecoder(torch.nn.Module):
    """A decoder that takes and returns its cache as tensors: a key and a value of each layer."""

    def __init__(self, model: Any) -> None:
        """Wrap a causal language model of transformers."""
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Return logits [batch, seq, vocabulary], then keys and values [batch, heads, total, width]."""
        pairs = list(zip(past[::2], past[1::2], strict=True))
        cache = DynamicCache(pairs)
        found = self.model(
            input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True
        )
        states = [each for layer in found.past_key_values.layers for each in (layer.keys, layer.values)]
        return (found.logits, *states)


def main(chosen: argparse.Namespace) -> int:
    """Write the decoders, print a line for each, and return the exit code."""
    warnings.simplefilter("ignore")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    exporters = chosen.exporters.split(",")
    wrong = 0
    families = [] if chosen.train else [*_FAMILIES]
    for name in chosen.models.split(",") if chosen.models else families:
        wrong += write_decoder(name, build_decoder(name), chosen.folder, exporters)
    if chosen.train:
        wrong += write_decoder("trained", train(chosen.train, chosen.steps), chosen.folder, exporters)
    return int(wrong > 0)


def build_decoder(name: str, spread: float = 2.5) -> Any:
    """Return a decoder of a family with seeded weights, in float32, to be evaluated.

    Those of a matrix have a deviation of `spread`, over the root of the number of its columns. The
    default is so wide that the tokens that are generated differ.
    """
    kind, own = _FAMILIES[name]
    config = getattr(transformers, f"{kind}Config")(**{**_SIZE, **own})
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for each in model.parameters():
        if each.dim() > 1:
            torch.nn.init.normal_(each, std=spread / each.shape[-1] ** 0.5)
    return model


def write_decoder(name: str, model: Any, folder: Path, exporters: list[str]) -> int:
    """Export a decoder by each exporter, and return how many differ from torch."""
    wrong = 0
    for exporter in exporters:
        path = folder / f"{name}_{exporter}.onnx"
        export(CachedDecoder(model).eval(), path, exporter)
        worst = compare(model, path)
        wrong += not worst <= _TOLERANCE
        print(f"{path.stem}: largest difference {worst:.1e} of the range", flush=True)
    return wrong


def export(decoder: CachedDecoder, path: Path, exporter: str) -> None:
    """Write a decoder whose batch, tokens and past are open."""
    ids, mask, past = make_inputs(decoder.model, batch=2, tokens=3, before=5)
    states = [f"{i}.{part}" for i in range(len(past) // 2) for part in ("key", "value")]
    names = ["input_ids", "attention_mask", *(f"past_key_values.{each}" for each in states)]
    given: dict[str, Any] = {
        "input_names": names,
        "output_names": ["logits", *(f"present.{each}" for each in states)],
    }
    if exporter == "old":
        axes = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "total"}}
        axes["logits"] = axes["input_ids"]
        for each in states:
            axes[f"past_key_values.{each}"] = {0: "batch", 2: "past"}
            axes[f"present.{each}"] = {0: "batch", 2: "total"}
        given |= {"dynamic_axes": axes, "opset_version": 17, "dynamo": False}
    else:
        is_open = torch.export.Dim.DYNAMIC
        cache = [{0: is_open, 2: is_open} for _ in past]
        shapes = ({0: is_open, 1: is_open}, {0: is_open, 1: is_open}, cache)
        given |= {"dynamic_shapes": shapes, "dynamo": True, "external_data": False, "verbose": False}
    with torch.no_grad():
        torch.onnx.export(decoder, (ids, mask, past), path, **given)


def make_inputs(
    model: Any, batch: int, tokens: int, before: int
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return seeded tokens, a mask of ones, and a cache of `before` positions."""
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    random = torch.Generator().manual_seed(tokens)
    ids = torch.randint(3, 256, (batch, tokens), generator=random)
    mask = torch.ones(batch, before + tokens, dtype=torch.int64)
    shape = (batch, heads, before, width)
    past = [torch.randn(shape, generator=random) for _ in range(2 * config.num_hidden_layers)]
    return ids, mask, past


def compare(model: Any, path: Path) -> float:
    """Return the largest difference of logits to torch's: a prompt, then tokens behind it."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    outputs = [each.name for each in session.get_outputs()]
    worst = 0.0
    for batch, prompt in ((1, 7), (3, 100)):
        ids, _, empty = make_inputs(model, batch, prompt + 4, 0)
        whole = model(input_ids=ids).logits.detach().numpy()
        state = [each.numpy() for each in empty]
        for start, end in ((0, prompt), *((prompt + i, prompt + i + 1) for i in range(4))):
            mask = np.ones((batch, end), np.int64)
            feeds: Arrays = dict(zip(names, [ids[:, start:end].numpy(), mask, *state], strict=True))
            logits, *state = session.run(outputs, feeds)
            worst = max(worst, float(np.abs(logits - whole[:, start:end]).max() / np.ptp(whole)))
    return worst


# A decoder that learned the bytes of texts.


def train(source: Path, steps: int) -> Any:
    """Return a decoder like Llama's that has read bytes; the loss on unseen texts is printed."""
    texts = list(_read_texts(source))
    random = torch.Generator().manual_seed(0)
    order = torch.randperm(len(texts), generator=random).tolist()
    unseen = max(1, len(texts) // 10)
    parts = [b"\n\n".join(texts[i] for i in part) for part in (order[:unseen], order[unseen:])]
    held, seen = (torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts)
    model = build_decoder("llama", spread=0.5).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        loss = _find_loss(model, seen, random)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    model.eval()
    with torch.no_grad():
        losses = [_find_loss(model, held, random).item() for _ in range(10)]
    print(f"{len(seen)} bytes read, {len(held)} unseen: {np.mean(losses):.3f} nats a byte of these")
    return model


def _find_loss(model: Any, text: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Return the mean loss on 16 pieces of 128 bytes."""
    starts = torch.randint(len(text) - 128, (16,), generator=random).tolist()
    batch = torch.stack([text[start : start + 128] for start in starts]).long()
    loss: torch.Tensor = model(input_ids=batch, labels=batch).loss
    return loss


def _read_texts(source: Path) -> Iterator[bytes]:
    paths = [source] if source.is_file() else sorted(p for form in _TEXTS for p in source.rglob(form))
    for path in paths:
        text = path.read_bytes()
        if len(text) > 128:
            yield text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", help=f"of {', '.join(_FAMILIES)}; all unless given")
    parser.add_argument("--exporters", default="old,dynamo")
    parser.add_argument("--train", type=Path, help="texts that a further decoder learns")
    parser.add_argument("--steps", type=int, default=600)
    sys.exit(main(parser.parse_args()))
