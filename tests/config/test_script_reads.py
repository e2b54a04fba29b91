"""Hyperparameters that a script never reads: named by the check, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from detcore.config import load_config

OPEN = "from detcore import core\nwith core.init() as context:\n"
FILE = """
entrypoint: {entrypoint}
hyperparameters: {{learning_rate: 0.1, droput: 0.3, global_batch_size: 8}}
searcher: {{name: single, metric: loss, max_length: {{batches: 10}}}}
"""


def named(
    folder: Path, code: str, entrypoint: str = "python3 train.py", **files: str
) -> dict[str, str]:
    """Return what is said of each hyperparameter that is named."""
    for name, text in {"train": code, **files}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (folder / "const.yaml").write_text(FILE.format(entrypoint=entrypoint))
    loaded = load_config(
        folder / "const.yaml", code_dir=folder, overrides={"hyperparameters.hiden": "3"}
    )
    found = {}
    for notice in loaded.notices:
        _, _, text = notice.partition(": note: hyperparameters.")
        name, _, said = text.partition(" ")
        found[name] = said
    return found


LOOKED_UP = {
    "one by one": OPEN + "    context.info.hparams['learning_rate']\n"
    "    context.info.hparams.get('dropout', 0.1)\n"
    "    'hidden' in context.info.hparams\n",
    "by other names": OPEN + "    info = context.info\n    h = info.hparams or {}\n"
    "    rate, drop = h['learning_rate'], h.pop('dropout', 1)\n    h.setdefault('hidden', 3)\n",
    "in functions": "from detcore import core\n\n"
    "def main():\n    with core.init() as context:\n"
    "        train(context, hp=context.info.hparams)\n\n"
    "def train(ctx, *, hp):\n    hp['learning_rate']\n    hp['dropout']\n"
    "    ctx.info.hparams['hidden']\n",
    "in a class": "import detcore.core as dc\n\nclass Model:\n"
    "    def __init__(self, name, params):\n        self.params = params\n"
    "    def build(self):\n        return self.params['hidden'], self.params.get('dropout')\n\n"
    "context = dc.init().start()\nModel('m', context.info.hparams).build()\n"
    "context.info.hparams['learning_rate']\n",
    "in a module": "from detcore.core import init\nfrom package.parts import build\n"
    "with init() as context:\n    build(context)\n",
}
PARTS = (
    "from . import more\n\ndef build(context):\n"
    "    more.rest(context.info.hparams, 1)\n    context.info.hparams['hidden']\n"
)
MORE = "def rest(h, one):\n    return h['learning_rate'], h['dropout']\n"


@pytest.mark.parametrize("how", LOOKED_UP)
def test_names_that_are_never_looked_up_are_named_with_the_near_one(
    tmp_path: Path, how: str
) -> None:
    files = {"package/__init__": "", "package/parts": PARTS, "package/more": MORE}
    assert named(tmp_path, LOOKED_UP[how], **files) == {
        "droput": "is never read by train.py: did you mean 'dropout', which it reads?",
        "hiden": "is never read by train.py: did you mean 'hidden', which it reads?",
    }


@pytest.mark.parametrize(
    "entrypoint",
    ["[python3, -u, train.py]", "python3 -m train", "detcore launch -n 2 -- python3 train.py"],
)
def test_the_script_is_found_in_the_command(tmp_path: Path, entrypoint: str) -> None:
    code = LOOKED_UP["one by one"]
    assert set(named(tmp_path, code, entrypoint)) == {"droput", "hiden"}


def test_a_script_that_reads_none_gets_all_of_them_named(tmp_path: Path) -> None:
    code = OPEN + "    print(context.info.trial_seed)\n"
    assert set(named(tmp_path, code)) == {"learning_rate", "droput", "hiden"}


def test_a_context_may_be_given_to_plugins(tmp_path: Path) -> None:
    code = "from detcore_keras import DetcoreCallback\n" + LOOKED_UP["one by one"]
    code += "    callback = DetcoreCallback(context)\n    assert context.info is not None\n"
    assert set(named(tmp_path, code)) == {"droput", "hiden"}


READ = "    context.info.hparams['dropout']\n"


@pytest.mark.parametrize(
    "line",
    [
        "train(**context.info.hparams)", "dict(context.info.hparams)", "{**context.info.hparams}",
        "[name for name in context.info.hparams]", "context.info.hparams.items()",
        "for name in context.info.hparams: print(name)", "print(f'{context.info.hparams}')",
        "json.dumps(context.info.hparams)", "context.info.hparams == {}",
        "sorted(context.info.hparams)",
        "h = context.info.hparams; h.update(a=1)", "key = 'x'; context.info.hparams[key]",
        "Params.model_validate(context.info.hparams)", "context.info.hparams.get(key)",
        "context.info.config['hyperparameters']", "Settings(**context.info.config)",
        "asdict(context.info)", "vars(context.info)", "getattr(context.info, 'hparams')",
        "elsewhere.train(context)", "partial(train, context)", "print([context.info.hparams])",
        "context.info.hparams | {}", "x = context.info; print(x)", "lambda: context.info.hparams",
        "exec('1')", "import subprocess", "core.read_trial_info(environment)",
        "load('DETCORE_TRIAL_INFO')", "trainer.info.hparams['a']", "twice(context.info.hparams)",
        "Box(context.info.hparams)", "marked(context.info.hparams)", "many(context.info.hparams)",
        "a, b = context.info.hparams, 1", "match = context.info.hparams if 1 else 2; [*match]",
    ],
)  # fmt: skip
def test_what_may_read_all_of_them_is_no_alarm(tmp_path: Path, line: str) -> None:
    definitions = (
        "class Twin:\n    def twice(self, h): pass\n"
        "def twice(h): pass\n"
        "class Box: pass\n"
        "@decorate\ndef marked(h): pass\n"
        "def many(*h): pass\n"
    )
    code = definitions + OPEN + READ + f"    {line}\n"
    assert named(tmp_path, code) == {}


@pytest.mark.parametrize(
    ("code", "entrypoint"),
    [
        ("print('no context')", "python3 train.py"),
        (OPEN + READ + "    x = (", "python3 train.py"),
        (OPEN + READ, "torchrun train.py"),
        (OPEN + READ, "cd . && python3 train.py"),
        (OPEN + READ, "python3 -c 'import train' train.py"),
        ("from detcore.experimental import keras\ncontext = keras.init({})\n", "python3 train.py"),
        (
            OPEN + READ + "\n".join(f"a{i} = a{i + 1}" for i in range(30)) + "\na30 = context",
            "python3 train.py",
        ),
        (OPEN + READ + "#" * 1_000_000, "python3 train.py"),
    ],
)
def test_what_is_not_certain_is_not_judged(tmp_path: Path, code: str, entrypoint: str) -> None:
    assert named(tmp_path, code, entrypoint) == {}
