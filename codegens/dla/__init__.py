"""The codegen of the vanilla accelerator: a compiler and the machine in numpy."""
