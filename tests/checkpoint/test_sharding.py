"""Assignment of files to workers, without workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcore.checkpoint.sharded_save import Part, merge_metadata, share_out
from detcore.errors import CheckpointConflictError

HERE = ("host", 1, 2)


def part(*names: str, **more: object) -> Part:
    return Part(files=dict.fromkeys(names, 1), **more)  # type: ignore[arg-type]


def test_lowest_rank_saves_each_file() -> None:
    shares = share_out([part("a", "c/d"), part("b", "c/e"), part("a", "f")])
    assert [shares.list_names(rank) for rank in range(3)] == [["a", "c/d"], ["b", "c/e"], ["f"]]
    assert shares.contested == ("a",)


def test_shared_folder_is_saved_once() -> None:
    shares = share_out([part("a", folder=HERE), part("a", folder=HERE), part("b", folder=None)])
    assert [shares.list_names(rank) for rank in range(3)] == [["a"], [], ["b"]]
    assert shares.contested == ()


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        (part("a"), part("a/b"), "a is a file on rank 0 and a directory on rank 1"),
        (part("x/a/b"), part("x/a"), "x/a is a file on rank 1 and a directory on rank 0"),
        (part("a"), part(directories=("a",)), "a is a file on rank 0 and a directory on rank 1"),
        (part(directories=("a/b",)), part("a"), "a is a file on rank 1 and a directory on rank 0"),
    ],
)
def test_file_and_folder_of_same_name_conflict(first: Part, second: Part, what: str) -> None:
    with pytest.raises(CheckpointConflictError, match=what):
        share_out([first, second])


def test_folder_is_empty_only_if_empty_on_all_ranks() -> None:
    shares = share_out([part("full/a", directories=("empty", "filled")), part("filled/b")])
    assert shares.directories == ("empty",)


@pytest.mark.parametrize(
    ("second", "path"),
    [({"a": 2}, "'a'"), ({"a": 1.0}, "'a'"), ({"deep": {"x": {"z": 1}}}, "'deep/x'"),
     ({"deep": 3}, "'deep'"), ({"a": True}, "'a'")],
)  # fmt: skip
def test_different_metadata_conflicts(second: dict[str, object], path: str) -> None:
    with pytest.raises(CheckpointConflictError, match=f"the metadata {path} is .* on rank 1"):
        merge_metadata([{"a": 1, "deep": {"x": 1}}, second])


_NAMES = st.sets(st.sampled_from("abcdefgh"))


@given(st.lists(_NAMES, min_size=1, max_size=5))
def test_every_file_is_saved_exactly_once(ranks: list[set[str]]) -> None:
    shares = share_out([part(*sorted(names)) for names in ranks])
    all_names = [name for rank in range(len(ranks)) for name in shares.list_names(rank)]
    assert sorted(all_names) == sorted(set[str]().union(*ranks))
    for rank in range(len(ranks)):
        assert set(shares.list_names(rank)) <= ranks[rank]
