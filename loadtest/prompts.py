"""Prompts of about n tokens, each different, for a server whose tokenizer is not known.

A prompt is shuffled rounds of one list of words, so that its tokens grow evenly with its words;
two short requests to the server tell how.
"""

import random
from dataclasses import dataclass

_LIST = """
the of and to in is was for on that with as are by at from his had not but have they which one were
all there when who more been said so time than into could only new some other two may then do first
any my now such like our over man even most after also many before must water river stone field
house night morning winter letter music silver garden window story people country number system
program question during without against between because
"""
WORDS = _LIST.split()
PROBES = (64, 192)
"""Words of the two prompts that are measured: within the context of any model that is served."""


@dataclass(frozen=True)
class Ruler:
    """Tokens of a prompt: `fixed` + `per_word` × words; unmeasured, a word is a token."""

    fixed: float = 0.0
    per_word: float = 1.0

    @classmethod
    def fit(cls, tokens: tuple[int, int]) -> "Ruler":
        """From the tokens of the two probes."""
        per_word = (tokens[1] - tokens[0]) / (PROBES[1] - PROBES[0])
        return cls(tokens[0] - per_word * PROBES[0], per_word) if per_word > 0 else cls()

    def words(self, tokens: int) -> int:
        """How many words make about that many tokens; at least one."""
        return max(1, round((tokens - self.fixed) / self.per_word))


def text(words: int, seed: int) -> str:
    """That many words; the same for the same seed, different from the first words otherwise."""
    dice = random.Random(seed)
    drawn: list[str] = []
    while len(drawn) < words:
        drawn += dice.sample(WORDS, min(len(WORDS), words - len(drawn)))
    return " ".join(drawn)
