"""Tests that submitted archives cannot write outside their directory."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import resource
import stat
import struct
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detcore.client.http import pack_directory
from detcore.errors import UnsafePathError
from detcore_server.jobs.unpack import UnpackLimits, unpack

LIMITS = UnpackLimits(size_bytes=10_000, num_entries=20)
Member = tuple[tarfile.TarInfo, bytes]


def entry(name: str, data: bytes = b"", **fields: object) -> Member:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def archive_of(*members: Member, form: int = tarfile.GNU_FORMAT) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=form, errors="surrogateescape") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Member:
    return entry(name, type=kind, linkname=target)


def device(kind: bytes) -> Member:
    return entry("null", type=kind, devmajor=1, devminor=3)


def header(name: bytes, kind: bytes, size: bytes, rest: bytes = b"") -> bytes:
    """Return a header block that tarfile cannot write, with a valid checksum."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = size
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + rest


def in_blocks(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def pax(*records: tuple[str, str]) -> bytes:
    body = b""
    for key, value in records:
        plain = f" {key}={value}\n".encode()
        size = len(plain) + 1
        size += len(str(size + len(str(size)) - 1)) - 1
        body += str(size).encode() + plain
    return header(b"pax", b"x", b"%011o\0" % len(body), in_blocks(body))


MANY_EXTENSIONS = pax(("comment", "x")) * 3000

HOSTILE: dict[str, tuple[bytes, str]] = {
    "parent": (archive_of(entry("../out.py")), "outside the directory"),
    "parent in the middle": (archive_of(entry("a/../../out.py")), "outside the directory"),
    "parent at the end": (archive_of(entry("a/..", type=tarfile.DIRTYPE)), "outside the directory"),
    "absolute": (archive_of(entry("/tmp/detcore-out.py")), "outside the directory"),
    "absolute folder": (archive_of(entry("//etc", type=tarfile.DIRTYPE)), "outside the directory"),
    "absolute by extension": (
        pax(("path", "/tmp/detcore-out.py")) + archive_of(entry("a.py")),
        "outside the directory",
    ),
    "backslash": (archive_of(entry("..\\out.py")), "characters"),
    "newline": (archive_of(entry("a\nb")), "characters"),
    "not UTF-8": (archive_of(entry("a\udcff")), "not UTF-8"),
    "symbolic link": (archive_of(link("a", "/etc/passwd")), "links"),
    "link inside": (archive_of(entry("a"), link("b", "a")), "links"),
    "write through a link": (archive_of(link("a", "/tmp"), entry("a/x")), "links"),
    "hard link": (archive_of(link("a", "/etc/passwd", tarfile.LNKTYPE)), "links"),
    "character device": (archive_of(device(tarfile.CHRTYPE)), "devices"),
    "block device": (archive_of(device(tarfile.BLKTYPE)), "devices"),
    "pipe": (archive_of(entry("a", type=tarfile.FIFOTYPE)), "neither"),
    "sparse": (header(b"a", b"S", b"00000000000\0"), "neither"),
    "long link": (archive_of(link("a", "x" * 200)), "neither"),
    "global extension": (header(b"g", b"g", b"00000000000\0"), "neither"),
    "sparse by extension": (
        pax(("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9999"))
        + archive_of(entry("a", b"5\n")),
        "sparse",
    ),
    "a map of a sparse file": (
        pax(("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9"))
        + archive_of(entry("a", in_blocks(b"2\n0\n4\n5\n4\n") + b"somemore")),
        "sparse",
    ),
    "a map in the extension": (
        pax(("GNU.sparse.realsize", "9"), ("GNU.sparse.map", "0,4,5,4"))
        + archive_of(entry("a", b"somemore")),
        "sparse",
    ),
    "a map in many records": (
        pax(
            ("GNU.sparse.size", "9"),
            ("GNU.sparse.numblocks", "1"),
            ("GNU.sparse.offset", "0"),
            ("GNU.sparse.numbytes", "8"),
        )
        + archive_of(entry("a", b"somemore")),
        "sparse",
    ),
    "twice": (archive_of(entry("a", b"1"), entry("a", b"2")), "twice"),
    "file, then folder": (archive_of(entry("a"), entry("a/b")), "twice"),
    "folder, then file": (archive_of(entry("a/b"), entry("a")), "twice"),
    "no name": (archive_of(entry(".")), "no name"),
    "too large": (archive_of(entry("a", b"x" * 10_001)), "exceed 10000 bytes"),
    "too large together": (
        archive_of(*(entry(f"{n}", b"x" * 4000) for n in range(3))),
        "exceed 10000 bytes",
    ),
    "bomb": (archive_of(entry("a", bytes(50_000_000))), "exceeds the limit"),
    "bomb behind the end": (archive_of(entry("a", bytes(9000))) + bytes(1 << 20), "nothing"),
    "too many": (archive_of(*(entry(f"{n}") for n in range(21))), "more than 20 files"),
    "too deep": (archive_of(entry("a/" * 70 + "b")), "too long"),
    "name too long": (archive_of(entry("a" * 256)), "too long"),
    "path too long": (archive_of(entry("/".join(["a" * 200] * 6))), "too long"),
    "header of a gigabyte": (header(b"L", b"L", b"07777777777\0"), "a header"),
    "extension of a gigabyte": (header(b"x", b"x", b"07777777777\0"), "a header"),
    "a chain of extensions": (MANY_EXTENSIONS, "exceeds the limit"),
    "negative size": (header(b"a", b"0", b"\xff" * 12), "size of -1"),
    "size of the universe": (header(b"a", b"0", b"\x80" + b"\xff" * 11), "cannot be read"),
    "size that is no number": (header(b"a", b"0", b"zzzzzzzzzzz\0"), "cannot be read"),
    "cut": (archive_of(entry("a", b"x" * 5000))[:2000], "cannot be read"),
    "rubbish": (b"what is this" * 100, "cannot be read"),
}


def outside(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


@pytest.mark.parametrize("name", [name for name in HOSTILE if HOSTILE[name][1] != "nothing"])
def test_hostile_archive_leaves_nothing(name: str, tmp_path: Path) -> None:
    data, words = HOSTILE[name]
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(gzip.compress(data))
    with pytest.raises(UnsafePathError, match=words):
        unpack(archive, tmp_path / "code", LIMITS)
    assert outside(tmp_path) == [archive]
    assert not Path("/tmp/detcore-out.py").exists()


def test_header_chain_is_limited(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(gzip.compress(MANY_EXTENSIONS))
    with pytest.raises(UnsafePathError, match="RecursionError"):
        unpack(archive, tmp_path / "code", UnpackLimits(size_bytes=10**8, num_entries=20_000))
    assert outside(tmp_path) == [archive]


def test_data_after_archive_end_is_ignored(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(gzip.compress(HOSTILE["bomb behind the end"][0]))
    unpack(archive, tmp_path / "code", LIMITS)
    assert outside(tmp_path / "code") == [tmp_path / "code" / "a"]


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8b", gzip.compress(b"x" * 3000)[:40], struct.pack("<Q", 5) * 10],
    ids=["empty", "no more than a mark", "cut", "no gzip"],
)
def test_invalid_archive_is_rejected(data: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(data)
    if data:
        with pytest.raises(UnsafePathError, match="cannot be read"):
            unpack(archive, tmp_path / "code", LIMITS)
        assert not (tmp_path / "code").exists()
    else:  # gzip accepts an empty file as an empty archive
        with pytest.raises(UnsafePathError):
            unpack(archive, tmp_path / "code", LIMITS)


def test_write_error_leaves_nothing(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(gzip.compress(archive_of(entry("a/b", b"x" * 9000))))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))  # acts like a full disk
    try:
        with pytest.raises(OSError, match="File too large"):
            unpack(archive, tmp_path / "code", LIMITS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert outside(tmp_path) == [archive]


def test_unpacked_files_are_private(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    loose = archive_of(
        entry("a", type=tarfile.DIRTYPE, mode=0o777),
        entry("a/run.sh", b"#!", mode=0o6755, uid=5, gid=5),
        entry("b.py", b"1", mode=0o000),
    )
    archive.write_bytes(gzip.compress(loose))
    unpack(archive, tmp_path / "code", LIMITS)
    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "code", *outside(tmp_path / "code"))
    }
    assert modes == {"code": 0o700, "code/a": 0o700, "code/a/run.sh": 0o700, "code/b.py": 0o600}
    assert (tmp_path / "code" / "a" / "run.sh").stat().st_uid == os.getuid()


def test_packed_directory_unpacks_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / "a" / "empty").mkdir(parents=True)
    (folder / "a" / f"{'l' * 120}.py").write_text("print()")
    (folder / "\u00fcber.txt").write_bytes(bytes(range(256)))
    packed = pack_directory(folder)
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(packed.file.read())
    packed.file.close()
    unpack(archive, tmp_path / "code", LIMITS)
    names = [str(path.relative_to(folder)) for path in outside(folder)]
    assert [
        str(path.relative_to(tmp_path / "code")) for path in outside(tmp_path / "code")
    ] == names
    assert (tmp_path / "code" / "\u00fcber.txt").read_bytes() == bytes(range(256))


PARTS = st.sampled_from(["a", "A", "b", "..", ".", "", "/", "é", "\\", "\n", "~", "x" * 300])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
KINDS = st.sampled_from([bytes([kind]) for kind in b"0123456789LKSxgXVMDAZ\0"])
MEMBERS = st.lists(
    st.tuples(NAMES, KINDS, st.binary(max_size=600), NAMES, st.integers(0, 0o7777)), max_size=6
)


def write(members: list[tuple[str, bytes, bytes, str, int]]) -> bytes:
    return archive_of(
        *(
            entry(name, data, type=kind, linkname=target, mode=mode)
            for name, kind, data, target, mode in members
        ),
        form=tarfile.PAX_FORMAT,
    )


@settings(max_examples=150, deadline=None)
@given(members=MEMBERS, flips=st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 255))))
@example(members=[("a", b"2", b"", "..", 0), ("a/b", b"0", b"x", "", 0)], flips=[])
def test_random_archive_unpacks_safely(
    members: list[tuple[str, bytes, bytes, str, int]], flips: list[tuple[int, int]]
) -> None:
    """The archive is rejected, or all entries are plain files or directories inside the target."""
    data = bytearray(write(members))
    for at, value in flips:
        data[at % len(data)] = value
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        archive, code = root / "archive.tar.gz", root / "code"
        archive.write_bytes(gzip.compress(bytes(data), 1))
        is_taken = False
        with contextlib.suppress(UnsafePathError):
            unpack(archive, code, LIMITS)
            is_taken = True
        assert {path.name for path in root.iterdir()} == {archive.name, *(["code"] * is_taken)}
        for path in outside(code):
            mode = path.lstat().st_mode
            assert stat.S_ISREG(mode) or stat.S_ISDIR(mode)
            assert stat.S_IMODE(mode) in (0o600, 0o700)
