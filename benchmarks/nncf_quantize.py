"""Quantize a model by NNCF, for `quantized_accuracy.py`: in an environment of its own, with onnx.

python nncf_quantize.py MODEL FOLDER OUTPUT '{"operators": [...], "kind": "full"}'

The last line that it prints has the seconds of processor time that quantizing took, on one thread.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

KINDS = ("fast", "full", "one-scale", "transformer")
"""With the fast bias correction, with the full one, with the fast one and a scale for each tensor, and
for transformers: the fast one with SmoothQuant, nothing rounded between products and sums.

By itself NNCF gives each channel that a depthwise convolution reads a scale, which not all targets have.
"""


def main() -> None:
    """Quantize with the operators that are listed and no others, on the samples of a folder."""
    import nncf  # noqa: PLC0415 - not there where KINDS alone is read
    import numpy as np  # noqa: PLC0415
    import onnx  # noqa: PLC0415
    import onnxruntime  # noqa: PLC0415
    from nncf.quantization import advanced_parameters as advanced  # noqa: PLC0415

    model, folder, output, request = sys.argv[1:]
    asked = json.loads(request)
    proto = onnx.load(model)
    others = sorted({node.op_type for node in proto.graph.node} - {*asked["operators"], "Constant"})
    one_scale = asked["kind"] == "one-scale"
    scales = advanced.QuantizationParameters(per_channel=False) if one_scale else None
    open_session = onnxruntime.InferenceSession

    def open_on_one_thread(model: bytes, options: Any, **more: Any) -> Any:
        options.intra_op_num_threads = 1
        return open_session(model, options, **more)

    onnxruntime.InferenceSession = open_on_one_thread  # NNCF has no option for it
    samples = [dict(np.load(path)) for path in sorted(Path(folder).glob("*.npz"))]
    start = time.process_time()
    quantized = nncf.quantize(
        proto,
        nncf.Dataset(samples),
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(samples),
        fast_bias_correction=asked["kind"] != "full",
        model_type=nncf.ModelType.TRANSFORMER if asked["kind"] == "transformer" else None,
        advanced_parameters=advanced.AdvancedQuantizationParameters(
            activations_quantization_params=scales
        ),
        ignored_scope=nncf.IgnoredScope(types=others, validate=False),
    )
    print(f"{time.process_time() - start:.1f}")
    onnx.save(quantized, output)


if __name__ == "__main__":
    main()
