"""Nodes rewritten to compute in float16 or bfloat16 where the operators' schemas let them."""
