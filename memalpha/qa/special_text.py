"""Keeps text from data from posing as a chat's structure where a server tokenises it.

A policy at hand tokenises texts from data with special tokens switched off (``memalpha.agent.encoding``). A chat server puts
messages into its template and tokenises the whole, so ``<|im_end|>`` inside a chunk would end the turn. Here a space goes after
the first character of such a mark: ``< |im_end|>``. A space and not an invisible character, because a person sees it, every
tokenizer keeps it, and a model that copies the text into a memory copies nothing hidden.

What always holds: text without such a mark is returned as it is; the result holds no mark; doing it twice changes no more.

It does not cover marks of other families than those below; marks that structure a reply and not a conversation (``<think>``,
``<tool_call>``: our own prompts hold them); nor a model's obedience to a text that gives it orders.
"""

from __future__ import annotations

import re

_NAMED = (
    "s", "/s", "bos", "eos", "pad", "unk", "mask", "sop", "eop", "start_of_turn", "end_of_turn", "start_of_image", "end_of_image",
    "BOS_TOKEN", "EOS_TOKEN", "PAD_TOKEN", "end_of_utterance",
)  # fmt: skip
_BRACKETED = (
    "INST", "/INST", "SYSTEM_PROMPT", "/SYSTEM_PROMPT", "AVAILABLE_TOOLS", "/AVAILABLE_TOOLS", "TOOL_CALLS", "TOOL_RESULTS",
    "/TOOL_RESULTS", "TOOL_CONTENT", "CALL_ID", "ARGS", "THINK", "/THINK", "IMG", "IMG_BREAK", "IMG_END", "PREFIX", "MIDDLE",
    "SUFFIX", "BOS", "EOS", "EOT", "PAD", "UNK", "gMASK", "sMASK",
)  # fmt: skip

_MARK = re.compile(
    r"<(?=[|｜][^\s|｜<>]{1,64}[|｜]>)"  # <|im_start|>, <|eot_id|>, <|channel|>; with wide bars too
    r"|\[(?=\|[^\s|\[\]]{1,64}\|\])"  # [|assistant|]
    rf"|<(?=(?:{'|'.join(_NAMED)}|unused\d+|extra_id_\d+)>)"  # <s>, <end_of_turn>
    rf"|\[(?=(?:{'|'.join(_BRACKETED)})\])"  # [INST]
    r"|<(?=</?SYS>>)"  # <<SYS>>
)


def break_marks(text: str) -> str:
    """Return the text with a space inside every mark that a chat model's tokenizer may take for a special token."""
    return _MARK.sub(lambda found: f"{found[0]} ", text)


__all__ = ["break_marks"]
