"""Memory planning: arenas, striped execution, scratchpads, lower bounds and reports."""
