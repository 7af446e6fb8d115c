"""ONNX models: reading, checking, types, look-ups, and cutting out parts.

This room knows nothing of rules, costs or devices. `prepare` makes a `Model`, which is never edited;
every change gives a new protobuf.
"""
