"""Memory: live ranges, orders of execution, offsets in an arena, and proofs that nothing is wasted."""
