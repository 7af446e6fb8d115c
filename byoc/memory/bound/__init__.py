"""Bytes below which no arena can be."""
