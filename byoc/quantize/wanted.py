"""A target's requirements on quantized tensors: its file's scheme combined with its rules."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import NodeProto

from byoc.graph.index import GraphIndex
from byoc.quantize.ranges import DTYPES
from byoc.rules.load import Target
from byoc.rules.operators import Formal, name_of, signature
from byoc.rules.schema import OpRule, QuantizedRule, QuantizedTensors
from byoc.rules.values import ANY

_USUAL = "int8"


@dataclass(frozen=True)
class Wanted:
    """The requirements on a tensor at one of its uses; the first of its `dtypes` is preferred."""

    dtypes: tuple[str, ...]
    symmetric: bool
    per_channel: bool
    power_of_two: bool


@dataclass(frozen=True, eq=False)
class Wishes:
    """The requirements of a target, use by use."""

    target: Target

    def ops(self) -> dict[str, bool]:
        """Return the operators that the target takes quantized, and whether each may stand alone."""
        found: dict[str, bool] = {}
        for rule in self.target.rules.ops:
            for op in rule.op if rule.quantized else ():
                found[op] = found.get(op, False) or rule.standalone
        return found

    def same_scale(self, node: NodeProto) -> bool:
        """Return whether inputs and output of a node must share one scale and zero point."""
        return name_of(node) in (self.target.rules.quantization.same_scale or ())

    def of(self, index: GraphIndex, node: NodeProto, position: int, role: str, *, out: bool) -> Wanted:
        """Return the requirements on an input or output; `role` is activations, weights or bias.

        The first rule for the quantized operator is used; if a node only fits a later one, the annotator
        refuses it.
        """
        rule = self._rule(name_of(node))
        formal = formal_name(index, node, position, out=out)
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
        return Wanted(_integers(dtypes), bool(symmetric), bool(per_channel), bool(power_of_two))

    def _rule(self, op: str) -> OpRule | None:
        rules = [rule for rule in self.target.rules.ops if rule.quantized]
        named = [rule for rule in rules if op in rule.op]
        return next(iter(named or [rule for rule in rules if ANY in rule.op]), None)


def _integers(dtypes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dtype for dtype in dtypes if dtype in DTYPES) or (_USUAL,)


def formal_name(index: GraphIndex, node: NodeProto, position: int, *, out: bool) -> str:
    """Return ONNX's name of an input or output of a node, empty if it has no schema."""
    schema = index.schema(node)
    if schema is None:
        return ""
    found: tuple[Formal, ...] = signature(schema).outputs if out else signature(schema).inputs
    return found[min(position, len(found) - 1)].name if found else ""
