"""Random rule files for a random model, and the options that it is partitioned with."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from byoc.model import walk_graphs

COSTS = """
kind: roofline
name: near
peak: {default: 1.0e+12}
bandwidth: 1.0e+12
overhead: %(overhead)s
launch: %(launch)s
link: {bandwidth: 1.0e+12, latency: %(launch)s}
"""
_STRATEGIES = ("all-supported",) * 14 + (
    "launch-aware",
    "launch-aware",
    "makespan",
    "throughput",
    "exact",
)
_STRATEGIES += ("faster-ops", "faster-ops-transfer")
_OF_ONE_TARGET = ("min-cut", "tree-dp")
_DTYPES = (
    "float32",
    "float16",
    "float64",
    "bfloat16",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
)
_COMPOSITES = (
    ("conv_relu", "c = Conv(x, w, b?)\ny = Relu(c)"),
    ("two", "a = Add|Mul|Sub(x, z)\ny = Relu|Neg|Abs|Sigmoid(a)"),
    ("dense", "m = MatMul(x, w!)\ny = Add(m, b)?"),
    ("moved", "t = Transpose(x)\ny = Reshape(t, s)"),
    ("twice", "a = *(x)\ny = Identity(a)"),
    ("split", "a, b = Split(x, s?)\nreturn a, b"),
    ("norm", "r = ReduceMean(x, ...)\ny = Sub(x, r)"),
)
_LAYOUTS = (
    {"activations": "NHWC", "weights": "OHWI"},
    {"activations": "NHWC"},
    {"activations": "NCHW4c", "weights": "OIHW4i4o"},
    {"activations": "NWHC", "weights": "HWIO"},
    {"activations": "CHWN"},
)
_CONDITIONS = ("opset > 10", "name.size() < 40", "!name.contains('9')", "opset % 2 == 0", "size(op) > 3")
_ARITHMETIC = (
    {"computes": "float16"},
    {"exact_below": 16777216},
    {"op": ["Add", "Sub", "Mul"], "overflow": "any"},
    {"op": ["Relu", "Clip", "Max"], "nan": "any"},
    {"denormals": "flushed"},
    {"op": ["TopK", "ArgMax"], "equal_keys": "any"},
    {"op": "QuantizeLinear", "halves": "any"},
)


class RuleMaker:
    """Makes rule files about the operators of one model; the same seed gives the same files."""

    def __init__(self, seed: int, model: onnx.ModelProto, opset: int) -> None:
        self._random = np.random.default_rng(seed)
        self._opset = opset
        nodes = [node for graph in walk_graphs(model.graph) for node in graph.node]
        nodes += [node for function in model.functions for node in function.node]
        self._operators = sorted({node.op_type for node in nodes if not node.domain})

    def _chance(self, share: float) -> bool:
        return bool(self._random.random() < share)

    def _pick(self, things: Sequence[Any]) -> Any:
        return things[int(self._random.integers(len(things)))]

    def _some(self, things: Sequence[Any], share: float) -> list[Any]:
        return [each for each in things if self._chance(share)]

    def costs(self) -> str:
        """Return a cost model beside which the host is slow, most often."""
        return COSTS % {
            "overhead": self._pick(("0.0", "0.0", "1.0e-9", "2.0e-6")),
            "launch": self._pick(("0.0", "1.0e-9", "1.0e-7")),
        }

    def options(self, symbols: Sequence[str], batch: int, targets: int) -> list[str]:
        """Return options of `byoc partition` besides rules, inputs and output."""
        found = ["--strategy", self._pick(_STRATEGIES)]
        if targets == 1 and self._chance(0.1):
            found[1] = self._pick(_OF_ONE_TARGET)
        if self._chance(0.9):
            found.append("--no-what-if")
        if symbols and self._chance(0.35):
            found += ["--dim", f"{symbols[0]}={self._pick((batch, '1..8'))}"]
        elif symbols and self._chance(0.3):
            found += ["--bucket", f"{symbols[0]}={batch}"]
        for share, words in (
            (0.08, ["--pass", "simplify"]),
            (0.08, ["--gate"]),
            (0.06, ["--no-pass", "all"]),
            (0.05, ["--values", "assumed"]),
            (0.04, ["--emit", "epcontext"]),
            (0.04, ["--host-mode", "fast"]),
            (0.03, ["--no-sign"]),
            (0.03, ["--ask", "both"]),
            (0.03, ["--perturb", "0.5", "--samples", "3"]),
        ):
            found += words if self._chance(share) else []
        return found

    def rules(self, target: str = "acme") -> dict[str, Any]:  # noqa: PLR0912 - a branch for each key
        """Return what a rule file says."""
        if self._chance(0.15):
            return self._of_dla(target)
        found: dict[str, Any] = {"target": target, "cost_model": "near", "codegen": "reference"}
        found["dtype"] = "any" if self._chance(0.6) else sorted({self._pick(_DTYPES) for _ in range(3)})
        found["regions"] = self._pick(("phase", "connected"))
        if self._chance(0.3):
            found["overlaps"] = self._pick(("largest", "placement"))
        if self._chance(0.2):
            found["shapes"] = self._pick(("any", "ranked", "static"))
        if self._chance(0.15):
            found["state"] = self._pick(("sent", "kept"))
        if self._chance(0.45):
            found["layout"] = dict(self._pick(_LAYOUTS))
            if self._chance(0.3) and "c" not in found["layout"]["activations"]:
                found["layout"]["convert"] = self._pick(("host", "either"))
        if self._chance(0.5):
            found["quantization"] = self._quantization()
        if self._chance(0.3):
            found["arithmetic"] = self._some(_ARITHMETIC, 0.3) or [dict(_ARITHMETIC[0])]
        if self._chance(0.3):
            found["limits"] = self._limits()
        if self._chance(0.4):
            found["host"] = self._host()
        if self._chance(0.1):
            found["wants"] = "folded_batchnorm"
        found["ops"] = list(self._operator_rules())
        if self._chance(0.5):
            taken = {rule["op"] for rule in found["ops"]}
            known = [each for each in _COMPOSITES if "*" in taken or _list_operators(each[1]) <= taken]
            chosen = self._some(known, 0.5)
            found["composites"] = [{"name": name, "pattern": pattern} for name, pattern in chosen]
        if not found.get("composites"):
            found.pop("composites", None)
        return found

    def _of_dla(self, target: str) -> dict[str, Any]:
        """A file that builds on that of an accelerator with a compiler of its own."""
        found: dict[str, Any] = {"extends": "dla", "target": target}
        if self._chance(0.25):
            found["codegen"] = "c"
        if self._chance(0.3):
            found["limits"] = self._limits()
        if self._chance(0.4):
            found["host"] = self._host()
        if self._chance(0.3):
            found["regions"] = "connected"
        if self._chance(0.3):
            found["quantization"] = {"convert": self._pick(("host", "device", "between"))}
        return found

    def _quantization(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._chance(0.7):
            found["convert"] = self._pick(("host", "device", "between"))
        if self._chance(0.3):
            found["activations"] = {"dtype": self._pick((["int8", "uint8"], ["int8", "int16"]))}
        if self._chance(0.2):
            found["weights"] = {"symmetric": True, "per_channel": self._chance(0.5)}
        if self._chance(0.1):
            found["scales"] = self._pick(("any", "power_of_two"))
        if self._chance(0.1):
            found["same_scale"] = ["Concat", "Add"]
        return found

    def _limits(self) -> dict[str, Any]:
        choices = {"regions": (1, 2, 3), "min_nodes": (2, 3), "max_nodes": (2, 4, 8)}
        choices |= {"memory": ("2KiB", "64KiB"), "batch": (1, 2)}  # type: ignore[dict-item]
        found = {key: self._pick(values) for key, values in choices.items() if self._chance(0.3)}
        if found.get("min_nodes", 0) > found.get("max_nodes", 99):
            del found["min_nodes"]
        return found

    def _host(self) -> dict[str, Any]:
        some = self._some(self._operators, 0.25)
        found: dict[str, Any] = {"ops": some} if some else {}
        if self._chance(0.5):
            found["names"] = [self._pick(("[13579]$", "0", "[2468]", "[a-d]"))]
        if self._chance(0.15) and self._operators:
            found["after"] = {"ops": [self._pick(self._operators)]}
        return found

    def _operator_rules(self) -> Iterator[dict[str, Any]]:
        if self._chance(0.5) or not self._operators:
            yield {"op": "*"} | self._level()
            if self._chance(0.5):
                yield {"op": "*", "quantized": True}
            return
        for operator in self._some(self._operators, 0.8) or self._operators:
            yield {"op": operator} | self._level() | self._constraints(operator)
            if self._chance(0.3):
                yield {"op": operator, "quantized": True}
        if self._chance(0.3):
            yield {"op": "*", "quantized": True, "dtype": ["int8", "uint8"]}

    def _level(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._chance(0.03):
            found["level"] = "must"
        if self._chance(0.05):
            found["standalone"] = False
        if self._chance(0.1):
            found["dtype"] = "any" if self._chance(0.5) else [self._pick(_DTYPES), "float32"]
        if self._chance(0.05):
            found["opset"] = {"min": self._pick((9, 13, 18))}
        if self._chance(0.15):
            found["where"] = self._pick(_CONDITIONS)
        return found

    def _constraints(self, operator: str) -> Mapping[str, Any]:
        if not self._chance(0.4) or not onnx.defs.has(operator, self._opset):
            return {}
        schema = onnx.defs.get_schema(operator, self._opset)
        tensors = {}
        for formal in (*schema.inputs, *schema.outputs):
            if self._chance(0.3):
                tensors[formal.name] = self._constraint()
        found: dict[str, Any] = {"tensors": tensors} if tensors else {}
        numbers = [n for n, a in schema.attributes.items() if a.type == onnx.defs.OpSchema.AttrType.INT]
        if numbers and self._chance(0.3):
            found["attributes"] = {self._pick(numbers): {"min": -2, "max": self._pick((0, 1, 3, 20))}}
        return found

    def _constraint(self) -> dict[str, Any]:
        return self._pick(  # type: ignore[no-any-return]
            (
                {"rank": [2, 3, 4]},
                {"rank": 4},
                {"static": True},
                {"elements": {"max": 64}},
                {"dims": {-1: {"max": 3}}},
                {"dims": {"each": {"min": 1}}},
                {"bytes": {"max": 1024}},
                {"constant": False},
                {"scalar": False},
            )
        )


def _list_operators(pattern: str) -> set[str]:
    return {name for text in re.findall(r"= (\S+)\(", pattern) for name in text.split("|")}
