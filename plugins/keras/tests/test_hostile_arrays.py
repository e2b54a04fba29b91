"""Checkpoints of Keras trials made to do harm: refused, each with its reason, and nothing run."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from _fakes import write_training_state

from detcore.errors import InvalidCheckpointError
from detcore_keras.frameworks import keras
from detcore_keras.state.array_files import decoded, encoded, read_arrays
from detcore_keras.state.npz_files import write_npz
from detcore_keras.state.training_state import VARIABLES_FILE, restore_weights

GIGABYTE = 1 << 30


class Exploit:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("owned",)


PICKLE = pickle.dumps(Exploit())


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


def saved(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


GOOD = saved(np.arange(4.0))


def bomb(path: Path) -> None:
    content = described("'|u1'", f"({64 << 20},)", bytes(64 << 20))
    archive(path, ("a.npy", content), compression=zipfile.ZIP_DEFLATED)


def patched(offset: int, change: bytes) -> Callable[[Path], None]:
    """Return a function that writes a good archive, and changes its table of contents."""

    def write(path: Path) -> None:
        archive(path, ("a.npy", GOOD), ("b.npy", GOOD))
        content = bytearray(path.read_bytes())
        place = content.index(b"PK\x01\x02") + offset
        content[place : place + len(change)] = change
        path.write_bytes(content)

    return write


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


HUGE = struct.pack("<I", 4_000_000_000)
OBJECTS = r"'a\.npy' holds Python objects"
HEADER = r"the header of its member 'a\.npy' cannot be used"
DAMAGED = "it is damaged, or no array file"
NO_NAME = "which is no array's name"
NO_FILE = "a folder, a pipe or a device"
# The content of a member, the name of a good member, or a function that writes the file.
CASES: dict[str, tuple[bytes | str | Callable[[Path], Any], str]] = {
    "pickled array": (saved(np.array([Exploit()], object)), f"{OBJECTS}, which is a pickle"),
    "bare pickle": (lambda path: path.write_bytes(PICKLE), DAMAGED),
    "pickle as a member": (PICKLE, "begins with .* Should it be a pickle, it is not loaded"),
    "objects inside a structure": (described("[('x', '|O')]", "(1,)", PICKLE), OBJECTS),
    "structure": (
        described("[('x', '<f8'), ('y', '<f8')]", "(1,)", bytes(16)),
        r"holds \[\('x', '<f8'\), \('y', '<f8'\)\], which is no type of numbers",
    ),
    "text": (saved(np.array(["abc"])), "holds <U3, which is no type of numbers"),
    "dates": (
        saved(np.array(["2026-01-01"], "datetime64[D]")),
        r"holds datetime64\[D\], which is no type of numbers",
    ),
    "foreign bytes": (saved(np.arange(4, dtype=">f4")), "holds >f4, in the byte order of others"),
    "elements without size": (
        described("'|V0'", f"({10 * GIGABYTE},)"),
        r"holds \|V0, which is no type of numbers",
    ),
    "claims ten gigabytes": (
        described("'<f4'", f"({10 * GIGABYTE // 4},)", bytes(64)),
        r"float32 \(2684354560,\), which is 10737418240 bytes, but has 64",
    ),
    "claims more than a number holds": (
        described("'<f4'", "(4294967296, 4294967296, 4294967296)"),
        r"which is \d{30} bytes, but has 0",
    ),
    "claims too little": (
        described("'<f4'", "(2,)", bytes(64)),
        r"float32 \(2,\), which is 8 bytes, but has 64",
    ),
    "empty but endless": (described("'<f4'", "(0, 99999999999999999999)"), DAMAGED),
    "negative shape": (described("'<f4'", "(-1,)", bytes(4)), r"the shape \(-1,\)"),
    "shape of a flag": (described("'<f4'", "(True,)", bytes(4)), r"the shape \(True,\)"),
    "code in the header": (described("__import__('os').mkdir('owned')", "(1,)", bytes(4)), HEADER),
    "nested header": (npy("(" * 9000 + ")" * 900), HEADER),
    "endless header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFFF) + b"{" * 64, HEADER),
    "newer header": (npy("{}", version=(9, 9)), HEADER),
    "bomb": (bomb, "is compressed, so that a small file could ask for any amount of memory"),
    "climbing name": ("../../owned.npy", rf"a member '\.\./\.\./owned\.npy', {NO_NAME}"),
    "absolute name": ("/tmp/owned.npy", rf"a member '/tmp/owned\.npy', {NO_NAME}"),
    "windows name": ("a\\..\\owned.npy", NO_NAME),
    "no name of an array": ("a.pkl", rf"a member 'a\.pkl', {NO_NAME}"),
    "two of a name": (
        lambda path: archive(path, ("a.npy", GOOD), ("a.npy", GOOD)),
        r"two members 'a\.npy'",
    ),
    "lies about its size": (patched(20, HUGE * 2), r"said to have \d{10} bytes, but it has \d{3}"),
    "two sizes": (patched(24, HUGE), "is said to have 4000000000 bytes, stored as"),
    "encrypted": (patched(8, b"\1"), "is encrypted"),
    "members on top of each other": (
        members_on_top_of_each_other,
        r"said to have \d{9} bytes, but it has \d{6}",
    ),
    "flipped bit": (flipped_bit, "Bad CRC-32"),
    "cut off": (cut_off, DAMAGED),
    "nothing": (Path.touch, DAMAGED),
    "pipe": (os.mkfifo, NO_FILE),
    "folder": (Path.mkdir, NO_FILE),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("content", "reason"), CASES.values(), ids=CASES)
def test_a_hostile_array_file_is_refused(
    content: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "inside" / "weights.npz"
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)
    if callable(content):
        content(path)
    else:
        archive(path, (content, GOOD) if isinstance(content, str) else ("a.npy", content))
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


def test_bits_survive_and_numpy_can_read_them(tmp_path: Path) -> None:
    given = {
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), np.int8),
        "large": np.arange(3_000_000, dtype=np.int16).reshape(3, -1),
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "flags": np.array([True, False]),
        "complex": np.array([1 + 2j], np.complex64),
        "nan": np.array([0x7FC00001, 0xFF800123], np.uint32).view(np.float32),
        "half": np.array([1.5, -0.0], np.float16),
    }
    foreign = {
        "b16": np.array([1.1, float("nan")], ml_dtypes.bfloat16),
        "f8": np.array([[1, 2]], ml_dtypes.float8_e4m3fn),
    }
    path = tmp_path / "a.npz"
    parts = [encoded(key, array) for key, array in {**given, **foreign}.items()]
    write_npz(path, {key: array for part in parts for key, array in part.items()})
    np.savez(tmp_path / "b.npz", **given)
    ours = read_arrays(path)
    with np.load(path, allow_pickle=False) as theirs:
        assert set(theirs.files) == set(ours) == {*given, *foreign}
        for read in (ours, theirs, read_arrays(tmp_path / "b.npz")):
            for key, array in given.items():
                np.testing.assert_array_equal(read[key], array, strict=True)
                assert read[key].tobytes() == array.tobytes()
    for key, array in foreign.items():
        assert (ours[key].shape, ours[key].tobytes()) == (array.shape, array.tobytes())


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


BYTES = np.zeros(4, np.uint8)


@pytest.mark.parametrize(
    ("array", "lengths", "dtype", "reason"),
    [
        (np.zeros(4, np.int32), None, "float32", "holds int32, although it is said to be float32"),
        (np.zeros(4, np.float16), None, "bfloat16", "holds float16, although"),
        (BYTES, None, "bfloat16", "holds uint8, although"),
        (BYTES, None, "os.system", "a type 'os.system', of which TensorFlow"),
        (BYTES, None, "string", r"no entry 'k\.lengths'"),
        (BYTES, [1 << 60], "string", "4 bytes of strings, which is not what their lengths come to"),
        (BYTES, [-4, 4, 4], "string", "4 bytes of strings"),
        (BYTES, [4.0], "string", "4 bytes of"),
        (BYTES, None, "resource", "a type 'resource', of which TensorFlow"),
    ],
)
def test_values_of_another_type_than_said_are_refused(
    array: np.ndarray, lengths: list[Any] | None, dtype: str, reason: str
) -> None:
    arrays = {"k": array}
    if lengths:
        arrays["k.lengths"] = np.array(lengths)
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
    write_training_state(model, [], tmp_path)
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
    write_training_state(model, [], tmp_path)
    rows = json.loads((tmp_path / VARIABLES_FILE).read_text())["variables"]
    _, bias = (row for row in rows if row["group"] == "weights")
    arrays = read_arrays(tmp_path / "weights.npz")
    write_npz(tmp_path / "weights.npz", {**arrays, bias["key"]: np.zeros((5, 5), np.float32)})
    model.set_weights([np.ones((3, 2)), np.ones(2)])
    with pytest.raises(InvalidCheckpointError, match=r"has shape \[5, 5\]"):
        restore_weights(model, tmp_path)
    assert all(np.all(value == 1.0) for value in model.get_weights())
