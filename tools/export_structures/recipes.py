"""The structures to export: a function for each builds it from its definition, without weights."""

from collections.abc import Callable
from dataclasses import dataclass, field

import standins  # noqa: F401 - makes torchvision importable
import timm
import torch
import transformers
from torch import nn
from torchvision import models as vision

SWIN = "swin_tiny_patch4_window7_224"
BSD, APACHE = "BSD-3-Clause", "Apache-2.0"

Feed = dict[str, object]
PHOTO: Feed = {"like": "photo"}
ONES: Feed = {"like": "value", "value": 1, "type": "int64"}


@dataclass(frozen=True)
class Made:
    """A module with sample arguments, and what later samples of each input are like.

    The kinds of samples are those of `byoc/zoo/_sample_inputs.py`. `open_axes` names the open extents of
    inputs and outputs.
    """

    module: nn.Module
    arguments: dict[str, torch.Tensor]
    feeds: dict[str, Feed]
    outputs: tuple[str, ...]
    target: Callable[[str], float] = field(default=lambda name: 1.0)
    positions: str = ""
    keep: str = ""
    open_axes: dict[str, dict[int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """The family, source and licence of a structure, and the function that builds it."""

    family: str
    source: str
    licence: str
    make: Callable[[], Made]


def _image(module: nn.Module, size: int, output: str = "logits", **more: object) -> Made:
    return Made(module, {"image": _photo(3, size, size)}, {"image": PHOTO}, (output,), **more)


def _photo(channels: int, height: int, width: int) -> torch.Tensor:
    """Lay squares of random colour over each other: equal power in each octave, as samples have."""
    torch.manual_seed(1)
    image = torch.zeros(1, channels, height, width)
    for edge in (256, 32, 16, 8, 4, 2, 1):
        colours = torch.randn(1, channels, -(-height // edge), -(-width // edge)) * 7**-0.5
        image += colours.repeat_interleave(edge, 2).repeat_interleave(edge, 3)[..., :height, :width]
    return image


def _ids(vocabulary: int) -> Feed:
    return {"like": "integers", "low": 0, "high": vocabulary - 1, "type": "int64"}


def _tokens(vocabulary: int, length: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(0, vocabulary, (1, length))


def _quiet(*endings: str) -> Callable[[str], float]:
    """Return a target by which layers whose names end so give little.

    That is for branches: with attention of full strength all tokens become one, and the output
    forgets the input. And for the gates of squeeze-and-excitation, which multiply.
    """
    return lambda name: 0.2 if name.endswith(endings) else 1.0


class _Only(nn.Module):
    """Give one field of a model's answer as a plain tensor, and take arguments by name."""

    def __init__(self, model: nn.Module, names: list[str], *fields: str) -> None:
        super().__init__()
        self.model, self.names, self.fields = model, names, fields

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        answer = self.model(**dict(zip(self.names, arguments, strict=True)), return_dict=True)
        return tuple(getattr(answer, name) for name in self.fields)


def _vision(name: str, family: str, size: int = 224, **more: object) -> Recipe:
    def make() -> Made:
        return _image(vision.get_model(name, weights=None), size, **more)

    return Recipe(family, f"torchvision 0.28.0, {name}", BSD, make)


def _vit() -> Made:
    return _image(timm.create_model("vit_tiny_patch16_224"), 224, positions="pos_embed,cls_token")


def _swin() -> Made:
    return _image(timm.create_model(SWIN), 224, positions="relative_position_bias_table")


def _segformer() -> Made:
    config = transformers.SegformerConfig()
    model = transformers.SegformerForSemanticSegmentation(config)
    return _image(_Only(model, ["pixel_values"], "logits"), 256)


def _bert() -> Made:
    config = transformers.BertConfig(
        hidden_size=384, intermediate_size=1536, attn_implementation="eager"
    )
    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = _tokens(config.vocab_size, 64)
    values = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    return Made(
        _Only(transformers.BertModel(config), names, "last_hidden_state", "pooler_output"),
        dict(zip(names, values, strict=True)),
        dict(zip(names, (_ids(config.vocab_size), ONES, _ids(2)), strict=True)),
        ("last_hidden_state", "pooler_output"),
        target=_quiet("output.dense"),
    )


def _gpt2() -> Made:
    config = transformers.GPT2Config(n_embd=384, use_cache=False, attn_implementation="eager")
    names = ["input_ids", "attention_mask"]
    ids = _tokens(config.vocab_size, 64)
    return Made(
        _Only(transformers.GPT2LMHeadModel(config), names, "logits"),
        {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        {"input_ids": _ids(config.vocab_size), "attention_mask": ONES},
        ("logits",),
        target=_quiet("c_proj"),
        positions="wte,wpe",
    )


def _t5() -> Made:
    config = transformers.T5Config(d_model=256, d_kv=32, d_ff=1024, use_cache=False)
    names = ["input_ids", "attention_mask", "decoder_input_ids"]
    ids = _tokens(config.vocab_size, 64)
    return Made(
        _Only(transformers.T5ForConditionalGeneration(config), names, "logits"),
        dict(zip(names, (ids, torch.ones_like(ids), _tokens(config.vocab_size, 16)), strict=True)),
        dict(zip(names, (_ids(config.vocab_size), ONES, _ids(config.vocab_size)), strict=True)),
        ("logits",),
        # T5 does not divide by the square root of the head's width: its queries are that much less.
        target=lambda name: 32.0**-0.5 if name.endswith(".q") else 1.0,
        positions="shared,relative_attention_bias",
    )


def _whisper() -> Made:
    config = transformers.WhisperConfig(use_cache=False, attn_implementation="eager")
    # Without a mask the library looks for packed sequences, in operators that ONNX does not have.
    names = ["input_features", "decoder_input_ids", "decoder_attention_mask"]
    ids = _tokens(config.vocab_size, 16)
    values = (_photo(1, 80, 3000)[0], ids, torch.ones_like(ids))
    return Made(
        _Only(transformers.WhisperForConditionalGeneration(config), names, "logits"),
        dict(zip(names, values, strict=True)),
        dict(zip(names, (PHOTO, _ids(config.vocab_size), ONES), strict=True)),
        ("logits",),
        target=_quiet("out_proj", "fc2"),
        positions="embed_positions",
    )


CACHED, LAYERS = 8, 4  # positions that a sample's cache holds, layers of the decoders that have one


class _Cached(nn.Module):
    """Take the cache of a decoder by tensors, key and value of each layer, and give it longer.

    The first `names` are arguments of the model. Keys and values that attend an encoder's output are
    computed from it in each step, and not given.
    """

    def __init__(self, model: nn.Module, names: list[str], crossing: bool) -> None:
        super().__init__()
        self.model, self.names, self.crossing = model, names, crossing

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(self.names, arguments, strict=False))
        past = arguments[len(self.names) :]
        own = transformers.DynamicCache()
        for layer in range(len(past) // 2):
            own.update(past[2 * layer], past[2 * layer + 1], layer)
        cache = (
            transformers.EncoderDecoderCache(own, transformers.DynamicCache()) if self.crossing else own
        )
        if "encoder_outputs" in given:
            given["encoder_outputs"] = transformers.modeling_outputs.BaseModelOutput(
                given["encoder_outputs"]
            )
        answer = self.model(**given, past_key_values=cache, use_cache=True, return_dict=True)
        kept = answer.past_key_values
        layers = (kept.self_attention_cache if self.crossing else kept).layers
        return (answer.logits, *(part for each in layers for part in (each.keys, each.values)))


def _cached(
    model: nn.Module,
    arguments: dict[str, torch.Tensor],
    feeds: dict[str, Feed],
    open_axes: dict[str, dict[int, str]],
    cache: tuple[int, int],
    **more: object,
) -> Made:
    """Return a decoder with a cache of `cache` heads and width, whose lengths are open.

    `arguments` are named as the model takes them, but for the encoder's output.
    """
    heads, width = cache
    parts = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    past = [f"past_key_values.{part}" for part in parts]
    torch.manual_seed(2)
    crossing = "encoder_outputs" in arguments
    module = _Cached(model, list(arguments), crossing)
    noise: Feed = {"like": "noise", "scale": 0.5}
    given = {"encoder_hidden_states" if n == "encoder_outputs" else n: v for n, v in arguments.items()}
    growing = {name: {2: "past_sequence_length"} for name in past}
    made = {f"present.{part}": {2: "total_sequence_length"} for part in parts}
    return Made(
        module,
        given | {name: 0.5 * torch.randn(1, heads, CACHED, width) for name in past},
        feeds | dict.fromkeys(past, noise),
        ("logits", *made),
        open_axes={**open_axes, **growing, **made, "logits": {1: "sequence_length"}},
        **more,
    )


TOKENS_AXES = {1: "sequence_length"}
POSITIONS: Feed = {"like": "count", "low": CACHED, "type": "int64"}


def _gpt2_cached() -> Made:
    config = transformers.GPT2Config(n_embd=384, n_layer=LAYERS, attn_implementation="eager")
    ids = _tokens(config.vocab_size, 4)
    return _cached(
        transformers.GPT2LMHeadModel(config),
        {
            "input_ids": ids,
            "attention_mask": torch.ones(1, CACHED + 4, dtype=torch.int64),
            "position_ids": torch.arange(CACHED, CACHED + 4)[None],
        },
        {"input_ids": _ids(config.vocab_size), "attention_mask": ONES, "position_ids": POSITIONS},
        {
            "input_ids": TOKENS_AXES,
            "attention_mask": {1: "total_sequence_length"},
            "position_ids": TOKENS_AXES,
        },
        (12, 32),
        target=_quiet("c_proj"),
        positions="wte,wpe",
    )


def _t5_cached() -> Made:
    config = transformers.T5Config(
        d_model=256, d_kv=32, d_ff=1024, num_layers=1, num_decoder_layers=LAYERS
    )
    torch.manual_seed(3)
    return _cached(
        transformers.T5ForConditionalGeneration(config),
        {
            "decoder_input_ids": _tokens(config.vocab_size, 4),
            "encoder_outputs": torch.randn(1, 32, 256),
        },
        {
            "decoder_input_ids": _ids(config.vocab_size),
            "encoder_hidden_states": {"like": "noise"},
        },
        {"decoder_input_ids": TOKENS_AXES},
        (8, 32),
        target=lambda name: 32.0**-0.5 if name.endswith(".q") else 1.0,
        positions="shared,relative_attention_bias",
    )


def _whisper_cached() -> Made:
    config = transformers.WhisperConfig(
        decoder_layers=LAYERS, encoder_layers=1, attn_implementation="eager"
    )
    torch.manual_seed(3)
    return _cached(
        transformers.WhisperForConditionalGeneration(config),
        {
            "decoder_input_ids": _tokens(config.vocab_size, 4),
            "decoder_attention_mask": torch.ones(1, CACHED + 4, dtype=torch.int64),
            "decoder_position_ids": torch.arange(CACHED, CACHED + 4)[None],
            "encoder_outputs": torch.randn(1, 1500, config.d_model),
        },
        {
            "decoder_input_ids": _ids(config.vocab_size),
            "decoder_attention_mask": ONES,
            "decoder_position_ids": POSITIONS,
            "encoder_hidden_states": {"like": "noise"},
        },
        {
            "decoder_input_ids": TOKENS_AXES,
            "decoder_attention_mask": {1: "total_sequence_length"},
            "decoder_position_ids": TOKENS_AXES,
        },
        (config.decoder_attention_heads, config.d_model // config.decoder_attention_heads),
        target=_quiet("out_proj", "fc2"),
        positions="embed_positions",
    )


def _detr() -> Made:
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=transformers.ResNetConfig(out_features=["stage4"]),
        attn_implementation="eager",
    )
    model = _Only(transformers.DetrForObjectDetection(config), ["pixel_values"], "logits", "pred_boxes")
    made = _image(model, 320)
    target = _quiet("self_attn.o_proj", "fc2", "layer.2.convolution")
    return Made(made.module, made.arguments, made.feeds, ("logits", "boxes"), target)


class _Detector(nn.Module):
    """Take one image without a batch dimension away, give boxes, labels and scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        answer = self.model([image[0]])
        if isinstance(answer, tuple):  # what scripting would give
            answer = answer[1]
        return answer[0]["boxes"], answer[0]["labels"], answer[0]["scores"]


def _detector(name: str, size: int, **options: object) -> Recipe:
    def target(layer: str) -> float:
        # Boxes are corrections to anchors: large ones leave the image. Sigmoids of large logits are 1.
        quiet = ("bbox", "regression", "classification_head.cls_logits")
        return 0.3 if any(part in layer for part in quiet) else 1.0

    def make() -> Made:
        model = vision.get_model(name, weights=None, weights_backbone=None, **options)
        made = _image(_Detector(model), size)
        outputs = ("boxes", "labels", "scores")
        return Made(made.module, made.arguments, made.feeds, outputs, target)

    return Recipe("detector", f"torchvision 0.28.0, {name}, low score threshold", BSD, make)


TRANSFORMERS = "transformers 5.23.0, "
RECIPES = {
    "mobilenet_v3_large": _vision(
        "mobilenet_v3_large", "convolutional classifier", target=_quiet("fc2")
    ),
    "efficientnet_b0": _vision("efficientnet_b0", "convolutional classifier", target=_quiet("fc2")),
    "convnext_tiny": _vision("convnext_tiny", "convolutional classifier", positions="layer_scale"),
    "vit_tiny": Recipe("vision transformer", "timm 1.0.31, vit_tiny_patch16_224", APACHE, _vit),
    # torchvision's swin_t computes the masks of shifted windows in the graph, 6,000 nodes.
    "swin_tiny": Recipe("vision transformer", f"timm 1.0.31, {SWIN}", APACHE, _swin),
    "segformer_b0": Recipe(
        "segmentation transformer", TRANSFORMERS + "SegformerConfig()", APACHE, _segformer
    ),
    "bert": Recipe("language encoder", TRANSFORMERS + "BertConfig(hidden_size=384)", APACHE, _bert),
    "gpt2": Recipe("language decoder", TRANSFORMERS + "GPT2Config(n_embd=384)", APACHE, _gpt2),
    "t5": Recipe("language encoder-decoder", TRANSFORMERS + "T5Config(d_model=256)", APACHE, _t5),
    "whisper_tiny": Recipe("speech encoder-decoder", TRANSFORMERS + "WhisperConfig()", APACHE, _whisper),
    "gpt2_cached": Recipe(
        "language decoder with a cache",
        TRANSFORMERS + f"GPT2Config(n_embd=384, n_layer={LAYERS})",
        APACHE,
        _gpt2_cached,
    ),
    "t5_cached": Recipe(
        "language decoder with a cache, of an encoder-decoder",
        TRANSFORMERS + f"T5Config(d_model=256, num_decoder_layers={LAYERS})",
        APACHE,
        _t5_cached,
    ),
    "whisper_cached": Recipe(
        "speech decoder with a cache, of an encoder-decoder",
        TRANSFORMERS + f"WhisperConfig(decoder_layers={LAYERS})",
        APACHE,
        _whisper_cached,
    ),
    "detr": Recipe("detection transformer", TRANSFORMERS + "DetrConfig(), ResNet-50", APACHE, _detr),
    "ssdlite320": _detector("ssdlite320_mobilenet_v3_large", 320, score_thresh=0.03),
    "ssd300_vgg16": _detector("ssd300_vgg16", 300, score_thresh=0.06),
    "fasterrcnn_mobilenet": _detector(
        "fasterrcnn_mobilenet_v3_large_320_fpn", 320, box_score_thresh=0.03
    ),
    "retinanet": _detector("retinanet_resnet50_fpn", 320, score_thresh=0.01, min_size=320, max_size=320),
}
