"""Ranges of tensors measured on data, and what quantization costs in accuracy."""
