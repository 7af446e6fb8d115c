"""Measurements of operators and regions on this machine, and the error of predictions."""
