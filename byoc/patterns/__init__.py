"""Composites: the pattern language, the matcher, and the grouper that divides a graph into units."""
