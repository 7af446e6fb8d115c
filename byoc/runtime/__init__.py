"""Running a bundle here. `byoc.load(path)` gives a function from inputs to outputs."""
