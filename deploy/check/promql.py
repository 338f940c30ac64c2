"""What a PromQL expression names: its metrics, and their labels."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(
    r"""
    (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
  | (?P<comment>\#[^\n]*)
  | (?P<range>\[[^\]]*\])
  | (?P<template><<[^>]*>>|\$\{[^}]*\}|\$\w+|\{\{[^}]*\}\})
  | (?P<number>0x[0-9a-f]+|(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?(?:[smhdwy]|ms)?(?:\d+[a-z]+)*)
  | (?P<word>[a-zA-Z_:][a-zA-Z0-9_:]*)
  | (?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^(){},=<>@])
    """,
    re.VERBOSE,
)
_GROUPINGS: Final = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
_KEYWORDS: Final = frozenset(
    ("and", "or", "unless", "offset", "bool", "atan2", "inf", "nan", "start", "end")
)


@dataclass(frozen=True)
class Token:
    """A kind of `_TOKEN`, and what is there."""

    kind: str
    text: str


@dataclass(frozen=True)
class Selector:
    """A metric with its matchers: label, operator, value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


def tokens(expression: str) -> list[Token]:
    """In order, without comments; what is no token of PromQL is left out."""
    found = (Token(m.lastgroup or "", m[0]) for m in _TOKEN.finditer(expression))
    return [token for token in found if token.kind != "comment"]


def names(expression: str) -> set[str]:
    """The metrics."""
    return {selector.metric for selector in selectors(expression) if selector.metric}


def selectors(expression: str) -> list[Selector]:
    """Each metric, or each pair of braces without one."""
    return list(_selectors(tokens(expression)))


def _selectors(found: list[Token]) -> Iterator[Selector]:
    index = 0
    while index < len(found):
        token, after = found[index], _text(found, index + 1)
        if token.kind == "word" and token.text in _GROUPINGS and after == "(":
            index = _end(found, index + 1)
        elif token.text == "{" or (token.kind == "word" and _is_metric(token.text, after)):
            start = index if token.text == "{" else index + 1
            metric = "" if token.text == "{" else token.text
            end = _end(found, start) if _text(found, start) == "{" else start - 1
            yield Selector(metric, tuple(_matchers(found[start : end + 1])))
            index = end
        index += 1


def _is_metric(word: str, after: str) -> bool:
    if word.lower() in _KEYWORDS or word in _GROUPINGS:
        return False
    # A function or an aggregation, the latter perhaps with its grouping first.
    return after not in ("(", "by", "without")


def labels(expression: str) -> set[str]:
    """The labels that the expression groups by or joins on."""
    found = tokens(expression)
    grouped: set[str] = set()
    for index, token in enumerate(found):
        if token.text in _GROUPINGS and _text(found, index + 1) == "(":
            inner = found[index + 2 : _end(found, index + 1)]
            grouped |= {item.text for item in inner if item.kind == "word"}
    return grouped


def made_labels(expression: str) -> set[str]:
    """The labels that the expression makes itself: label_replace, label_join, count_values."""
    pattern = r"label_(?:replace|join)|count_values"
    if not re.search(pattern, expression):
        return set()
    return {token.text[1:-1] for token in tokens(expression) if token.kind == "text"}


def _matchers(braces: list[Token]) -> Iterator[tuple[str, str, str]]:
    for index, token in enumerate(braces[:-2]):
        operator, value = braces[index + 1], braces[index + 2]
        if token.kind == "word" and operator.kind == "sign" and value.kind == "text":
            yield token.text, operator.text, value.text[1:-1]


def _end(found: list[Token], start: int) -> int:
    """The index of the bracket that closes the one at `start`."""
    closing = {"(": ")", "{": "}"}[found[start].text]
    depth = 0
    for index in range(start, len(found)):
        depth += (found[index].text == found[start].text) - (found[index].text == closing)
        if depth == 0:
            return index
    return len(found) - 1


def _text(found: list[Token], index: int) -> str:
    return found[index].text if index < len(found) else ""
