"""Names of regions and saved placements after random edits of the zoo's models.

    python tests/zoo_suite/edited_models.py [--edits 300] [--seed 0] [MODEL...]

Each edited model is planned again with the placement that the original one was given. A region whose
nodes are the same, connected in the same way and with the same constants, must have its name; each node
that was there before, and has its name or its output still, must be where it was. What is the same is
worked out from the files, with the tags of `model_edits`, by nothing that byoc names regions with.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from zlib import crc32

import numpy as np
from model_edits import EditedModel, Tag, is_weight, point_weights_at_one_file

import byoc
from byoc.costs import load_device_costs, load_host_costs
from byoc.model import GraphIndex, Model, list_bodies, prepare_model
from byoc.pipeline import make_plan
from byoc.placement import Placement, Problem, Strategy
from byoc.placement.strategies import AllSupported
from byoc.planning import GraphPlan, Plan, PlanSettings, read_placement, save_placement
from byoc.rules import Target, load_rules

MODELS = (
    *("bert", "bvlc_alexnet", "convnext_tiny", "decoder_fp16", "decoder_int4", "densenet121", "detr"),
    *("efficientnet_b0", "fasterrcnn_mobilenet", "gpt2", "inception_v1", "inception_v2"),
    *("khmercut_int8", "magika_v3_3", "mobilenet_v3_large", "oww_embedding", "resnet50", "retinanet"),
    *("segformer_b0", "shufflenet", "silero_vad_v5", "squeezenet", "ssd300_vgg16", "ssdlite320"),
    *("swift_f0", "swin_tiny", "t5", "transformer_1k", "vgg19", "vit_tiny", "whisper_tiny", "zfnet512"),
)
COSTS = (
    "kind: roofline\nname: near\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\nlink: {bandwidth: .inf}\n"
)
ANY = "target: any\ncost_model: near\ndtype: any\nregions: connected\nops: [{op: '*'}]\n"

NodeKey = tuple[Hashable, ...]
"""A node: the tag of a node of the main graph, and for bodies the way in and the first output there."""


@dataclass(frozen=True)
class Tossed:
    """The toss of a coin for each supported unit whose device is not given."""

    seed: int
    name: str = "tossed"

    def solve(self, problem: Problem) -> Placement:
        toss = np.random.default_rng(self.seed).random(problem.units) < 0.7
        label = np.where(np.isfinite(problem.seconds[:, 1]), toss | problem.must, False)
        return Placement.from_labels(problem, label.astype(np.int64))


@dataclass
class Outcome:
    """What one edited model gave: how much was compared, and what was not as it should be."""

    model: str
    edits: tuple[str, ...]
    regions: int = 0
    nodes: int = 0
    refused: int = 0
    renamed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Placed:
    """A plan by tags: the device of each node, and the regions by their nodes."""

    devices: Mapping[NodeKey, int]
    refused: frozenset[NodeKey]
    regions: Mapping[frozenset[NodeKey], tuple[str, GraphIndex, Mapping[int, NodeKey]]]


def describe(plan: Plan, tags: Mapping[str, Tag]) -> Placed:
    """Return a plan by the tags of the nodes that make the tensors of its main graph."""
    devices: dict[NodeKey, int] = {}
    refused: set[NodeKey] = set()
    regions = {}

    def walk(graph: GraphPlan, way: NodeKey) -> None:
        key_of = {}
        for number, outputs in enumerate(graph.index.node_outputs):
            output = next(filter(None, outputs), "")
            key_of[number] = (*way, output if way else tags.get(output, output))
        for unit, label in zip(graph.units, graph.placement.labels.tolist(), strict=True):
            for node in unit.nodes:
                devices[key_of[node]] = label
                if not unit.is_supported(0):
                    refused.add(key_of[node])
        for region in graph.regions:
            inside = {node: key_of[node] for node in region.nodes}
            regions[frozenset(inside.values())] = region.name, graph.index, inside
        for node, bodies in graph.bodies.items():
            for position, body in enumerate(bodies):
                walk(body, (*key_of[node], position))

    walk(plan.root, ())
    return Placed(devices, frozenset(refused), regions)


def describe_content(index: GraphIndex, inside: Mapping[int, NodeKey], keep_names: bool) -> object:
    """Return what nodes compute, from the file alone; with the names of what they give to others."""

    def source(name: str) -> Hashable:
        maker = index.producers.get(name)
        if maker is None and name in index.initializers:
            tensor = index.initializers[name]
            told = name if is_weight(index, name) else ""
            return "constant", told, tensor.data_type, *tensor.dims
        if maker in inside:
            return "inside", inside[maker], list(index.nodes[maker].output).index(name)
        if maker in index.constant_nodes:
            return "computed", index.nodes[maker].op_type, *map(source, index.nodes[maker].input)
        return "outside" if name else "left out"

    edges = {
        key: (index.nodes[n].op_type, *map(source, index.nodes[n].input)) for n, key in inside.items()
    }
    read = {name for node in inside for name in index.reads[node]}
    made = {name for node in inside for name in index.node_outputs[node] if name}
    return edges, tuple(sorted(made - read)) if keep_names else ()


def has_own_weight(index: GraphIndex, nodes: Iterable[int]) -> bool:
    """Return whether nodes read a weight that no others read."""
    inside = set(nodes)
    read = {name for node in inside for name in index.reads[node]}
    return any(is_weight(index, name) and inside.issuperset(index.consumers[name]) for name in read)


def compare(before: Placed, after: Placed, outcome: Outcome, kept: frozenset[NodeKey]) -> None:
    """Compare an edited model with the original; `kept` are the nodes with their name or output."""
    for keys, (name, index, nodes) in before.regions.items():
        found = after.regions.get(keys)
        if found is None or has_bodies(index, nodes):
            continue
        other, new_index, new_nodes = found
        own = has_own_weight(index, nodes) and has_own_weight(new_index, new_nodes)
        old_content = describe_content(index, nodes, not own)
        if old_content != describe_content(new_index, new_nodes, not own):
            continue
        outcome.regions += 1
        if name != other:
            outcome.renamed.append(f"{name} is {other}, {len(nodes)} nodes")
    for key in kept & before.devices.keys() & after.devices.keys():
        outcome.nodes += 1
        if before.devices[key] == after.devices[key]:
            continue
        if before.devices[key] and key in after.refused:
            outcome.refused += 1
        else:
            outcome.moved.append(f"{key}: {before.devices[key]} to {after.devices[key]}")


def has_bodies(index: GraphIndex, nodes: Iterable[int]) -> bool:
    """Return whether a node goes to the accelerator with its bodies, which edits may have changed."""
    return any(list_bodies(index.nodes[node]) for node in nodes)


def find_kept(edited: EditedModel, original: Model) -> frozenset[NodeKey]:
    """Return the nodes of the main graph that have their name or their first output still.

    The name is alone, then and now; and an output says nothing where the name became another node's.
    """
    old = original.proto.graph.node
    names = Counter(node.name for _, node in edited.nodes)
    old_names = Counter(node.name for node in old)
    kept = set()
    for tag, node in edited.nodes:
        if not isinstance(tag, int):
            continue
        name = old[tag].name
        alone = bool(name) and names[name] == old_names[name] == 1
        if (alone and node.name == name) or (
            list(node.output) == list(old[tag].output) and not (alone and node.name != name)
        ):
            kept.add((tag,))
    return frozenset(kept)


@lru_cache(2)
def load_light(name: str, folder: Path) -> Model:
    """Return a model of the zoo whose large weights are zeros in one file of the folder."""
    model = byoc.load_model(f"zoo:{name}")
    return prepare_model(point_weights_at_one_file(model.proto, folder), name, folder)


def plan_with(
    model: Model, target: Target, costs: str, strategy: Strategy, placement: Path | None
) -> Plan:
    """Return the plan of a model for one target."""
    settings = PlanSettings(
        targets=(target,),
        costs=(load_device_costs(costs),),
        host=load_host_costs("host"),
        strategy=strategy,
        placement=None if placement is None else read_placement(placement),
    )
    return make_plan(model, settings)


def list_ways(folder: Path) -> list[tuple[Target, str, Strategy]]:
    """Return the ways to place a model: the rules, the costs, and the strategy."""
    (folder / "near.yaml").write_text(COSTS, encoding="utf-8")
    (folder / "any.yaml").write_text(ANY, encoding="utf-8")
    return [
        (load_rules(str(folder / "any.yaml")), str(folder / "near.yaml"), Tossed(1)),
        (load_rules(str(folder / "any.yaml")), str(folder / "near.yaml"), Tossed(2)),
        (load_rules("dla"), "dla", Tossed(3)),
        (load_rules("dla"), "dla", AllSupported()),
    ]


@lru_cache(8)
def place_original(name: str, folder: Path, way: int) -> Plan:
    """Return the plan of a model in one way, and save where its nodes are as `WAY.yaml`."""
    plan = plan_with(load_light(name, folder), *list_ways(folder)[way], None)
    save_placement(plan, folder / f"{way}.yaml")
    return plan


def try_edits(name: str, seed: int, folder: Path) -> Outcome:
    """Edit a model by a seed, and compare the plans before and after; the folder is for one model."""
    model = load_light(name, folder)
    rng = random.Random(crc32(f"{name} {seed}".encode()))
    way = rng.randrange(len(list_ways(folder)))
    first = place_original(name, folder, way)
    edited = EditedModel.copy(model, seed)
    edited.edit(rng.randint(1, 6))
    other = prepare_model(edited.build(), name, folder)
    second = plan_with(other, *list_ways(folder)[way], folder / f"{way}.yaml")
    tags = {name: tag for tag, node in enumerate(model.proto.graph.node) for name in node.output if name}
    outcome = Outcome(name, tuple(edited.edits))
    kept = find_kept(edited, model)
    compare(describe(first, tags), describe(second, edited.find_tags()), outcome, kept)
    return outcome


def print_outcome(seed: int, outcome: Outcome) -> dict[str, int]:
    """Print what was not as it should be, and return the numbers to add up."""
    for problem in (*outcome.renamed, *outcome.moved):
        print(f"{outcome.model} {seed}: {problem}; {', '.join(outcome.edits)}", flush=True)
    return {
        "models": 1,
        "edits": len(outcome.edits),
        "regions": outcome.regions,
        "renamed": len(outcome.renamed),
        "nodes": outcome.nodes,
        "moved": len(outcome.moved),
        "refused": outcome.refused,
    }


def main() -> None:
    """Edit models of the zoo, and print what was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--edits", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.edits):
            name = options.models[number * len(options.models) // options.edits]
            here = Path(folder, name)
            here.mkdir(exist_ok=True)
            total.update(
                print_outcome(options.seed + number, try_edits(name, options.seed + number, here))
            )
    print(
        "{models} edited models, {edits} edits: {regions} regions with the same content, {renamed} of "
        "another name; {nodes} nodes, {moved} elsewhere, {refused} that rules refuse now".format(**total)
    )
    sys.exit(bool(total["renamed"] or total["moved"]))


if __name__ == "__main__":
    main()
