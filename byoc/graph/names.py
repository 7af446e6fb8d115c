"""Unique names."""


def make_unique_name(name: str, taken: set[str]) -> str:
    """Return `name`, or with the first free number behind it if it is taken, and add it to `taken`."""
    found, number = name, 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found
