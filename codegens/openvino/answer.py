"""The process that tries models: `python -m byoc.codegens.openvino.answer FOLDER FIRST OPTIONS`.

OPTIONS are options of the codegen as JSON. For each file FIRST.onnx, FIRST + 1.onnx, ... in the folder
it prints a line with the reason of a refusal as a JSON string, which is empty if OpenVINO compiles the
model.
"""

import json
import sys
from pathlib import Path

from byoc.codegen import read_options

from .openvino_device import openvino_core, select_properties, shorten_refusal
from .openvino_options import OpenVINOOptions


def main(folder: str, first: str, given: str) -> None:
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


if __name__ == "__main__":
    main(*sys.argv[1:])
