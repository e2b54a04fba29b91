"""Who saves what of a sharded checkpoint, decided without workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcore.checkpoint.sharded_save import Part, merge_metadata, share_out
from detcore.errors import CheckpointConflictError

HERE = ("host", 1, 2)


def part(*names: str, **more: object) -> Part:
    return Part(files=dict.fromkeys(names, 1), **more)  # type: ignore[arg-type]


def test_each_file_is_saved_once_by_the_lowest_rank_that_has_it() -> None:
    shares = share_out([part("a", "c/d"), part("b", "c/e"), part("a", "f")])
    assert [shares.of(rank) for rank in range(3)] == [["a", "c/d"], ["b", "c/e"], ["f"]]
    assert shares.contested == ("a",)


def test_workers_of_one_folder_are_one() -> None:
    shares = share_out([part("a", folder=HERE), part("a", folder=HERE), part("b", folder=None)])
    assert [shares.of(rank) for rank in range(3)] == [["a"], [], ["b"]]
    assert shares.contested == ()


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        (part("a"), part("a/b"), "a is a file on rank 0 and a folder on rank 1"),
        (part("x/a/b"), part("x/a"), "x/a is a file on rank 1 and a folder on rank 0"),
        (part("a"), part(directories=("a",)), "a is a file on rank 0 and a folder on rank 1"),
        (part(directories=("a/b",)), part("a"), "a is a file on rank 1 and a folder on rank 0"),
    ],
)
def test_a_file_in_the_place_of_a_folder(first: Part, second: Part, what: str) -> None:
    with pytest.raises(CheckpointConflictError, match=what):
        share_out([first, second])


def test_folders_are_empty_only_if_nobody_has_anything_in_them() -> None:
    shares = share_out([part("full/a", directories=("empty", "filled")), part("filled/b")])
    assert shares.directories == ("empty",)


@pytest.mark.parametrize(
    ("second", "path"),
    [({"a": 2}, "'a'"), ({"a": 1.0}, "'a'"), ({"deep": {"x": {"z": 1}}}, "'deep/x'"),
     ({"deep": 3}, "'deep'"), ({"a": True}, "'a'")],
)  # fmt: skip
def test_metadata_that_differs(second: dict[str, object], path: str) -> None:
    with pytest.raises(CheckpointConflictError, match=f"the metadata {path} is .* on rank 1"):
        merge_metadata([{"a": 1, "deep": {"x": 1}}, second])


_NAMES = st.sets(st.sampled_from("abcdefgh"))


@given(st.lists(_NAMES, min_size=1, max_size=5))
def test_nothing_is_lost_and_nothing_is_saved_twice(ranks: list[set[str]]) -> None:
    shares = share_out([part(*sorted(names)) for names in ranks])
    saved = [name for rank in range(len(ranks)) for name in shares.of(rank)]
    assert sorted(saved) == sorted(set[str]().union(*ranks))
    for rank in range(len(ranks)):
        assert set(shares.of(rank)) <= ranks[rank]
