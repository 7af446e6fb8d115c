"""Values of small tensors that follow from inputs' types and constants, looked up by name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnx import GraphProto, ModelProto

from byoc.model._tensor_types import Dim
from byoc.model.inference._moved_values import MAX_ELEMENTS, Array
from byoc.model.inference._scope_values import find_value
from byoc.model.inference._scopes import TensorScope
from byoc.model.inference._settling import MAX_VISITS
from byoc.model.inference._type_merging import InferenceContext


@dataclass(frozen=True, eq=False)
class KnownValues:
    """The values of a graph's small tensors: stored ones, and those that nodes make of known types.

    They are right for every run if the types in the graph are.
    """

    scope: TensorScope

    @classmethod
    def of_graph(cls, typed: GraphProto, model: ModelProto, opsets: Mapping[str, int]) -> "KnownValues":
        """Return the values of the main graph of a model, which has the types of its tensors stated."""
        names = [
            dim.dim_param
            for value in typed.input
            for dim in value.type.tensor_type.shape.dim
            if dim.dim_param
        ]
        context = InferenceContext.read(model, names, MAX_VISITS)
        return cls(TensorScope.of_graph(context, typed, typed, opsets))

    @classmethod
    def of_settled(cls, scope: TensorScope) -> "KnownValues":
        """Return the values of a main graph whose types are settled, with those that were found then.

        They are those that `of_graph` finds: what a body, a function or a node without a size limit made
        is left out, and so is what follows from it.
        """
        beyond = scope.made_inside | {
            name
            for name, value in scope.values.items()
            if value is not None and value.size > MAX_ELEMENTS
        }
        dropped = set(beyond)
        for node in scope.nodes if beyond else ():
            if not dropped.isdisjoint(node.output) or not dropped.isdisjoint(node.input):
                dropped.update(filter(None, node.output))
        values = {name: value for name, value in scope.values.items() if name not in dropped}
        # Neither what the file states nor the scopes of bodies are kept: values do not need them.
        return cls(replace(scope, values=values, stated_graph=scope.graph, bodies={}, known_stated=None))

    def enter_body(self, number: int, attribute: str) -> "KnownValues | None":
        """Return the values in a body of a node, None if it has none of that name."""
        scope = self.scope.enter_body(number, attribute)
        if scope is None:
            return None
        assert scope.graph is not None
        scope.values.update((value.name, None) for value in scope.graph.input)
        return KnownValues(scope)

    def find_shape(self, name: str) -> tuple[Dim, ...] | None:
        """Return the shape of a tensor, None if its rank is not known."""
        kind = self.scope.find_type(name)
        return None if kind is None else kind.shape

    def find(self, name: str) -> Array | None:
        """Return the value of a tensor, None unless each of its at most 1,024 elements is known.

        The array must not be written to.
        """
        value = find_value(self.scope, name)
        return None if value is None or value.dtype == object else value

    def find_elements(self, name: str) -> list[Dim] | None:
        """Return the elements of an integer tensor, in rows, which may depend on open dimensions.

        An element is a number, an expression of extents, or None where it is not known. None is returned
        where nothing is known, and for more than 1,024 elements.
        """
        value = find_value(self.scope, name)
        if value is None or value.dtype.kind not in "iuO":
            return None
        return [dim if dim is None or isinstance(dim, str) else int(dim) for dim in value.ravel()]
