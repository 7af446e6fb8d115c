"""The package on disk: a folder with the partitioned model, each region, its artifact, a manifest.

manifest.json     what was asked, what was decided and why, every file's hash
model.onnx        the partitioned model: plain ONNX, regions as functions
<region>.onnx     each region as a model of its own
weights.bin       the large constants of all of these, once
artifacts/        what the codegen made, a folder for each region
"""
