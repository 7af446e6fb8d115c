"""Makers of files that try the opposite of what SECURITY.md promises; `input_attack_table` lists them.

An attack of a cell `reads` names or links a secret file outside, one of `writes` names a place outside,
and one of `executes` has a payload that leaves the box's mark. `says` is what byoc answers, so that an
attack which is refused for another reason is not taken for a defence.
"""

import json
import pickle
import shutil
import stat
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from forging import SOURCE, add_file, edit_manifest, turn_into_native
from helpers.support import VANILLA, parse
from input_box import Box, Explosive
from input_files import (
    COST_FILE,
    GENAI,
    Read,
    Words,
    calibrate,
    copy_bundle,
    make_fault,
    make_genai,
    make_program,
    make_samples,
    pack_bundle,
    partition,
    report_trace,
    run_driver,
    run_study,
    use_costs,
    use_rules,
)
from onnx import TensorProto, helper

from byoc.bundle import describe_file

Cell = Literal["reads", "writes", "executes"]
Change = Callable[[Box, Path], None]
UP = "../" * 12
OUTSIDE = "is not inside the bundle"
ELSEWHERE = "may name those beside and below it"
YAML = "!!python/object/apply:os.system ['{command}']"


@dataclass(frozen=True)
class Attack:
    """What reads files of a stranger's, and what byoc has to say, as a regular expression."""

    kind: str
    cell: Cell
    what: str
    make: Callable[[Box], Read]
    says: str
    code: int = 1
    needs: str = ""

    def __str__(self) -> str:
        """Return the name of the test."""
        return f"{self.kind}-{self.cell}-{self.what}".replace(" ", "_")


def on_bundle(change: Change, *words: str) -> Callable[[Box], Words]:
    """Return what changes a bundle and reads it by the words of a verb, by default `inspect`."""

    def make(box: Box) -> Words:
        bundle = copy_bundle(box)
        change(box, bundle)
        verb, *more = words or ("inspect",)
        return (verb, bundle, *more)

    return make


def list_file(name: str, path: Callable[[Box], Path]) -> Change:
    """Have a manifest list a file by a name, with the size and hash of that at a path."""

    def change(box: Box, bundle: Path) -> None:
        entry = describe_file(path(box)).model_dump()
        named = name.format(secret=box.secret, root=box.root)
        edit_manifest(bundle, lambda manifest: manifest["files"].update({named: entry}))

    return change


def link_decisions(box: Box, bundle: Path) -> None:
    (bundle / "decisions.json.gz").unlink()
    (bundle / "decisions.json.gz").symlink_to(box.secret / "s.bin")
    list_file("decisions.json.gz", lambda box: box.secret / "s.bin")(box, bundle)


def point_weights(location: str, box: Box, bundle: Path) -> None:
    """Have the partitioned model take a weight from a file outside."""
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    model.graph.initializer.append(_make_external(location.format(secret=box.secret)))
    add_file(bundle, "model.onnx", model.SerializeToString())


def _make_external(location: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def refer_outside(box: Box, bundle: Path) -> None:
    entry = {**describe_file(box.secret / "s.bin").model_dump(), "path": str(box.secret / "s.bin")}
    edit_manifest(bundle, lambda manifest: manifest.update(references={"w.bin": entry}))


def edit_region(**values: Any) -> Change:
    """Change entries of the manifest's only region; `{command}` is a command that leaves the mark."""

    def change(box: Box, bundle: Path) -> None:
        text = json.dumps(values).replace("{command}", box.command)
        edit_manifest(bundle, lambda m: m["variants"][0]["regions"][0].update(json.loads(text)))

    return change


def rename_files(box: Box, bundle: Path) -> None:
    """Have the codegen's name of a file lead out of any folder that it may be written to."""

    def change(manifest: Any) -> None:
        region = manifest["variants"][0]["regions"][0]
        files = region["artifact_files"]
        region["artifact_files"] = {f"{UP}{box.root}/{name}": path for name, path in files.items()}

    edit_manifest(bundle, change)


def ask_for_model(box: Box, bundle: Path) -> None:
    edit_manifest(bundle, lambda m: m["asked"].update(model=f"zoo:{UP}{box.secret}/s"))


def turn_native(box: Box, bundle: Path) -> None:
    turn_into_native(bundle, box.mark)


def zip_with(name: str, kind: int = stat.S_IFREG) -> Callable[[Box], Words]:
    """Return what adds a file, or a link, to a packed bundle, and reads it."""

    def make(box: Box) -> Words:
        packed = pack_bundle(box)
        with zipfile.ZipFile(packed, "a") as archive:
            info = zipfile.ZipInfo(name.format(root=box.root))
            info.external_attr = (kind | 0o777) << 16
            archive.writestr(info, str(box.secret / "s.bin"))
        return ("run", packed, "--inputs", "random")

    return make


def zip_native(box: Box) -> Words:
    folder = copy_bundle(box)
    turn_native(box, folder)
    packed = box.theirs / "b.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in filter(Path.is_file, folder.rglob("*")):
            archive.write(path, path.relative_to(folder).as_posix())
    return ("run", packed, "--inputs", "random")


def link_in(make: Callable[[Box], Path], name: str, target: str) -> Callable[[Box], Words]:
    """Return what puts a link to a secret into a folder, and verifies that folder."""

    def change(box: Box) -> Words:
        folder = make(box)
        box.link(f"{folder.name}/{name}", target)
        return ("verify", folder)

    return change


def change_program(change: Callable[[Any, Box], None]) -> Callable[[Box], Words]:
    """Return what edits `program.json`, whose signature then fits no more, and verifies."""

    def make(box: Box) -> Words:
        path = make_program(box) / "program.json"
        document = json.loads(path.read_text())
        change(document, box)
        path.write_text(json.dumps(document))
        return ("verify", path.parent, "--trust")

    return make


def write_main(box: Box) -> Words:
    program = make_program(box)
    text = f'#include <stdlib.h>\nint main(void) {{ return system("{box.command}"); }}\n'
    (program / "main.c").write_text(text)
    return ("verify", program)


def point_fault(box: Box) -> Words:
    fault = make_fault(box)
    save_external(fault / "model.onnx", "../../secret/s.bin")
    return ("verify", fault)


def save_external(path: Path, location: str) -> None:
    """Write a model that adds a weight whose data is elsewhere."""
    model = parse("net (float[1, 4] x) => (float[1, 4] y) { y = Add(x, w) }")
    model.graph.initializer.append(_make_external(location))
    path.write_bytes(model.SerializeToString())


def point_model(location: str, link: str = "") -> Callable[[Box], Words]:
    """Return what makes a model whose weight is at a location, where there may be a link to a secret."""

    def make(box: Box) -> Words:
        if link:
            box.link(location, link)
        save_external(box.theirs / "model.onnx", location.format(secret=box.secret))
        return partition(box)

    return make


def rename_all(text: str, *words: str) -> Callable[[Box], Words]:
    """Return what gives the model, its nodes and its tensors names that are paths, or code."""

    def make(box: Box) -> Words:
        name = text.format(root=box.root, command=box.command)
        relu = helper.make_node("Relu", [f"{name}x"], [f"{name}y"], name=f"{name}r", doc_string=name)
        values = [
            helper.make_tensor_value_info(f"{name}{end}", TensorProto.FLOAT, [1, 4]) for end in "xy"
        ]
        graph = helper.make_graph([relu], name, values[:1], values[1:])
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=name)
        (box.theirs / "model.onnx").write_bytes(model.SerializeToString())
        return partition(box, *words)

    return make


def with_rules(line: str, link: str = "") -> Callable[[Box], Words]:
    """Return what adds a line to a rule file, or replaces the one of the same key."""

    def make(box: Box) -> Words:
        if link:
            box.link("linked.yaml", link)
        new = _fill(line, box)
        key = new.partition(":")[0]
        kept = [each for each in VANILLA.read_text().splitlines() if not each.startswith(f"{key}:")]
        return use_rules(box, "\n".join([*kept, new]))

    return make


def with_costs(line: str, link: str = "") -> Callable[[Box], Words]:
    def make(box: Box) -> Words:
        if link:
            box.link("linked.yaml", link)
        return use_costs(box, f"{COST_FILE}{_fill(line, box)}\n")

    return make


def with_text(use: Callable[[Box, str], Words], text: str) -> Callable[[Box], Words]:
    return lambda box: use(box, _fill(text, box))


def _fill(text: str, box: Box) -> str:
    """Put the box's paths, and YAML that would run a command, into a text."""
    values = {"secret": box.secret, "root": box.root, "cwd": box.cwd, "yaml": YAML}
    for name, value in values.items():
        text = text.replace(f"<{name}>", str(value))
    return text.replace("{command}", box.command)


def dump_pickle(name: str, read: Callable[[Box, Path], Words]) -> Callable[[Box], Words]:
    """Return what writes a pickle that runs a command under the name of another format."""
    return lambda box: read(box, box.write(name, pickle.dumps(Explosive(box.command))))


def with_sample(name: str, write: Callable[[Box, Path], None]) -> Callable[[Box], Words]:
    """Return what puts one file into a folder of samples, and calibrates on it."""

    def make(box: Box) -> Words:
        folder = make_samples(box)
        (folder / "a.npz").unlink()
        write(box, folder / name)
        return calibrate(box, folder)

    return make


def save_objects(box: Box, path: Path) -> None:
    objects = np.array([Explosive(box.command)], dtype=object)
    if path.suffix == ".npz":
        np.savez(path, x=objects, allow_pickle=True)
    else:
        np.save(path, objects, allow_pickle=True)


def save_postscript(box: Box, path: Path) -> None:
    """Write a program in PostScript, which Pillow gives to the command `gs` where it may."""
    command = box.root / "bin" / "gs"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!/bin/sh\n{box.command}\n")
    command.chmod(0o755)
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    onnx.save(
        parse("net (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) { y = Relu(x) }"),
        box.theirs / "model.onnx",
    )


def save_tensor(box: Box, path: Path) -> None:
    path.write_bytes(_make_external(str(box.secret / "s.bin")).SerializeToString())


def zip_member(box: Box, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{UP}{box.root}/x.npy", b"\x93NUMPY")


def with_genai(change: Callable[[Any, Box], None], link: str = "") -> Callable[[Box], Words]:
    """Return what edits a folder of onnxruntime-genai, in which a file may be a link to a secret."""

    def make(box: Box) -> Words:
        config = json.loads(json.dumps(GENAI))
        change(config, box)
        folder = make_genai(box, config)
        if link:
            box.link(f"genai/{link}", "s.json")
        return partition(box, model=folder)

    return make


def set_filename(value: str) -> Callable[[Any, Box], None]:
    def change(config: Any, box: Box) -> None:
        config["model"]["decoder"]["filename"] = value.replace("<secret>", str(box.secret))

    return change


def add_library(config: Any, box: Box) -> None:
    config["model"]["decoder"]["session_options"] = {"custom_ops_library": str(box.root / "evil.so")}


def drive_by_script(box: Box) -> Words:
    """Run a bundle by a driver that is a script of the linker's, which names a library."""
    copy_bundle(box, "epcontext")
    return run_driver(box, box.write("libdla.so", f"INPUT({box.root}/evil.so)\n"))


def put_library(box: Box) -> Words:
    """Put libraries beside a bundle and into the working directory, and run it with those of byoc."""
    bundle = copy_bundle(box, "epcontext")
    source = box.write("evil.c", SOURCE.format(mark=box.mark))
    for path in (bundle / "libdla.so", box.cwd / "libdla.so", box.cwd / "libm.so.6"):
        subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    return ("run", bundle, "--inputs", "random", "--runtime", "ort-plugin")


def drive_by_name(box: Box) -> Words:
    """Run a bundle by a library that only the linker would find."""
    copy_bundle(box, "epcontext")
    return run_driver(box, "libm.so.6")


def link_journal(box: Box) -> Words:
    """Run a study whose journal would be written through a link."""
    (box.mine / "results.csv.cases.jsonl").symlink_to(box.root / "x")
    return run_study(box)


def name_nearby_costs(box: Box) -> Words:
    """Have a cost model name a file that lies in the working directory, and not beside it."""
    shutil.copy(box.secret / "s.yaml", box.cwd / "near.yaml")
    return with_costs("beside: near.yaml")(box)


def pickle_trace(box: Box) -> Words:
    """Give a pickle as a trace."""
    words = report_trace(box)
    box.write("trace.json", pickle.dumps(Explosive(box.command)))
    return words


def point_in_snapshot(box: Box) -> Words:
    """Have a folder look like a snapshot in a cache, so that links may lead to files called blobs."""
    shutil.copytree(box.secret, box.root / "blobs")
    folder = box.root / "snapshots" / "x"
    folder.mkdir(parents=True)
    (folder / "w.bin").symlink_to("../../blobs/s.bin")
    save_external(folder / "model.onnx", "w.bin")
    return partition(box, model=folder / "model.onnx")
