"""Files of each kind that try the opposite of what SECURITY.md promises, cell by cell of its table.

An attack of a cell `reads` names or links a secret file outside, one of `writes` names a place outside,
and one of `executes` has a payload that leaves the box's mark. `says` is what byoc answers, so that an
attack which is refused for another reason is not taken for a defence.
"""

import json
import pickle
import stat
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from forging import SOURCE, add_file, edit_manifest, turn_into_native
from input_box import MODEL, Box, Explosive
from input_files import (
    COST_FILE,
    GENAI,
    PLACEMENT_FILE,
    PROBLEM,
    RANGES_FILE,
    STUDY_FILE,
    Read,
    Words,
    calibrate,
    copy_bundle,
    make_driver,
    make_fault,
    make_genai,
    make_program,
    make_samples,
    pack_bundle,
    partition,
    place,
    report_trace,
    run_driver,
    run_study,
    use_costs,
    use_placement,
    use_ranges,
    use_rules,
)
from onnx import TensorProto, helper
from support import VANILLA, parse

from byoc.bundle import describe_file

Cell = Literal["reads", "writes", "executes"]
Change = Callable[[Box, Path], None]
UP = "../" * 12
_OUTSIDE = "is not inside the bundle"
_ELSEWHERE = "may name those beside and below it"
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


def _on_bundle(change: Change, *words: str) -> Callable[[Box], Words]:
    """Return what changes a bundle and reads it by the words of a verb, by default `inspect`."""

    def make(box: Box) -> Words:
        bundle = copy_bundle(box)
        change(box, bundle)
        verb, *more = words or ("inspect",)
        return (verb, bundle, *more)

    return make


def _list_file(name: str, path: Callable[[Box], Path]) -> Change:
    """Have a manifest list a file by a name, with the size and hash of that at a path."""

    def change(box: Box, bundle: Path) -> None:
        entry = describe_file(path(box)).model_dump()
        named = name.format(secret=box.secret, root=box.root)
        edit_manifest(bundle, lambda manifest: manifest["files"].update({named: entry}))

    return change


def _link_decisions(box: Box, bundle: Path) -> None:
    (bundle / "decisions.json.gz").unlink()
    (bundle / "decisions.json.gz").symlink_to(box.secret / "s.bin")
    _list_file("decisions.json.gz", lambda box: box.secret / "s.bin")(box, bundle)


def _point_weights(location: str, box: Box, bundle: Path) -> None:
    """Have the partitioned model take a weight from a file outside."""
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    model.graph.initializer.append(_make_external(location.format(secret=box.secret)))
    add_file(bundle, "model.onnx", model.SerializeToString())


def _make_external(location: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def _refer(box: Box, bundle: Path) -> None:
    entry = {**describe_file(box.secret / "s.bin").model_dump(), "path": str(box.secret / "s.bin")}
    edit_manifest(bundle, lambda manifest: manifest.update(references={"w.bin": entry}))


def _edit_region(**values: Any) -> Change:
    """Change entries of the manifest's only region; `{command}` is a command that leaves the mark."""

    def change(box: Box, bundle: Path) -> None:
        text = json.dumps(values).replace("{command}", box.command)
        edit_manifest(bundle, lambda m: m["variants"][0]["regions"][0].update(json.loads(text)))

    return change


def _rename_files(box: Box, bundle: Path) -> None:
    """Have the codegen's name of a file lead out of any folder that it may be written to."""

    def change(manifest: Any) -> None:
        region = manifest["variants"][0]["regions"][0]
        files = region["artifact_files"]
        region["artifact_files"] = {f"{UP}{box.root}/{name}": path for name, path in files.items()}

    edit_manifest(bundle, change)


def _ask_for_model(box: Box, bundle: Path) -> None:
    edit_manifest(bundle, lambda m: m["asked"].update(model=f"zoo:{UP}{box.secret}/s"))


def _turn_native(box: Box, bundle: Path) -> None:
    turn_into_native(bundle, box.mark)


def _zip_with(name: str, kind: int = stat.S_IFREG) -> Callable[[Box], Words]:
    """Return what adds a file, or a link, to a packed bundle, and reads it."""

    def make(box: Box) -> Words:
        packed = pack_bundle(box)
        with zipfile.ZipFile(packed, "a") as archive:
            info = zipfile.ZipInfo(name.format(root=box.root))
            info.external_attr = (kind | 0o777) << 16
            archive.writestr(info, str(box.secret / "s.bin"))
        return ("run", packed, "--inputs", "random")

    return make


def _zip_native(box: Box) -> Words:
    folder = copy_bundle(box)
    _turn_native(box, folder)
    packed = box.theirs / "b.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in filter(Path.is_file, folder.rglob("*")):
            archive.write(path, path.relative_to(folder).as_posix())
    return ("run", packed, "--inputs", "random")


def _link_in(make: Callable[[Box], Path], name: str, target: str) -> Callable[[Box], Words]:
    """Return what puts a link to a secret into a folder, and verifies that folder."""

    def change(box: Box) -> Words:
        folder = make(box)
        box.link(f"{folder.name}/{name}", target)
        return ("verify", folder)

    return change


def _change_program(change: Callable[[Any, Box], None]) -> Callable[[Box], Words]:
    """Return what edits `program.json`, so that the signature does not fit, and verifies all the same."""

    def make(box: Box) -> Words:
        path = make_program(box) / "program.json"
        document = json.loads(path.read_text())
        change(document, box)
        path.write_text(json.dumps(document))
        return ("verify", path.parent, "--trust")

    return make


def _write_main(box: Box) -> Words:
    program = make_program(box)
    text = f'#include <stdlib.h>\nint main(void) {{ return system("{box.command}"); }}\n'
    (program / "main.c").write_text(text)
    return ("verify", program)


def _point_fault(box: Box) -> Words:
    fault = make_fault(box)
    _save_external(fault / "model.onnx", "../../secret/s.bin")
    return ("verify", fault)


def _save_external(path: Path, location: str) -> None:
    """Write a model that adds a weight whose data is elsewhere."""
    model = parse("net (float[1, 4] x) => (float[1, 4] y) { y = Add(x, w) }")
    model.graph.initializer.append(_make_external(location))
    path.write_bytes(model.SerializeToString())


def _point_model(location: str, link: str = "") -> Callable[[Box], Words]:
    """Return what makes a model whose weight is at a location, where there may be a link to a secret."""

    def make(box: Box) -> Words:
        if link:
            box.link(location, link)
        _save_external(box.theirs / "model.onnx", location.format(secret=box.secret))
        return partition(box)

    return make


def _rename_all(text: str, *words: str) -> Callable[[Box], Words]:
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


def _with_rules(line: str, link: str = "") -> Callable[[Box], Words]:
    """Return what adds a line to a rule file, or replaces the one of the same key."""

    def make(box: Box) -> Words:
        if link:
            box.link("linked.yaml", link)
        new = _fill(line, box)
        key = new.partition(":")[0]
        kept = [each for each in VANILLA.read_text().splitlines() if not each.startswith(f"{key}:")]
        return use_rules(box, "\n".join([*kept, new]))

    return make


def _with_costs(line: str, link: str = "") -> Callable[[Box], Words]:
    def make(box: Box) -> Words:
        if link:
            box.link("linked.yaml", link)
        return use_costs(box, f"{COST_FILE}{_fill(line, box)}\n")

    return make


def _with_text(use: Callable[[Box, str], Words], text: str) -> Callable[[Box], Words]:
    return lambda box: use(box, _fill(text, box))


def _fill(text: str, box: Box) -> str:
    """Put the box's paths, and YAML that would run a command, into a text."""
    values = {"secret": box.secret, "root": box.root, "cwd": box.cwd, "yaml": YAML}
    for name, value in values.items():
        text = text.replace(f"<{name}>", str(value))
    return text.replace("{command}", box.command)


def _dump_pickle(name: str, read: Callable[[Box, Path], Words]) -> Callable[[Box], Words]:
    """Return what writes a pickle that runs a command under the name of another format."""
    return lambda box: read(box, box.write(name, pickle.dumps(Explosive(box.command))))


def _sample(name: str, write: Callable[[Box, Path], None]) -> Callable[[Box], Words]:
    """Return what puts one file into a folder of samples, and calibrates on it."""

    def make(box: Box) -> Words:
        folder = make_samples(box)
        (folder / "a.npz").unlink()
        write(box, folder / name)
        return calibrate(box, folder)

    return make


def _save_objects(box: Box, path: Path) -> None:
    objects = np.array([Explosive(box.command)], dtype=object)
    if path.suffix == ".npz":
        np.savez(path, x=objects, allow_pickle=True)
    else:
        np.save(path, objects, allow_pickle=True)


def _save_postscript(box: Box, path: Path) -> None:
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


def _save_tensor(box: Box, path: Path) -> None:
    path.write_bytes(_make_external(str(box.secret / "s.bin")).SerializeToString())


def _zip_member(box: Box, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{UP}{box.root}/x.npy", b"\x93NUMPY")


def _genai(change: Callable[[Any, Box], None], link: str = "") -> Callable[[Box], Words]:
    """Return what edits a folder of onnxruntime-genai, in which a file may be a link to a secret."""

    def make(box: Box) -> Words:
        config = json.loads(json.dumps(GENAI))
        change(config, box)
        folder = make_genai(box, config)
        if link:
            box.link(f"genai/{link}", "s.json")
        return partition(box, model=folder)

    return make


def _set_filename(value: str) -> Callable[[Any, Box], None]:
    def change(config: Any, box: Box) -> None:
        config["model"]["decoder"]["filename"] = value.replace("<secret>", str(box.secret))

    return change


def _add_library(config: Any, box: Box) -> None:
    config["model"]["decoder"]["session_options"] = {"custom_ops_library": str(box.root / "evil.so")}


def _drive(box: Box) -> Words:
    """Run a bundle by a driver that is a script of the linker's, which names a library."""
    copy_bundle(box, "epcontext")
    return run_driver(box, box.write("libdla.so", f"INPUT({box.root}/evil.so)\n"))


def _put_library(box: Box) -> Words:
    """Put libraries beside a bundle and into the working directory, and run it with those of byoc."""
    bundle = copy_bundle(box, "epcontext")
    source = box.write("evil.c", SOURCE.format(mark=box.mark))
    for path in (bundle / "libdla.so", box.cwd / "libdla.so", box.cwd / "libm.so.6"):
        subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    return ("run", bundle, "--inputs", "random", "--runtime", "ort-plugin")


_BUNDLE = (
    Attack("bundle", "reads", "parent", _on_bundle(_list_file("../../secret/s.bin", lambda b: b.secret / "s.bin")), _OUTSIDE),
    Attack("bundle", "reads", "absolute", _on_bundle(_list_file("{secret}/s.bin", lambda b: b.secret / "s.bin")), _OUTSIDE),
    Attack("bundle", "reads", "link", _on_bundle(_link_decisions), _OUTSIDE),
    Attack("bundle", "reads", "weights", _on_bundle(partial(_point_weights, "../../secret/s.bin")), "has no hash"),
    Attack("bundle", "reads", "reference", _on_bundle(_refer), "which are not looked at"),
    Attack("bundle", "writes", "codegen's names", _on_bundle(_rename_files, "pack", "-o", "out.zip"), "is not a plain file name"),
    Attack("bundle", "writes", "region", _on_bundle(_edit_region(name=f"{UP}tmp/x"), "export-c", "-o", "out"), "name"),
    Attack("bundle", "executes", "native", _on_bundle(_turn_native), "", 0),
    Attack("bundle", "executes", "codegen", _on_bundle(_edit_region(codegen="odd")), "", 0),
    Attack("bundle to run", "reads", "link", _on_bundle(_link_decisions, "run", "--inputs", "random"), _OUTSIDE),
    Attack("bundle to run", "reads", "zoo", _on_bundle(_ask_for_model, "verify"), "no such|no model"),
    Attack("bundle to run", "writes", "codegen's names", _on_bundle(_rename_files, "run", "--inputs", "random"), "name|inside"),
    Attack("bundle to run", "executes", "native", _on_bundle(_turn_native, "run", "--inputs", "random"), "is native code"),
    Attack("bundle to run", "executes", "codegen", _on_bundle(_edit_region(codegen="odd"), "run", "--inputs", "random"), "no such codegen"),
    Attack("bundle to run", "executes", "option", _on_bundle(_edit_region(codegen_options={"cc": "{command}"}), "run", "--inputs", "random"), "", 0),
    Attack("zip", "reads", "link", _zip_with("linked.bin", stat.S_IFLNK), "is a link or a device"),
    Attack("zip", "writes", "parent", _zip_with("../../x"), _OUTSIDE),
    Attack("zip", "writes", "absolute", _zip_with("{root}/x"), _OUTSIDE),
    Attack("zip", "writes", "backslash", _zip_with("..\\..\\x"), _OUTSIDE),
    Attack("zip", "executes", "native", _zip_native, "is native code"),
)  # fmt: skip
_FOLDERS = (
    Attack("program in C", "reads", "weights", _link_in(make_program, "weights.bin", "s.bin"), "leads out of its folder", needs="emx_onnx_cgen"),
    Attack("program in C", "reads", "sample", _link_in(make_program, "sample.bin", "s.bin"), "leads out of its folder", needs="emx_onnx_cgen"),
    Attack("program in C", "reads", "document", _link_in(make_program, "program.json", "s.json"), "leads out of its folder", needs="emx_onnx_cgen"),
    Attack("program in C", "reads", "source", _change_program(lambda d, box: d["sources"].append("../../secret/s.txt")), "is not what export-c writes|there is no file", needs="emx_onnx_cgen"),
    Attack("program in C", "writes", "parent", _change_program(lambda d, box: d["code"].update({f"../program/../{UP}{box.theirs}/program/main.c": d["code"]["main.c"]})), "there is no file", needs="emx_onnx_cgen"),
    Attack("program in C", "executes", "code", _write_main, "main.c is not as it was written", needs="emx_onnx_cgen"),
    Attack("program in C", "executes", "library", _change_program(lambda d, box: d["libraries"].append(f"m -wrapper {box.command}")), "is no name of a library", needs="emx_onnx_cgen"),
    Attack("fault", "reads", "inputs", _link_in(make_fault, "inputs.npz", "s.npz"), "leads out of its folder"),
    Attack("fault", "reads", "model", _link_in(make_fault, "model.onnx", "s.onnx"), "leads out of its folder"),
    Attack("fault", "reads", "document", _link_in(make_fault, "fault.json", "s.json"), "leads out of its folder"),
    Attack("fault", "reads", "weights", _point_fault, "is not inside the model's folder"),
    Attack("fault", "writes", "region", lambda box: ("verify", make_fault(box, region=f"{UP}{box.root}/x", target="../x")), "", 0),
    Attack("fault", "executes", "option", lambda box: ("verify", make_fault(box, codegen="c", codegen_options={"cc": box.command})), "", 0, needs="cc"),
    Attack("fault", "executes", "codegen", lambda box: ("verify", make_fault(box, codegen="odd")), "no such codegen"),
    Attack("genai folder", "reads", "parent", _genai(_set_filename("../../secret/s.onnx")), "is not in the folder"),
    Attack("genai folder", "reads", "absolute", _genai(_set_filename("<secret>/s.onnx")), "is not in the folder"),
    Attack("genai folder", "reads", "configuration", _genai(lambda c, box: None, "genai_config.json"), "leads out of its folder"),
    Attack("genai folder", "reads", "link", _genai(lambda c, box: None, "tokenizer.json"), "leads out of the folder"),
    Attack("genai folder", "writes", "tokenizer", _genai(lambda c, box: c["model"].update(config_filename=f"{UP}{box.root}/x")), "is not in the folder"),
    Attack("genai folder", "executes", "library", _genai(_add_library), "is not in the folder"),
)  # fmt: skip
_TEXTS = (
    Attack("model", "reads", "parent", _point_model("../secret/s.bin"), "is not inside the model's folder"),
    Attack("model", "reads", "absolute", _point_model("{secret}/s.bin"), "is not inside the model's folder"),
    Attack("model", "reads", "link", _point_model("w.bin", "s.bin"), "is not inside the model's folder"),
    Attack("model", "reads", "memory", _point_model("*/_ORT_MEM_ADDR_/*"), "is not the name of a file"),
    Attack("model", "writes", "names", _rename_all(f"{UP}{{root}}/x"), "", 0),
    Attack("model", "executes", "names", _rename_all('"); */ }} system("{command}"); /* %s \\\n', "--codegen", "c"), "", 0, "cc"),
    Attack("rule file", "reads", "parent", _with_rules("extends: ../secret/s.yaml"), _ELSEWHERE),
    Attack("rule file", "reads", "absolute", _with_rules("extends: <secret>/s.yaml"), _ELSEWHERE),
    Attack("rule file", "reads", "link", _with_rules("extends: linked.yaml", "s.yaml"), _ELSEWHERE),
    Attack("rule file", "reads", "costs", _with_rules("cost_model: ../secret/s.yaml"), _ELSEWHERE),
    Attack("rule file", "writes", "target", _with_rules("target: ../../x"), "target"),
    Attack("rule file", "executes", "yaml", _with_rules("description: <yaml>"), "not valid YAML"),
    Attack("rule file", "executes", "option", _with_rules("codegen: c\ncodegen_options: {cc: '{command}'}"), "from the user alone"),
    Attack("rule file", "executes", "codegen", _with_rules("codegen: odd"), "no such codegen"),
    Attack("rule file", "executes", "check", _with_rules("composites: [{name: c, pattern: 'y = Relu(x)', check: 'os:system'}]"), "no such check|check"),
    Attack("cost model", "reads", "extends", _with_costs("extends: ../secret/s.yaml"), _ELSEWHERE),
    Attack("cost model", "reads", "beside", _with_costs("beside: <secret>/s.yaml"), _ELSEWHERE),
    Attack("cost model", "reads", "else", _with_costs("else: linked.yaml", "s.yaml"), _ELSEWHERE),
    Attack("cost model", "reads", "threads", _with_costs("threads: {2: ../secret/s.yaml}"), _ELSEWHERE),
    Attack("cost model", "reads", "working directory", lambda box: ((box.cwd / "near.yaml").write_text((box.secret / "s.yaml").read_text()), _with_costs("beside: near.yaml")(box))[1], "no such file and no installed cost model"),
    Attack("cost model", "writes", "name", _with_costs(f"description: {UP}<root>/x"), "", 0),
    Attack("cost model", "executes", "yaml", _with_costs("description: <yaml>"), "not valid YAML"),
    Attack("cost model", "executes", "plug-in", _with_costs("else: odd"), "no such"),
    Attack("study", "reads", "rules", _with_text(run_study, STUDY_FILE.replace("vanilla.yaml", "../secret/s.yaml")), _ELSEWHERE),
    Attack("study", "reads", "costs", _with_text(run_study, f"{STUDY_FILE}costs: [<secret>/s.yaml]\n"), _ELSEWHERE),
    Attack("study", "reads", "option", _with_text(run_study, STUDY_FILE.replace("[all-supported]", "[{name: all-supported, options: {x: <secret>/s.yaml}}]")), _ELSEWHERE),
    Attack("study", "executes", "yaml", _with_text(run_study, f"{STUDY_FILE}dims: <yaml>\n"), "not valid YAML"),
    Attack("study", "executes", "strategy", _with_text(run_study, STUDY_FILE.replace("all-supported", "odd")), "no such strategy"),
    Attack("study", "writes", "journal", lambda box: ((box.mine / "results.csv.cases.jsonl").symlink_to(box.root / "x"), run_study(box))[1], "it is a link"),
    Attack("problem file", "reads", "reference", lambda box: place(box, {"$ref": str(box.secret / "s.json")}), "must be given|maxFPGAs"),
    Attack("problem file", "writes", "id", lambda box: place(box, {**PROBLEM, "maxFPGAs": f"{UP}{box.root}/x"}), "maxFPGAs"),
    Attack("problem file", "executes", "pickle", _dump_pickle("p.json", lambda box, path: ("place", path)), "not JSON"),
    Attack("ranges", "reads", "include", _with_text(use_ranges, f"{RANGES_FILE}data: !include <secret>/s.yaml\n"), "not valid YAML"),
    Attack("ranges", "writes", "data", _with_text(use_ranges, f"{RANGES_FILE}data: {UP}<root>/x\n"), "", 0),
    Attack("ranges", "executes", "yaml", _with_text(use_ranges, f"{RANGES_FILE}data: <yaml>\n"), "not valid YAML"),
    Attack("placement file", "reads", "model", _with_text(use_placement, f"{PLACEMENT_FILE}model: <secret>/s.onnx\n"), "", 0),
    Attack("placement file", "writes", "model", _with_text(use_placement, f"{PLACEMENT_FILE}model: {UP}<root>/x\n"), "", 0),
    Attack("placement file", "executes", "yaml", _with_text(use_placement, f"{PLACEMENT_FILE}model: <yaml>\n"), "not valid YAML"),
    Attack("trace", "reads", "reference", lambda box: report_trace(box, {"traceEvents": str(box.secret / "s.json")}), "not a trace"),
    Attack("trace", "writes", "name", lambda box: report_trace(box, {"traceEvents": [], "file": f"{UP}{box.root}/x"}), "", 0),
    Attack("trace", "executes", "pickle", lambda box: (report_trace(box), (box.theirs / "trace.json").write_bytes(pickle.dumps(Explosive(box.command))))[0], "not a trace"),
    Attack("calibration data", "reads", "tensor", _sample("input_0.pb", _save_tensor), "in another file, which is not read"),
    Attack("calibration data", "writes", "member", _sample("a.npz", _zip_member), "."),
    Attack("calibration data", "executes", "npz", _sample("a.npz", _save_objects), "pickled objects, which are not read"),
    Attack("calibration data", "executes", "npy", _sample("a.npy", _save_objects), "pickled objects, which are not read|cannot be read"),
    Attack("calibration data", "executes", "image", _sample("a.png", _save_postscript), "cannot be read as an image", needs="PIL"),
    Attack("driver", "reads", "name", lambda box: (copy_bundle(box, "epcontext"), run_driver(box, "libm.so.6"))[1], "no such file"),
    Attack("driver", "writes", "codegen", _on_bundle(_edit_region(codegen=f"{UP}x"), "make-driver", "-o", "../mine/libx.so"), "no such codegen"),
    Attack("driver", "executes", "linker script", _drive, "library that can be loaded"),
    Attack("driver", "executes", "library beside", _put_library, "", 0, needs="cc"),
)  # fmt: skip
ATTACKS = (*_BUNDLE, *_FOLDERS, *_TEXTS)
