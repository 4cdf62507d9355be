"""The models of readers: the base of a policy, or a trained reader's adapter (``memalpha warmup
--teaches reader``) on a base. ``memalpha.qa.readers.open_reader`` makes readers of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memalpha.endpoints import ChatClient
from memalpha.errors import InputError
from memalpha.models.adapters import adapter_record, base_of, check_adapter, readable
from memalpha.models.policy import PolicyModel, load_policy_model
from memalpha.models.registry import resolve_model
from memalpha.models.shipped import resolve_adapter
from memalpha.qa.readers import BASE, UNKNOWN, reader_messages, reader_names
from memalpha.text.encoding import chat_ids, in_common

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from memalpha.generation.hf import AnsweringModel

_READER = "reader"  # what peft calls a reader's adapter beside a policy's
_MOST_TOKENS = 32  # that a trained reader writes


def resolve_reader(reader: str | Path | ChatClient) -> str | Path | ChatClient:
    """Return a reader as ``open_reader`` takes it: the folder of a trained one (as in
    ``resolve_adapter``), and any other as it is.
    """
    if isinstance(reader, ChatClient) or reader in reader_names():
        return reader
    return resolve_adapter(reader)


def load_reader(
    reader: str | Path,
    policy: PolicyModel,
    *,
    beside: bool = False,
    base_tokens: int = 32,
    dtype: str = "float32",
    device: Any = "cpu",
    keep_products: bool = True,
) -> AnsweringModel:
    """Return what answers for a reader: ``base`` (the policy's base, without adapters, which writes
    ``base_tokens`` at most) or the folder of a trained one.

    A trained reader gets a base of its own, of type ``dtype`` on ``device``, unless it may stand
    ``beside`` the policy's adapter on the same base; base and reader then take turns with whatever
    generates for the policy. ``keep_products``: as in ``HFGenerator``.
    """
    if reader == BASE:
        from memalpha.generation.hf import frozen_base

        return frozen_base(policy.model, policy.tokenizer, base_tokens)
    shared = reader_beside(policy, reader) if beside else None
    return shared or trained_reader(reader, dtype=dtype, device=device, keep_products=keep_products)


def trained_reader(
    adapter: str | Path,
    *,
    dtype: str = "float32",
    device: Any = "cpu",
    keep_products: bool = True,
) -> AnsweringModel:
    """Return what answers with a reader's adapter on a base of its own."""
    from memalpha.generation.products import exact

    model, tokenizer = load_policy_model(base_of(adapter), adapter=adapter, dtype=dtype)
    if exact(model):
        model = model.merge_and_unload()
    policy = PolicyModel(model.to(device).eval(), tokenizer)
    return _answering(policy, adapter, keep_products, own_model=True)


def reader_beside(policy: PolicyModel, adapter: str | Path) -> AnsweringModel | None:
    """Return what answers with a reader's adapter on the base of a policy; None if that has another
    base, or no adapter itself.
    """
    base = resolve_model(base_of(adapter))
    same = isinstance(base, Path) and str(base) == policy.model.config.name_or_path
    if not same or not hasattr(policy.model, "peft_config"):
        return None
    check_adapter(Path(adapter), base, policy.model.get_base_model(), policy.tokenizer)
    with readable(f"adapter {adapter}", "a LoRA adapter"):
        policy.model.load_adapter(str(adapter), _READER, autocast_adapter_dtype=False)

    @contextmanager
    def with_its_adapter() -> Iterator[None]:
        from memalpha.generation.products import restoring

        before = policy.model.active_adapter
        with restoring(policy.model.parameters(), "requires_grad"):
            policy.model.set_adapter(_READER)
            try:
                yield
            finally:
                policy.model.set_adapter(before)

    return _answering(policy, adapter, keep_products=False, within=with_its_adapter)


def _answering(
    policy: PolicyModel, adapter: str | Path, keep_products: bool, **more: Any
) -> AnsweringModel:
    from memalpha.generation.hf import AnsweringModel, HFGenerator

    model, tokenizer = policy
    generator = HFGenerator(
        model,
        tokenizer,
        merge_adapters=False,
        keep_products=keep_products,
        first_bias=unknown_bias(adapter, tokenizer),
        opening=reader_opening(tokenizer),
    )
    sure = _number_of(adapter, "sure")
    return AnsweringModel(generator, tokenizer, _MOST_TOKENS, sure=sure, **more)


def unknown_bias(adapter: str | Path, tokenizer: PreTrainedTokenizerBase) -> dict[int, float]:
    """Return the number that a reader adds to the logit of ``unknown`` as an answer's first token,
    by id.

    {} if its record says nothing; InputError if that is no number.
    """
    bias = _number_of(adapter, "unknown_bias")
    return {tokenizer.encode(UNKNOWN, add_special_tokens=False)[0]: bias} if bias else {}


def _number_of(adapter: str | Path, name: str) -> float | None:
    """A number of an adapter's record, None if it has none; InputError if it is something else."""
    value = adapter_record(Path(adapter)).get(name)
    if value is not None and not isinstance(value, int | float):
        raise InputError(
            f"{name} of {adapter} is {value!r}",
            expected="a number, such as -0.5",
        )
    return value


def reader_opening(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids before the first note of a reader's prompt."""
    chats = [chat_ids(tokenizer, reader_messages(word, [word])) for word in ("a", "b")]
    return chats[0][: in_common(chats)]
