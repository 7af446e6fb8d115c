"""What is counted: the conventions under which activation memory is compared, by letter."""

from dataclasses import dataclass

from byoc.errors import InputError, nearest


@dataclass(frozen=True)
class Convention:
    """What of a model has a place in the arena, and which tensors share one. Weights never count.

    `inputs`: graph inputs lie in the arena until they are last read, and may then be written over.
    `views`: an operator that only gives bytes another shape makes no buffer. `in_place`: an operator
    that works element by element may write over an operand of the same size that nothing reads after
    it. `concat`: the operands of a Concat are made where its result is to lie, where that is one run of
    bytes for each operand.
    """

    name: str
    inputs: bool = False
    views: bool = False
    in_place: bool = False
    concat: bool = False

    def __str__(self) -> str:
        """Return what is counted, in words."""
        shared = {
            "views": self.views,
            "in-place operators": self.in_place,
            "Concat in place": self.concat,
        }
        found = [word for word, there in shared.items() if there]
        counted = "graph inputs counted" if self.inputs else "graph inputs not counted"
        return f"{counted}; {', '.join(found) + ' share buffers' if found else 'no buffers shared'}"


CONVENTIONS = {
    each.name: each
    for each in (
        Convention("A"),
        Convention("B", inputs=True),
        Convention("C", inputs=True, views=True, in_place=True),
        Convention("D", inputs=True, views=True, in_place=True, concat=True),
    )
}
"""A is that of ONNC's study (inputs and aliases left out), B adds inputs, C aliases, D Concats."""


def convention_named(name: str) -> Convention:
    """Return a convention by its letter. Raises InputError for another name."""
    if name not in CONVENTIONS:
        near = nearest(name, CONVENTIONS)
        raise InputError(f"no convention is named '{name}'{near}: there are {', '.join(CONVENTIONS)}")
    return CONVENTIONS[name]
