"""Offsets of buffers in an arena."""
