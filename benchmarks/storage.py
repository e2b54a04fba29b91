"""Measure saving and restoring files with storage back ends, against the usual alternatives.

    python benchmarks/storage.py [--rounds N] [--only local,s3,...] [--sets a,b,c] [--quick]
    python benchmarks/storage.py --digests      # time of digests in a save of 1 GB
    python benchmarks/storage.py --sparse       # memory for transferring one file of 4 GB

Sets of files: a = 1 x 512 MB, b = 8 x 64 MB, c = 2,000 x 16 KB. Places: the local disk; S3 and GCS
servers that discard the content (the limit of the client); the first with 20 ms per request; real
servers (SeaweedFS, fake-gcs-server). detcore digests every file in both directions. The
alternatives do not, apart from the requirements of their protocol. "copytree + read" reads
everything again.

Each measurement is a separate process, so that its peak memory is known. Rounds are interleaved.
The table gives the median, the ratio to the fastest alternative in each round, and the CPU time of
the process, which is the most reliable number on a busy machine. With servers, files are in memory
(/dev/shm), so that no disk is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _report import parse_options, print_table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))
SETS = {
    "a": (1, 512 << 20),
    "b": (8, 64 << 20),
    "c": (2000, 16 << 10),
    "1 GB": (1, 1 << 30),
    "8 x 128 MB": (8, 128 << 20),
    "4 GB": (1, 4 << 30),
    "quick": (2, 20 << 20),
}
MEMORY = Path("/dev/shm")
BUCKET, KEY, SECRET = "ckpt", "test", "testsecret"
Transfer = Callable[[list[tuple[Path, str]]], None]
Way = tuple[Transfer, Transfer]
PLACES = {
    "local": ("detcore", "copytree", "copytree + read", "copytree + fsync"),
    "s3": ("detcore", "obstore", "boto3"),
    "s3-20ms": ("detcore", "obstore", "boto3"),
    "s3-weed": ("detcore", "obstore", "boto3"),
    "gcs": ("detcore", "gcsfs"),
    "gcs-fake": ("detcore", "gcsfs"),
}


def make_files(folder: Path, name: str) -> list[tuple[Path, str]]:
    """Write a set of files, and return their paths and keys."""
    count, size = SETS[name]
    block = os.urandom(min(size, 1 << 20))
    if name == "4 GB":
        path = folder / "00" / "sparse.bin"
        path.parent.mkdir(parents=True)
        with open(path, "wb") as file:
            file.truncate(size)
        return [(path, "run/00/sparse.bin")]
    pairs = []
    for index in range(count):
        path = folder / f"{index % 20:02}" / f"{index:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            for _ in range(max(1, size >> 20)):
                file.write(block)
        pairs.append((path, f"run/{path.relative_to(folder)}"))
    return pairs


def detcore_way(place: str, url: str, root: Path) -> Way:
    """The storage back end of detcore."""
    from detcore.storage import LocalStorage, StorageBackend
    from detcore_storage import GcsSettings, GcsStorage, S3Settings, S3Storage

    storage: StorageBackend
    fields: dict[str, Any] = {"bucket": BUCKET, "prefix": "bench", "endpoint_url": url}
    if place == "local":
        storage = LocalStorage(root)
    elif place.startswith("gcs"):
        storage = GcsStorage(GcsSettings.model_validate(fields))
    else:
        keys = {"access_key": KEY, "secret_key": SECRET}
        storage = S3Storage(S3Settings.model_validate(fields | keys))
    return (
        lambda pairs: _done(storage.put_tree(pairs)),
        lambda pairs: _done(storage.get_tree(pairs)),
    )


def _done(digests: object) -> None:
    if not digests:
        raise RuntimeError("nothing was moved")


def copytree_way(kind: str, root: Path) -> Way:
    """shutil, also with fsync and with reading the copies."""

    def copy(source: Path, target: Path) -> None:
        if target.exists():  # the warm-up wrote it
            shutil.rmtree(target)
        shutil.copytree(source, target)
        for path in target.rglob("*") if kind != "copytree" else ():
            if path.is_file():
                with open(path, "rb", buffering=0) as file:
                    if kind == "copytree + fsync":
                        os.fsync(file.fileno())
                        continue
                    while file.read(1 << 20):
                        pass

    def up(pairs: list[tuple[Path, str]]) -> None:
        copy(pairs[0][0].parents[1], root / "copy")

    def down(pairs: list[tuple[Path, str]]) -> None:
        # Use another buffer than the source. Recently freed memory is cheaper to allocate.
        copy(root / "copy", pairs[0][0].parents[1] / "copied")

    return up, down


def obstore_way(url: str, is_slow: bool) -> Way:
    """obstore's synchronous calls in threads."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        BUCKET, prefix="bench", endpoint=url, access_key_id=KEY, secret_access_key=SECRET,
        region="us-east-1", virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )  # fmt: skip

    def each(work: Callable[[tuple[Path, str]], object], pairs: list[tuple[Path, str]]) -> None:
        threads = 64 if is_slow and len(pairs) > 64 else 8
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(work, pairs):
                pass

    def put(pair: tuple[Path, str]) -> None:
        obstore.put(store, pair[1], pair[0], max_concurrency=4)

    def get(pair: tuple[Path, str]) -> None:
        with open(pair[0], "wb") as file:
            for chunk in obstore.get(store, pair[1]).stream():
                file.write(chunk)

    return lambda pairs: each(put, pairs), lambda pairs: each(get, pairs)


def gcsfs_way(url: str) -> Way:
    """gcsfs with its best settings."""
    from gcsfs.core import GCSFileSystem

    fs = GCSFileSystem(token="anon", project="t", endpoint_url=url, use_listings_cache=False)
    top = f"{BUCKET}/bench/"
    return (
        lambda p: fs.put([str(a) for a, _ in p], [top + b for _, b in p], chunksize=16 << 20),
        lambda p: fs.get([top + b for _, b in p], [str(a) for a, _ in p]),
    )


def boto3_way(url: str) -> Way:
    """boto3's transfer manager with its default settings."""
    import boto3

    client = boto3.client(
        "s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )  # fmt: skip

    def each(work: Callable[[tuple[Path, str]], None], pairs: list[tuple[Path, str]]) -> None:
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(work, pairs):
                pass

    return (
        lambda pairs: each(lambda p: client.upload_file(str(p[0]), BUCKET, f"bench/{p[1]}"), pairs),
        lambda pairs: each(
            lambda p: client.download_file(BUCKET, f"bench/{p[1]}", str(p[0])), pairs
        ),
    )


def leave_digests_out() -> None:
    """Disable digests in this process, to measure their time."""
    from detcore.storage import Digester, FileDigest, file_digests
    from detcore_storage import fsspec_storage, s3_storage

    def none_of(data: bytes) -> FileDigest:
        return FileDigest(len(data), "none")

    Digester.update = lambda self, data: None  # type: ignore[method-assign]
    for module in (fsspec_storage, file_digests, s3_storage):
        if hasattr(module, "digest_bytes"):
            module.digest_bytes = none_of  # type: ignore[attr-defined]


def make_way(way: str, place: str, url: str, root: Path) -> Way:
    """Return the functions of an implementation."""
    if way == "detcore, no digests":
        leave_digests_out()
    if way.startswith("detcore"):
        return detcore_way(place, url, root)
    if way.startswith("copytree"):
        return copytree_way(way, root)
    if way == "obstore":
        return obstore_way(url, place.endswith("ms"))
    return boto3_way(url) if way == "boto3" else gcsfs_way(url)


def measure(way: str, place: str, url: str, source: Path, work: Path) -> None:
    """Save and restore once in this process, and print seconds and peak memory."""
    pairs = [
        (path, f"run/{path.relative_to(source)}")
        for path in sorted(source.rglob("*"))
        if path.is_file()
    ]
    back = work / "back"
    targets = [(back / key, key) for _, key in pairs]
    root = work / "store"
    root.mkdir(exist_ok=True)
    up, down = make_way(way, place, url, root)
    warm = work / "run" / "00" / "warm"
    warm.parent.mkdir(parents=True, exist_ok=True)
    warm.write_bytes(b"x")
    up([(warm, "run/00/warm")])  # connections and imports are not measured
    if place == "local":
        os.sync()  # otherwise a measurement pays for the writes of an earlier measurement
    start, used = time.perf_counter(), time.process_time()
    up(pairs)
    took_up, used_up = time.perf_counter() - start, time.process_time() - used
    if not way.startswith("copytree"):
        for path, _ in targets:
            path.parent.mkdir(parents=True, exist_ok=True)
    if place == "local":
        os.sync()
    start, used = time.perf_counter(), time.process_time()
    down(targets)
    result = {
        "up": took_up,
        "up_cpu": used_up,
        "down": time.perf_counter() - start,
        "down_cpu": time.process_time() - used,
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result))


@contextlib.contextmanager
def server(place: str, zeros_mib: int = 1024) -> Iterator[str]:
    """Run the server of a place, and yield its URL."""
    if place == "local":
        yield ""
    elif place in ("s3-weed", "gcs-fake"):
        import storage_servers

        with (
            storage_servers.seaweedfs() if place == "s3-weed" else storage_servers.gcs_server()
        ) as url:
            yield url
    else:
        delay = "0.02" if place.endswith("20ms") else "0"
        command = [sys.executable, str(HERE / "_drop_server.py"), delay, str(zeros_mib)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield process.stdout.readline().strip()
            finally:
                process.kill()


def run_place(place: str, names: list[str], rounds: int) -> Iterator[list[str]]:
    """Measure all implementations at a place, and yield a row for each."""
    for name in names:
        if place == "gcs-fake" and name == "a":
            continue  # its time is quadratic in the parts of a file
        results = run_ways(place, name, PLACES[place], rounds)
        for way in PLACES[place]:
            if results[way]:
                yield _cells(_row(place, name, way, results))


def run_ways(
    place: str, name: str, ways: tuple[str, ...], rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Measure some implementations in rounds."""
    results: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    folder = MEMORY if place != "local" and MEMORY.is_dir() else None
    zeros_mib = 1 if name == "quick" else 1024
    with tempfile.TemporaryDirectory(dir=folder) as top, server(place, zeros_mib) as url:
        source = Path(top) / "source"
        make_files(source, name)
        for turn in range(rounds):
            order = list(ways)
            random.Random(turn).shuffle(order)
            for way in order:
                work = Path(top) / f"{turn}-{order.index(way)}"
                work.mkdir()
                command = [
                    sys.executable, __file__, "--measure", way, place, url, str(source), str(work),
                ]  # fmt: skip
                completed = subprocess.run(command, capture_output=True, text=True, check=False)
                if completed.returncode:
                    print(f"{place} {name} {way}: {completed.stderr[-600:]}", file=sys.stderr)
                else:
                    results[way].append(json.loads(completed.stdout.splitlines()[-1]))
                if name != "c":  # ext4 creates files slowly just after many files were deleted
                    shutil.rmtree(work)
    return results


def run_digests(rounds: int) -> None:
    """Print the time that digests add to a save of 1 GB."""
    heads = "place", "files", "save without digests", "with", "processor without", "with"
    print_table(heads, _digest_rows(rounds))


def _digest_rows(rounds: int) -> Iterator[list[str]]:
    for place in ("local", "s3"):
        for name in ("1 GB", "8 x 128 MB"):
            ways = ("detcore, no digests", "detcore")
            results = run_ways(place, name, ways, rounds)
            cells = [
                f"{statistics.median(row[field] for row in results[way]):.3f} s"
                for field in ("up", "up_cpu")
                for way in ways
            ]
            yield [place, name, *cells]


def run_sparse() -> None:
    """Print the memory for transferring one large file."""
    rows = []
    for place in ("local", "s3", "gcs"):
        results = run_ways(place, "4 GB", ("detcore",), 1)
        rows.append((place, f"{results['detcore'][0]['mb']:.0f}"))
    print_table(("place", "peak MB, file of 4 GB"), rows)


def _row(
    place: str, name: str, way: str, results: dict[str, list[dict[str, float]]]
) -> dict[str, Any]:
    count, size = SETS[name]
    amount = count if name == "c" else count * size / 1e6
    row: dict[str, Any] = {"place": place, "set": name, "way": way}
    alternatives = [w for w in results if not w.startswith("detcore") and results[w]]
    if place == "local":
        alternatives = ["copytree + read"]
    for direction in ("up", "down"):
        row[direction] = amount / statistics.median(r[direction] for r in results[way])
        ratios = [
            min(results[w][i][direction] for w in alternatives if i < len(results[w]))
            / r[direction]
            for i, r in enumerate(results[way])
        ]
        row[f"{direction}_ratio"] = statistics.median(ratios)
        row[f"{direction}_range"] = (min(ratios), max(ratios))
        row[f"{direction}_cpu"] = statistics.median(r[f"{direction}_cpu"] for r in results[way])
    row["mb"] = max(r["mb"] for r in results[way])
    return row


def _cells(row: dict[str, Any]) -> list[str]:
    unit = "f/s" if row["set"] == "c" else "MB/s"
    cells = [row["place"], row["set"], row["way"]]
    for direction in ("up", "down"):
        low, high = row[f"{direction}_range"]
        cells.append(f"{row[direction]:.0f} {unit}")
        cells.append(f"{row[f'{direction}_ratio']:.2f} [{low:.2f}, {high:.2f}]")
        cells.append(f"{row[f'{direction}_cpu']:.2f}")
    cells.append(f"{row['mb']:.0f}")
    return cells


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PLACES))
    parser.add_argument("--sets", default="a,b,c")
    parser.add_argument("--digests", action="store_true")
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    options = parse_options(parser, rounds=1, only="local,s3,gcs", sets="quick")
    if options.measure:
        way, place, url, source, work = options.measure
        measure(way, place, url, Path(source), Path(work))
        return
    if options.digests:
        run_digests(options.rounds)
        return
    if options.sparse:
        run_sparse()
        return
    figures = "to the fastest", "cpu s"
    print_table(
        ("place", "files", "way", "save", *figures, "restore", *figures, "peak MB"),
        (
            row
            for place in options.only.split(",")
            for row in run_place(place, options.sets.split(","), options.rounds)
        ),
    )


if __name__ == "__main__":
    main()
