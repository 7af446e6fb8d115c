"""The limit of a search: its work, counted, so that no plan depends on a machine or on its load."""

from math import inf
from typing import Self


class SearchBudget:
    """Seconds that searches may take on an ordinary computer, counted by their steps, never measured.

    Each search says what it does (`spend`), at the seconds that such steps take on one core of about
    3 GHz. On another computer, or a busy one, the search takes longer, and finds the same.
    """

    def __init__(self, seconds: float = inf, whole: Self | None = None) -> None:
        """Allow so many seconds; what is spent is taken from `whole`, too."""
        self._left = seconds
        self._whole = whole

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0."""
        within = self._left if self._whole is None else min(self._left, self._whole.left)
        return max(within, 0.0)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def spend(self, seconds: float) -> None:
        """Take the seconds of a step away."""
        self._left -= seconds
        if self._whole is not None:
            self._whole.spend(seconds)

    def limit(self, seconds: float) -> "SearchBudget":
        """Return a part of this budget, of at most so many seconds."""
        return SearchBudget(seconds, self)
