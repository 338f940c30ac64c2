"""Prompts of about n tokens that no prefix cache has."""

import pytest

from loadtest.prompts import PROBES, Ruler, text


def test_a_ruler_finds_a_template_and_tokens_per_word() -> None:
    ruler = Ruler.fit((17 + 2 * PROBES[0], 17 + 2 * PROBES[1]))
    assert (ruler.fixed, ruler.per_word) == (17, 2)
    assert ruler.words(1017) == 500


def test_a_prompt_has_at_least_one_word() -> None:
    assert Ruler(20, 1).words(5) == 1


@pytest.mark.parametrize("tokens", [(9, 9), (9, 3)])
def test_counts_that_do_not_grow_are_no_measurement(tokens: tuple[int, int]) -> None:
    assert Ruler.fit(tokens) == Ruler()


def test_the_same_seed_gives_the_same_words_and_another_differs_at_once() -> None:
    assert text(300, 7) == text(300, 7)
    firsts = {tuple(text(300, seed).split()[:4]) for seed in range(1000)}
    assert len(firsts) == 1000


@pytest.mark.parametrize("words", [1, 5, 100, 1234])
def test_a_text_has_that_many_words(words: int) -> None:
    assert len(text(words, 0).split()) == words
