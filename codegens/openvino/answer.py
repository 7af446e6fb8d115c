"""The process that `oracle` asks: `python -m byoc.codegens.openvino.answer FOLDER FIRST OPTIONS`.

OPTIONS are options of the codegen as JSON. It answers for the files FIRST.onnx and on in a folder, with
a line each: JSON text, empty for yes.
"""

import json
import sys
from pathlib import Path

from byoc.codegen import read_options

from .device import core, reason
from .options import OpenVINOOptions


def main(folder: str, first: str, given: str) -> None:
    """Answer for a folder's files from number `first` on."""
    number = int(first)
    options = read_options(OpenVINOOptions, json.loads(given))
    while (path := Path(folder) / f"{number}.onnx").exists():
        try:
            model = core().read_model(path)
            core().compile_model(model, options.device, options.properties)
            why = ""
        except RuntimeError as error:
            why = reason(error)
        sys.stdout.write(f"{json.dumps(why)}\n")
        sys.stdout.flush()
        number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
