"""List all benchmarks, and write their tables into the documents.

    python benchmarks/_report.py NAME...

runs the benchmarks of these tables with this Python and replaces their blocks in
``docs/benchmarks.md`` or ``RESULTS.md``. ``nox -s bench`` does this for all tables, each in its
environment. A block is between ``<!-- table: NAME -->`` and ``<!-- end of table -->``. Its first
paragraph gives the date, the commit, the machine and the command of the measurement.

The benchmarks import their options, quartiles and tables from this module.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# The page for users, and the file with all other tables.
DOCUMENTS = (FOLDER.parent / "docs" / "benchmarks.md", FOLDER / "RESULTS.md")
# Sessions of noxfile.py.
BARE, TENSORFLOW, TENSORFLOW_2_15 = "bare", "tensorflow", "tensorflow-2.15"
TORCH = "torch"
LIBRARIES = (
    "tensorflow", "keras", "jax", "tensorflow-estimator", "horovod", "torch", "transformers",
    "lightning", "accelerate", "numpy", "sqlalchemy", "fsspec", "gcsfs", "obstore", "boto3",
)  # fmt: skip


# -- the tables ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of the document.

    Attributes:
        name: Name of the block in the document.
        file: File name of the benchmark.
        environment: Session of noxfile.py whose environment the benchmark needs.
        arguments: Command-line arguments of the full run.
        peer: Key of `PEERS`: the option that receives the Python interpreter of a peer.
    """

    name: str
    file: str
    environment: str
    arguments: str = ""
    peer: str | None = None


# Packages of each peer's environment, by the option that receives its interpreter.
PEERS = {
    "--determined": "determined==0.23.4 tensorflow-cpu==2.15.* tensorflow-estimator==2.15.*",
    "--peer-python": "determined==0.38.1 numpy torch==2.13.0",
    "--mlflow-python": "mlflow==3.17.*",
}
# The tests run each file quickly in the environment of its first table.
TABLES = (
    Table("keras-2", "keras_fit.py", TENSORFLOW_2_15, "--rounds 7"),
    Table("keras-3", "keras_fit.py", TENSORFLOW, "--rounds 7"),
    Table("keras-jax", "keras_fit.py", TORCH, "--backend jax --rounds 15 --only arrays,cnn"),
    Table("keras-torch", "keras_fit.py", TORCH, "--backend torch --rounds 7 --only arrays,cnn"),
    Table("whole-process", "whole_process.py", TENSORFLOW, "--rounds 3"),
    Table("estimator", "estimator_fit.py", TENSORFLOW_2_15, "--rounds 15", "--determined"),
    Table("sequence-loader", "sequence_loader.py", TENSORFLOW_2_15, "--rounds 9 --keras"),
    Table("step-digests", "step_digests.py", TORCH, "--rounds 40"),
    Table(
        "keras-digests", "keras_digests.py", TENSORFLOW, "--model digits --rounds 150 --steps 1600"
    ),
    Table("keras-records", "keras_records.py", TENSORFLOW, "--rounds 40"),
    Table("torch-loader", "torch_loader.py", TORCH, "--rounds 30 --batches 150"),
    Table("torch-scripts", "torch_scripts.py", TORCH, "--rounds 20"),
    Table("restore-audit", "restore_audit.py", TORCH, "--rounds 20"),
    Table(
        "collectives", "distributed.py", BARE,
        "--rounds 5 --only latency,bandwidth --large-calls 2", "--peer-python",
    ),
    Table("horovod-keras", "horovod_keras.py", TENSORFLOW_2_15, "--only small --rounds 7"),
    Table("horovod-estimator", "horovod_estimator.py", TENSORFLOW_2_15, "--rounds 25 --steps 200"),
    Table("async-save", "async_save.py", TENSORFLOW),
    Table("estimator-snapshot", "estimator_snapshot.py", TENSORFLOW_2_15, "--rounds 9"),
    Table("storage", "storage.py", BARE, "--rounds 3"),
    Table("storage-digests", "storage.py", BARE, "--digests --rounds 3"),
    Table("storage-memory", "storage.py", BARE, "--sparse"),
    Table("start-up", "import_time.py", BARE, "--rounds 9"),
    Table("record-store", "store.py", BARE),
    Table("runner", "runner.py", BARE, "--trials 100 --rounds 1"),
    Table("decisions", "decisions.py", BARE),
    Table("observers", "observers.py", BARE, "--rounds 8"),
    Table("reporting", "reporting.py", BARE),
)  # fmt: skip


def this_environment() -> str:
    """Return the session of noxfile.py that installs the frameworks of this environment."""
    version = _version("tensorflow-cpu") or _version("tensorflow")
    if version is None:
        return TORCH if _version("torch") else BARE
    return TENSORFLOW_2_15 if version.startswith("2.15.") else TENSORFLOW


def quick_files(environment: str) -> list[str]:
    """Return the benchmarks that the tests run in an environment."""
    first = {table.file: table.environment for table in reversed(TABLES)}
    return sorted(file for file, needed in first.items() if needed == environment)


# -- for the benchmarks ----------------------------------------------------------------------------


def parse_options(parser: argparse.ArgumentParser, **quick: object) -> argparse.Namespace:
    """Read the command line, with ``--quick``, and return the options.

    Args:
        parser: Parser with the options of the benchmark.
        quick: Defaults with ``--quick``: one round of the smallest size that runs all code. Its
            results are meaningless.
    """
    parser.add_argument(
        "--quick", action="store_true", help="a small run that only checks the code"
    )
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**quick)
    return parser.parse_args()


def fixed_variables(options: argparse.Namespace, **variables: str) -> dict[str, str]:
    """Return the environment variables of a measured process.

    A quick run does not change them, so that the tests can fork its processes.
    """
    return {**_variables(), **({} if options.quick else variables)}


def _variables() -> dict[str, str]:
    """Return the variables of this process, with Python's bytecode cache enabled."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def with_quartiles(values: Sequence[float], digits: int) -> str:
    """Return the median, with the quartiles in brackets."""
    low, middle, high = quartiles(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def percentiles(values: Sequence[float], *wanted: float) -> list[float]:
    """Return percentiles."""
    ordered = sorted(values)
    return [
        ordered[min(len(ordered) - 1, int(len(ordered) * percentage / 100))]
        for percentage in wanted
    ]


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown, each row as soon as it is measured."""
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads), flush=True)
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


# -- the document ----------------------------------------------------------------------------------


def blocks(text: str) -> dict[str, str]:
    """Return the blocks of a document by name."""
    return {match["name"]: match["body"] for match in _block(r"[\w-]+").finditer(text)}


def with_block(text: str, name: str, body: str) -> str:
    """Return the document with another body in one of its blocks."""
    document, count = _block(re.escape(name)).subn(
        lambda match: f"{match['begin']}\n{body.strip()}\n{match['end']}", text
    )
    if count != 1:
        raise SystemExit(f"expected one block '<!-- table: {name} -->', found {count}")
    return document


def find_document(name: str) -> Path:
    """Return the document that has the block of a table."""
    paths = [path for path in DOCUMENTS if name in blocks(path.read_text())]
    if len(paths) != 1:
        raise SystemExit(f"expected table {name!r} in one document, found it in {len(paths)}")
    return paths[0]


def _block(name: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?P<begin>^<!-- table: (?P<name>{name}) -->$)\n(?P<body>.*?)\n"
        r"(?P<end>^<!-- end of table -->$)",
        re.MULTILINE | re.DOTALL,
    )


def provenance(table: Table, commit: str, today: datetime.date, load: float) -> str:
    """Return the paragraph above a table: date, commit, machine and command."""
    command = shlex.join(["python", f"benchmarks/{table.file}", *shlex.split(table.arguments)])
    peer = f", {table.peer} with {PEERS[table.peer]}" if table.peer else ""
    return (
        f"`nox -s bench -- {table.name}` (`{command}`{peer}; environment `{table.environment}`), "
        f"{today}, commit `{commit}`. {machine()}; load {load:.1f} at the start. {versions()}."
    )


def machine() -> str:
    """Describe this machine: processor, cores and memory."""
    cpus = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.*)$", cpus, re.MULTILINE)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        f"{len(os.sched_getaffinity(0))} cores ({model[1] if model else platform.machine()}), "
        f"{memory_bytes / (1 << 30):.0f} GiB, Linux {platform.release().partition('-')[0]}"
    )


def versions() -> str:
    """Return the versions of Python and of the measured libraries."""
    by_name = {name: _version(name) for name in LIBRARIES}
    by_name["tensorflow"] = by_name["tensorflow"] or _version("tensorflow-cpu")
    labels = [f"{name} {version}" for name, version in by_name.items() if version]
    return ", ".join([f"Python {platform.python_version()}", *labels])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    def git(*arguments: str) -> str:
        result = subprocess.run(
            ["git", *arguments], cwd=FOLDER, capture_output=True, text=True, check=True
        )
        return result.stdout.strip()

    # The documents change with each table.
    excluded = [f":(top,exclude){path.relative_to(FOLDER.parent)}" for path in DOCUMENTS]
    changes = git("status", "--porcelain", "--", "..", *excluded)
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changes else "")


def regenerate(names: Iterable[str], peers: Mapping[str, str]) -> None:
    """Run benchmarks with this Python, and write their blocks.

    Args:
        names: Names of the tables.
        peers: Interpreters of the peers, by option.
    """
    tables = {table.name: table for table in TABLES}
    for name in names:
        table = tables[name]
        commit, load = _commit(), os.getloadavg()[0]
        command = [sys.executable, str(FOLDER / table.file), *shlex.split(table.arguments)]
        if table.peer:
            command += [table.peer, peers[table.peer]]
        result = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env=_variables()
        )
        above = provenance(table, commit, datetime.date.today(), load)
        body = f"{above}\n\n{result.stdout}"
        document = find_document(name)
        document.write_text(with_block(document.read_text(), name, body))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="+", choices=[table.name for table in TABLES])
    for option in PEERS:
        parser.add_argument(option, metavar="PYTHON", default=argparse.SUPPRESS)
    options = vars(parser.parse_args())
    peers = {option: options.get(option[2:].replace("-", "_"), "") for option in PEERS}
    regenerate(options["names"], peers)


if __name__ == "__main__":
    main()
