"""Search for an order of the steps with the least peak."""
