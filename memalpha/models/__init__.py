"""Base models and adapters: find, build and load them; torch and transformers come in on use."""

from memalpha.models.adapters import ADAPTER_RECORD, name_base, write_adapter_record
from memalpha.models.policy import PolicyModel, load_policy_model
from memalpha.models.registry import MODELS, build_nano, resolve_model

__all__ = [
    "ADAPTER_RECORD",
    "MODELS",
    "PolicyModel",
    "build_nano",
    "load_policy_model",
    "name_base",
    "resolve_model",
    "write_adapter_record",
]
