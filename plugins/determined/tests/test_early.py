"""Migration of scripts in the style of releases 0.12 to 0.17."""

from __future__ import annotations

import ast
import textwrap

import pytest

from detcore_determined.migrate import Migrated, migrate_python

START = "import determined as det\n"


def migrate(source: str) -> Migrated:
    """Migrate, and check that a second migration changes nothing."""
    migrated = migrate_python(source)
    assert migrate_python(migrated.text).text == migrated.text
    ast.parse(migrated.text)
    return migrated


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("det.Constant(value=32)", '{"type": "const", "val": 32}'),
        ('det.Constant([1, "a"])', '{"type": "const", "val": [1, "a"]}'),
        ("det.Integer(8, 64)", '{"type": "int", "minval": 8, "maxval": 64}'),
        ("det.Double(maxval=n / 2, minval=0)", '{"type": "double", "maxval": n / 2, "minval": 0}'),
        (
            "det.Log(-4.0, -2.0, base=10)",
            '{"type": "log", "minval": -4.0, "maxval": -2.0, "base": 10}',
        ),
        ("det.Constant(value=(8))", '{"type": "const", "val": (8)}'),
        ("(det.Constant)(8)", '{"type": "const", "val": 8}'),
        ("det.Categorical(['a'],)", '{"type": "categorical", "vals": [\'a\']}'),
        ("det.Integer(\n    8,\n    64,\n)", '{"type": "int", "minval": 8, "maxval": 64}'),
    ],
)
def test_ranges_become_dictionaries(old: str, new: str) -> None:
    migrated = migrate(f"{START}x = {old}\n")
    assert migrated.text == f"import detcore as det\nx = {new}\n"
    assert migrated.findings == ()


@pytest.mark.parametrize(
    "call",
    [
        "det.Integer(*ends)",
        "det.Integer(  # units\n    8, 64)",
        "det.Integer(8, 64, 3)",
        "det.Integer(**ends)",
        "det.Constant()",
        "det.Categorical(name for name in names)",
        "map(det.Constant, values)",
        "det.Mode(text)",
        "det.keras.InMemorySequence(x, y, 7)",
        "det.keras.InMemorySequence(x, y, context.get_per_slot_batch_size(), weights)",
        "det.keras.InMemorySequence(x, y,  # y\n    context.get_per_slot_batch_size())",
        "f(mode=det.Mode[text])",
        "f(mode=det.Mode.SUBMIT)",
        "f(mode=det.Mode(read()))",
    ],
)
def test_calls_without_an_equivalent_are_reported(call: str) -> None:
    migrated = migrate(f"{START}x = {call}\n")
    assert migrated.text == f"{START}x = {call}\n"
    assert [finding.kind for finding in migrated.findings] == ["left"]


def test_imports_of_replaced_names_are_removed() -> None:
    old = textwrap.dedent("""\
        from determined import Integer, InvalidHP
        try:
            from determined import Log
        except ImportError:
            raise InvalidHP
        config = {"units": Integer(8, 64), "lr": Log(-4, -2)}
        """)
    assert migrate(old).text == textwrap.dedent("""\
        from detcore import InvalidHP
        try:
            import detcore
        except ImportError:
            raise InvalidHP
        config = {"units": {"type": "int", "minval": 8, "maxval": 64}, \
"lr": {"type": "log", "minval": -4, "maxval": -2}}
        """)


def test_calls_of_a_name_with_two_imports_are_replaced_once() -> None:
    imports = "try:\n    import determined as det\nexcept OSError:\n    import determined as det\n"
    old = "x = det.Constant(8), det.Log(-4, -2)\ndet.create(T, mode=det.Mode(x))\n"
    text = migrate(imports + old).text
    assert 'x = {"type": "const", "val": 8}, {"type": "log", "minval": -4, "maxval": -2}\n' in text
    assert text.endswith('test=x in ("local", "test"))\n')


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "mode=det.Mode(args.mode)",
            'local=args.mode in ("local", "test"), test=args.mode in ("local", "test")',
        ),
        (
            "mode=experimental.Mode(mode)",
            'local=mode in ("local", "test"), test=mode in ("local", "test")',
        ),
    ],
)
def test_modes_become_local_and_test(old: str, new: str) -> None:
    source = f"{START}from determined import experimental\ndet.create(T, {old}, context_dir='.')\n"
    assert migrate(source).text == (
        "import detcore as det\nfrom detcore import experimental\n"
        f"det.experimental.create(T, {new}, context_dir='.')\n"
    )


@pytest.mark.parametrize("size", ["self.context.get_per_slot_batch_size()", "size"])
def test_in_memory_sequences_become_arrays(size: str) -> None:
    old = (
        "from determined.keras import InMemorySequence, init\n"
        "size = context.get_per_slot_batch_size()\n"
        f"x = InMemorySequence(data=images / 255.0, labels=labels, batch_size={size})\n"
    )
    migrated = migrate(old)
    assert migrated.text == (
        "from detcore_keras import init\n"
        "size = context.get_per_slot_batch_size()\n"
        "x = (images / 255.0, labels)\n"
    )
    assert [finding.kind for finding in migrated.findings] == ["note"]


CONFIG = """\
import determined as det
config = {
    "batches_per_step": 20,
    "min_validation_period": 2,
    "searcher": {"name": "single", "metric": 'val_acc', "max_steps": 5},
}
"""


def test_lengths_in_steps_become_batches() -> None:
    new = CONFIG.replace("determined", "detcore").replace("batches_per_step", "scheduling_unit")
    new = new.replace(": 2,", ': {"batches": 40},')
    new = new.replace('"max_steps": 5', '"max_length": {"batches": 100}')
    assert migrate(CONFIG).text == new
    assert migrate(CONFIG.replace("20", "n")).text == (
        CONFIG.replace("20", "n").replace("determined", "detcore")
    )


def early_trial(init: str = "", *, base: str = "PyTorchTrial") -> str:
    """Return a trial class of release 0.12."""
    return textwrap.dedent(f"""\
        from determined.pytorch import PyTorchTrial

        class Net({base}):
            {init}

            def build_model(self):
                return make_model()

            def optimizer(self, model):
                return SGD(model.parameters())

            def train_batch(self, batch, model, epoch_idx, batch_idx):
                return {{"loss": model(batch), "steps": self.context.get_optimizer().steps}}

            def evaluate_batch(self, batch, model: Module):
                "Evaluate."
                return {{"validation_loss": model(batch)}}

            def evaluate_full_dataset(self, data_loader, model): pass
        """)


WRAPPED = """\
self.wrapping_context = {0}
        model = {0}.wrap_model(self.build_model())
        optimizer = {0}.wrap_optimizer(self.optimizer(model))
"""
READ = "model = self.wrapping_context.get_model()\n"


def test_early_trial_class_wraps_its_objects() -> None:
    init = "def __init__(self, ctx: Context) -> None:\n                self.context = ctx"
    migrated = migrate(early_trial(init))
    text = migrated.text
    assert "self.context = ctx\n        " + WRAPPED.format("ctx") in text
    assert "    def compute_loss(self, batch, model, epoch_idx, batch_idx):\n" in text
    assert f'(self, batch):\n        "Evaluate."\n        {READ}        return' in text
    assert f"(self, data_loader):\n        {READ}        pass\n" in text
    assert text.endswith("""
    def train_batch(self, batch, epoch_idx, batch_idx):
        context = self.wrapping_context
        metrics = self.compute_loss(
            batch=batch, model=context.get_model(), epoch_idx=epoch_idx, batch_idx=batch_idx
        )
        loss = metrics["loss"] if isinstance(metrics, dict) else metrics
        context.backward(loss)
        context.step_optimizer(context.get_optimizer())
        return metrics
""")
    (note,) = migrated.findings
    assert (note.name, note.kind) == ("Net", "note")


def test_early_trial_class_gets_init() -> None:
    text = migrate(early_trial('"""A trial."""')).text
    start = "def __init__(self, context):\n        self.context = context\n        "
    assert start + WRAPPED.format("context") in text
    assert text.index('"""A trial."""') < text.index("def __init__")


def test_early_scheduler_is_wrapped_if_there_is_one() -> None:
    method = "def create_lr_scheduler(self, optimizer): return LRScheduler(f(optimizer), mode)"
    text = migrate(early_trial(method)).text
    assert "lr_scheduler = self.create_lr_scheduler(optimizer)\n" in text
    assert "if lr_scheduler is not None:\n            context.wrap_lr_scheduler(" in text


def test_subclass_of_early_trial_is_rewritten() -> None:
    subclass = textwrap.dedent("""
        class Faster(Net):
            def optimizer(self, model):
                return Adam(model.parameters())

            def train_batch(self, model, batch, **others):
                return super().train_batch(model=model, batch=batch, **others)
        """)
    text = migrate(early_trial() + subclass).text
    assert "    def compute_loss(self, model, batch, **others):\n" in text
    assert "return super().compute_loss(model=model" in text
    assert text.count("def train_batch") == 1
    assert text.count("def optimizer") == 2


def test_wrapping_trial_with_the_same_helpers_stays() -> None:
    source = early_trial().replace("batch, model, epoch_idx", "batch, epoch_idx")
    migrated = migrate(source)
    assert migrated.findings == ()
    assert "wrapping_context" not in migrated.text


@pytest.mark.parametrize(
    "source",
    [
        early_trial("def __init__(self, context, size): pass"),
        early_trial("def __init__(self, context):\n                return"),
        early_trial("def compute_loss(self): pass"),
        early_trial().replace("build_model", "make_model"),
        early_trial(base="Unknown"),
    ],
)
def test_unusual_early_trial_class_is_reported(source: str) -> None:
    (finding,) = migrate(source).findings
    assert (finding.name, finding.kind) == ("Net", "left")
    assert "context.backward" in finding.advice
    assert migrate(source).text.count("def train_batch(self, batch, model") == 1
