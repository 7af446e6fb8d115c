"""Stand-ins for torchvision's compiled operators, so that it imports beside any build of torch.

Import this before torchvision. Tracing calls the operators once, on real numbers; the exporter then
writes ONNX's own NonMaxSuppression and RoiAlign for them.
"""

import inspect
import sys

import numpy as np
import torch

_LIBRARY = torch.library.Library("torchvision", "DEF")
_LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # never called
_LIBRARY.define(
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"
)


def _nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    boxes = dets.detach().numpy()  # numpy, since detectors ask for tens of thousands of small steps
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left = scores.detach().argsort(descending=True, stable=True).numpy()
    kept = []
    while left.size:
        best, left = left[0], left[1:]
        kept.append(best)
        corner = np.maximum(boxes[best, :2], boxes[left, :2])
        extent = (np.minimum(boxes[best, 2:], boxes[left, 2:]) - corner).clip(min=0)
        shared = extent.prod(axis=1)
        left = left[shared <= iou_threshold * (areas[best] + areas[left] - shared)]
    return torch.tensor(np.asarray(kept, np.int64))


def _roi_align(*arguments: object) -> torch.Tensor:
    from torchvision.ops.roi_align import _roi_align as in_plain_torch  # noqa: PLC0415

    return inspect.unwrap(in_plain_torch)(*arguments)  # what it would compile


_LIBRARY.impl("nms", _nms, "CPU")
_LIBRARY.impl("roi_align", _roi_align, "CPU")

import torchvision  # noqa: E402


def _has_ops() -> bool:
    return True


torchvision.extension._has_ops = _has_ops  # a function with a name, since parts of it are scripted
sys.modules["torchvision.ops.roi_align"]._has_ops = _has_ops
