"""Getting and loading causal LMs: registered names, folders and Hub ids, with adapters checked against their base.

``resolve_model`` turns what a user writes into something loadable, ``fetch`` brings a registered model into the cache,
``build_nano`` makes the tiny policy of the learning test, ``load_policy_model`` loads a policy and says clearly what is wrong
where it cannot. Nothing here imports torch or transformers before it is called.
"""

from memalpha.models.nano import build_nano
from memalpha.models.policy import ADAPTER_RECORD, PolicyModel, base_fingerprint, load_policy_model, name_base, write_adapter_record
from memalpha.models.registry import MODEL_RECORD, MODELS, Source, fetch, resolve_model

__all__ = [
    "ADAPTER_RECORD",
    "MODELS",
    "MODEL_RECORD",
    "PolicyModel",
    "Source",
    "base_fingerprint",
    "build_nano",
    "fetch",
    "load_policy_model",
    "name_base",
    "resolve_model",
    "write_adapter_record",
]
