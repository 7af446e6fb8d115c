"""Running a bundle on this machine: `byoc.load(path)` returns a function from inputs to outputs."""
