"""Where buffers lie in the arena."""
