"""What memalpha uses of TRL and transformers although they do not promise it.

Their private names, and what their documentation leaves open, stand in this file alone. Trainers
override and call the public names of its mixins. tests/test_upstream.py has a test for each name;
CONTRIBUTING.md says how to admit a newer version.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Trainer as _Trainer
    from trl import GRPOTrainer as _GRPOTrainer
else:  # mixins: the trainer stands beside them
    _Trainer = _GRPOTrainer = object


# Models -------------------------------------------------------------------------------------------


def attention_of(config: Any) -> str:
    """Return the name of a model's attention, such as ``sdpa``."""
    name: str = config._attn_implementation
    return name


def takes_attention(model: Any) -> bool:
    """Return whether ``set_attn_implementation`` changes the attention of a model."""
    return bool(model._can_set_attn_implementation())


@cache
def cache_argument() -> str:
    """Return the name of the argument of models that takes the cache of keys and values."""
    from transformers import __version__

    version = tuple(map(int, __version__.split(".")[:2]))
    return "cache" if version >= (5, 24) else "past_key_values"


def forget_gguf(model: Any) -> None:
    """Take from a model what reading it from GGUF left, so that it does not count as quantised."""
    model.hf_quantizer = None
    for name in ("quantization_config", "_model_name_or_path"):
        vars(model.config).pop(name, None)


def as_reference(model: Any) -> AbstractContextManager[None]:
    """Return a context in which a model with adapters is the reference of the KL term: TRL keeps a
    copy of the adapter.
    """
    from trl.trainer.utils import use_adapter

    reference: AbstractContextManager[None] = use_adapter(model, "ref")
    return reference


# Trainers -----------------------------------------------------------------------------------------


class FinishedInputs(_Trainer):  # type: ignore[misc]
    """Mixin for a trainer that is given finished batches; TRL would draw and score here."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs


class LossOfTRL(FinishedInputs, _GRPOTrainer):  # type: ignore[misc]
    """Mixin for TRL's trainer: its loss of rows whose forward has run, and what it logs."""

    use_vllm: bool
    _of_forward: Any = None

    @property
    def training_metrics(self) -> dict[str, list[float]]:
        """Values by name; TRL logs their means with the next log of training, and drops them."""
        metrics: dict[str, list[float]] = self._metrics["train"]
        return metrics

    @property
    def adds_router_loss(self) -> bool:
        """Whether TRL's loss adds one of the routers of a mixture of experts."""
        return bool(self.aux_loss_enabled)

    def loss_of_trl(
        self,
        model: Any,
        *,
        logps: Tensor,
        entropies: Tensor,
        mask: Tensor,
        advantages: Tensor,
        token_count: Tensor,
        weighs: bool,
        others: Mapping[str, Tensor],
    ) -> Tensor:
        """Return TRL's loss of (B, T) tensors of a forward, and (B,) advantages; ``token_count`` ()
        is that of all micro-batches and ranks.

        ``others``, all (B, T), are log-probabilities of before the update (``old``), of the
        reference (``reference``) and as sampled (``sampled``), and importance weights (``weight``),
        which count if ``weighs``.
        """
        batch = {
            # TRL puts ids and masks together for a forward of its own, which does not take place
            **dict.fromkeys(("prompt_ids", "prompt_mask", "completion_ids"), mask),
            "completion_mask": mask,
            "advantages": advantages,
            "num_items_in_batch": token_count,
        }
        for name, name_of_trl in (
            ("old", "old_per_token_logps"),
            ("reference", "ref_per_token_logps"),
            ("weight", "importance_sampling_ratio"),
            ("sampled", "sampling_per_token_logps"),
        ):
            if name in others:
                batch[name_of_trl] = others[name]
        self._of_forward = logps, entropies, None  # no loss of routers
        before = self.use_vllm
        self.use_vllm = weighs  # how TRL's loss is told to take importance weights
        try:
            loss: Tensor = self._compute_loss(model, batch)
        finally:
            self.use_vllm, self._of_forward = before, None
        return loss

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> Any:
        return self._of_forward


class WithoutArguments(_Trainer):  # type: ignore[misc]
    """Mixin for a trainer: saves no pickle of its arguments, which may hold hub_token; resuming
    does not read it.
    """

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        (Path(output_dir or self.args.output_dir) / "training_args.bin").unlink(missing_ok=True)


class CheckpointSteps(WithoutArguments):
    """Mixin for a trainer: the steps of saving and loading as methods to override, whose
    ``super()`` does as transformers and TRL do.
    """

    def write_checkpoint(self, model: Any, trial: Any) -> None:
        """Write the checkpoint of this step into a subfolder of ``checkpoints_folder``."""
        super()._save_checkpoint(model, trial)

    def checkpoints_folder(self, trial: Any) -> str:
        """Return where new checkpoints are written."""
        return str(super()._get_output_dir(trial))

    def load_weights(self, checkpoint: str, model: Any = None) -> None:
        """Load the weights of a checkpoint into ``model``, by default the trainer's."""
        super()._load_from_checkpoint(checkpoint, model)

    def load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load both from a checkpoint, if there is one."""
        super()._load_optimizer_and_scheduler(checkpoint)

    def load_random_state(self, checkpoint: str | None) -> None:
        """Load the state of the random numbers from a checkpoint, if there is one."""
        super()._load_rng_state(checkpoint)

    def load_best_weights(self) -> None:
        """Load the weights of ``state.best_model_checkpoint``."""
        super()._load_best_model()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.write_checkpoint(model, trial)

    def _get_output_dir(self, trial: Any) -> str:
        return self.checkpoints_folder(trial)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.load_weights(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        self.load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        self.load_random_state(checkpoint)
