"""Rewriting of nodes to compute in float16 or bfloat16 where the operators' schemas allow it."""
