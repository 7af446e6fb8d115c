"""A process that runs one pass: `python -m byoc.passes._pass_process FOLDER LIFE`.

The folder has the model and the request; the result, or the reason why there is none, is written there.
`LIFE` is the descriptor of a pipe whose other end is closed when byoc ends.
"""

import json
import sys
from pathlib import Path

import onnx

from byoc.errors import ByocError
from byoc.passes._pass_plugins import (
    FAILURE_FILE,
    MODEL_FILE,
    REQUEST_FILE,
    RESULT_FILE,
    apply_pass,
    load_pass,
)
from byoc.support import end_with_parent


def run_request(folder: Path) -> None:
    """Run the pass that a folder's request names on the folder's model."""
    request = json.loads((folder / REQUEST_FILE).read_text(encoding="utf-8"))
    try:
        asked = load_pass(request["name"], request["options"])
        made = apply_pass(asked, onnx.load(folder / MODEL_FILE))
        onnx.save(made, folder / RESULT_FILE, save_as_external_data=True, location="result.bin")
    except ByocError as error:
        (folder / FAILURE_FILE).write_text(str(error), encoding="utf-8")


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    run_request(Path(sys.argv[1]))
