"""Lower bounds on the size of an arena."""
