"""Verification of bundles: model and bundle run on seeded inputs, and their outputs are compared."""
