"""Composites: the pattern language, the matcher, and the grouper that makes units of a graph."""
