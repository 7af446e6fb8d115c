"""The runtimes of bundles, by the names that users give."""

DRIVER_RUNTIME = "ort-plugin"
"""onnxruntime, with the provider and drivers in C for the regions."""

RUNTIMES = ("byoc", DRIVER_RUNTIME)
"""byoc's own runtime, the default, and the other."""
