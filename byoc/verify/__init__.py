"""Proof that a bundle computes what its model did: seeded inputs, both run, outputs compared."""
