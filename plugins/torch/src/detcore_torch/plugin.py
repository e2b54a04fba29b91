"""Register the PyTorch framework, without importing it."""

from __future__ import annotations

from detcore import hookimpl
from detcore.types import Framework

__all__ = ["detcore_register_framework"]


@hookimpl
def detcore_register_framework() -> Framework:
    """Register ``PyTorchTrial``."""
    return Framework(
        name="torch",
        trial_class="detcore_torch.pytorch_trial:PyTorchTrial",
        context_class="detcore_torch.pytorch_context:PyTorchTrialContext",
        controller="detcore_torch.pytorch_controller:TorchController",
        prepare_worker="detcore_torch.pytorch_controller:prepare_worker",
        load_checkpoint="detcore_torch.load_checkpoint:load_model_from_checkpoint_path",
        metric="validation_loss",
        several_workers=True,
        requires=("torch",),
        related=("numpy", "safetensors"),
        import_variables=("TORCH", "PYTORCH_", "KMP_", "GOMP_"),
        install_hint='pip install "torch>=2.2"',
    )
