"""Malicious Keras checkpoints are rejected with a reason, and none of their code runs."""

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
from tensorflow_names import keras

from detcore.errors import InvalidCheckpointError
from detcore_keras.state.array_files import decode_array, encode_array, read_arrays
from detcore_keras.state.npz_files import write_npz
from detcore_keras.state.training_state import VARIABLES_FILE, restore_weights

GIGABYTE = 1 << 30


class Exploit:
    """Creates a directory when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("owned",)


PICKLE = pickle.dumps(Exploit())


def npy(header: str | bytes, content: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """Return a .npy file with a custom header."""
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
    """Return a function that writes a valid archive, and changes its table of contents."""

    def write(path: Path) -> None:
        archive(path, ("a.npy", GOOD), ("b.npy", GOOD))
        content = bytearray(path.read_bytes())
        place = content.index(b"PK\x01\x02") + offset
        content[place : place + len(change)] = change
        path.write_bytes(content)

    return write


def overlapping_members(path: Path) -> None:
    """Write a small file that lists one array a thousand times."""
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
DAMAGED = "it is damaged, or not an array file"
NO_NAME = "does not have the name of an array"
NO_FILE = "a directory, a pipe or a device"
# The content of a member, the name of a valid member, or a function that writes the file.
CASES: dict[str, tuple[bytes | str | Callable[[Path], Any], str]] = {
    "pickled array": (saved(np.array([Exploit()], object)), f"{OBJECTS} as a pickle"),
    "bare pickle": (lambda path: path.write_bytes(PICKLE), DAMAGED),
    "pickle as a member": (PICKLE, "begins with .* Pickles are never loaded"),
    "objects inside a structure": (described("[('x', '|O')]", "(1,)", PICKLE), OBJECTS),
    "structure": (
        described("[('x', '<f8'), ('y', '<f8')]", "(1,)", bytes(16)),
        r"holds \[\('x', '<f8'\), \('y', '<f8'\)\], which is not a numeric type",
    ),
    "text": (saved(np.array(["abc"])), "holds <U3, which is not a numeric type"),
    "dates": (
        saved(np.array(["2026-01-01"], "datetime64[D]")),
        r"holds datetime64\[D\], which is not a numeric type",
    ),
    "foreign bytes": (saved(np.arange(4, dtype=">f4")), "holds >f4, in a foreign byte order"),
    "elements without size": (
        described("'|V0'", f"({10 * GIGABYTE},)"),
        r"holds \|V0, which is not a numeric type",
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
    "negative shape": (described("'<f4'", "(-1,)", bytes(4)), r"declares the shape \(-1,\)"),
    "shape of a flag": (described("'<f4'", "(True,)", bytes(4)), r"the shape \(True,\)"),
    "code in the header": (described("__import__('os').mkdir('owned')", "(1,)", bytes(4)), HEADER),
    "nested header": (npy("(" * 9000 + ")" * 900), HEADER),
    "endless header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFFF) + b"{" * 64, HEADER),
    "newer header": (npy("{}", version=(9, 9)), HEADER),
    "bomb": (bomb, "is compressed. A small compressed file could require any amount of memory"),
    "climbing name": ("../../owned.npy", rf"its member '\.\./\.\./owned\.npy' {NO_NAME}"),
    "absolute name": ("/tmp/owned.npy", rf"its member '/tmp/owned\.npy' {NO_NAME}"),
    "windows name": ("a\\..\\owned.npy", NO_NAME),
    "no name of an array": ("a.pkl", rf"its member 'a\.pkl' {NO_NAME}"),
    "two of a name": (
        lambda path: archive(path, ("a.npy", GOOD), ("a.npy", GOOD)),
        r"two members 'a\.npy'",
    ),
    "lies about its size": (patched(20, HUGE * 2), r"declare \d{10} bytes, but the file has \d{3}"),
    "two sizes": (patched(24, HUGE), "declares 4000000000 bytes, stored as"),
    "encrypted": (patched(8, b"\1"), "is encrypted"),
    "overlapping members": (
        overlapping_members,
        r"declare \d{9} bytes, but the file has \d{6}",
    ),
    "flipped bit": (flipped_bit, "Bad CRC-32"),
    "cut off": (cut_off, DAMAGED),
    "nothing": (Path.touch, DAMAGED),
    "pipe": (os.mkfifo, NO_FILE),
    "folder": (Path.mkdir, NO_FILE),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("content", "reason"), CASES.values(), ids=CASES)
def test_hostile_array_file_is_rejected(
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
    assert [member.name for member in tmp_path.rglob("*")] == ["inside", "weights.npz"]


def test_arrays_round_trip_and_numpy_reads_them(tmp_path: Path) -> None:
    plain_arrays = {
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
    parts = [encode_array(key, array) for key, array in {**plain_arrays, **foreign}.items()]
    write_npz(path, {key: array for part in parts for key, array in part.items()})
    np.savez(tmp_path / "b.npz", **plain_arrays)
    read_back = read_arrays(path)
    with np.load(path, allow_pickle=False) as numpy_arrays:
        assert set(numpy_arrays.files) == set(read_back) == {*plain_arrays, *foreign}
        for read in (read_back, numpy_arrays, read_arrays(tmp_path / "b.npz")):
            for key, array in plain_arrays.items():
                np.testing.assert_array_equal(read[key], array, strict=True)
                assert read[key].tobytes() == array.tobytes()
    for key, array in foreign.items():
        assert (read_back[key].shape, read_back[key].tobytes()) == (array.shape, array.tobytes())


def test_array_files_need_little_extra_memory(tmp_path: Path) -> None:
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
        (np.zeros(4, np.int32), None, "float32", "holds int32, but is declared as float32"),
        (np.zeros(4, np.float16), None, "bfloat16", "holds float16, but is declared"),
        (BYTES, None, "bfloat16", "holds uint8, but is declared"),
        (BYTES, None, "os.system", "the type 'os.system', which NumPy"),
        (BYTES, None, "string", r"no entry 'k\.lengths'"),
        (BYTES, [1 << 60], "string", "4 bytes of strings, which do not match their lengths"),
        (BYTES, [-4, 4, 4], "string", "4 bytes of strings"),
        (BYTES, [4.0], "string", "4 bytes of"),
        (BYTES, None, "resource", "the type 'resource', which NumPy"),
    ],
)
def test_values_of_wrong_type_are_rejected(
    array: np.ndarray, lengths: list[Any] | None, dtype: str, reason: str
) -> None:
    arrays = {"k": array}
    if lengths:
        arrays["k.lengths"] = np.array(lengths)
    with pytest.raises(InvalidCheckpointError, match=reason):
        decode_array(arrays, "k", dtype)


def small_model() -> Any:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"file": "../../weights.npz"}, r"has the unknown file '\.\./\.\./weights\.npz'"),
        ({"file": "/etc/passwd"}, "has the unknown file '/etc/passwd'"),
        ({"file": 3}, "no 'file' of type str"),
        ({"key": None}, "no 'key' of type str"),
        ({"shape": [3, -2]}, r"has the shape \[3, -2\]"),
        ({"shape": [3, True]}, r"has the shape \[3, True\]"),
        ({"group": "__class__"}, "has the unknown group '__class__'"),
        ({"index": -1}, "has the index -1"),
        ({"key": "00099"}, "no entry '00099'"),
    ],
)
def test_hostile_variable_list_is_rejected(
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
def test_damaged_variable_list_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / VARIABLES_FILE).write_text(text)
    with pytest.raises(InvalidCheckpointError, match=r"variables\.json is damaged"):
        restore_weights(small_model(), tmp_path)


def test_misfitting_array_changes_no_weights(tmp_path: Path) -> None:
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
