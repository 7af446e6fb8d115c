"""Names that are not taken yet."""


def fresh(name: str, taken: set[str]) -> str:
    """Return a name that is not taken, and take it: `name`, or that with the first free number."""
    found, number = name, 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found
