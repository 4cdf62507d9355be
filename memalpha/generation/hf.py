"""Completions of a local transformers model; what prompts have in common is computed once.

Equal prompts are one row, and a prefix shared by several is read once. A row's cache is [prefix |
hole] [own prompt part | hole] [new tokens]; holes are masked and no positions, so its logits are
those of the row alone, up to rounding. A uniform number per row and token is drawn before decoding,
from torch's global CPU generator (a fresh one for ``Sampling.seed``), so draws do not depend on
``max_batch``. Not covered: other attention than full, flash attention; sliding-window,
linear-attention and compressed caches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from memalpha.agent.context import check_tokens, positions_of, window_of
from memalpha.errors import InputError, MemAlphaError
from memalpha.generation.cache import BufferCache
from memalpha.generation.decoding import Drawing, RowState, Step, decode, forward
from memalpha.generation.graphs import (
    READ_TOKENS,
    SLOTS,
    WIDTH,
    CapturedStep,
    Graphs,
    bucket,
    captures,
    rounded_up,
)
from memalpha.generation.products import (
    Products,
    exact,
    fast_linears,
    merged_lora,
    restoring,
    using,
)
from memalpha.generation.small import NoCopyError, alone, architecture, ask_copy, reason_of
from memalpha.text.encoding import chat_ids, in_common, plain_ids, turn_end
from memalpha.text.thinking import THINK, decode_completion, opens_thinking
from memalpha.types import Completion, Generator, Message, Prompt, Sampling, StopReason
from memalpha.upstream import attention_of, cache_argument

# ------------------------------------------------------------------------------------------------
# completions

_MANY = 4  # rows from which laying out the weights anew pays


class _Prefill(NamedTuple):
    """D different prompts: their cache, and of each the logits after it (D, vocabulary), its length
    (D,), and the slots it attends to (D, capacity); ``source`` (rows,) says which each row has.
    """

    cache: BufferCache
    logits: Tensor
    lengths: Tensor
    seen: Tensor
    source: Tensor


class HFGenerator:
    """Draws from a causal LM, plain or inside PEFT; at most ``max_batch`` rows at once.

    ``merge_adapters`` merges adapters during a call (faster, more memory; None: if all is float32),
    but not where forwards are captured; ``logprobs`` returns those of the whole distribution.
    ``first_bias`` is added to the logits of a completion's first token, by id. Two only for weights
    that never change: ``keep_products`` keeps their layouts (a second copy), ``opening`` the keys
    and values of ids that prompts begin with, and of nothing else. InputError for other attention
    than full.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_batch: int = 64,
        merge_adapters: bool | None = None,
        logprobs: bool = False,
        keep_products: bool = False,
        first_bias: Mapping[int, float] | None = None,
        opening: Sequence[int] = (),
    ) -> None:
        self.model: Any = model
        self.tokenizer = tokenizer
        self.max_batch = max_batch
        self.merge_adapters = exact(model) if merge_adapters is None else merge_adapters
        self.logprobs = logprobs
        self.keep_products = keep_products
        self.first_bias = first_bias or {}
        self.opening = tuple(opening)
        self._opened: DynamicCache | None = None
        self._products = Products()
        self._graphs = Graphs(model)
        self._check()

    def _check(self) -> None:
        _check_attention(self.model.config)
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        wrong = ""
        with suppress(NoCopyError):  # what cannot be tried is taken at its word
            wrong = ask_copy(base, try_draws)
        if wrong:
            raise InputError(
                f"{architecture(base).__name__} cannot be drawn from here: {wrong}",
                expected="a causal language model of token ids with full attention in each layer",
                fix="choose another base model, or draw with vLLM (generator: vllm)",
            )

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion per prompt, in order; InputError for empty prompts and for tokens
        that the model has not, MemAlphaError if memory runs out or logits are not finite.
        """
        if sampling.max_new_tokens < 1:
            raise InputError(
                f"max_new_tokens is {sampling.max_new_tokens}",
                expected="at least 1",
            )
        if any(not prompt.ids for prompt in prompts):
            raise InputError(
                "a prompt has no token ids",
                expected="at least one token id",
                fix="encode the prompt with the policy's tokenizer",
            )
        check_tokens([max(prompt.ids) for prompt in prompts], self.model.config)
        generator = None if sampling.seed is None else torch.Generator().manual_seed(sampling.seed)
        uniforms = torch.rand(len(prompts), sampling.max_new_tokens, generator=generator)
        graphs = self._graphs if captures(self.model) else None
        if not graphs:  # captured, an opening is read again in no time
            prompts = list(map(self._opening_shared, prompts))
        order = _by_prefix(prompts)
        merge = self.merge_adapters and not graphs  # that would move the weights
        lay_out = self.keep_products or (merge and len(prompts) >= _MANY)
        completions: dict[int, Completion] = {}
        with (
            torch.no_grad(),
            restoring(self.model.modules(), "training"),
            using(self._products if self.keep_products else Products()),
            graphs.call() if graphs else nullcontext(),
            merged_lora(self.model) if merge else nullcontext(),
            fast_linears(self.model, lay_out=lay_out),
        ):
            self.model.eval()
            for start in range(0, len(order), self.max_batch):
                rows = order[start : start + self.max_batch]
                given = [prompts[i] for i in rows]
                batch = self._batch(given, sampling, uniforms[rows], graphs)
                completions.update(zip(rows, batch, strict=True))
        return [completions[i] for i in range(len(prompts))]

    def probabilities(self, rows: Sequence[Prompt]) -> list[float]:
        """Return the geometric mean of the probabilities of each row's ids after its ``shared``
        ones, at least one, in one forward. An id that ends a row stands for all that would.
        """
        device = self.model.device
        longest = max(len(row.ids) for row in rows)
        most = max(len(row.ids) - row.shared for row in rows)
        padded = [(0,) * (longest - len(row.ids)) + row.ids for row in rows]
        ids = torch.tensor(padded, device=device)
        starts = torch.tensor([longest - len(row.ids) for row in rows], device=device)
        mask = torch.arange(longest, device=device) >= starts[:, None]
        before = torch.arange(longest - most - 1, longest - 1, device=device)
        with (
            torch.no_grad(),
            restoring(self.model.modules(), "training"),
            using(self._products if self.keep_products else Products()),
            fast_linears(self.model, lay_out=self.keep_products),
        ):
            self.model.eval()
            logits = self.model(
                input_ids=ids,
                attention_mask=mask.long(),
                position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                use_cache=False,
                logits_to_keep=before,
            ).logits.float()
        means = []
        ends = self.end_ids
        for row, of_row in zip(rows, logits, strict=True):
            tokens = torch.tensor(row.ids[row.shared :], device=device)
            own = of_row[most - len(tokens) :]
            for token, bias in self.first_bias.items():
                own[0, token] += bias
            logps = own.log_softmax(-1)
            of_tokens = logps.gather(1, tokens[:, None]).squeeze(1)
            if row.ids[-1] in ends:
                of_tokens[-1] = logps[-1, sorted(ends)].logsumexp(0)
            means.append(of_tokens.mean())
        return list(torch.stack(means).exp().tolist())

    def _batch(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        uniforms: Tensor,
        graphs: Graphs | None,
    ) -> list[Completion]:
        try:
            prefilled = self._prefill(prompts, sampling.max_new_tokens, graphs)
            drawn = self._decode(prefilled, sampling, uniforms)
        except torch.OutOfMemoryError as error:
            raise MemAlphaError(
                f"the memory is not enough for {len(prompts)} completions at once",
                fix=f"lower max_batch, which is {self.max_batch} (generation_rows in a "
                "configuration)",
            ) from error
        completions = []
        ends = self.end_ids
        for tokens, values, length in zip(*(part.tolist() for part in drawn), strict=True):
            ids = tuple(tokens[:length])
            text = decode_completion(self.tokenizer, ids)
            stop = StopReason.END if ids[-1] in ends else StopReason.LENGTH
            logprobs = tuple(values[:length]) if self.logprobs else None
            completions.append(Completion(ids, text, stop, logprobs))
        return completions

    def _prefill(self, rows: Sequence[Prompt], new_tokens: int, graphs: Graphs | None) -> _Prefill:
        device = self.model.device
        prompts = list({row.ids: row for row in rows}.values())
        shared = [min(prompt.shared, len(prompt.ids) - 1) for prompt in prompts]  # one own at least
        prefixes = list(
            dict.fromkeys(prompt.ids[:n] for prompt, n in zip(prompts, shared, strict=True))
        )
        if graphs and len(prefixes) == len(prompts):
            shared = [0] * len(prompts)  # nothing is shared: one forward, not two
        width = max(shared)
        own = [prompt.ids[n:] for prompt, n in zip(prompts, shared, strict=True)]
        own_width = max(map(len, own))
        capacity = width + own_width + new_tokens
        longest = max(len(prompt.ids) for prompt in prompts)
        _check_length(self.model.config, longest + new_tokens, capacity)
        number = {prefix: i for i, prefix in enumerate(prefixes)}
        place = {prompt.ids: i for i, prompt in enumerate(prompts)}
        index = [number.get(prompt.ids[:n], 0) for prompt, n in zip(prompts, shared, strict=True)]
        source = torch.tensor([place[row.ids] for row in rows], device=device)
        if graphs:  # a few sizes, so that what is captured serves again
            width = rounded_up(width, WIDTH)
            own_width = rounded_up(own_width, WIDTH)
            capacity = rounded_up(width + own_width + new_tokens, SLOTS)
            more = bucket(len(own)) - len(own)
            own += own[:1] * more
            shared += shared[:1] * more
            index += index[:1] * more
            prefixes += prefixes[:1] * (bucket(len(prefixes)) - len(prefixes))
        layers = self.model.config.get_text_config().num_hidden_layers
        most = bucket(max(len(rows), len(prefixes))) if graphs else len(own)
        cache = BufferCache(layers, most, capacity, graphs.room if graphs else None)
        if graphs:
            graphs.room.clean()
        if width:
            self._read_prefixes(cache, prefixes, width, torch.tensor(index, device=device))
        ids, own_lengths = _pad(own, device, own_width)
        starts = torch.tensor(shared, device=device)
        steps = torch.arange(own_width, device=device)
        seen = torch.zeros(len(own), capacity, dtype=torch.bool, device=device)
        seen[:, :width] = torch.arange(width, device=device) < starts[:, None]
        seen[:, width : width + own_width] = steps < own_lengths[:, None]
        last = own_lengths[:, None] - 1
        positions = starts[:, None] + torch.minimum(steps, last)
        if graphs and ids.numel() <= READ_TOKENS:
            logits = graphs.read(cache, ids, seen, positions, last, width)
        else:
            visible = seen[:, : width + own_width].long()
            logits = forward(self.model, ids, visible, positions, cache, last)
        if not logits.isfinite().all():
            raise MemAlphaError(
                f"the model's logits are not finite in {logits.dtype}",
                fix="use bfloat16 or float32, since float16 overflows at 65,504",
            )
        logits = logits.float()
        for token, bias in self.first_bias.items():
            logits[:, token] += bias
        return _Prefill(cache, logits, starts + own_lengths, seen, source)

    def _read_prefixes(
        self,
        cache: BufferCache,
        prefixes: Sequence[tuple[int, ...]],
        width: int,
        index: Tensor,
    ) -> None:
        """Begin row i of the cache with the prefix ``index[i]``, in ``width`` slots."""
        device = index.device
        if cache.room is None or len(prefixes) * width > READ_TOKENS:
            cache.start_from(self._prefix_cache(prefixes, device, width), index)
            return
        ids, _ = _pad(prefixes, device, width)
        seen = torch.ones(len(ids), cache.capacity, dtype=torch.bool, device=device)
        positions = torch.arange(width, device=device).repeat(len(ids), 1)
        last = torch.zeros(len(ids), 1, dtype=torch.long, device=device)  # of no use
        self._graphs.read(cache, ids, seen, positions, last, 0)
        cache.spread(index)

    def _prefix_cache(
        self, prefixes: Sequence[tuple[int, ...]], device: torch.device, width: int
    ) -> DynamicCache:
        cache = DynamicCache()
        ids, _ = _pad(prefixes, device, width)
        if self.opening and all(map(self._opens, prefixes)):
            count = len(self.opening)
            if self._opened is None:
                self._opened = DynamicCache()
                self._read(ids[:1, :count], self._opened)
            rows = (len(prefixes), -1, -1, -1)
            for place, layer in enumerate(self._opened.layers):
                cache.update(layer.keys.expand(rows), layer.values.expand(rows), place)
            ids = ids[:, count:]
        if ids.shape[1]:
            self._read(ids, cache)
        return cache

    def _read(self, ids: Tensor, cache: DynamicCache) -> None:
        """Write the keys and values of ids after those that a cache has."""
        # An index copies: on CPUs a bfloat16 product of a slice (logits_to_keep=1) is 1,000 times
        # slower.
        one = torch.zeros(1, dtype=torch.long, device=ids.device)
        self.model(input_ids=ids, **{cache_argument(): cache}, use_cache=True, logits_to_keep=one)

    def _opens(self, ids: Sequence[int]) -> bool:
        return tuple(ids[: len(self.opening)]) == self.opening

    def _opening_shared(self, prompt: Prompt) -> Prompt:
        opened = self.opening and self._opens(prompt.ids)
        return replace(prompt, shared=max(prompt.shared, len(self.opening))) if opened else prompt

    def _decode(
        self, prefilled: _Prefill, sampling: Sampling, uniforms: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, their log-probabilities, and the length of each completion."""
        device = prefilled.logits.device
        count = len(uniforms)
        step = self._step(prefilled, sampling, uniforms.to(device))
        tokens, logprobs = decode(step, count)
        ended = torch.isin(tokens, torch.tensor(sorted(self.end_ids), device=device))
        first = ended.int().argmax(1) + 1
        return tokens, logprobs, torch.where(ended.any(1), first, sampling.max_new_tokens)

    def _step(
        self, prefilled: _Prefill, sampling: Sampling, uniforms: Tensor
    ) -> Step | CapturedStep:
        """Return the decoding step of all rows, their first tokens drawn."""
        cache, logits, lengths, seen, source = prefilled
        device = source.device
        captured = cache.room is not None
        count = len(source)
        filled = bucket(count) if captured else count
        uniforms = pad(uniforms, (0, 0, 0, filled - count))
        source = pad(source, (0, filled - count))  # with rows that have ended
        rows = RowState(
            uniforms,
            torch.zeros(uniforms.shape, dtype=torch.long, device=device),
            torch.zeros_like(uniforms),
            seen[source, None, None],
            lengths[source, None],
            torch.zeros_like(source)[:, None],
            torch.arange(filled, device=device) < count,
        )
        slot = torch.tensor([cache.get_seq_length()], device=device)
        drawing = Drawing(sampling, tuple(sorted(self.end_ids)), self.logprobs)
        plain = Step(self.model, rows, cache, slot, drawing)
        if captured or len(logits) < count:
            cache.spread(source)
        step = self._graphs.step(plain) if captured else plain
        step.draw(logits[source])
        return step

    @property
    def end_ids(self) -> frozenset[int]:
        """Every id that ends a completion."""
        return end_ids(self.model, self.tokenizer)


def end_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return every id that ends a completion of a model: those of its ``generation_config``, the
    tokenizer's, and what its chat template ends a turn with.
    """
    ends = getattr(model.generation_config, "eos_token_id", None)
    ids = ends if isinstance(ends, list) else [ends]
    return frozenset({*ids, tokenizer.eos_token_id, turn_end(tokenizer)} - {None})


class _OfCopy(HFGenerator):
    """Draws from a small copy, which is not checked."""

    def _check(self) -> None:
        pass


_TRIED = [Prompt((), (3, 4, 5, 6), 3), Prompt((), (3, 4, 5, 7, 8), 3), Prompt((), (9, 10), 0)]
"""Within the window of a copy with the tokens drawn."""
_EXACT = 1e-4


def try_draws(copy: Any) -> str:
    """Return why the tokens drawn from a small copy do not have the probabilities that its own
    forward gives them, in nats; empty if they do.
    """
    copy.generation_config.eos_token_id = None
    generator = _OfCopy(copy, cast("Any", SimpleNamespace(eos_token_id=None)), logprobs=True)
    sampling = Sampling(3, temperature=1.0)
    uniforms = torch.tensor([[0.2, 0.7, 0.4], [0.9, 0.1, 0.5], [0.3, 0.6, 0.8]])
    with torch.no_grad():
        try:
            prefilled = generator._prefill(_TRIED, sampling.max_new_tokens, None)
            tokens, logprobs, _ = generator._decode(prefilled, sampling, uniforms)
        except Exception as error:  # noqa: BLE001 - whatever code of others raises
            return reason_of(error)
        for prompt, drawn, values in zip(_TRIED, tokens, logprobs, strict=True):
            logits = alone(copy, (*prompt.ids, *drawn.tolist()))[len(prompt.ids) - 1 : -1]
            own = logits.log_softmax(-1).gather(1, drawn[:, None])[:, 0]
            if not torch.allclose(own, values, rtol=0, atol=_EXACT):
                return "rows of one batch, or the tokens before, are not computed as by themselves"
    return ""


def _by_prefix(prompts: Sequence[Prompt]) -> list[int]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        groups.setdefault(prompt.ids[: prompt.shared], []).append(i)
    return [i for members in groups.values() for i in members]


def _pad(
    sequences: Sequence[Sequence[int]], device: torch.device, width: int
) -> tuple[Tensor, Tensor]:
    """Return ids (rows, width), zeros on the right, and the lengths (rows,)."""
    rows = [torch.tensor(ids, dtype=torch.long) for ids in sequences]
    lengths = torch.tensor([len(ids) for ids in sequences], device=device)
    padded = pad_sequence(rows, batch_first=True)
    return pad(padded, (0, width - padded.shape[1])).to(device), lengths


def _check_attention(config: PretrainedConfig) -> None:
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    others = sorted(kinds - {"full_attention", "sliding_attention"})
    kernel = attention_of(config)
    if others or any(name in kernel for name in ("flash", "flex", "paged")):
        raise InputError(
            f"attention {kernel!r} with {', '.join(others) or 'ordinary'} layers",
            expected="attn_implementation 'sdpa' or 'eager', with full or sliding-window attention",
        )


def _check_length(config: PretrainedConfig, tokens: int, capacity: int) -> None:
    """Raise InputError if a row has more tokens than the model takes, or the cache more slots than
    its window.
    """
    window = window_of(config)
    positions = positions_of(config)
    if (window and capacity > window) or (positions and tokens > positions):
        raise InputError(
            f"prompt and completion of up to {tokens} tokens in a model made for {positions} "
            f"(sliding window of {window}: {capacity} slots)",
            fix="lower the token budgets of the prompt or max_new_tokens",
        )


# ------------------------------------------------------------------------------------------------
# answers to chats
# Greedy, for readers.

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


@dataclass(frozen=True)
class AnsweringModel:
    """Answers chats with the model of a generator, as ``answer_chats``; ``within`` is entered for
    it. ``own_model``: whether nothing else runs the model. ``sure``: as in ``qa.readers``.
    """

    generator: HFGenerator
    tokenizer: PreTrainedTokenizerBase
    max_new_tokens: int
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    own_model: bool = False
    sure: float | None = None

    def __call__(self, chats: list[list[Message]]) -> list[str]:
        """Return an answer to each chat."""
        with self.within():
            return answer_chats(self.generator, self.tokenizer, chats, self.max_new_tokens)

    def probabilities(self, chats: list[list[Message]], answers: list[str]) -> list[float]:
        """Return how probable each answer to its chat is: the geometric mean over its tokens, the
        end token among them. Equal ones are computed once.
        """
        rows = []
        end = turn_end(self.tokenizer)
        assert end is not None  # a loaded tokenizer has an end token
        for chat, answer in zip(chats, answers, strict=True):
            asked = chat_ids(self.tokenizer, chat)
            said = (*plain_ids(self.tokenizer, answer), end)
            rows.append(Prompt((), (*asked, *said), len(asked)))
        values: dict[Prompt, float] = {}
        with self.within():
            for batch in within_tokens(list(dict.fromkeys(rows)), BATCH_TOKENS, 0):
                probabilities = self.generator.probabilities(batch)
                values.update(zip(batch, probabilities, strict=True))
        return [values[row] for row in rows]


def frozen_base(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int = 32
) -> AnsweringModel:
    """Return what answers without the policy's adapters; InputError if it has none."""
    if not hasattr(model, "disable_adapter"):
        raise InputError(
            "reader 'base' cannot be used with a policy whose weights are all trained",
            expected="reader recall, trained or endpoint",
        )
    generator = HFGenerator(model, tokenizer, merge_adapters=False)

    @contextmanager
    def without_adapters() -> Iterator[None]:
        with restoring(model.parameters(), "requires_grad"), model.disable_adapter():
            yield

    return AnsweringModel(generator, tokenizer, max_new_tokens, without_adapters)


def mark_prefixes(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Mark common prefixes to compute once: of neighbours that share more than half beside what all
    begin with, else of all other prompts.

    The others come first, by length: each batch of them is padded to its longest.
    """
    begin = in_common([prompt.ids for prompt in prompts]) if prompts else 0
    groups: list[list[Prompt]] = []
    shared = 0
    for prompt in prompts:
        shared = in_common([groups[-1][0].ids[:shared], prompt.ids]) if groups else 0
        if 2 * (shared - begin) <= len(prompt.ids):
            groups.append([])
            shared = len(prompt.ids)
        groups[-1].append(prompt)
    lone = [group[0] for group in groups if len(group) == 1]
    lone.sort(key=_length)
    least = in_common([prompt.ids for prompt in lone]) if len(lone) > 1 else 0
    marked = [replace(prompt, shared=least) for prompt in lone]
    for group in groups:
        if len(group) > 1:
            shared = in_common([prompt.ids for prompt in group])
            marked += [replace(prompt, shared=shared) for prompt in group]
    return marked


def _length(prompt: Prompt) -> int:
    return len(prompt.ids)


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
