"""A target's requirements on quantized tensors: its file's scheme combined with its rules."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import NodeProto

from byoc.graph.index import GraphIndex
from byoc.quantize.ranges import DTYPES
from byoc.rules.load import Target
from byoc.rules.operators import FormalParameter, get_operator_name, make_signature
from byoc.rules.schema import OpRule, QuantizedRule, QuantizedTensors
from byoc.rules.values import ANY_OPERATOR

_DEFAULT_DTYPE = "int8"


@dataclass(frozen=True)
class TensorRequirement:
    """The requirements on a tensor at one of its uses; the first of its `dtypes` is preferred."""

    dtypes: tuple[str, ...]
    symmetric: bool
    per_channel: bool
    power_of_two: bool


@dataclass(frozen=True, eq=False)
class TargetRequirements:
    """The requirements of a target, use by use."""

    target: Target

    def find_ops(self) -> dict[str, bool]:
        """Return the operators that the target takes quantized, and whether each may stand alone."""
        found: dict[str, bool] = {}
        for rule in self.target.rules.ops:
            for op in rule.op if rule.quantized else ():
                found[op] = found.get(op, False) or rule.standalone
        return found

    def needs_same_scale(self, node: NodeProto) -> bool:
        """Return whether inputs and output of a node must share one scale and zero point."""
        return get_operator_name(node) in (self.target.rules.quantization.same_scale or ())

    def find_requirement(self, index: GraphIndex, node: NodeProto, position: int, role: str, *, out: bool) -> TensorRequirement:
        """Return the requirements on an input or output; `role` is activations, weights or bias.

        The first rule for the quantized operator is used; if a node only fits a later one, the annotator
        refuses it.
        """
        rule = self._find_rule(get_operator_name(node))
        formal = find_formal_name(index, node, position, out=out)
        tensor = rule.tensors.get(formal) if rule is not None and formal else None
        own = (tensor.quantized if tensor else None) or QuantizedRule()
        scheme = self.target.rules.quantization
        part = getattr(scheme, role) or QuantizedTensors()
        lists = (tensor.dtype if tensor else None, rule.dtype if rule else None, part.dtype)
        dtypes = next((found for found in lists if found), self.target.rules.dtype)
        stated = own.model_fields_set
        symmetric = own.symmetric if "symmetric" in stated else part.symmetric
        if symmetric is None:
            symmetric = role == "weights" and "symmetric" not in stated
        power_of_two = own.power_of_two if "power_of_two" in stated else scheme.scales == "power_of_two"
        per_channel = own.per_channel if "per_channel" in stated else part.per_channel
        return TensorRequirement(_integer_dtypes(dtypes), bool(symmetric), bool(per_channel), bool(power_of_two))

    def _find_rule(self, op: str) -> OpRule | None:
        rules = [rule for rule in self.target.rules.ops if rule.quantized]
        named = [rule for rule in rules if op in rule.op]
        return next(iter(named or [rule for rule in rules if ANY_OPERATOR in rule.op]), None)


def _integer_dtypes(dtypes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dtype for dtype in dtypes if dtype in DTYPES) or (_DEFAULT_DTYPE,)


def find_formal_name(index: GraphIndex, node: NodeProto, position: int, *, out: bool) -> str:
    """Return ONNX's name of an input or output of a node, empty if it has no schema."""
    schema = index.get_schema(node)
    if schema is None:
        return ""
    found: tuple[FormalParameter, ...] = make_signature(schema).outputs if out else make_signature(schema).inputs
    return found[min(position, len(found) - 1)].name if found else ""
