"""The process of its own of this codegen: `python -m byoc.codegens.openvino.openvino_worker VERB ...`.

`answer OPTIONS FOLDER FIRST` tries models: for each file FIRST.onnx, FIRST + 1.onnx, ... in the folder
it prints a line with the reason of a refusal as a JSON string, which is empty if OpenVINO compiles the
model.

`compare BLOB REGION NAME TARGET OPTIONS` compares a blob with the region that it is of: it prints
`right` if the imported blob computes what the compiled region does, and `wrong` otherwise.

OPTIONS are options of the codegen as JSON.
"""

import json
import sys
from pathlib import Path

from byoc.codegen import read_options, read_region

from .openvino_blob import choose_weights, is_import_right
from .openvino_device import (
    compile_region_model,
    import_blob,
    openvino_core,
    select_properties,
    shorten_refusal,
)
from .openvino_options import OpenVINOOptions


def try_models(given: str, folder: str, first: str) -> None:
    """Try the models in a folder, from number `first`."""
    number = int(first)
    options = read_options(OpenVINOOptions, json.loads(given))
    while (path := Path(folder) / f"{number}.onnx").exists():
        try:
            model = openvino_core().read_model(path)
            openvino_core().compile_model(model, options.device, select_properties(options))
            why = ""
        except RuntimeError as error:
            why = shorten_refusal(error)
        sys.stdout.write(f"{json.dumps(why)}\n")
        sys.stdout.flush()
        number += 1


def compare_blob(blob: str, path: str, name: str, target: str, given: str) -> None:
    """Compile the region, import the blob, and compare."""
    options = read_options(OpenVINOOptions, json.loads(given))
    region = read_region(Path(path), name, target)
    further = choose_weights(region, options).properties
    model, inputs = compile_region_model(region, options)
    imported = import_blob(Path(blob).read_bytes(), options, further)
    right = is_import_right(region, inputs, model, imported)
    sys.stdout.write("right" if right else "wrong")


if __name__ == "__main__":
    if sys.argv[1] == "answer":
        try_models(*sys.argv[2:])
    else:
        compare_blob(*sys.argv[2:])
