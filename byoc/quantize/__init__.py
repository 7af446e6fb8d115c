"""Quantizing a float model where an accelerator computes in integers: scales, and where they stand."""
