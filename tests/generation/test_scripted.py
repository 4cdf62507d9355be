"""The test double gives the script's answers, in order, and nothing else."""

import pytest

from memalpha.errors import InputError
from memalpha.generation.scripted import ScriptedGenerator
from memalpha.protocols import Generator
from memalpha.types import Completion, Prompt, Sampling, StopReason

A, B, C = (Prompt(({"role": "user", "content": text},), (i,)) for i, text in enumerate("abc", start=1))
SAMPLING = Sampling(max_new_tokens=5)


class LetterTokenizer:
    eos_token_id = 0

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return [ord(letter) for letter in text]

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return "".join(chr(i) for i in ids if i)


def texts(completions):
    return [completion.text for completion in completions]


def test_answers_come_in_order_over_calls():
    generator = ScriptedGenerator(["one", "two", "three"])
    assert isinstance(generator, Generator)
    assert texts(generator.generate([A, B], SAMPLING)) == ["one", "two"]
    assert generator.generate([], SAMPLING) == []
    assert texts(generator.generate([C], SAMPLING)) == ["three"]
    assert generator.prompts == [A, B, C]


def test_a_function_sees_each_prompt():
    generator = ScriptedGenerator(lambda prompt: prompt.messages[0]["content"] * 2)
    assert texts(generator.generate([B, A, B], SAMPLING)) == ["bb", "aa", "bb"]


def test_a_used_up_script_raises_and_uses_nothing():
    generator = ScriptedGenerator(["one", "two"])
    generator.generate([A], SAMPLING)
    with pytest.raises(InputError, match="2 answers, of which 1 are used, for 2 more prompts"):
        generator.generate([B, C], SAMPLING)
    assert generator.prompts == [A]
    assert texts(generator.generate([B], SAMPLING)) == ["two"]


def test_without_a_tokenizer_there_are_no_ids():
    assert ScriptedGenerator(["a longer answer"]).generate([A], SAMPLING) == [Completion((), "a longer answer", StopReason.END)]


def test_ids_end_with_the_end_token_or_at_the_limit():
    generator = ScriptedGenerator(["abcd", "abcde"], LetterTokenizer())
    whole, cut = generator.generate([A, B], SAMPLING)
    assert whole == Completion((97, 98, 99, 100, 0), "abcd", StopReason.END)
    assert cut == Completion((97, 98, 99, 100, 101), "abcde", StopReason.LENGTH)
    assert ScriptedGenerator(["abcdefg"], LetterTokenizer()).generate([A], SAMPLING)[0].text == "abcde"


def test_a_bare_string_is_no_script():
    with pytest.raises(InputError, match="in a list"):
        ScriptedGenerator("one")
