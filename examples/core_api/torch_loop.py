"""Train a network on scans of handwritten digits with PyTorch."""

import argparse

import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import distributed, nn

from detcore import core
from detcore.data import IndexSampler

HPARAMS = {"learning_rate": 0.1, "global_batch_size": 32}
NUM_TRAINING = 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=235)
    parser.add_argument("--checkpoint-storage", help="a directory or URL, such as s3://bucket/runs")
    args = parser.parse_args()
    with core.init(
        distributed=core.DistributedContext.from_env(),
        checkpoint_storage=args.checkpoint_storage,
        script=core.ScriptExperiment(hparams=HPARAMS),
        max_length={"batches": args.steps},
        resume=True,
    ) as context:
        train(context, **context.info.hparams)


def train(context: core.Context, *, learning_rate: float, global_batch_size: int) -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    rank, size, seed = context.distributed.rank, context.distributed.size, context.info.trial_seed
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    steps = restore(context, model, optimizer)
    context.watch_state(lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    replica = model
    if size > 1:
        init_method = f"file://{context.info.trial_dir}/gloo-{context.info.run_id}"
        distributed.init_process_group("gloo", init_method, rank=rank, world_size=size)
        replica = nn.parallel.DistributedDataParallel(model)
    sampler = IndexSampler(
        NUM_TRAINING, global_batch_size // size, shuffle=True, seed=seed, rank=rank, world_size=size
    )
    for operation in context.searcher.operations():
        while steps < operation.length:
            torch.manual_seed(seed + steps * size + rank)  # dropout depends only on the step
            batch = sampler.batch(steps)
            context.train.digest_batch(steps + 1, batch)
            loss = nn.functional.cross_entropy(replica(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % 10 == 0 and rank == 0:
                context.train.report_training_metrics(steps, {"loss": loss.item()})
            is_preempted = context.preempt.should_preempt()
            if rank == 0 and (is_preempted or steps % 50 == 0 or steps == operation.length):
                save(context, model, optimizer, steps)
            if is_preempted:
                raise SystemExit(75)
        if rank == 0:
            metric = accuracy(model, x[NUM_TRAINING:], y[NUM_TRAINING:])
            context.train.report_validation_metrics(steps, {"accuracy": metric})
            operation.report_completed(metric)


def save(context: core.Context, model: nn.Module, optimizer: torch.optim.SGD, steps: int) -> None:
    slots = optimizer.state_dict()["state"]
    with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
        save_file(model.state_dict(), path / "model.safetensors")
        momentum = {str(i): slot["momentum_buffer"] for i, slot in slots.items()}
        save_file(momentum, path / "momentum.safetensors")


def restore(context: core.Context, model: nn.Module, optimizer: torch.optim.SGD) -> int:
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            model.load_state_dict(load_file(path / "model.safetensors"))
            momentum = load_file(path / "momentum.safetensors")
        slots = {int(i): {"momentum_buffer": tensor} for i, tensor in momentum.items()}
        optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})
    return context.info.steps_completed


@torch.no_grad()
def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    model.eval()
    result = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return result


if __name__ == "__main__":
    main()
