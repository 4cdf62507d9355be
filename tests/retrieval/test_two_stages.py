"""Meaning in two stages: static vectors know every line, the embedder reads the best."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, AutoTokenizer

from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval import RetrievalConfig, ranking, static
from memalpha.retrieval.archive import archive_chunk
from memalpha.retrieval.dense import CodeIndex
from memalpha.retrieval.embedders import HashingEmbedder, make_embedder, quick_embedder
from memalpha.retrieval.minilm import MiniLMEmbedder, minilm_folder
from memalpha.retrieval.ranking import read_best
from memalpha.retrieval.static import StaticEmbedder, distil, static_of
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.types import Chunk, Operation, OperationKind

HYBRID = RetrievalConfig(retrieval="hybrid")


def letters():
    """A tokenizer of the letters a to d, each a token."""
    vocabulary = {letter: number for number, letter in enumerate("abcd")}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="d"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return tokenizer


def test_a_text_is_the_mean_of_its_tokens():
    table = np.array([[3, 0], [0, 4], [1, 1], [0, 0]], dtype=np.float32)
    embedder = StaticEmbedder(letters(), table)
    rows = embedder.embed(["ab", "a b", "aac", "", "d", "ab ab"])
    assert rows[0] == pytest.approx([0.6, 0.8]) and rows[0] == pytest.approx(rows[1])
    assert rows[2] == pytest.approx(np.array([7, 1]) / 50**0.5)
    assert not rows[3].any() and not rows[4].any()
    assert rows[5] == pytest.approx(rows[0]) and rows.dtype == np.float32


class Letters:
    """An embedder that reads single tokens."""

    read = 0

    def token_vectors(self, batch):
        Letters.read += 1
        draw = np.random.default_rng(0)
        return draw.normal(size=(4, 3)).astype(np.float32)


def test_a_table_is_centred_turned_and_weighted_against_frequent_tokens():
    table = distil(Letters())
    rows = Letters().token_vectors(1)
    share = np.array([1 / 2, 1 / 3, 1 / 4, 1 / 5])
    weights = 1e-4 / (1e-4 + share / share.sum())
    assert weights[0] < weights[3]
    unweighted = table / weights[:, None]
    centred = rows - rows.mean(0)
    assert unweighted @ unweighted.T == pytest.approx(centred @ centred.T, abs=1e-4)
    assert (unweighted**2).sum(0).argmax() == 0  # the first dimension tells most


def test_vectors_are_kept_for_the_next_process_and_made_again_if_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Letters.read = 0
    first = static_of("letters", letters(), Letters).embed(["abc"])
    (kept,) = (tmp_path / "memalpha").iterdir()
    assert static_of("letters", letters(), Letters).embed(["abc"]) == pytest.approx(first)
    assert Letters.read == 1
    for damaged in (b"", b"no table", kept.read_bytes()[:-3]):
        kept.write_bytes(damaged)
        assert static_of("letters", letters(), Letters).embed(["abc"]) == pytest.approx(first)
    assert Letters.read == 4
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))  # a file: nothing can be kept
    assert static_of("letters", letters(), Letters).embed(["abc"]) == pytest.approx(first)


def test_what_the_model_does_not_read_has_the_cosine_that_its_rough_one_lets_expect(monkeypatch):
    monkeypatch.setattr(ranking, "READ", 3)
    rough = {"a": 0.9, "b": 0.7, "c": 0.5, "d": 0.3, "e": 0.1}
    asked = []

    def read(keys):
        asked.extend(keys)
        return np.array([0.8, 0.5, 0.4], dtype=np.float32)  # the line 0.567 + 1.0 * (x - 0.7)

    found = read_best(rough, list(rough), read)
    assert asked == ["a", "b", "c"]
    assert found == pytest.approx({"a": 0.8, "b": 0.5, "c": 0.4, "d": 0.166667, "e": -0.033333})
    worse = read_best(rough, list(rough), lambda keys: np.array([0.1, 0.2, 0.3], dtype=np.float32))
    assert worse["d"] == worse["e"] == pytest.approx(0.2)  # it tells nothing: their mean
    assert read_best({"a": 0.9}, ["a"], lambda keys: np.array([0.4])) == {"a": 0.4}


def filled(lines):
    memory = Memory(MemorySchema.load("small_core"))
    for number, line in enumerate(lines):
        archive_chunk(memory, number, Chunk(line, None), ())
    return memory


class Counting(HashingEmbedder):
    """Counts the texts that it reads."""

    def __init__(self):
        super().__init__(512)
        self.texts = []

    def embed(self, texts):
        self.texts += texts
        return super().embed(texts)


def test_of_a_large_archive_the_model_reads_the_best_lines_alone(monkeypatch):
    monkeypatch.setattr(ranking, "READ", 10)
    lines = [f"Ann: day {number} had {number * 7} clouds over the sea." for number in range(300)]
    lines[123] = "Ann: My cat Bailey sleeps on the piano."
    memory, embedder = filled(lines), Counting()
    retriever = TwoLayerRetriever(memory, HYBRID, embedder, quick=HashingEmbedder(64))
    (best, *_) = retriever.search("Where does the cat Bailey sleep?", 5)
    assert best.entry.content == lines[123]
    assert len({text for text in embedder.texts if text.startswith("Ann")}) <= 10 + ranking.COMPARED
    whole = TwoLayerRetriever(memory, HYBRID, HashingEmbedder(512))
    assert whole.search("Where does the cat Bailey sleep?", 5)[0] == best


@pytest.mark.parametrize("mode", ["hybrid", "dense"])
def test_of_a_small_archive_the_model_reads_every_line(mode):
    lines = [f"Ann: In {2000 + n} I saw {n} boats and {n % 7} cats in Oslo." for n in range(150)]
    config = RetrievalConfig(retrieval=mode)
    one = TwoLayerRetriever(filled(lines), config, HashingEmbedder())
    two = TwoLayerRetriever(filled(lines), config, HashingEmbedder(), quick=HashingEmbedder(16))
    for question in ("boats in 2031", "cats", "Who saw 6 cats?"):
        assert one.search(question, 20) == two.search(question, 20) != []


def test_no_line_of_a_small_archive_is_embedded_twice_and_a_grown_one_is(monkeypatch):
    """The static vectors, which take half a minute to distil, are not opened for a few lines."""
    quick, lines = Counting(), [f"Ann: day {number}, {number * 7} clouds." for number in range(200)]
    memory = filled(lines)
    retriever = TwoLayerRetriever(memory, HYBRID, HashingEmbedder(), quick=quick)
    assert len(retriever.search("clouds of day 7", 5)) == 5 and quick.texts == []
    archive_chunk(memory, 200, Chunk("Ann: The zebra came.", None), ())
    (best, *_) = retriever.search("zebra", 5)
    assert best.entry.content == "Ann: The zebra came."
    assert sorted(quick.texts) == sorted([*lines, "Ann: The zebra came.", "zebra"])
    gone = Operation(OperationKind.DELETE, ARCHIVE.name, entry_id=best.entry.id)
    assert memory.apply(gone).changed
    assert "zebra" not in {hit.entry.content for hit in retriever.search("zebra", 5)}
    again = TwoLayerRetriever(memory, HYBRID, HashingEmbedder(), quick=HashingEmbedder(64))
    assert again.search("clouds of day 7", 5) == retriever.search("clouds of day 7", 5)


def test_codes_are_vectors_in_a_byte_a_component():
    draw = np.random.default_rng(1)
    vectors = draw.normal(size=(500, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = CodeIndex(64)
    assert index.search(vectors[0], 3) == ([], [])
    codes = CodeIndex.codes(vectors)
    assert codes.nbytes == 500 * 64
    index.add(codes[:300])
    index.add(codes[300:])
    places, cosines = index.search(vectors[7], 500)
    assert places[0] == 7 and len(places) == 500
    exact = vectors @ vectors[7]
    assert cosines == pytest.approx(exact[places], abs=0.006)
    assert index.vectors([7, 3]) == pytest.approx(vectors[[7, 3]], abs=0.0026)


def test_minilm_reads_as_transformers_reads_it():
    embedder = MiniLMEmbedder()
    texts = ["Ann lives in Oslo.", "a", "東京 é ü 👍 don't", "I moved " * 200, " "]
    folder = minilm_folder()
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    rows = embedder.embed(texts)
    for text, row in zip(texts[:3], rows, strict=False):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        assert row == pytest.approx((states / states.norm()).numpy(), abs=1e-5)
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 1, 1, 0], abs=1e-5)
    ids = torch.tensor([[101, 2158, 102]])
    with torch.no_grad():
        alone = model(input_ids=ids).last_hidden_state[0].mean(0).numpy()
    assert embedder.token_vectors(4096)[2158] == pytest.approx(alone, abs=1e-4)


def test_the_quick_embedder_is_none_for_one_that_is_quick_itself():
    assert quick_embedder(make_embedder("hashing")) is None
    assert quick_embedder(make_embedder("static")) is None
    quick = quick_embedder(make_embedder("minilm"))
    assert quick.name == f"static:minilm-{static._VERSION}" and quick.dimension == 256
    near, far = (
        quick.embed(["The dog barked.", "A puppy was barking."]),
        quick.embed(["Taxes rise."]),
    )
    assert near[0] @ near[1] > 0.5 > near[0] @ far[0] + 0.2


def test_an_archive_is_in_the_lists_of_no_search_without_it():
    memory = filled(["Ann: My cat is Bailey."])
    retriever = TwoLayerRetriever(memory, HYBRID, HashingEmbedder(), archive=False)
    assert retriever.search("cat", 5) == [] and memory.section_size(ARCHIVE.name) == 1
