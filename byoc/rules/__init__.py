"""Rule files: what an accelerator takes, read from YAML, checked against ONNX, applied to a model."""
