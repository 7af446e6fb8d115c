"""Wrong rule files, each with its own sentence (tests/golden/rules_lint.txt); right ones with none."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from helpers.ruling import lint
from helpers.support import count_calls

from byoc.errors import InputError
from byoc.rules import load_rules

HEAD = "target: t\ncost_model: dla\ndtype: float32\n"
CONV = HEAD + "ops:\n  - op: Conv\n    "
RELU = HEAD + "ops: [{op: [Relu, Conv]}]\n"
COMPOSITE = RELU + "composites:\n  - name: a\n    pattern: y = Relu(x)\n    "

WRONG = {
    "an operator that does not exist": HEAD + "ops: [{op: Convolution}]\n",
    "an operator of a wrong domain": HEAD + "ops: [{op: ai.onnx.ml.Norm}]\n",
    "an attribute that it does not have": CONV + "attributes: {kernal: {length: 2}}\n",
    "a parameter that it does not have": CONV + "tensors: {weight: {rank: 4}, input: {rank: 4}}\n",
    "a parameter of one operator only": HEAD + "ops: [{op: [Conv, Add], tensors: {W: {rank: 4}}}]\n",
    "parameters of a foreign operator": HEAD + "ops: [{op: acme.Conv, tensors: {X: {rank: 4}}}]\n",
    "a data type that does not exist": HEAD.replace("float32", "[float32, flaot16]")
    + "ops: [{op: Relu, dtype: half, tensors: {X: {dtype: bf16}}}]\n",
    "a data type outside the type constraint": HEAD
    + "ops: [{op: Conv, tensors: {X: {dtype: int8}}}, "
    + "{op: Gather, tensors: {indices: {dtype: int8}}}]\n",
    "a dimension by a wrong name": CONV + "tensors: {X: {dims: {last: 4, all: {max: 3}, 1.5: 2}}}\n",
    "a dimension beyond the rank": CONV + "tensors: {X: {rank: [3, 4], dims: {4: 1, -5: 1, -4: 1}}}\n",
    "a dimension with wrong keys": CONV
    + "tensors: {X: {dims: {1: {multiple: 4}, 2: {multiple_of: 0}}}}\n",
    "equal to what there is not": CONV
    + "tensors: {X: {dims: {1: {equals: 'V[1]'}, each: {equals: W}}}}\n",
    "equal to what one of two has not": HEAD
    + "ops: [{op: [Conv, MaxPool], tensors: {X: {dims: {each: {equals: 'W[0]'}}}}}]\n",
    "a broadcast of an unknown kind": HEAD + "ops: [{op: Add, tensors: {B: {broadcast: channels}}}]\n",
    "a broadcast of an output": HEAD + "ops: [{op: Add, tensors: {C: {broadcast: none}}}]\n",
    "sizes": CONV
    + "tensors: {X: {bytes: {max: 4 MiBit}, elements: {min: 4KiB}}, W: {bytes: {min: -1}}}\n",
    "a value of what is no constant": CONV + "tensors: {W: {constant: false, value: {min: 0}}}\n",
    "quantization outside of rules for it": CONV + "tensors: {W: {quantized: {symmetric: true}}}\n",
    "quantization with a wrong key": CONV
    + "quantized: true\n    tensors: {W: {quantized: {zero: 0}}}\n",
    "a list held to a number": CONV + "attributes: {pads: {max: 3}}\n",
    "a number held to elements": CONV + "attributes: {group: {each: {max: 3}}}\n",
    "an attribute that is never text": CONV + "attributes: {group: {one_of: many}}\n",
    "an expression that is none": CONV + "where: attr.group ==\n",
    "an expression that calls something": CONV + "where: [\"open('x') == 1\"]\n",
    "an expression over unknown names": CONV + "where: [x.rank == 4, attrs.group == 1]\n",
    "an expression over an unknown attribute": CONV + "where: [attr.groups == 1]\n",
    "an expression over an unknown fact": CONV + "where: [\"X.shpae[1] > 3 && W.size > 'X.none'\"]\n",
    "an expression over what one operator has": HEAD
    + 'ops: [{op: [Conv, Relu], where: ["W.given && attr.group == 1"]}]\n',
    "an expression over a foreign operator": HEAD + "ops: [{op: acme.Conv, where: X.rank == 4}]\n",
    "an expression that is too long": CONV + f"where: [{'1 == 1 && ' * 60}true]\n",
    "a condition with a wrong key": CONV + "where: [{exp: opset > 3, reason: too old}]\n",
    "a check that is not installed": CONV + "check: my_check\n",
    "a level that does not exist": CONV + "level: should\n",
    "a rule that an earlier one hides": HEAD
    + """ops:
  - {op: [Conv, Relu], attributes: {}}
  - {op: Conv, attributes: {group: {one_of: 1}}}
  - {op: [Relu, Add]}
""",
    "a rule that a wider one hides": HEAD
    + """ops:
  - op: Conv
    dtype: [float16, float32]
    opset: {min: 7}
    where: [attr.group == 1]
    tensors: {X: {rank: [3, 4], dims: {1: {max: 64, multiple_of: 2}}}}
    attributes: {kernel_shape: {each: {max: 11}}, auto_pad: {one_of: [NOTSET, VALID]}}
  - op: Conv
    opset: {min: 9, max: 13}
    where: [X.rank == 4, attr.group == 1]
    tensors: {X: {rank: 4, dims: {1: {max: 32, multiple_of: 4}}}, W: {constant: true}}
    attributes: {kernel_shape: {each: {max: 7}}, auto_pad: {one_of: NOTSET}}
""",
    "a rule behind one for any operator": HEAD
    + "ops: [{op: '*', opset: {min: 7}}, {op: Relu, opset: {min: 7}}]\n",
    "operators on the host that do not exist": RELU
    + "host: {ops: [Relu6], after: {ops: ['*', TopKay]}}\n",
    "names that are no regular expressions": RELU + "host: {names: ['[a'], after: {names: ['(?=a)']}}\n",
    "host with wrong keys": RELU + "host: {name: head, after: {op: Relu}}\n",
    "a layout that is none": RELU + "layout: {activations: nhwc, weights: OIHW1i}\n",
    "a layout of something else": RELU + "layout: {activations: OHWI4i, weights: NHWC}\n",
    "a layout that only the host converts to": RELU + "layout: {activations: NCHW4c, convert: either}\n",
    "a layout that nobody converts to": RELU + "layout: {activations: NHWC, convert: device}\n",
    "a layout with a wrong key": RELU + "layout: {activations: NHWC, weight: OHWI}\n",
    "a scheme of quantization": RELU
    + "quantization: {weights: {dtype: [int88]}, scales: powers, convert: cpu, input: {}}\n",
    "data types of a scheme": RELU + "quantization: {weights: {dtype: [int8, int88]}}\n",
    "limits": RELU + "limits: {regions: 0, min_nodes: 3, max_nodes: 2, memory: 1 MBit, batches: 3}\n",
    "limits against one another": RELU + "limits: {min_nodes: 3, max_nodes: 2}\n",
    "both a pattern and the library": COMPOSITE + "library: silu\n",
    "a pattern without a name": RELU + 'composites: [{pattern: "y = Relu(x)"}]\n',
    "a composite that the library does not have": RELU
    + "composites: [{library: sillu}, {library: qwertz}]\n",
    "a composite that can never match": RELU
    + 'composites: [{name: a, pattern: "b = Neg(x)\\ny = Relu(b)"}]\n',
    "variants that can never match": RELU
    + 'composites: [{name: a, pattern: ["b = Neg(x)?\\ny = Sin(b)", "y = Cos(x)"]}]\n',
    "a composite of the library that can never match": RELU + "composites: [{library: gelu}]\n",
    "a mistake in the second variant": RELU
    + 'composites: [{name: a, pattern: ["y = Relu(x)", "y = Rely(x)"]}]\n',
    "conditions of a composite": COMPOSITE + "where: [x.rank ==, q.rank == 1, y.rank == x.rank]\n",
    "names in conditions of a composite": COMPOSITE + "where: [q.rank == 1, y.rank == x.rank]\n",
    "a check of a composite": COMPOSITE + "check: my_check\n",
    "conditions that are never true": CONV
    + """where:
      - attr.kernel_shape[0] * 2
      - '"a" == 4'
      - attr.auto_pad
      - X.shape
      - attr.group == 'a'
      - "'NOTSET' == attr.auto_pad || attr.auto_pad == 4"
      - attr.auto_pad > 3
""",
    "conditions on the outer side": CONV
    + "quantized: true\n    where: [W.quantized.shape == 3, W.quantised.dtype == 'int8']\n",
    "conditions of a composite that are never true": COMPOSITE
    + "where: ['y.attr.axes[0] == 1', x.attr.axis == 1, 'y.shap[0] == 1', x.rank, y.op == 4]\n",
    "a parameter without a near name": HEAD + "ops: [{op: Tanh, tensors: {X: {rank: 4}}}]\n",
    "data types by other names": HEAD.replace("float32", "fp16") + "ops: [{op: Relu, dtype: qwert}]\n",
    "what is whole anyway": RELU + "keep: [Gelux, Conv, '*', Softmax]\n",
    "nothing to drop from": RELU + "drop: {ops: [Relu]}\n",
    "a composite called as a region": RELU + 'composites: [{name: t_0, pattern: "y = Relu(x)"}]\n',
    "a composite called as a variant": RELU
    + 'composites: [{name: a, pattern: "y = Relu|Neg(x)"}, {name: a_neg, pattern: "y = Relu(x)"}]\n',
}


def test_what_is_said_of_wrong_files(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    said = []
    path = tmp_path / "rules.yaml"
    for title, text in WRONG.items():
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as caught:
            load_rules(str(path))
        message = str(caught.value).replace(", float6e2m3, float6e3m2", "")  # known since onnx 1.22
        said.append(f"# {title}\n{message}".replace(str(path), "rules.yaml"))
    golden("rules_lint.txt", "\n\n".join(said) + "\n")


FINE = {
    "another kind of rule is not hidden": "ops: [{op: Conv}, {op: Conv, quantized: true, dtype: int8}]",
    "a narrower rule hides nothing": "ops: [{op: Conv, opset: {min: 7}}, {op: Conv}]",
    "operators that are kept whole": "keep: [Gelu, own.Block]\nops: [{op: Conv}]",
    "other data types": "ops: [{op: Conv, dtype: float16}, {op: Conv}]",
    "a tensor's own data types": "ops: [{op: Cast}, {op: Cast, tensors: {input: {dtype: int8}}}]",
    "other conditions": "ops: [{op: Conv, where: opset > 7}, {op: Conv, where: opset > 6}]",
    "bounds that overlap": """ops:
  - {op: Conv, attributes: {group: {min: 1, max: 4}}}
  - {op: Conv, attributes: {group: {min: 2, max: 8}}}
  - {op: Conv, tensors: {X: {dims: {1: {multiple_of: 8}}}}}
  - {op: Conv, tensors: {X: {dims: {1: {multiple_of: 12}, 2: {multiple_of: 8}}}}}
""",
    "conditions on what may be there": """ops:
  - {op: Conv, where: "!B.given || B.elements == Y.shape[1]"}
  - {op: If, where: "cond.value[0]"}
  - {op: Concat, where: "inputs.all(t, t.rank == 4) && inputs[0].shape[0] * 2 < 8"}
  - {op: LeakyRelu, where: "attr.alpha * 2.0 < 1.0"}
  - {op: Softmax, where: "input.rank == 4 ? attr.axis in [1, -3] : attr.axis == -1"}
  - {op: Slice, where: "starts.value[0] * 2 == 4"}
""",
    "quantized rules that the scheme tells apart": """quantization: {activations: {symmetric: true}}
ops:
  - {op: Relu, quantized: true, dtype: int8}
  - {op: Relu, quantized: true, dtype: int8, tensors: {X: {quantized: {symmetric: null}}}}
  - {op: Neg, quantized: true, dtype: [float32, int8]}
  - {op: Neg, quantized: true}
""",
    "any operator last": "ops: [{op: Conv, opset: {min: 7}}, {op: '*'}]",
    "the outer side may have any data type": """ops:
  - {op: Conv, quantized: true, tensors: {X: {dtype: int8, quantized: {symmetric: true}}}}
""",
    "one variant that can match": """ops: [{op: Relu}]
composites: [{name: a, pattern: ["y = Neg(x)", "y = Relu(x)"]}]
""",
    "an optional line that no rule takes": """ops: [{op: Relu}]
composites: [{name: a, pattern: "b = Neg(x)?\\ny = Relu(b)"}]
""",
    "texts and walks in expressions": """ops:
  - op: Conv
    where: ["attr.auto_pad != 'X.none attr.none' && X.shape.all(d, d > 3) && has(attr.group)"]
""",
}


@pytest.mark.parametrize("title", FINE)
def test_right_files(title: str) -> None:
    assert lint(yaml.safe_load(HEAD + FINE[title])) == []


def test_a_large_file_is_quick() -> None:
    rule = {
        "op": ["Conv", "MaxPool"],
        "tensors": {"X": {"rank": 4, "dims": {"each": {"max": 9}}}},
        "attributes": {"kernel_shape": {"each": {"min": 1, "max": 11}}},
        "where": "X.shape[1] > 3",
    }
    rules = [{**rule, "opset": {"min": i, "max": i}} for i in range(300)]
    content = {"target": "t", "cost_model": "dla", "dtype": "any", "ops": rules}
    assert count_calls(lambda: lint(content), most=6_000 * len(rules)) > len(rules)
