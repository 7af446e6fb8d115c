"""The runtimes of bundles, by the names that users give."""

DRIVER_RUNTIME = "ort-plugin"
"""onnxruntime, with the provider and drivers in C for the regions."""

RUNTIMES = ("byoc", DRIVER_RUNTIME, "drivers")
"""byoc's own runtime, the default; onnxruntime's; byoc's with drivers in C for the regions."""
