"""Fetch, build and load causal LMs and their adapters; torch and transformers are imported only on
use.
"""

from memalpha.models.nano import build_nano
from memalpha.models.policy import (
    ADAPTER_RECORD,
    PolicyModel,
    base_fingerprint,
    load_policy_model,
    name_base,
    write_adapter_record,
)
from memalpha.models.registry import MODEL_RECORD, MODELS, fetch, resolve_model

__all__ = [
    "ADAPTER_RECORD",
    "MODELS",
    "MODEL_RECORD",
    "PolicyModel",
    "base_fingerprint",
    "build_nano",
    "fetch",
    "load_policy_model",
    "name_base",
    "resolve_model",
    "write_adapter_record",
]
