"""Completions from a local transformers causal LM; equal prompts, and a prefix shared by several,
are computed once.

A row's cache is [prefix | hole] [own prompt part | hole] [new tokens]; holes are masked and no
positions, so its logits are those of the row alone, up to rounding. A uniform number per row and
token is drawn before decoding, from torch's global CPU generator (a fresh one for
``Sampling.seed``), so draws do not depend on ``max_batch``. Not covered: other attention than full,
flash attention.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from memalpha.agent.step import positions_of
from memalpha.errors import InputError, MemAlphaError
from memalpha.generation.kv_cache import BufferCache, without_ended
from memalpha.generation.merging import exact, merged_lora, restored
from memalpha.generation.products import Products, fast_linears, using
from memalpha.text import decoded
from memalpha.types import Completion, Prompt, Sampling, StopReason

_MANY = 4  # rows from which laying out the weights anew pays


_Prefilled = tuple[BufferCache, Tensor, Tensor, Tensor]
"""A cache, and for each row the logits after its prompt, the prompt's length and the mask of the slots."""


class HFGenerator:
    """Draws from a causal LM, plain or inside PEFT; at most ``max_batch`` rows at once; InputError
    if it does not fit.

    ``merge_adapters`` merges adapters during a call (faster, more memory; None: if all is float32);
    ``logprobs`` returns those of the whole distribution; ``keep_prefix`` keeps the last batch's
    prefixes and the weights' products, only for weights that never change. Rows that ended leave
    the batch every ``check_every`` tokens;
    None: after each on a CPU, after 16 on an accelerator. ``first_bias`` is added to the logits of
        a completion's first token, by id.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        max_batch: int = 64,
        merge_adapters: bool | None = None,
        logprobs: bool = False,
        keep_prefix: bool = False,
        check_every: int | None = None,
        first_bias: Mapping[int, float] | None = None,
    ) -> None:
        InputError.raise_if(max_batch < 1, f"max_batch {max_batch}", expected="at least 1")
        self.model: Any = model
        self.tokenizer, self.max_batch = tokenizer, max_batch
        self.merge_adapters = exact(model) if merge_adapters is None else merge_adapters
        self.logprobs, self.keep_prefix, self.check_every = logprobs, keep_prefix, check_every
        self.first_bias = first_bias or {}
        self._kept: tuple[Sequence[tuple[int, ...]], DynamicCache] | None = None
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
        completions: dict[int, Completion] = {}
        with (
            torch.no_grad(),
            restored(self.model.modules(), "training"),
            using(self._products if self.keep_prefix else Products()),
            merged_lora(self.model) if self.merge_adapters else nullcontext(),
            fast_linears(self.model)
            if self.merge_adapters and len(prompts) >= _MANY
            else nullcontext(),
        ):
            self.model.eval()
            for start in range(0, len(order), self.max_batch):
                rows = order[start : start + self.max_batch]
                completions.update(
                    zip(
                        rows,
                        self._batch([prompts[i] for i in rows], sampling, uniforms[rows]),
                        strict=True,
                    )
                )
        return [completions[i] for i in range(len(prompts))]

    def _batch(
        self, prompts: Sequence[Prompt], sampling: Sampling, uniforms: Tensor
    ) -> list[Completion]:
        try:
            tokens, logprobs, lengths = self._decode(
                self._prefill(prompts, sampling.max_new_tokens), sampling, uniforms
            )
        except torch.OutOfMemoryError as error:
            raise MemAlphaError(
                f"out of memory with {len(prompts)} completions at once\n"
                f"  to fix: lower max_batch (in a configuration: generation_rows), now {self.max_batch}"
            ) from error
        return [
            self._completion(ids[:length], values[:length] if self.logprobs else None)
            for ids, values, length in zip(
                tokens.tolist(), logprobs.tolist(), lengths.tolist(), strict=True
            )
        ]

    def _prefill(self, rows: Sequence[Prompt], new_tokens: int) -> _Prefilled:
        device = self.model.device
        prompts = list({row.ids: row for row in rows}.values())
        shared = [
            min(prompt.shared, len(prompt.ids) - 1) for prompt in prompts
        ]  # at least one own token per row
        prefixes = {prompt.ids[:n]: None for prompt, n in zip(prompts, shared, strict=True)}
        number = {prefix: i for i, prefix in enumerate(prefixes)}
        own, own_lengths = _pad(
            [prompt.ids[n:] for prompt, n in zip(prompts, shared, strict=True)], device
        )
        starts = torch.tensor(shared, device=device)
        width = max(shared)
        capacity = width + own.shape[1] + new_tokens
        _check_length(
            self.model.config, max(len(prompt.ids) for prompt in prompts) + new_tokens, capacity
        )
        layers = self.model.config.get_text_config().num_hidden_layers
        cache = BufferCache(layers, capacity)
        if width:
            index = torch.tensor(
                [number[p.ids[:n]] for p, n in zip(prompts, shared, strict=True)], device=device
            )
            cache = BufferCache(layers, capacity, self._prefix_cache(list(prefixes), device), index)
        mask = torch.ones(len(prompts), capacity, dtype=torch.long, device=device)
        mask[:, :width] = torch.arange(width, device=device) < starts[:, None]
        mask[:, width : width + own.shape[1]] = (
            torch.arange(own.shape[1], device=device) < own_lengths[:, None]
        )
        last = own_lengths[:, None] - 1
        steps = torch.minimum(torch.arange(own.shape[1], device=device), last)
        logits, lengths = (
            self._forward(own, cache, mask, starts[:, None] + steps, last),
            starts + own_lengths,
        )
        if len(prompts) < len(rows):
            place = {prompt.ids: i for i, prompt in enumerate(prompts)}
            source = torch.tensor([place[row.ids] for row in rows], device=device)
            cache.batch_select_indices(source)
            logits, lengths, mask = logits[source], lengths[source], mask[source]
        return cache, logits, lengths, mask

    def _prefix_cache(
        self, prefixes: Sequence[tuple[int, ...]], device: torch.device
    ) -> DynamicCache:
        if self._kept is not None and prefixes == self._kept[0]:
            return self._kept[1]
        cache = DynamicCache()
        # An index copies: on CPUs a bfloat16 product of a slice (logits_to_keep=1) is 1,000 times
        # slower.
        one = torch.zeros(1, dtype=torch.long, device=device)
        self.model(
            input_ids=_pad(prefixes, device)[0],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=one,
        )
        if self.keep_prefix:
            self._kept = (prefixes, cache)
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
        self, rows: _Prefilled, sampling: Sampling, uniforms: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        cache, logits, positions, mask = rows
        device, logits = logits.device, logits.float()
        for token, bias in self.first_bias.items():
            logits[:, token] += bias
        ends = torch.tensor(sorted(self.end_ids), dtype=torch.long, device=device)
        uniforms = uniforms.to(device)
        tokens = torch.zeros(uniforms.shape, dtype=torch.long, device=device)
        logprobs = torch.zeros_like(uniforms)
        slots = torch.arange(len(positions), device=device)  # batch row of each remaining row
        alive = torch.ones_like(slots, dtype=torch.bool)
        every = self.check_every or (1 if device.type == "cpu" else 16)
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
                    slots, mask, positions, alive, last = (
                        x[source] for x in (slots, mask, positions, alive, last)
                    )
            logits = self._forward(last[:, None], cache, mask, positions[:, None], 1)
            positions = positions + 1
        ended = torch.isin(tokens, ends)
        return (
            tokens,
            logprobs,
            torch.where(ended.any(1), ended.int().argmax(1) + 1, sampling.max_new_tokens),
        )

    def _completion(self, ids: list[int], logprobs: list[float] | None) -> Completion:
        text = decoded(self.tokenizer, ids)
        stop = StopReason.END if ids[-1] in self.end_ids else StopReason.LENGTH
        return Completion(tuple(ids), text, stop, None if logprobs is None else tuple(logprobs))

    @property
    def end_ids(self) -> frozenset[int]:
        """Every id that ends a completion."""
        ends = getattr(self.model.generation_config, "eos_token_id", None)
        ids = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        return frozenset(i for i in [*ids, self.tokenizer.eos_token_id] if i is not None)


def _by_prefix(prompts: Sequence[Prompt]) -> list[int]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        groups.setdefault(prompt.ids[: prompt.shared], []).append(i)
    return [i for members in groups.values() for i in members]


def _pad(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    rows = [torch.tensor(ids, dtype=torch.long) for ids in sequences]
    return pad_sequence(rows, batch_first=True).to(device), torch.tensor(
        [len(ids) for ids in sequences], device=device
    )


def _check_attention(config: Any) -> None:
    InputError.raise_if(
        any(kernel in config._attn_implementation for kernel in ("flash", "flex", "paged")),
        f"attention {config._attn_implementation!r}",
        expected="attn_implementation 'sdpa' or 'eager'",
    )
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ()) - {
        "full_attention",
        "sliding_attention",
    }
    InputError.raise_if(
        kinds,
        f"a model with {', '.join(sorted(kinds))} layers",
        expected="full or sliding-window attention",
    )


def _check_length(config: Any, tokens: int, capacity: int) -> None:
    """Raise InputError if the longest row has more tokens than the model takes, or the cache more
    slots than its window.
    """
    text, positions = config.get_text_config(), positions_of(config)
    kinds, window = getattr(text, "layer_types", None), getattr(text, "sliding_window", None)
    slides = window and (kinds is None or "sliding_attention" in kinds)
    for count, limit, named in (
        (capacity, slides and window, "with a sliding window of"),
        (tokens, positions, "made for"),
    ):
        InputError.raise_if(
            limit and count > limit,
            f"prompt and completion of up to {count} tokens in a model {named} {limit}",
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
    kept = None
    if sampling.top_k > 0 or sampling.top_p < 1:
        size = logits.shape[-1]
        logits, kept = logits.topk(
            min(sampling.top_k, size) if sampling.top_k > 0 else size, dim=-1
        )
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
    return (choice if kept is None else kept.gather(-1, choice)).squeeze(-1)
