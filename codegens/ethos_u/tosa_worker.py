"""Run TOSA graphs on Arm's reference model, in an interpreter that has tosa-tools.

`byoc.codegen.PipeProcess` calls it. The first array of a request is the graph, as bytes, or empty for
the graph of the last request.
"""

from typing import Any, Dict, List, Sequence, Tuple  # noqa: UP035 - for early versions of Python, too

import numpy as np

last_graph = b""


def answer(
    request: Dict[str, Any],  # noqa: UP006 - as above
    arrays: Sequence[Any],
) -> Tuple[Dict[str, Any], List[Any]]:  # noqa: UP006 - as above
    """Return the results of a graph. Raises RuntimeError where the model says that they are none."""
    import tosa_reference_model  # noqa: PLC0415 - only where it runs

    global last_graph  # noqa: PLW0603 - kept from request to request
    last_graph = arrays[0].tobytes() or last_graph
    made, status = tosa_reference_model.run(last_graph, [np.array(array) for array in arrays[1:]])
    if status != tosa_reference_model.GraphStatus.TOSA_VALID:
        raise RuntimeError(f"the TOSA reference model says {status.name}")
    return {"error": ""}, list(made)
