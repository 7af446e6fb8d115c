"""The operations of a plan's graphs, compared with a short independent statement."""

from helpers.support import VANILLA, parse

import byoc

BODIES = """
bodies (float[1, 64] x, bool c) => (float[1, 64] y) {
  a = Relu (x)
  b = If <then_branch = t () => (float[1, 64] u) { s = Neg (a) u = Relu (s) },
          else_branch = e () => (float[1, 64] v) { v = Sin (a) }> (c)
  d = Sin (b)
  y = Relu (d)
}
"""


def test_operations_of_a_graph_are_those_of_units_without_bodies() -> None:
    plan = byoc.partition(parse(BODIES), VANILLA, strategy="all-supported").plan
    for graph in plan.root.walk():
        done = total = 0.0
        for row, unit in enumerate(graph.units):
            count = float(graph.graph_problem.operations[row])
            if unit.nodes[0] in graph.bodies and graph.placement.labels[row] == 0:
                continue
            total += count
            done += count * bool(graph.placement.labels[row])
        assert graph.operations == (done, total)
        assert 0 <= done <= total
    done, total = plan.root.operations
    assert 0 < done < total
