"""Describe failures between ranks, with the same message on all ranks."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from detcore.contract.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DistributedError,
    PeerLostError,
)

_OURS = str(Path(__file__).parents[1])


@dataclasses.dataclass(slots=True)  # not frozen: each collective creates an instance
class RankPosition:
    """A rank's current or last collective, and the line that called it."""

    number: int = 0
    name: str = ""
    site: str = ""

    def __str__(self) -> str:
        return f"{self.name}() #{self.number} at {self.site}" if self.name else "no collective yet"

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> RankPosition:
        """Read a position that a rank sent."""
        return cls(int(meta["number"]), str(meta["name"]), str(meta["site"]))

    def collective_key(self) -> tuple[int, str]:
        """Return a key that is equal for two ranks in the same collective."""
        return self.number, self.name


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """The reason why no collective of a group can succeed any more."""

    kind: str
    ranks: tuple[int, ...]
    text: str

    def to_error(self) -> DistributedError:
        """Return the exception to raise."""
        if self.kind == "lost":
            return PeerLostError(self.text, rank=self.ranks[0])
        if self.kind == "timeout":
            return CollectiveTimeoutError(self.text, ranks=self.ranks)
        if self.kind == "mismatch":
            return CollectiveMismatchError(self.text, ranks=self.ranks)
        return DistributedError(self.text)

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Failure:
        """Read a failure that a rank sent."""
        return cls(str(meta["kind"]), tuple(int(rank) for rank in meta["ranks"]), str(meta["text"]))


def find_caller() -> str:
    """Return file, line and function of the innermost caller outside detcore."""
    return describe_location(sys._getframe(1))


def describe_location(frame: FrameType | None) -> str:
    """Return file, line and function of the innermost frame outside detcore."""
    inner = frame
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    location = frame or inner
    if location is None:
        return "an unknown line"
    return f"{location.f_code.co_filename}:{location.f_lineno} in {location.f_code.co_name}"


def make_lost_failure(rank: int, how: str, positions: Mapping[int, RankPosition]) -> Failure:
    """Return the failure of a lost rank.

    Args:
        rank: The rank, over all nodes.
        how: Predicate for the message, such as ``"closed its context"``.
        positions: Position of every rank.
    """
    return Failure(
        "lost",
        (rank,),
        f"rank {rank} {how}.\n{_format_positions(positions)}\n"
        f"Look at the output of rank {rank} for the reason; the trial can be resumed.",
    )


def make_missing_failure(
    ranks: Sequence[int],
    timeout_s: float,
    positions: Mapping[int, RankPosition],
    now: Mapping[int, str],
) -> Failure:
    """Return the failure of ranks that did not reach a collective in time.

    Args:
        ranks: The missing ranks, over all nodes.
        timeout_s: The deadline that has passed.
        positions: Current or last position of every rank.
        now: Current code location of some ranks.
    """
    newest = max(positions.values(), key=lambda position: position.number)
    return Failure(
        "timeout",
        tuple(ranks),
        f"{newest.name}() #{newest.number} was not called by {_format_ranks(ranks)} within "
        f"{timeout_s:g} s.\n{_format_positions(positions, now)}\n"
        "Find out why the missing ranks are late, or allow more time with timeout_s.",
    )


def make_mismatch_failure(positions: Mapping[int, RankPosition]) -> Failure:
    """Return the failure of ranks that are in different collectives."""
    counts = Counter(position.collective_key() for position in positions.values())
    # If two groups have equal size, the group with the lowest rank is assumed to be right.
    expected = max(counts, key=lambda key: counts[key])
    diverging = [r for r, p in positions.items() if p.collective_key() != expected]
    calls = ", ".join(f"rank {r} {positions[r].name}() #{positions[r].number}" for r in diverging)
    return Failure(
        "mismatch",
        tuple(diverging),
        f"the ranks called different collectives: {calls}, the others {expected[1]}() "
        f"#{expected[0]}.\n"
        f"{_format_positions(positions)}\n"
        "All ranks must call the same collectives in the same order.",
    )


def _format_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _format_positions(
    positions: Mapping[int, RankPosition], now: Mapping[int, str] | None = None
) -> str:
    lines = []
    for rank, position in sorted(positions.items()):
        present = f"; now {now[rank]}" if now and rank in now else ""
        lines.append(f"  rank {rank}: {position}{present}")
    return "\n".join(lines)
