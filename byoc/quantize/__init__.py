"""Quantization of a float model: scales from ranges, and the nodes inserted around units."""
