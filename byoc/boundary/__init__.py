"""What crosses between host and accelerator: converted to what the target wants, described, checked.

`bound` puts conversions in, `contract` says what a tensor at a border is, and `check` reads both sides
of every border and holds them against each other.
"""
