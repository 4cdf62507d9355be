"""A very small Llama (half a million parameters) with its own tokenizer, for tests.

The tokenizer is byte-level BPE without merges: a known word or punctuation run is one token, any
other is spelt in bytes, so every text round-trips exactly. The same arguments give the same files.
Not for claims: it does not learn to copy unseen words.
"""

import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = (
    "<pad>",
    "<|im_start|>",
    "<|im_end|>",
)  # ids 0, 1, 2; the last also ends a completion
CHAT_TEMPLATE = (  # ChatML, without a default system message
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ALWAYS = (
    "system",
    "user",
    "assistant",
    *string.digits,
    *string.punctuation,
)  # always single tokens


def build_nano(
    output_dir: str | Path,
    vocabulary: Sequence[str],
    seed: int = 0,
    *,
    hidden: int = 128,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    context: int = 2048,
) -> Path:
    """Write an untrained Llama and its tokenizer as a transformers folder, and return the folder.

    Each piece of the texts in ``vocabulary`` becomes one token, with and without a space before it.
    ``context`` is in tokens.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(vocabulary, context)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        max_position_embeddings=context,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tokenizer(vocabulary: Sequence[str], context: int) -> "PreTrainedTokenizerFast":
    """Return the ``PreTrainedTokenizerFast`` of ``build_nano``: padding on the left, with a chat
    template.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    pieces = [*SPECIAL_TOKENS, *sorted(byte_level.alphabet()), *_pieces(byte_level, vocabulary)]
    ids = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    backend = Tokenizer(models.BPE(vocab=ids, merges=[], ignore_merges=True))
    backend.pre_tokenizer = byte_level
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        pad_token=SPECIAL_TOKENS[0],
        bos_token=SPECIAL_TOKENS[1],
        eos_token=SPECIAL_TOKENS[2],
        chat_template=CHAT_TEMPLATE,
    )


def toy_texts() -> tuple[str, ...]:
    """Return all that the policy of the toy task reads and writes, except entry numbers."""
    from memalpha.agent.codecs import make_codec
    from memalpha.agent.view import system_text
    from memalpha.data.toy import toy_schema, toy_vocabulary

    schema = toy_schema()
    instructions = system_text(make_codec("compact", schema), schema, described=True)
    return (*toy_vocabulary(), instructions, "<chunk>\n</chunk>\n<memory>\n</memory>")


def _pieces(byte_level: Any, vocabulary: Iterable[str]) -> list[str]:
    found: set[str] = set()
    for text in (*ALWAYS, *vocabulary):
        for piece, (start, end) in byte_level.pre_tokenize_str(text):
            found.add(piece)
            if not text[start:end].isspace():
                word = piece.removeprefix("Ġ")
                found.update((word, f"Ġ{word}"))
    return sorted(found)
