"""Really killed scripts with Hugging Face's `Trainer`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from _killed_scripts import Script, check_equal
from test_killed_scripts import check_two_ranks

from detcore.errors import DetcoreError, InvalidExperimentError
from detcore.records import Database

EXAMPLE = Path(__file__).parents[3] / "examples" / "trainer_torch"
ARGUMENTS = (
    "--max_steps=18",  # two epochs
    "--max_train_samples=70",
    "--max_eval_samples=16",
    "--per_device_train_batch_size=4",
    "--warmup_steps=2",
    "--logging_steps=5",
    "--eval_steps=6",
    "--save_steps=2",
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("steps", "kills", "more"),
    [
        pytest.param(18, 2, (), id="few"),
        pytest.param(240, 50, (), id="many", marks=pytest.mark.soak),
        pytest.param(
            36, 10, ("--dataloader_num_workers=2",), id="loader-workers", marks=pytest.mark.soak
        ),
    ],
)
def test_killed_script_equals_uninterrupted_script(
    steps: int, kills: int, more: tuple[str, ...], tmp_path: Path
) -> None:
    from transformers import GPT2LMHeadModel  # noqa: F401  # before processes are forked

    arguments = (*ARGUMENTS, f"--max_steps={steps}", *more)
    expected, broken = (
        Script(EXAMPLE / "train.py", tmp_path / name, arguments) for name in ("whole", "broken")
    )
    expected.finish()
    broken.interrupt_at_random(seed=12, stops=kills, at_most=5)
    # Each SIGTERM saves a checkpoint, from which the next process resumes.
    assert broken.output().count("(checkpoint ") >= kills // 2
    check_equal(expected, broken)
    assert {step for step, _ in expected.metrics("training")} >= {2, 5, 6, 12, 18}
    broken.check_no_pickles()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_killed_ranks_resume_exactly(tmp_path: Path) -> None:
    output = f"--output_dir={tmp_path}"
    check_two_ranks(tmp_path, 18, EXAMPLE / "train.py", *ARGUMENTS, "--use_cpu", output)


class _Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Records of several lengths, created per epoch."""

    def __init__(self) -> None:
        self.epoch = -1

    def __len__(self) -> int:
        return 37

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= len(self):
            raise IndexError(index)
        x = torch.tensor([float(index), float(self.epoch)])
        return {"input_ids": torch.zeros(1 + index % 7), "x": x, "labels": torch.ones(1)}

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def _collated(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in ("x", "labels")}


class _Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen: list[list[list[float]]] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen.append(x.tolist())
        result = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(result, labels), "logits": result}


@pytest.fixture
def make_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that creates a trainer with settings and a separate home."""
    from transformers import Trainer, TrainingArguments

    def make(
        home: str = "home",
        kind: type | None = None,
        network: type[_Network] = _Network,
        validation: object = _Rows(),
        callbacks: Sequence[Any] = (),
        **settings: Any,
    ) -> Any:
        monkeypatch.setenv("DETCORE_HOME", str(tmp_path / home))
        args = TrainingArguments(
            str(tmp_path), report_to="none", use_cpu=True, disable_tqdm=True,
            remove_unused_columns=False, **settings,
        )  # fmt: skip
        torch.manual_seed(1)
        return (kind or Trainer)(
            network(), args, train_dataset=_Rows(), eval_dataset=validation,
            data_collator=_collated, callbacks=[*callbacks],
        )  # fmt: skip

    return make


def test_arguments_that_cannot_resume_are_rejected(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    from detcore_torch.for_transformers import train

    # One test covers all of them, because each process imports transformers for seconds.
    for settings, message in (
        ({"ignore_data_skip": True}, "ignore_data_skip=True"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size=True"),
        ({"dataloader_in_order": False, "dataloader_num_workers": 1}, "in_order=False"),
        ({"validation": None}, "has no eval_dataset"),
    ):
        with pytest.raises(DetcoreError, match=message):
            train(make_trainer(**settings))
    trainer = make_trainer()
    trainer.get_train_dataloader = lambda: [{}]
    with pytest.raises(DetcoreError, match="iterates in a way that detcore does not know"):
        train(trainer)
    assert not (tmp_path / "home").exists(), "something was recorded"


@pytest.mark.filterwarnings("ignore")
def test_trainer_loader_keeps_batches(make_trainer: Callable[..., Any]) -> None:
    from transformers import Trainer

    from detcore_torch.for_transformers import train

    class WithOwnLoader(Trainer):  # type: ignore[misc]  # transformers is not typed
        def get_train_dataloader(self) -> object:
            return torch.utils.data.DataLoader(self.train_dataset, 5, collate_fn=_collated)

    def make(home: str, kind: type, settings: dict[str, Any]) -> Any:
        return make_trainer(
            home, kind, save_strategy="no", per_device_train_batch_size=5,
            gradient_accumulation_steps=3, max_steps=7, **settings,
        )  # fmt: skip

    for number, (kind, settings) in enumerate(
        (
            (Trainer, {"train_sampling_strategy": "sequential"}),
            (Trainer, {"train_sampling_strategy": "batch_rebalance"}),
            (Trainer, {"train_sampling_strategy": "sequential", "dataloader_drop_last": True}),
            (WithOwnLoader, {}),
        )
    ):
        alone = make("alone", kind, settings)
        alone.train()
        trainer = make(f"home{number}", kind, settings)
        train(trainer)
        # Three epochs, with a smaller last group of batches.
        assert trainer.model.seen == alone.model.seen, settings
        assert torch.equal(trainer.model.layer.weight, alone.model.layer.weight), settings
    settings = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    trainer = make("home-workers", Trainer, settings)
    train(trainer)
    assert {epoch for batch in trainer.model.seen for _, epoch in batch} == {0, 1, 2}


@pytest.mark.filterwarnings("ignore")
def test_validation_datasets_are_combined(make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    """Random numbers in the validation do not affect training."""
    from detcore_torch.for_transformers import train

    class Noisy(_Network):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return super().forward(x + torch.rand(x.shape), labels)

    def train_with(validation: object, metric: str) -> torch.Tensor:
        trainer = make_trainer(
            metric, network=Noisy, validation=validation, eval_strategy="steps", eval_steps=2,
            save_strategy="no", max_steps=6,
        )  # fmt: skip
        train(trainer, metric=metric)
        return trainer.model.layer.weight.detach()

    several = train_with({"near": _Rows(), "far": _Rows()}, "eval_far_loss")
    assert torch.equal(several, train_with(_Rows(), "eval_loss"))
    with Database.open(f"sqlite:///{tmp_path}/eval_far_loss/detcore.db") as database:
        rows = list(database.metrics(1, "validation"))
    assert [row.steps_completed for row in rows] == [2, 4, 6]
    assert all({"eval_near_loss", "eval_far_loss"} <= row.metrics.keys() for row in rows)


@pytest.mark.filterwarnings("ignore")
def test_objects_created_in_training_are_rejected(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """The first checkpoint after that is rejected, because a resume would fail."""
    from transformers import TrainerCallback

    from detcore_torch.for_transformers import train

    class Replacing(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
        def on_step_end(self, args: object, state: Any, control: object, **_: Any) -> None:
            if state.global_step == 3:
                replace(trainer)

    def replace_scheduler(trainer: Any) -> None:
        trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2)

    def replace_optimizer(trainer: Any) -> None:
        optimizer = torch.optim.SGD(trainer.model.parameters(), 0.1)
        trainer.optimizer = trainer.accelerator.prepare(optimizer)

    for replace, message in (
        (replace_scheduler, "started with AdamW, LambdaLR, and the script has AdamW, StepLR now"),
        (replace_optimizer, "started with AdamW, LambdaLR, and the script has SGD, LambdaLR now"),
    ):
        home = replace.__name__
        trainer = make_trainer(home, callbacks=[Replacing()], save_steps=2, max_steps=6)
        with pytest.raises(InvalidExperimentError, match=message):
            train(trainer)
        (manifest,) = tmp_path.glob(f"{home}/checkpoints/*/manifest.json")
        assert json.loads(manifest.read_text())["steps_completed"] == 2
