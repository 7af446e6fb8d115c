"""`zoo:NAME`: real network structures to try things on, with nothing to download.

    >>> from byoc import zoo
    >>> [entry.name for entry in zoo.entries()][-3:]
    ['squeezenet', 'vgg19', 'zfnet512']
    >>> model = zoo.load("squeezenet")
    >>> inputs = zoo.sample_inputs("squeezenet", seed=1)

The structures are the nine classics that the `onnx` package carries as test data. Their weights are
random, but seeded and scaled so that the signal neither dies out nor explodes on its way to the
logits: a partition that computes something else shows it. Nothing is recognized in any image.
"""

from byoc.zoo.catalog import ZooEntry, entries, load, structure
from byoc.zoo.samples import sample_inputs

__all__ = ["ZooEntry", "entries", "load", "sample_inputs", "structure"]
