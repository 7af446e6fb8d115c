"""Types of tensors that follow from the file and the given dimensions; arithmetic on extents."""
