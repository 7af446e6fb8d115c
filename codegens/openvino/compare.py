"""The process that compares a blob with the region: `python -m byoc.codegens.openvino.compare ...`.

Its arguments are the file of the blob, that of the region, the region's name and target, and the options
of the codegen as JSON. It prints `right` if the imported blob computes what the compiled region does.
"""

import json
import sys
from pathlib import Path

from byoc.codegen import read_options, read_region

from .openvino_blob import choose_weights, is_import_right
from .openvino_device import compile_region_model, import_blob
from .openvino_options import OpenVINOOptions


def main(blob: str, path: str, name: str, target: str, given: str) -> None:
    """Compile the region, import the blob, and compare."""
    options = read_options(OpenVINOOptions, json.loads(given))
    region = read_region(Path(path), name, target)
    further = choose_weights(region, options).properties
    model, inputs = compile_region_model(region, options)
    imported = import_blob(Path(blob).read_bytes(), options, further)
    right = is_import_right(region, inputs, model, imported)
    sys.stdout.write("right" if right else "wrong")


if __name__ == "__main__":
    main(*sys.argv[1:])
