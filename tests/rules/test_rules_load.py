"""Rule files from a path or a name; every mistake in one go, each with its place."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.support import count_calls

from byoc.errors import InputError
from byoc.rules import load_rules

HEAD = "target: t\ncost_model: dla\ndtype: float32\n"


def complaints(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_rules(str(path))
    return str(caught.value)


WRONG = {
    "empty file": "",
    "not a mapping": "- op: Conv\n",
    "bad YAML": "target: [t\n",
    "a tab": "target: t\n\tdtype: float32\n",
    "an object": "target: !!python/object/apply:os.getcwd []\n",
    "an alias to itself": "ops: &o [*o]\n",
    "an unknown alias": "ops: *o\n",
    "a key that is a list": "? [a, b]\n: 1\n",
    "a key twice at the top": HEAD + "dtype: int8\nops: [{op: Relu}]\n",
    "a key twice deep inside": HEAD
    + "ops:\n  - op: Conv\n    attributes:\n      group: {min: 1, min: 2}\n",
    "an attribute twice": HEAD
    + "ops:\n  - op: Conv\n    attributes:\n      group: {}\n      group: {}\n",
    "nothing of what must be there": "description: x\n",
    "misspelt key at the top": HEAD + "ops: [{op: Relu}]\ncomposite: []\n",
    "misspelt keys at each level": HEAD
    + """ops:
  - op: Conv
    standalon: true
    opset: {mim: 1}
    tensors: {X: {ranks: 4}}
    attributes: {kernel_shape: {each: {maximum: 3}, lenght: 2}}
composites:
  - name: a
    patern: y = Relu(x)
""",
    "a number for a key": "1: 2\n" + HEAD + "ops: [{op: Conv, tensors: {1: {rank: 4}}}]\n",
    "values of the wrong type": """target: 9to5
description: [1]
cost_model: {}
dtype: []
regions: island
ops:
  - op: 5
  - op: []
  - op: Conv
    standalone: maybe
    dtype: {}
    opset: 11
    tensors: {X: 4, W: {rank: high, constant: 7, dtype: [[]]}}
    attributes:
      group: 1
      pads: {min: much, length: 2.5, one_of: [[1], null], each: [1]}
  - Relu
composites:
  - {name: 1st, pattern: [y]}
""",
    "ops that are no list": HEAD + "ops: {op: Relu}\ncomposites: none\n",
    "empty lists": HEAD + "ops: []\n",
    "empty ranks": HEAD
    + "ops: [{op: Conv, tensors: {X: {rank: []}}, attributes: {pads: {length: []}}}]\n",
    "min above max": HEAD
    + "ops: [{op: Conv, opset: {min: 9, max: 8}, attributes: "
    + "{group: {min: 2, max: 1.5}, pads: {each: {min: 1, max: 0}}}}]\n",
    "names that ONNX does not have": "target: t\ncost_model: dla\ndtype: [float, int8]\n"
    + """ops:
  - op: [Convv, Relu, QuiteAnother]
    dtype: [float33]
  - op: [Conv, MaxPool]
    tensors: {Xx: {dtype: bfloat}, W: {rank: 4}}
    attributes: {kernal_shape: {length: 2}, group: {min: 1}}
  - op: ai.onnx.ml.Normaliser
""",
    "constraints that the attribute cannot have": HEAD
    + """ops:
  - op: Conv
    attributes:
      group: {each: {min: 1}, length: 2}
      pads: {min: 0, max: 3, one_of: [1]}
      auto_pad: {min: 1, one_of: NOTSET}
  - op: Constant
    attributes:
      value: {max: 1}
      value_strings: {each: {max: 1}}
""",
    "patterns": HEAD
    + """ops: [{op: Relu}]
composites:
  - {name: form, pattern: "y := Relu(x)"}
  - name: several
    pattern: |
      y = Relu(x
      # a comment

      1 = Relu(x)
      z = Relu(x,, y-1)
  - {name: empty, pattern: ""}
  - name: flow
    pattern: |
      a = Relu(b)
      b = Relu(a?)
      b = Relu(x)
      c = Relu(x)
      y = Add(b?, y)
  - name: names
    pattern: |
      c = Convv|Relu(x)
      # in between
      y = Selu|Add|ReluReluRelu(c, z)
  - {name: other, pattern: "y = ai.onnx.ml.Normalizer(x)"}
  - {name: counts, pattern: "a = Conv(x)\\ny = Relu(a, b)"}
""",
    "composite names": HEAD
    + """ops: [{op: Relu}]
composites:
  - {name: a, pattern: y = Relu(x)}
  - {name: b, pattern: y = Relu(x)}
  - {name: a, pattern: y = Neg(x)}
  - {name: a b, pattern: y = Neg(x)}
  - {name: a, pattern: y = Abs(x)}
""",
    "of every sort at once": "target: t\ndtype: flaot32\nextra: 1\n"
    + """ops:
  - {op: Reluu}
  - {op: Conv, atributes: {}}
  - {op: Conv, attributes: {grup: {min: 1}}}
composites:
  - {name: a, pattern: y = Relu(x)}
  - {name: b}
  - {name: a, pattern: y = Reluu(x)}
""",
}


def test_what_is_said_of_wrong_files(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    said = []
    for title, text in WRONG.items():
        path = tmp_path / "rules.yaml"
        path.write_text(text, encoding="utf-8")
        lines = complaints(path).splitlines()
        assert all(line.startswith(str(path)) for line in lines), title
        said.append(
            "\n".join([f"# {title}", *(line.replace(str(path), "rules.yaml") for line in lines)])
        )
    golden("rules_wrong.txt", "\n\n".join(said) + "\n")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"target: \xff\n")
    assert complaints(path) == f"{path}: cannot be read: not UTF-8 text"
    path.write_bytes(b"target: \x00\n")
    assert complaints(path).startswith(f"{path}: not valid YAML: unacceptable character")
    path.write_text("[" * 5000)
    assert complaints(path).startswith(f"{path}: not valid YAML: ")


def test_neither_a_file_nor_a_name(tmp_path: Path) -> None:
    path = tmp_path / "dlaa.yaml"
    assert complaints(path).startswith(f"{path}: no such file and no installed rule file; installed: ")
    assert complaints(Path("dlaa")).startswith(
        "dlaa: no such file and no installed rule file (did you mean dla?); installed: dla, "
    )


@pytest.mark.parametrize("name", ["dla", "dla.yaml", "dla.yml"])
def test_the_built_in_file(name: str) -> None:
    target = load_rules(name)
    assert (target.name, target.domain, target.source) == ("dla", "byoc.dla", name)
    assert target.rules.dtype == ("float32",)
    assert [pattern.name for pattern in target.patterns] == [
        "conv_bn_add_relu",
        "conv_bn_relu",
        "conv_add_relu",
        "conv_bn",
        "conv_relu",
        "conv_clip",
        "conv_function",
        "conv_gated",
        "product_function",
        "gated",
        "nan_guard",
        "bn_relu",
        "add_relu",
        "dynamic_quantization",
    ]


def test_one_value_stands_for_a_list_of_one(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        HEAD + "ops: [{op: Gemm, tensors: {A: {rank: 2}}, attributes: {transA: {one_of: 0}}}]\n"
    )
    (rule,) = load_rules(str(path)).rules.ops
    assert (rule.op, rule.tensors["A"].rank, rule.attributes["transA"].one_of) == (("Gemm",), (2,), (0,))


def test_anchors_aliases_and_merges(tmp_path: Path) -> None:
    """`<<` brings keys in; one that is written wins and is no duplicate."""
    path = tmp_path / "r.yaml"
    path.write_text(
        HEAD
        + """
ops:
  - &pool
    op: MaxPool
    tensors: {X: &x {rank: 4}}
    attributes: {kernel_shape: {each: &small {min: 1, max: 3}}}
  - {<<: *pool, op: AveragePool, opset: {min: 7}}
  - {op: Conv, tensors: {X: *x}, attributes: {strides: {each: {<<: *small, max: 2}}}}
"""
    )
    first, second, third = load_rules(str(path)).rules.ops
    assert (second.op, second.tensors, second.attributes) == (
        ("AveragePool",),
        first.tensors,
        first.attributes,
    )
    assert second.opset.min == 7
    each = third.attributes["strides"].each
    assert each is not None
    assert (each.min, each.max, third.tensors["X"].rank) == (1, 2, (4,))


def test_numbers_with_an_exponent_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        HEAD
        + "ops: [{op: LeakyRelu, attributes: {alpha: {one_of: [1e-5, 2E3, 1.5e+2, -1e3], min: -1e3}}}]\n"
    )
    alpha = load_rules(str(path)).rules.ops[0].attributes["alpha"]
    assert (alpha.one_of, alpha.min) == ((1e-5, 2000.0, 150.0, -1000.0), -1000.0)


def test_aliases_that_multiply(tmp_path: Path) -> None:
    """Ten levels of ten: ten thousand million items, if anyone were to write them out."""
    levels = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 10)]
    path = tmp_path / "r.yaml"
    path.write_text("\n".join(levels) + "\nops: *l9\ndtype: *l9\n")
    assert "not valid YAML: more than 1048576 parts, aliases written out" in complaints(path)
    path.write_text(f"a: &a x\nops: [{', '.join(['*a'] * 201)}]\n")
    assert "not valid YAML: more than 200 aliases" in complaints(path)


@pytest.mark.parametrize("key", ["target", "ops", "composites", "dtype"])
def test_aliases_that_double(key: str, tmp_path: Path) -> None:
    """Few enough aliases, and yet millions of items if they are written out, by `str` for instance."""
    levels = ["l0: &l0 [x, x]", *(f"l{i}: &l{i} [*l{i - 1}, *l{i - 1}]" for i in range(1, 24))]
    path = tmp_path / "r.yaml"
    path.write_text("\n".join(levels) + f"\n{key}: *l23\n")
    assert len(complaints(path)) < 10_000


def test_merges_that_double(tmp_path: Path) -> None:
    levels = ["l0: &l0 {x: 1, y: 2}"]
    levels += [f"l{i}: &l{i} {{<<: [*l{i - 1}, *l{i - 1}]}}" for i in range(1, 15)]
    path = tmp_path / "r.yaml"
    path.write_text("\n".join(levels) + "\n")
    refused = f"{path}:14:6: not valid YAML: more than 10000 keys in one mapping"
    # From 6.0.4 on PyYAML keeps one of equal keys.
    assert complaints(path) == refused or f"{path}: l14: no such key; known: " in complaints(path)


def test_a_key_with_line_breaks_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(HEAD + 'ops: [{op: Relu}]\n"a\\nb\\u2028c": 1\n')
    assert complaints(path).startswith(rf"{path}: a\nb\u2028c: no such key; known: extends, drop, ")
    assert "\n" not in complaints(path)


def test_a_file_is_checked_once_in_a_program() -> None:
    load_rules("dla")
    count_calls(lambda: load_rules("dla"), 2_000)  # to check it takes 100,000
    with pytest.raises(AssertionError):
        count_calls(lambda: load_rules("dla"), 20)  # its content is read in any case


def test_what_changes_in_a_file_or_in_one_that_it_extends_is_seen(tmp_path: Path) -> None:
    base, own = tmp_path / "base.yaml", tmp_path / "own.yaml"
    own.write_text("extends: base.yaml\ntarget: own\nops: [{op: Add}]\n")
    for ops in ("[{op: Relu}]", "[{op: Relu}, {op: Erf}]", "[{op: Relu}]"):
        base.write_text(f"{HEAD}ops: {ops}\n")
        for _ in range(2):
            rules = load_rules(str(own)).rules
            assert [rule.op for rule in rules.ops] == [("Add",), ("Relu",), ("Erf",)][
                : 1 + ops.count("op:")
            ]
    base.write_text(f"{HEAD}ops: [{{op: Rely}}]\n")
    assert [complaints(own) for _ in range(2)] == [complaints(own)] * 2
    assert "base.yaml: ops[0].op" in complaints(own)
    base.write_text(f"{HEAD}ops: [{{op: Relu}}]\n")
    own.write_text("extends: base.yaml\ntarget: other\n")
    assert load_rules(str(own)).name == "other"
    own.write_text("target: 2026-11-30\n")  # a date
    assert "target" in complaints(own)


def test_one_content_under_several_names_has_each_files_places(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"{HEAD}ops: [{{op: Relu}}]\n")
        (tmp_path / f"{name}_on.yaml").write_text(f"extends: {name}.yaml\n")
        own, further = (load_rules(str(tmp_path / f"{name}{end}.yaml")) for end in ("", "_on"))
        assert own.source == str(tmp_path / f"{name}.yaml")
        assert own.folder == tmp_path
        assert further.locate("ops[0]") == f"{name}.yaml: ops[0]"


def test_a_changed_composite_of_the_library_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "shelf" / "composites"
    package.mkdir(parents=True)
    (tmp_path / "shelf" / "__init__.py").touch()
    info = tmp_path / "shelf-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[byoc.annotations]\nshelf = shelf\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    rules = tmp_path / "own.yaml"
    rules.write_text(f"{HEAD}ops: [{{op: [Relu, Sigmoid]}}]\ncomposites: [{{library: own_relu}}]\n")
    assert "no composite 'own_relu'" in complaints(rules)
    shelf = package / "own.yaml"
    for seconds, pattern in enumerate(("y = Relu(x)", "y = Sigmoid(x)")):
        entry = f"{{name: own_relu, description: one, pattern: '{pattern}'}}"
        shelf.write_text(f"composites: [{entry}]\n")
        os.utime(shelf, (seconds, seconds))
        assert load_rules(str(rules)).patterns[0].texts == (pattern,)
    shelf.unlink()
    assert "no composite 'own_relu'" in complaints(rules)
