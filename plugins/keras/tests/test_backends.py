"""One trial on each back end of Keras is killed, and ends like an uninterrupted trial."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from toy_command import Detcore, Finished

MODEL_DIR = Path(__file__).parent / "backend_model"
# The back ends of Keras 3 that are installed. Keras 2 has none.
BACKENDS = [
    name
    for name in ("tensorflow", "jax", "torch")
    if find_spec(name) and version("keras").startswith("3.")
]
# The package that each kind of data needs.
KINDS = {
    "arrays": "keras",
    "sequence": "keras",
    "adapter": "keras",
    "tf.data": "tensorflow",
    "DataLoader": "torch",
    "Grain": "grain",
}
# The cells that `nox -s tests` runs, with two kills. The tests of soak kill each cell 25 times.
SAMPLE = {("jax", "arrays"), ("torch", "DataLoader")}
BATCHES = 60

pytestmark = pytest.mark.cold  # a process that has imported one back end cannot change to another


def list_cells() -> Iterator[Any]:
    for backend in BACKENDS:
        # Where all three are installed, only pairs are tried that other environments lack.
        others = ("DataLoader", "Grain") if backend == "tensorflow" else ("tf.data",)
        for kind in others if len(BACKENDS) == 3 else KINDS:
            package = KINDS[kind]
            if find_spec(package) and not (kind == "DataLoader" and not find_spec("detcore_torch")):
                if (backend, kind) in SAMPLE:
                    yield pytest.param(backend, kind, 2, 1, id=f"{backend}-{kind}")
                name = f"{backend}-{kind}-25 kills"
                yield pytest.param(backend, kind, 25, 1, id=name, marks=pytest.mark.soak)
                if kind == "arrays":
                    name = f"{backend}-two workers"
                    yield pytest.param(backend, kind, 8, 2, id=name, marks=pytest.mark.soak)


@pytest.fixture
def detcore(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Detcore]:
    """A command that can import only the back end and the package of the test's cell."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    needed = {parameters.get("backend"), KINDS.get(parameters.get("kind", ""))}
    if parameters.get("kind") in ("DataLoader", "Grain"):
        needed |= {"torch"}  # which may import the others
    site = tmp_path / "site"
    for name in {*BACKENDS} - needed if parameters else ():
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(f"raise ModuleNotFoundError(name={name!r})")
    with Detcore(tmp_path, site=site) as command:
        yield command


def write_config(detcore: Detcore, *, workers: int = 1, **hparams: object) -> Path:
    return detcore.config(
        entrypoint="model_def:Trial",
        hyperparameters={"global_batch_size": 8, **hparams},
        searcher__max_length={"batches": BATCHES},
        min_validation_period={"batches": 15},
        min_checkpoint_period={"batches": 4},
        scheduling_unit=3,
        resources={"slots_per_trial": workers},
    )


def read_state(detcore: Detcore, finished: Finished) -> dict[str, Any]:
    """Return the files of the last checkpoint, and all validations."""
    trial = finished.summary["trials"][0]
    folder = detcore.home / "checkpoints" / trial["latest_checkpoint"]
    files = [*folder.rglob("*.npz"), *folder.rglob("variables.json"), *folder.rglob("rng.json")]
    files += [*folder.glob("callbacks.json"), *folder.rglob("keras-position.json")]
    described = detcore.run_checked("trial", "describe", trial["trial_id"], "--json")
    rows = json.loads(described.stdout)["validations"]
    metrics = {row["steps_completed"]: row["metrics"] for row in rows}
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {"validations": metrics, **contents}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("backend", "kind", "num_kills", "workers"), [*list_cells()])
def test_killed_trial_is_bit_identical(
    detcore: Detcore,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    backend: str,
    kind: str,
    num_kills: int,
    workers: int,
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    config = write_config(detcore, workers=workers, data=kind)
    expected = read_state(detcore, detcore.run_checked("run", config, MODEL_DIR, "--json"))
    assert len(expected) == (9 if workers == 1 else 13)

    dice = random.Random(f"{backend} {kind}")
    kills = sorted(dice.sample(range(2, BATCHES + 1), num_kills))
    kills[num_kills // 2] *= -1  # one graceful stop
    kill_file = tmp_path / "kills"
    kill_file.write_text(" ".join(map(str, kills)))
    monkeypatch.setenv("KILLS", str(kill_file))
    finished = detcore("run", config, MODEL_DIR, "--json")
    codes = []
    while finished.code:
        assert finished.code == 75 or "SIGKILL" in finished.output
        codes.append(finished.code)
        finished = detcore("run", "--resume", 2, "--json")
    assert kill_file.read_text() == ""
    assert codes.count(75) == 1
    state = read_state(detcore, finished)
    assert [name for name in expected if state[name] != expected[name]] == []


DIGEST = """
import hashlib, sys, keras
from detcore_keras import load_model_from_checkpoint_path
model = load_model_from_checkpoint_path(sys.argv[1])
values = [keras.ops.convert_to_numpy(weight.value) for weight in model.weights]
print(hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest())
"""


@pytest.mark.skipif(len(BACKENDS) < 2, reason="this environment has one back end")
@(pytest.mark.soak if "tensorflow" in BACKENDS else pytest.mark.cold)
def test_other_back_ends_load_weights_only(
    detcore: Detcore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    writer, *readers = reversed(BACKENDS)
    monkeypatch.setenv("KERAS_BACKEND", writer)
    monkeypatch.setenv("KILLS", str(tmp_path / "kills"))
    (tmp_path / "kills").write_text("30")
    config = write_config(detcore, data="arrays")
    assert "SIGKILL" in detcore.run_failing("run", config, MODEL_DIR).output
    manifest = detcore.committed()[-1]
    for reader in readers:
        monkeypatch.setenv("KERAS_BACKEND", reader)
        refused = detcore.run_failing("run", "--resume", 1)
        assert f"KERAS_BACKEND={writer}" in refused.output
        digests = set()
        for name in (writer, reader):
            monkeypatch.setenv("KERAS_BACKEND", name)
            loaded = detcore.python("-c", DIGEST, manifest.parent)
            digests.add(loaded.stdout)
            assert ("exact resume needs the back end that wrote it" in loaded.stderr) == (
                name == reader
            )
        assert len(digests) == 1
    monkeypatch.setenv("KERAS_BACKEND", writer)
    assert "completed" in detcore.run_checked("run", "--resume", 1).output
