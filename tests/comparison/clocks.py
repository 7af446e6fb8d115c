"""A clock that advances as a test says."""

from collections.abc import Callable, Iterable


class Clock:
    """Gives the time, which passes only when something runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: Iterable[float]) -> Callable[..., None]:
        """Return something whose runs take these seconds, one after the other."""
        left = iter(seconds)

        def run(*_: object) -> None:
            self.now += next(left)

        return run
