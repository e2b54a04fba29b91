"""Checkpoints of Keras trials made to do harm: refused, each with its reason, and nothing run."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import capture_training_state

from detcore.errors import InvalidCheckpointError
from detcore_keras._arrays import decoded, read_arrays
from detcore_keras._keras import keras
from detcore_keras._npz import write_npz
from detcore_keras._state import VARIABLES_FILE, restore_weights

GIGABYTE = 1 << 30


class Exploit:
    """Makes a folder when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def npy(header: str | bytes, content: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """A .npy file with a header of one's own."""
    text = header.encode() if isinstance(header, str) else header
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text + content


def described(descr: str, shape: str, content: bytes = b"") -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n", content)


def archive(path: Path, *members: tuple[str, bytes], **options: Any) -> None:
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, content in members:
            file.writestr(name, content)


def good() -> bytes:
    content = io.BytesIO()
    np.save(content, np.arange(4.0))
    return content.getvalue()


def pickled_array(path: Path) -> None:
    array = np.empty(1, object)
    array[0] = Exploit(path.parent / "owned")
    np.savez(path, a=array)


def bare_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Exploit(path.parent / "owned")))


def pickle_as_member(path: Path) -> None:
    archive(path, ("a.npy", pickle.dumps(Exploit(path.parent / "owned"))))


def objects_inside_a_structure(path: Path) -> None:
    pickled = pickle.dumps(Exploit(path.parent / "owned"))
    archive(path, ("a.npy", described("[('x', '|O')]", "(1,)", pickled)))


def structure(path: Path) -> None:
    archive(path, ("a.npy", described("[('x', '<f8'), ('y', '<f8')]", "(1,)", bytes(16))))


def text_array(path: Path) -> None:
    np.savez(path, a=np.array(["abc"]))


def dates(path: Path) -> None:
    np.savez(path, a=np.array(["2026-01-01"], "datetime64[D]"))


def foreign_bytes(path: Path) -> None:
    np.savez(path, a=np.arange(4, dtype=">f4"))


def elements_without_size(path: Path) -> None:
    archive(path, ("a.npy", described("'|V0'", f"({10 * GIGABYTE},)")))


def claims_ten_gigabytes(path: Path) -> None:
    archive(path, ("a.npy", described("'<f4'", f"({10 * GIGABYTE // 4},)", bytes(64))))


def claims_more_than_a_number_holds(path: Path) -> None:
    archive(path, ("a.npy", described("'<f4'", "(4294967296, 4294967296, 4294967296)")))


def claims_too_little(path: Path) -> None:
    archive(path, ("a.npy", described("'<f4'", "(2,)", bytes(64))))


def empty_but_endless(path: Path) -> None:
    archive(path, ("a.npy", described("'<f4'", "(0, 99999999999999999999)")))


def negative_shape(path: Path) -> None:
    archive(path, ("a.npy", described("'<f4'", "(-1,)", bytes(4))))


def shape_of_a_flag(path: Path) -> None:
    archive(path, ("a.npy", described("'<f4'", "(True,)", bytes(4))))


def code_in_the_header(path: Path) -> None:
    code = f"__import__('os').mkdir({str(path.parent / 'owned')!r})"
    archive(path, ("a.npy", described(code, "(1,)", bytes(4))))


def nested_header(path: Path) -> None:
    archive(path, ("a.npy", npy("(" * 9000 + ")" * 900)))


def endless_header(path: Path) -> None:
    header = b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFFF) + b"{" * 64
    archive(path, ("a.npy", header))


def newer_header(path: Path) -> None:
    archive(path, ("a.npy", npy("{}", version=(9, 9))))


def bomb(path: Path) -> None:
    content = described("'|u1'", f"({64 << 20},)", bytes(64 << 20))
    archive(path, ("a.npy", content), compression=zipfile.ZIP_DEFLATED)


def climbing_name(path: Path) -> None:
    archive(path, ("../../owned.npy", good()))


def absolute_name(path: Path) -> None:
    archive(path, ("/tmp/owned.npy", good()))


def windows_name(path: Path) -> None:
    archive(path, ("a\\..\\owned.npy", good()))


def no_array_name(path: Path) -> None:
    archive(path, ("a.pkl", good()))


def two_of_a_name(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive(path, ("a.npy", good()), ("a.npy", good()))


def _patched(path: Path, edit: Callable[[bytearray, int], None]) -> None:
    """Write a good archive, and change its table of contents."""
    archive(path, ("a.npy", good()), ("b.npy", good()))
    content = bytearray(path.read_bytes())
    edit(content, content.index(b"PK\x01\x02"))
    path.write_bytes(content)


def lies_about_its_size(path: Path) -> None:
    def edit(content: bytearray, table: int) -> None:
        content[table + 20 : table + 28] = struct.pack("<II", 4_000_000_000, 4_000_000_000)

    _patched(path, edit)


def two_sizes(path: Path) -> None:
    def edit(content: bytearray, table: int) -> None:
        content[table + 24 : table + 28] = struct.pack("<I", 4_000_000_000)

    _patched(path, edit)


def encrypted(path: Path) -> None:
    def edit(content: bytearray, table: int) -> None:
        content[table + 8] |= 1

    _patched(path, edit)


def members_on_top_of_each_other(path: Path) -> None:
    """One array, listed a thousand times: the file is small, what it holds is not."""
    array = described("'|u1'", "(100000,)", bytes(100_000))
    archive(path, ("00000.npy", array))
    content = path.read_bytes()
    table, end = content.index(b"PK\x01\x02"), content.index(b"PK\x05\x06")
    entry = content[table:end]
    entries = [entry.replace(b"00000.npy", b"%05d.npy" % i) for i in range(1000)]
    counts = struct.pack("<HHII", 1000, 1000, len(entry) * 1000, table)
    tail = content[end : end + 8] + counts + content[end + 20 :]
    path.write_bytes(content[:table] + b"".join(entries) + tail)


def flipped_bit(path: Path) -> None:
    write_npz(path, {"a": np.arange(1000.0)})
    content = bytearray(path.read_bytes())
    content[4000] ^= 1
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    write_npz(path, {"a": np.arange(1000.0)})
    path.write_bytes(path.read_bytes()[:-300])


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


CASES: list[tuple[Callable[[Path], None], str]] = [
    (pickled_array, r"'a\.npy' holds Python objects, which is a pickle"),
    (bare_pickle, "it is damaged, or no array file"),
    (pickle_as_member, "begins with .* Should it be a pickle, it is not loaded"),
    (objects_inside_a_structure, r"'a\.npy' holds Python objects"),
    (structure, r"holds \[\('x', '<f8'\), \('y', '<f8'\)\], which is no type of numbers"),
    (text_array, "holds <U3, which is no type of numbers"),
    (dates, r"holds datetime64\[D\], which is no type of numbers"),
    (foreign_bytes, "holds >f4, in the byte order of others"),
    (elements_without_size, r"holds \|V0, which is no type of numbers"),
    (claims_ten_gigabytes, r"float32 \(2684354560,\), which is 10737418240 bytes, but has 64"),
    (claims_more_than_a_number_holds, r"which is \d{30} bytes, but has 0"),
    (claims_too_little, r"float32 \(2,\), which is 8 bytes, but has 64"),
    (empty_but_endless, "it is damaged, or no array file"),
    (negative_shape, r"the shape \(-1,\)"),
    (shape_of_a_flag, r"the shape \(True,\)"),
    (code_in_the_header, r"the header of its member 'a\.npy' cannot be used"),
    (nested_header, r"the header of its member 'a\.npy' cannot be used"),
    (endless_header, r"the header of its member 'a\.npy' cannot be used"),
    (newer_header, r"the header of its member 'a\.npy' cannot be used"),
    (bomb, "is compressed, so that a small file could ask for any amount of memory"),
    (climbing_name, r"a member '\.\./\.\./owned\.npy', which is no array's name"),
    (absolute_name, r"a member '/tmp/owned\.npy', which is no array's name"),
    (windows_name, "which is no array's name"),
    (no_array_name, r"a member 'a\.pkl', which is no array's name"),
    (two_of_a_name, r"two members 'a\.npy'"),
    (lies_about_its_size, r"said to have \d{10} bytes, but it has \d{3}"),
    (two_sizes, "is said to have 4000000000 bytes, stored as"),
    (encrypted, "is encrypted"),
    (members_on_top_of_each_other, r"said to have \d{9} bytes, but it has \d{6}"),
    (flipped_bit, "Bad CRC-32"),
    (cut_off, "it is damaged, or no array file"),
    (nothing, "it is damaged, or no array file"),
    (pipe, "a folder, a pipe or a device"),
    (folder, "a folder, a pipe or a device"),
]


@pytest.mark.parametrize(("make", "reason"), CASES, ids=[make.__name__ for make, _ in CASES])
def test_a_hostile_array_file_is_refused(
    make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "inside" / "weights.npz"
    path.parent.mkdir()
    make(path)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), limits[1]))
    try:
        with pytest.raises(InvalidCheckpointError, match=reason) as raised:
            read_arrays(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert str(path) in str(raised.value)
    assert [each.name for each in tmp_path.rglob("*")] == ["inside", "weights.npz"]


def test_what_is_written_can_be_read_by_numpy(tmp_path: Path) -> None:
    given = {
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), np.int8),
        "large": np.arange(3_000_000, dtype=np.int16).reshape(3, -1),
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "flags": np.array([True, False]),
        "complex": np.array([1 + 2j], np.complex64),
    }
    path = tmp_path / "a.npz"
    write_npz(path, given)
    ours = read_arrays(path)
    with np.load(path, allow_pickle=False) as theirs:
        assert set(theirs.files) == set(ours) == set(given)
        for key, array in given.items():
            for read in (ours[key], theirs[key]):
                np.testing.assert_array_equal(read, array, strict=True)
    np.savez(tmp_path / "b.npz", **given)
    for key, array in read_arrays(tmp_path / "b.npz").items():
        np.testing.assert_array_equal(array, given[key], strict=True)


def test_writing_and_reading_take_little_memory_beside_the_arrays(tmp_path: Path) -> None:
    array = np.arange(8 << 20, dtype=np.float64)
    path = tmp_path / "a.npz"
    tracemalloc.start()
    try:
        write_npz(path, {"a": array})
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.reset_peak()
        read = read_arrays(path)["a"]
        assert tracemalloc.get_traced_memory()[1] < array.nbytes + (8 << 20)
    finally:
        tracemalloc.stop()
    assert read.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("arrays", "dtype", "reason"),
    [
        ({"k": np.zeros(4, np.int32)}, "float32", "holds int32, although it is said to be float32"),
        ({"k": np.zeros(4, np.float16)}, "bfloat16", "holds float16, although"),
        ({"k": np.zeros(4, np.uint8)}, "bfloat16", "holds uint8, although"),
        ({"k": np.zeros(4, np.uint8)}, "os.system", "a type 'os.system', of which TensorFlow"),
        ({"k": np.zeros(4, np.uint8)}, "string", r"no entry 'k\.lengths'"),
        (
            {"k": np.zeros(4, np.uint8), "k.lengths": np.array([1 << 60])},
            "string",
            "4 bytes of strings, which is not what their lengths come to",
        ),
        (
            {"k": np.zeros(4, np.uint8), "k.lengths": np.array([-4, 4, 4])},
            "string",
            "4 bytes of strings",
        ),
        ({"k": np.zeros(4, np.uint8), "k.lengths": np.array([4.0])}, "string", "4 bytes of"),
        ({"k": np.zeros(4, np.uint8)}, "resource", "a type 'resource', of which TensorFlow"),
    ],
)
def test_values_of_another_type_than_said_are_refused(
    arrays: dict[str, Any], dtype: str, reason: str
) -> None:
    with pytest.raises(InvalidCheckpointError, match=reason):
        decoded(arrays, "k", dtype)


def small_model() -> Any:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"file": "../../weights.npz"}, r"names the file '\.\./\.\./weights\.npz'"),
        ({"file": "/etc/passwd"}, "names the file '/etc/passwd'"),
        ({"file": 3}, "no 'file', or one of another type"),
        ({"key": None}, "no 'key', or one of another type"),
        ({"shape": [3, -2]}, r"has the shape \[3, -2\]"),
        ({"shape": [3, True]}, r"has the shape \[3, True\]"),
        ({"group": "__class__"}, "has the group '__class__', which is none of"),
        ({"index": -1}, "has the index -1"),
        ({"key": "00099"}, "no entry '00099'"),
    ],
)
def test_a_list_of_variables_made_to_do_harm_is_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    model = small_model()
    capture_training_state(model, [], tmp_path)
    record = json.loads((tmp_path / VARIABLES_FILE).read_text())
    place = next(i for i, row in enumerate(record["variables"]) if row["group"] == "weights")
    record["variables"][place].update(changes)
    (tmp_path / VARIABLES_FILE).write_text(json.dumps(record))
    before = model.get_weights()
    with pytest.raises(InvalidCheckpointError, match=reason):
        restore_weights(model, tmp_path)
    for one, other in zip(before, model.get_weights(), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"version": 1}', '{"version": 1, "variables": {}}']
)
def test_a_damaged_list_of_variables_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / VARIABLES_FILE).write_text(text)
    with pytest.raises(InvalidCheckpointError, match=r"variables\.json is damaged"):
        restore_weights(small_model(), tmp_path)


def test_nothing_is_set_where_one_array_does_not_fit(tmp_path: Path) -> None:
    model = small_model()
    model.set_weights([np.full((3, 2), 7.0), np.full(2, 7.0)])
    capture_training_state(model, [], tmp_path)
    rows = json.loads((tmp_path / VARIABLES_FILE).read_text())["variables"]
    _, bias = (row for row in rows if row["group"] == "weights")
    arrays = read_arrays(tmp_path / "weights.npz")
    write_npz(tmp_path / "weights.npz", {**arrays, bias["key"]: np.zeros((5, 5), np.float32)})
    model.set_weights([np.ones((3, 2)), np.ones(2)])
    with pytest.raises(InvalidCheckpointError, match=r"has shape \[5, 5\]"):
        restore_weights(model, tmp_path)
    assert all(np.all(value == 1.0) for value in model.get_weights())
