"""Quantize a model by NNCF, for `quantized_accuracy.py`: in an environment of its own, with onnx.

python nncf_quantize.py MODEL FOLDER OUTPUT '{"operators": [...], "kind": "full"}'
"""

import json
import sys
from pathlib import Path

KINDS = ("fast", "full")
"""With the fast bias correction, with the full one."""


def main() -> None:
    """Quantize with the operators that are listed and no others, on the samples of a folder."""
    import nncf  # noqa: PLC0415 - not there where KINDS alone is read
    import numpy as np  # noqa: PLC0415
    import onnx  # noqa: PLC0415

    model, folder, output, request = sys.argv[1:]
    asked = json.loads(request)
    proto = onnx.load(model)
    others = sorted({node.op_type for node in proto.graph.node} - {*asked["operators"], "Constant"})
    samples = [dict(np.load(path)) for path in sorted(Path(folder).glob("*.npz"))]
    quantized = nncf.quantize(
        proto,
        nncf.Dataset(samples),
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(samples),
        fast_bias_correction=asked["kind"] != "full",
        ignored_scope=nncf.IgnoredScope(types=others, validate=False),
    )
    onnx.save(quantized, output)


if __name__ == "__main__":
    main()
