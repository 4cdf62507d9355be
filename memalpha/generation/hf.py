"""Completions of a local transformers model; what prompts have in common is computed once.

Equal prompts are one row, and a prefix shared by several is read once. A row's cache is [prefix |
hole] [own prompt part | hole] [new tokens]; holes are masked and no positions, so its logits are
those of the row alone, up to rounding. A uniform number per row and token is drawn before decoding,
from torch's global CPU generator (a fresh one for ``Sampling.seed``), so draws do not depend on
``max_batch``. Not covered: other attention than full, flash attention; sliding-window,
linear-attention and compressed caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from memalpha.agent.step import positions_of
from memalpha.errors import InputError, MemAlphaError
from memalpha.generation.products import Products, exact, fast_linears, merged_lora, restored, using
from memalpha.text import THINK, chat_ids, decoded, in_common, opens_thinking
from memalpha.types import Completion, Generator, Message, Prompt, Sampling, StopReason

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


# ------------------------------------------------------------------------------------------------
# the cache of keys and values
# It starts from a shared prefix, is written in place, and drops ended rows. transformers'
# ``DynamicCache`` copies all keys and values at each step; these buffers are allocated once. Every
# slot that attention sees has been written, so masked slots are finite.
class BufferLayer(DynamicLayer):  # type: ignore[misc]
    """Buffers of one layer; ``keys`` and ``values`` (rows, heads, slots, head size) fill the first
    of ``capacity`` slots.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.is_initialized: bool = False
        self.capacity = capacity
        self.length = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new slots (rows, heads, new slots, head size); return views of all written ones."""
        if not self.is_initialized:
            self.keys = key_states.new_empty(
                *key_states.shape[:2], self.capacity, key_states.shape[-1]
            )
            self.values = value_states.new_empty(
                *value_states.shape[:2], self.capacity, value_states.shape[-1]
            )
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        end = self.length + key_states.shape[-2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Return the number of slots written."""
        return self.length

    def select(self, source: Tensor, moved: Tensor) -> None:
        """Keep ``len(source)`` rows: row i becomes row ``source[i]``; ``moved`` lists the i with
        source[i] != i.
        """
        for buffer in (self.keys, self.values):
            buffer[moved, :, : self.length] = buffer[source[moved], :, : self.length]
        self.keys, self.values = self.keys[: len(source)], self.values[: len(source)]


class BufferCache(Cache):  # type: ignore[misc]
    """One :class:`BufferLayer` per layer."""

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__(layers=[BufferLayer(capacity) for _ in range(layers)])

    def start_from(self, prefixes: Cache, index: Tensor) -> None:
        """Write the cached prefix of each row first; ``index`` (rows,) says which it is."""
        for layer, common in zip(self.layers, prefixes.layers, strict=True):
            layer.update(common.keys[index], common.values[index])

    def select(self, source: Tensor) -> None:
        """Keep ``len(source)`` rows: row i becomes row ``source[i]``. Only rows that move are
        copied.
        """
        moved = (source != torch.arange(len(source), device=source.device)).nonzero().squeeze(-1)
        for layer in self.layers:
            layer.select(source, moved)


def without_ended(alive: Tensor) -> Tensor:
    """Return the ``source`` for :meth:`BufferCache.select` that fills gaps with the last rows;
    ``alive`` is (rows,) bool.
    """
    rows = torch.arange(len(alive), device=alive.device)
    count = int(alive.sum())
    source = rows[:count].clone()
    source[~alive[:count]] = rows[count:][alive[count:]]
    return source


# ------------------------------------------------------------------------------------------------
# completions

_MANY = 4  # rows from which laying out the weights anew pays
# Ended rows leave the batch every so many tokens: elsewhere looking for them waits for the device.
_CHECK_EVERY = {"cpu": 1, "else": 16}

_Prefilled = tuple[BufferCache, Tensor, Tensor, Tensor]
"""A cache; and of each row the logits after its prompt, its length, and the slots it attends to."""


class HFGenerator:
    """Draws from a causal LM, plain or inside PEFT; at most ``max_batch`` rows at once.

    ``merge_adapters`` merges adapters during a call (faster, more memory; None: if all is float32);
    ``logprobs`` returns those of the whole distribution; ``keep_prefix`` keeps the last batch's
    prefixes and the weights' products, only for weights that never change. ``first_bias`` is added
    to the logits of a completion's first token, by id. ``opening``: ids that prompts begin with;
    their keys and values alone are kept, also for weights that never change. InputError for other
    attention than full.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_batch: int = 64,
        merge_adapters: bool | None = None,
        logprobs: bool = False,
        keep_prefix: bool = False,
        first_bias: Mapping[int, float] | None = None,
        opening: Sequence[int] = (),
    ) -> None:
        self.model: Any = model
        self.tokenizer = tokenizer
        self.max_batch = max_batch
        self.merge_adapters = exact(model) if merge_adapters is None else merge_adapters
        self.logprobs = logprobs
        self.keep_prefix = keep_prefix
        self.first_bias = first_bias or {}
        self.opening = tuple(opening)
        self._opened: DynamicCache | None = None
        self._last_prefixes: tuple[Sequence[tuple[int, ...]], DynamicCache] | None = None
        self._products = Products()
        _check_attention(self.model.config)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion per prompt, in order; InputError for empty prompts, MemAlphaError
        if memory runs out.
        """
        InputError.raise_if(
            sampling.max_new_tokens < 1,
            f"max_new_tokens {sampling.max_new_tokens}",
            expected="at least 1",
        )
        InputError.raise_if(
            any(not prompt.ids for prompt in prompts),
            "a prompt without ids",
            expected="at least one token id",
            fix="encode it with the policy's tokenizer",
        )
        generator = None if sampling.seed is None else torch.Generator().manual_seed(sampling.seed)
        uniforms = torch.rand(len(prompts), sampling.max_new_tokens, generator=generator)
        order = _by_prefix(prompts)
        lay_out = self.merge_adapters and len(prompts) >= _MANY
        completions: dict[int, Completion] = {}
        with (
            torch.no_grad(),
            restored(self.model.modules(), "training"),
            using(self._products if self.keep_prefix else Products()),
            merged_lora(self.model) if self.merge_adapters else nullcontext(),
            fast_linears(self.model) if lay_out else nullcontext(),
        ):
            self.model.eval()
            for start in range(0, len(order), self.max_batch):
                rows = order[start : start + self.max_batch]
                batch = self._batch([prompts[i] for i in rows], sampling, uniforms[rows])
                completions.update(zip(rows, batch, strict=True))
        return [completions[i] for i in range(len(prompts))]

    def _batch(
        self, prompts: Sequence[Prompt], sampling: Sampling, uniforms: Tensor
    ) -> list[Completion]:
        try:
            prefilled = self._prefill(prompts, sampling.max_new_tokens)
            drawn = self._decode(prefilled, sampling, uniforms)
        except torch.OutOfMemoryError as error:
            raise MemAlphaError(
                f"out of memory with {len(prompts)} completions at once",
                fix=f"lower max_batch (in a configuration: generation_rows), now {self.max_batch}",
            ) from error
        completions = []
        for tokens, values, length in zip(*(part.tolist() for part in drawn), strict=True):
            ids = tuple(tokens[:length])
            text = decoded(self.tokenizer, ids)
            stop = StopReason.END if ids[-1] in self.end_ids else StopReason.LENGTH
            logprobs = tuple(values[:length]) if self.logprobs else None
            completions.append(Completion(ids, text, stop, logprobs))
        return completions

    def _prefill(self, rows: Sequence[Prompt], new_tokens: int) -> _Prefilled:
        device = self.model.device
        prompts = list({row.ids: row for row in rows}.values())
        opened = [len(self.opening) * self._opens(prompt.ids) for prompt in prompts]
        shared = [  # one own at least
            min(max(prompt.shared, n), len(prompt.ids) - 1)
            for prompt, n in zip(prompts, opened, strict=True)
        ]
        pairs = list(zip(prompts, shared, strict=True))
        prefixes = list(dict.fromkeys(prompt.ids[:n] for prompt, n in pairs))
        own, own_lengths = _pad([prompt.ids[n:] for prompt, n in pairs], device)
        starts = torch.tensor(shared, device=device)
        width = max(shared)
        written = width + own.shape[1]
        capacity = written + new_tokens
        longest = max(len(prompt.ids) for prompt in prompts)
        _check_length(self.model.config, longest + new_tokens, capacity)
        cache = BufferCache(self.model.config.get_text_config().num_hidden_layers, capacity)
        if width:
            number = {prefix: i for i, prefix in enumerate(prefixes)}
            index = torch.tensor([number[prompt.ids[:n]] for prompt, n in pairs], device=device)
            cache.start_from(self._prefix_cache(prefixes, device), index)
        mask = torch.ones(len(prompts), capacity, dtype=torch.long, device=device)
        mask[:, :width] = torch.arange(width, device=device) < starts[:, None]
        steps = torch.arange(own.shape[1], device=device)
        mask[:, width:written] = steps < own_lengths[:, None]
        last = own_lengths[:, None] - 1
        positions = starts[:, None] + torch.minimum(steps, last)
        logits = self._forward(own, cache, mask, positions, last)
        lengths = starts + own_lengths
        if len(prompts) < len(rows):
            place = {prompt.ids: i for i, prompt in enumerate(prompts)}
            source = torch.tensor([place[row.ids] for row in rows], device=device)
            cache.batch_select_indices(source)
            return cache, logits[source], lengths[source], mask[source]
        return cache, logits, lengths, mask

    def _prefix_cache(
        self, prefixes: Sequence[tuple[int, ...]], device: torch.device
    ) -> DynamicCache:
        if self._last_prefixes is not None and prefixes == self._last_prefixes[0]:
            return self._last_prefixes[1]
        cache = DynamicCache()
        if self.opening and all(map(self._opens, prefixes)):
            if self._opened is None:
                self._opened = self._read([self.opening], DynamicCache(), device)
            for i, layer in enumerate(self._opened.layers):
                rows = (len(prefixes), -1, -1, -1)
                cache.update(layer.keys.expand(rows), layer.values.expand(rows), i)
            self._read([ids[len(self.opening) :] for ids in prefixes], cache, device)
        else:
            self._read(prefixes, cache, device)
        if self.keep_prefix:
            self._last_prefixes = (prefixes, cache)
        return cache

    def _opens(self, ids: Sequence[int]) -> bool:
        return tuple(ids[: len(self.opening)]) == self.opening

    def _read(
        self, rows: Sequence[Sequence[int]], cache: DynamicCache, device: torch.device
    ) -> DynamicCache:
        """Write the keys and values of ids after those that a cache has, and return it."""
        if any(rows):
            # An index copies: on CPUs a bfloat16 product of a slice (logits_to_keep=1) is 1,000
            # times slower.
            one = torch.zeros(1, dtype=torch.long, device=device)
            ids, _ = _pad(rows, device)
            self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=one)
        return cache

    def _forward(
        self, ids: Tensor, cache: BufferCache, mask: Tensor, positions: Tensor, keep: Tensor | int
    ) -> Tensor:
        output = self.model(
            input_ids=ids,
            attention_mask=mask[..., : cache.get_seq_length() + ids.shape[1]],
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _decode(
        self, prefilled: _Prefilled, sampling: Sampling, uniforms: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, their log-probabilities, and the length of each completion."""
        cache, logits, positions, mask = prefilled
        device = logits.device
        logits = logits.float()
        for token, bias in self.first_bias.items():
            logits[:, token] += bias
        ends = torch.tensor(sorted(self.end_ids), dtype=torch.long, device=device)
        uniforms = uniforms.to(device)
        tokens = torch.zeros(uniforms.shape, dtype=torch.long, device=device)
        logprobs = torch.zeros_like(uniforms)
        slots = torch.arange(len(positions), device=device)  # batch row of each remaining row
        alive = torch.ones_like(slots, dtype=torch.bool)
        every = _CHECK_EVERY.get(device.type, _CHECK_EVERY["else"])
        if every > 1 and self.model.config._attn_implementation == "sdpa":
            mask = mask[:, None, None].bool()  # transformers reads a mask of two axes at each token
        for step in range(sampling.max_new_tokens):
            last, values = draw(logits, sampling, uniforms[slots, step], logprobs=self.logprobs)
            tokens[slots, step] = last
            if values is not None:
                logprobs[slots, step] = values
            if step + 1 == sampling.max_new_tokens:
                break
            alive &= ~torch.isin(last, ends)
            if (step + 1) % every == 0:
                source = without_ended(alive)
                if not len(source):
                    break
                if len(source) < len(slots):
                    cache.select(source)
                    remaining = [x[source] for x in (slots, mask, positions, alive, last)]
                    slots, mask, positions, alive, last = remaining
            logits = self._forward(last[:, None], cache, mask, positions[:, None], 1)
            positions = positions + 1
        ended = torch.isin(tokens, ends)
        first = ended.int().argmax(1) + 1
        return tokens, logprobs, torch.where(ended.any(1), first, sampling.max_new_tokens)

    @property
    def end_ids(self) -> frozenset[int]:
        """Every id that ends a completion."""
        ends = getattr(self.model.generation_config, "eos_token_id", None)
        ids = ends if isinstance(ends, list) else [ends]
        return frozenset({*ids, self.tokenizer.eos_token_id} - {None})


def _by_prefix(prompts: Sequence[Prompt]) -> list[int]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        groups.setdefault(prompt.ids[: prompt.shared], []).append(i)
    return [i for members in groups.values() for i in members]


def _pad(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    rows = [torch.tensor(ids, dtype=torch.long) for ids in sequences]
    lengths = torch.tensor([len(ids) for ids in sequences], device=device)
    return pad_sequence(rows, batch_first=True).to(device), lengths


def _check_attention(config: PretrainedConfig) -> None:
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    others = sorted(kinds - {"full_attention", "sliding_attention"})
    kernel = config._attn_implementation
    InputError.raise_if(
        others or any(name in kernel for name in ("flash", "flex", "paged")),
        f"attention {kernel!r} with {', '.join(others) or 'ordinary'} layers",
        expected="attn_implementation 'sdpa' or 'eager'; full or sliding-window attention",
    )


def _check_length(config: PretrainedConfig, tokens: int, capacity: int) -> None:
    """Raise InputError if a row has more tokens than the model takes, or the cache more slots than
    its window.
    """
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ("sliding_attention",)
    window = getattr(text, "sliding_window", None) if "sliding_attention" in kinds else None
    positions = positions_of(config)
    InputError.raise_if(
        (window and capacity > window) or (positions and tokens > positions),
        f"prompt and completion of up to {tokens} tokens in a model made for {positions} "
        f"(sliding window of {window}: {capacity} slots)",
        fix="lower the token budgets of the prompt or max_new_tokens",
    )


def draw(
    logits: Tensor, sampling: Sampling, uniforms: Tensor, *, logprobs: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Draw one token per row of logits (rows, vocabulary): its uniform number selects in the
    cumulative distribution.

    Returns tokens (rows,) int64 and, if asked for, their log-probabilities (rows,) float32.
    Temperature, top-k, top-p, in this order; log-probabilities are those before top-k and top-p, as
    a policy gradient needs them.
    """
    logits = logits.float()
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
        tokens = _invert(logits, sampling, uniforms)
    else:
        tokens = logits.argmax(-1)
    if not logprobs:
        return tokens, None
    return tokens, logits.gather(-1, tokens[:, None]).squeeze(-1) - logits.logsumexp(-1)


def _invert(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Tensor:
    likeliest = None
    if sampling.top_k > 0 or sampling.top_p < 1:
        size = logits.shape[-1]
        count = min(sampling.top_k, size) if sampling.top_k > 0 else size
        logits, likeliest = logits.topk(count, dim=-1)
    weights = logits.softmax(-1)
    if sampling.top_p < 1:
        dropped = weights.cumsum(-1) - weights >= sampling.top_p  # likelier tokens have enough mass
        dropped[:, 0] = False
        weights = weights.masked_fill(dropped, 0.0)
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    # Strictly below the total: a token of weight zero is never drawn.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    choice = torch.searchsorted(cumulative, target[:, None], right=True)
    return (choice if likeliest is None else likeliest.gather(-1, choice)).squeeze(-1)


# ------------------------------------------------------------------------------------------------
# answers to chats
# Greedy, for readers.

Answering = Callable[[list[list[Message]]], list[str]]
BATCH_TOKENS = 16_384


def answer_chats(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    chats: Sequence[list[Message]],
    max_new_tokens: int,
    batch_tokens: int = BATCH_TOKENS,
) -> list[str]:
    """Answer chats; equal chats and shared prefixes are computed once, and ``batch_tokens`` bounds
    what is read at once.

    An answer begins with ``THINK`` if the chat template has opened the thinking.
    """
    prompts = [Prompt(tuple(chat), chat_ids(tokenizer, chat)) for chat in chats]
    different = list({prompt.ids: prompt for prompt in prompts}.values())
    start = THINK if opens_thinking(tokenizer) else ""
    answers: dict[tuple[int, ...], str] = {}
    for batch in within_tokens(mark_prefixes(different), batch_tokens, max_new_tokens):
        completions = generator.generate(batch, Sampling(max_new_tokens))
        for prompt, completion in zip(batch, completions, strict=True):
            answers[prompt.ids] = start + completion.text
    return [answers[prompt.ids] for prompt in prompts]


def frozen_base(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int = 32
) -> Answering:
    """Return a function that answers without the policy's adapters; InputError if it has none."""
    InputError.raise_if(
        not hasattr(model, "disable_adapter"),
        "reader 'base' with a fully fine-tuned policy",
        expected="reader recall, trained or endpoint",
    )
    generator = HFGenerator(model, tokenizer, merge_adapters=False)

    def answer(chats: list[list[Message]]) -> list[str]:
        with restored(model.parameters(), "requires_grad"), model.disable_adapter():
            return answer_chats(generator, tokenizer, chats, max_new_tokens)

    return answer


def mark_prefixes(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Mark common prefixes to compute once: of neighbours that share more than half, else of all
    other prompts.
    """
    groups: list[list[Prompt]] = []
    shared = 0
    for prompt in prompts:
        shared = in_common([groups[-1][0].ids[:shared], prompt.ids]) if groups else 0
        if 2 * shared <= len(prompt.ids):
            groups.append([])
            shared = len(prompt.ids)
        groups[-1].append(prompt)
    lone = [group[0].ids for group in groups if len(group) == 1]
    least = in_common(lone) if len(lone) > 1 else 0
    marked: list[Prompt] = []
    for group in groups:
        shared = in_common([prompt.ids for prompt in group]) if len(group) > 1 else least
        marked += [replace(prompt, shared=shared) for prompt in group]
    return marked


def within_tokens(prompts: Sequence[Prompt], tokens: int, new_tokens: int) -> list[list[Prompt]]:
    """Split prompts, in order, into batches with rows times (longest prompt + completion) at most
    ``tokens``, or of one prompt.
    """
    batches: list[list[Prompt]] = []
    for prompt in prompts:
        grown = [*batches[-1], prompt] if batches else []
        if grown and len(grown) * (max(len(row.ids) for row in grown) + new_tokens) <= tokens:
            batches[-1] = grown
        else:
            batches.append([prompt])
    return batches
