"""What crosses between host and accelerator, and the check that both sides mean the same by it."""
