"""Quantizing a float model: scales from ranges, DequantizeLinear and QuantizeLinear around units."""
