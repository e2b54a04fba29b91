"""A long list in pages."""

from __future__ import annotations

import dataclasses

__all__ = ["Paging"]


@dataclasses.dataclass(frozen=True, slots=True)
class Paging:
    """A page of a list.

    Attributes:
        page: Its number, from 1.
        size: How many there are on a page.
        total: How many there are.
        query: The other parameters of the address, encoded.
    """

    page: int
    size: int
    total: int
    query: str = ""

    @property
    def offset(self) -> int:
        """How many come before this page."""
        return (self.page - 1) * self.size

    @property
    def last(self) -> int:
        """Number of the last page."""
        return max(1, -(-self.total // self.size))

    @property
    def told(self) -> str:
        """The range of the entries on this page, as text."""
        if self.offset >= self.total:
            return f"none of {self.total:,}"
        return (
            f"{self.offset + 1:,} to {min(self.offset + self.size, self.total):,} of {self.total:,}"
        )

    def url(self, page: int) -> str:
        """Return the address of another page of the list."""
        return f"?{self.query}{'&' * bool(self.query)}page={page}"
