"""The bundle on disk: a folder with the partitioned model, its regions, their artifacts, a manifest.

manifest.json     the arguments, the report, the hash of every file
model.onnx        the partitioned model: plain ONNX, regions as functions
<region>.onnx     each region as a separate model
weights.bin       the large constants of all models, each once
artifacts/        the output of the codegens, a folder for each region
"""
