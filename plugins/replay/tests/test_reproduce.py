"""`on_failure: bundle` and `detcore reproduce`, as users run them, on toy trials."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_command import Detcore, Finished

from detcore.errors import RunError
from detcore_replay._bundle_file import read_bundle
from detcore_replay._digest_file import read_digests

MODEL = """
import os
import numpy as np
from detcore_toy import ToyTrial

class Line(ToyTrial):
    def build_data(self):
        x = np.random.default_rng(3).normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

    def on_batch(self, step):
        pass  # here

    def fail(self):
        return {}["lost"]
"""
FAULTS = {
    "exception": ("if step == 24: self.fail()", "step 24: KeyError: 'lost'"),
    "killed": ("if step == 26: os.kill(os.getpid(), 9)", "step 26: killed by SIGKILL"),
    "nan": ("if step == 22: self.controller._weights[:] = np.nan", "step 25: loss is NaN in"),
    "hang": ("if step == 24: __import__('time').sleep(3600)", "step 24: it hangs"),
    "start": ("if not hasattr(self, 'a'): self.a = self.fail()", "KeyError: 'lost'"),
}
# Code of a batch, and settings of the experiment.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "exception": (": self.fail()", {}),
    "nan": (": self.controller._weights[:] = np.nan", {}),
    "plugin": (": self.controller._noise = None", {}),
    "killed": (": os.kill(os.getpid(), 9)", {}),
    "killed rank": (
        " and self.controller._distributed.rank == 1: os.kill(os.getpid(), 9)",
        {"resources": {"slots_per_trial": 2}},
    ),
    "hang": (": __import__('time').sleep(3600)", {"hang_timeout_s": 8}),
}


class Failing:
    """Runs that fail, and their bundles."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.detcore = Detcore(folder)

    def train(self, line: str, *words: str, **changes: Any) -> tuple[Finished, Path | None]:
        """Train code that fails; return the end, and its bundle."""
        config = self.detcore.config(stop_at_nan=True, **changes)
        code = self.folder / f"model-{len(list(self.folder.glob('model-*')))}"
        code.mkdir()
        (code / "model_def.py").write_text(MODEL.replace("pass  # here", line))
        done = self.detcore("run", config, code, "--bundle", *words)
        assert done.code == 1, done.output
        found = re.search(r"detcore reproduce (\S+)", done.output)
        return done, Path(found[1]) if found else None

    def bundle(self, line: str, **changes: Any) -> Path:
        done, path = self.train(line, **changes)
        assert path is not None, done.output
        return path


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    made = Failing(tmp_path_factory.mktemp("failing"))
    with made.detcore:
        yield made


@pytest.fixture(scope="module")
def bundle(failing: Failing) -> Path:
    """A bundle of an exception before step 25."""
    return failing.bundle(FAULTS["exception"][0])


def test_an_exception_is_repeated_in_its_batch(bundle: Path, tmp_path: Path) -> None:
    """Under another home, where there are no records of it."""
    with Detcore(tmp_path) as other:
        done = other("reproduce", bundle)
    assert done.code == 0, done.output
    first, ids = done.stdout.splitlines()
    assert first == "reproduced: step 24: KeyError: 'lost' (KeyError at model_def.py:15)"
    assert re.fullmatch(r"  records of the batch: \d+(, \d+){7}", ids)


@pytest.mark.parametrize(
    "name",
    ["killed", *(pytest.param(name, marks=pytest.mark.soak) for name in ("hang", "nan", "start"))],
)
def test_other_ends_are_repeated(failing: Failing, name: str) -> None:
    line, expected = FAULTS[name]
    changes = {"hang_timeout_s": 8} if name == "hang" else {}
    done = failing.detcore("reproduce", failing.bundle(line, **changes))
    assert done.code == 0, done.output
    assert expected in done.stdout


def test_a_kill_leaves_the_digests_up_to_the_checkpoint(failing: Failing) -> None:
    """Although all of the training takes less time than passes between two flushes."""
    every_step = {"reproducibility": {"step_digests": 1}}
    bundle = read_bundle(failing.bundle(FAULTS["killed"][0], **every_step))
    digested = read_digests(Path(bundle.info.trial_dir))
    assert bundle.record.checkpoint_steps > 0
    assert digested is not None
    assert {*range(1, bundle.record.checkpoint_steps + 1)} <= digested.steps.keys()


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_of_twenty_failures_eighteen_are_repeated(failing: Failing, kind: str) -> None:
    """Four of each kind, and all of them: the same error in the same batch."""
    code, changes = KINDS[kind]
    for seed in range(4):
        step = random.Random(f"{kind} {seed}").randrange(40)
        path = failing.bundle(f"if step == {step}{code}", **changes)
        done = failing.detcore("reproduce", path, "--json")
        found = json.loads(done.stdout)
        print(f"{kind}, step {step}: {found['original']} / {found['repeated']}")
        assert done.code == 0, (kind, step, done.output)
        if kind != "nan":  # it is found where the metrics are reported
            first = "before its first batch" if step == 0 else f"step {step}:"
            assert found["repeated"].startswith((first, f"step {step + 1}:"))


@pytest.mark.soak
def test_two_workers_are_replayed_by_two(failing: Failing) -> None:
    line = "self.controller._rate *= 1.01 if step == 24 else 1.0"
    changes = {"reproducibility__step_digests": 1, "resources": {"slots_per_trial": 2}}
    trials: list[int] = []
    for text in ("", line):
        config = failing.detcore.config(**changes)
        code = failing.folder / f"two-{len(trials)}"
        code.mkdir()
        (code / "model_def.py").write_text(MODEL.replace("pass  # here", text or "pass"))
        done = failing.detcore("run", config, code, "--json")
        trials.append(done.summary["trials"][0]["trial_id"])
    done = failing.detcore("replay", trials[0])
    assert done.code == 0, done.output
    assert "steps 1:40: equal (40 steps compared" in done.stdout
    done = failing.detcore("diverge", *trials)
    assert f"trial {trials[1]} differ: step 25, tensor, model.weights" in done.stdout


@pytest.mark.soak
def test_a_hang_of_two_workers_shows_where_both_are(failing: Failing) -> None:
    settings = {"hang_timeout_s": 8, "resources": {"slots_per_trial": 2}}
    done = failing.detcore("reproduce", failing.bundle(FAULTS["hang"][0], **settings))
    assert done.code == 0, done.output
    for rank in (0, 1):
        pattern = rf"\| \[rank={rank}\] .*File .*model_def\.py\W, line \d+ in on_batch"
        assert re.search(pattern, done.stdout), done.output


@pytest.mark.soak
def test_the_bundle_of_a_script_says_that_it_is_not_repeated(
    failing: Failing, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("raise KeyError('lost')")
    config = failing.detcore.config(entrypoint="python3 train.py", hyperparameters={})
    done = failing.detcore("run", config, tmp_path, "--bundle")
    assert "but detcore reproduce repeats trial classes only, not scripts" in done.output


def rewrite(bundle: Path, target: Path, **changes: Any) -> Path:
    """Copy a bundle with other values in its record."""
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "bundle.json":
                content = json.dumps({**json.loads(content), **changes}).encode()
            new.writestr(name, content)
    return target


def test_another_end_is_said_with_both(failing: Failing, bundle: Path, tmp_path: Path) -> None:
    """As where another package or machine takes the error away."""
    with zipfile.ZipFile(bundle) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    code = content["code/model_def.py"].decode()
    content["code/model_def.py"] = code.replace('{}["lost"]', "None").encode()
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(changed, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    done = failing.detcore("reproduce", changed)
    assert done.code == 1, done.output
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "not reproduced:",
        "  the run failed step 24: KeyError: 'lost' (KeyError at model_def.py:15)",
        "  here it ended step 24: no error",
    ]
    done = failing.detcore(
        "reproduce", rewrite(bundle, changed, fault="ValueError at x.py:1"), "--json"
    )
    found = json.loads(done.stdout)
    assert (done.code, found["is_same_error"], found["is_same_batch"]) == (1, False, True)


def test_data_that_changed_is_named(failing: Failing) -> None:
    data = failing.folder / "scale.txt"
    data.write_text("1.0")
    line = (
        "if not hasattr(self, 'scale'):\n"
        f"            self.scale = float(open({str(data)!r}).read())\n"
        "            self.controller._x *= self.scale\n"
        "        if step == 24: self.fail()"
    )
    path = failing.bundle(line, reproducibility__step_digests=1)
    data.write_text("2.0")
    done = failing.detcore("reproduce", path, "--json")
    found = json.loads(done.stdout)
    assert (done.code, found["is_same_error"], found["is_same_batch"]) == (1, True, False)
    assert found["notes"] == ["the batch has another content: its data was changed since the run"]
    assert (found["found"]["step"], found["found"]["kind"]) == (21, "record content")


def test_a_checkpoint_that_is_gone_is_named_and_a_copy_does(
    failing: Failing, bundle: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(bundle) as archive:
        uuid = json.loads(archive.read("bundle.json"))["checkpoint"]
    saved = failing.detcore.home / "checkpoints" / uuid
    shutil.move(saved, tmp_path / uuid)
    try:
        done = failing.detcore("reproduce", bundle)
        assert done.code == 1
        assert f"error: checkpoint {uuid} (step 20), from which the failure is" in done.stderr
        assert done.stderr.rstrip().endswith("or pass a copy: --checkpoint DIR")
        done = failing.detcore("reproduce", bundle, "--checkpoint", tmp_path / uuid)
        assert done.code == 0, done.output
    finally:
        shutil.move(tmp_path / uuid, saved)


@pytest.mark.soak
def test_other_versions_are_named(failing: Failing, tmp_path: Path) -> None:
    module = failing.folder / "lib" / "numerics.py"
    module.parent.mkdir()
    module.write_text("__version__ = '1.0'")
    line = f"import sys; sys.path.append({str(module.parent)!r}); import numerics\n"
    path = failing.bundle(
        line + "        if step == 24: self.fail()", **{"reproducibility__step_digests": 1}
    )
    module.write_text("__version__ = '2.0.1'")
    done = failing.detcore("reproduce", path)
    assert done.code == 0, done.output
    assert "note: the run had numerics 1.0 (here 2.0.1)\n" in done.stdout


@pytest.mark.parametrize(
    ("name", "mode", "message"),
    [
        ("../evil.py", 0, "'../evil.py' does not belong into a bundle"),
        ("code/../../evil.py", 0, "does not belong into a bundle"),
        ("/etc/evil", 0, "does not belong into a bundle"),
        ("code//evil.py", 0, "does not belong into a bundle"),
        ("evil.py", 0, "does not belong into a bundle"),
        ("code/link.py", stat.S_IFLNK | 0o777, "'code/link.py' is a link or a special file"),
        ("code/model_def.py", 0, "files, or one of them twice"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_names_are_refused(
    bundle: Path, tmp_path: Path, name: str, mode: int, message: str
) -> None:
    hostile = rewrite(bundle, tmp_path / "hostile.zip")
    with zipfile.ZipFile(hostile, "a") as archive:
        member = zipfile.ZipInfo(name)
        member.external_attr = mode << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(RunError, match=re.escape(message)):
        read_bundle(hostile)


def test_a_bomb_is_refused(bundle: Path, tmp_path: Path) -> None:
    hostile = rewrite(bundle, tmp_path / "hostile.zip")
    with zipfile.ZipFile(hostile, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("code/bomb.py", bytes(65 << 20))
    with pytest.raises(RunError, match="it unpacks to more than 64 MiB"):
        read_bundle(hostile)


def test_a_damaged_or_foreign_file_is_refused(bundle: Path, tmp_path: Path) -> None:
    content, broken = bundle.read_bytes(), tmp_path / "broken.zip"
    for size in range(0, len(content), max(1, len(content) // 50)):
        broken.write_bytes(content[:size])
        with pytest.raises(RunError, match="cannot be used as a bundle"):
            read_bundle(broken)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        offset = archive.getinfo("code/model_def.py").header_offset + 60
    broken.write_bytes(content[:offset] + b"x" + content[offset + 1 :])
    with pytest.raises(RunError, match="cannot be used as a bundle"):
        read_bundle(broken)
    for changes, message in (
        ({"format": 2}, "format in bundle.json: Input should be 1"),
        ({"checkpoint": "../x"}, "checkpoint in bundle.json: String should match pattern"),
        ({"trial": {"trial_id": 1}}, "missing"),
        ({"trial": {}}, "missing"),
    ):
        with pytest.raises(RunError, match=message):
            read_bundle(rewrite(bundle, broken, **changes))
    with pytest.raises(RunError, match=r"gone\.zip cannot be read: .*No such file"):
        read_bundle(tmp_path / "gone.zip")


def test_no_secret_is_in_a_bundle(failing: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32: in settings, variables and URLs, printed, raised, and in the code, there alone."""
    secrets = [f"s3cr3t-{index:02d}-{index * 7919:06x}" for index in range(32)]
    names = (
        "API_KEY", "WANDB_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "MY_SECRET",
        "SESSION_TOKEN", "GITHUB_TOKEN", "SOME_CREDENTIAL", "PRIVATE_KEY",
    )  # fmt: skip
    for name, secret in zip(names, secrets[:10], strict=True):
        monkeypatch.setenv(name, secret)
    for index in range(10, 14):
        monkeypatch.setenv(f"SERVICE_{index}", f"postgres://user:{secrets[index]}@host/db")
    data = {
        "url": f"https://user:{secrets[14]}@host/x",
        "signed": f"https://host/x?sig={secrets[15]}",
        "nested": {"api_token": secrets[16], "more": [{"password": secrets[17]}]},
        **{f"part_{index}": {"secret_key": secrets[index]} for index in range(18, 23)},
    }
    hparams = {"global_batch_size": 8, "learning_rate": 0.05, "auth_token": secrets[23]}
    said = failing.folder / "said.txt"
    lines = [*secrets[:24], " ".join(secrets[:24])]
    lines += [f"password={secrets[24]}", f"{{'api_key': '{secrets[25]}'}}"]
    lines += [f"sign in at https://me:{secrets[26]}@host", f"Secret: {secrets[29]}"]
    said.write_text("\n".join(lines))
    line = (
        f"url, password = 'https://me:{secrets[27]}@host', 0\n"
        f"        password = '{secrets[30]}'\n"
        f"        if step == 24: print(dict(api_key='{secrets[31]}')['api_key'], password)\n"
        f"        if step == 24: print(open({str(said)!r}).read(), url)\n"
        f"        if step == 24: raise ValueError('{secrets[0]} https://a:{secrets[28]}@b')"
    )
    done, path = failing.train(line, data=data, hyperparameters=hparams)
    assert path is not None, done.output
    assert path.stat().st_mode & 0o077 == 0
    with zipfile.ZipFile(path) as archive:
        everything = b"".join(archive.read(name) for name in archive.namelist())
        record = json.loads(archive.read("bundle.json"))
    found = [secret for secret in secrets if secret.encode() in everything]
    assert found == []
    assert {"hparams.auth_token", "code/model_def.py"} <= {*record["masked"]}
    assert "secrets are starred in its code/model_def.py)" in done.output
    done = failing.detcore("reproduce", path)
    assert "note: secrets are masked in the bundle: config.data" in done.stdout
    assert "reproduced: step 24: ValueError" in done.stdout, done.output


@pytest.mark.soak
def test_a_bundle_has_no_more_than_five_megabytes(failing: Failing) -> None:
    line = "import random; [print(random.randbytes(700).hex()) for _ in range(9)]; self.fail()"
    code = failing.folder / "large"
    code.mkdir()
    for index in range(12):
        (code / f"data-{index}.txt").write_bytes(os.urandom(900_000))
    (code / "model_def.py").write_text(MODEL.replace("pass  # here", line))
    done = failing.detcore("run", failing.detcore.config(), code, "--bundle")
    path = Path(re.findall(r"detcore reproduce (\S+)", done.output)[0])
    assert 3 << 20 < path.stat().st_size <= 5 << 20
    with zipfile.ZipFile(path) as archive:
        record = json.loads(archive.read("bundle.json"))
        assert "code/model_def.py" in archive.namelist()
    assert len(record["left_out"]) > 5


def test_what_cannot_be_repeated_is_said(failing: Failing, bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        trial = json.loads(archive.read("bundle.json"))["trial"]
    config = trial["config"]
    for changes, message in (
        ({"entrypoint": "python3 train.py"}, "trained by a command (python3 train.py)"),
        ({"resources": {"slots_per_trial": 1000}}, "the trial had 1000 workers, and this machine"),
    ):
        changed = {**trial, "config": {**config, **changes}}
        done = failing.detcore("reproduce", rewrite(bundle, tmp_path / "b.zip", trial=changed))
        assert done.code == 1
        assert message in done.stderr, done.output


def test_without_the_plugin_a_bundle_is_refused_before_training(failing: Failing) -> None:
    config = failing.detcore.config()
    code = failing.folder / "model"
    code.mkdir()
    (code / "model_def.py").write_text(MODEL)
    done = failing.detcore("--no-plugin", "replay", "run", config, code, "--bundle")
    assert done.code == 1, done.output
    assert "on_failure: bundle is part of detcore-replay, which is not installed" in done.stderr
    done = failing.detcore(
        "config", "check", failing.detcore.config(on_failure="mail", entrypoint="ls")
    )
    assert done.code, done.output
    assert "on_failure is 'mail', and nothing installed provides that" in done.output
    done = failing.detcore("run", config, code, "--set", "on_failure=mail")
    assert "on_failure is 'mail', and nothing installed provides that.\nActions here: bundle." in (
        done.stderr
    )
