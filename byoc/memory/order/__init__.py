"""The order of the steps with the least peak."""
