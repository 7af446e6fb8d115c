"""Turn an ONNX model into MLIR, in the worker process, by IREE's importer."""

import io
import warnings

import onnx
import onnx.shape_inference
import onnx.version_converter
from iree.compiler.extras import onnx_importer
from iree.compiler.ir import Context

FUNCTION = "region"
_OLDEST_OPSET = 17
_LARGE = 1024  # bytes of a constant that shapes do not depend on


def import_model(model: onnx.ModelProto) -> bytes:
    """Return a model as MLIR bytecode, with one function named `FUNCTION`.

    IREE lowers operators of older opsets wrongly or not at all, so the model is converted first. Raises
    whatever ONNX's version converter and IREE's importer raise.
    """
    model = _prepare_model(model)
    model.graph.name = FUNCTION
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # outputs that nobody reads have no type
        info = onnx_importer.ModelInfo(model)
        module = info.create_module(context=Context()).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    module.verify()
    code = io.BytesIO()
    module.write_bytecode(code)
    return code.getvalue()


def _prepare_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with types for all tensors, of an opset that IREE knows.

    Large constants are put aside meanwhile, as inputs: ONNX's converter copies them several times, and a
    protobuf holds at most 2 GB.
    """
    large = [tensor for tensor in model.graph.initializer if tensor.ByteSize() > _LARGE]
    kept = [tensor for tensor in model.graph.initializer if tensor.ByteSize() <= _LARGE]
    inputs = list(model.graph.input)
    del model.graph.initializer[:], model.graph.input[:]
    model.graph.initializer.extend(kept)
    model.graph.input.extend(inputs)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in large
    )
    for node in model.graph.node:
        while node.input and not node.input[-1]:  # the importer would hand it over as a value
            del node.input[-1]
    (opset,) = (each for each in model.opset_import if each.domain in {"", "ai.onnx"})
    if opset.version < _OLDEST_OPSET:
        model = onnx.version_converter.convert_version(model, _OLDEST_OPSET)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(large)
    return model
