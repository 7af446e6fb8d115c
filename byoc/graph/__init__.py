"""ONNX as it is: reading, checking, typing and looking things up; cutting sub-graphs out.

Knows nothing of rules, costs or devices. A `Model` comes in by `prepare` and is never edited; what
leaves is a new protobuf.
"""
