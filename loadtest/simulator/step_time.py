"""How long one step of the engine takes: six terms, none of them negative."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass

from loadtest.simulator.ticks import Ticks, ticks


@dataclass(frozen=True)
class Work:
    """What one step computes.

    Attributes:
        prefill: P, prompt tokens.
        decodes: B, sequences that decode.
        context: K, tokens in the KV cache of those.
        attention: twice X: the sum over chunks of chunk × (2 × context before + chunk).

    """

    prefill: int
    decodes: int
    context: int
    attention: int

    @classmethod
    def most_of(cls, works: Iterable["Work"]) -> "Work":
        """The most of each term."""
        return cls(*map(max, zip(*map(astuple, works), strict=True)))


@dataclass(frozen=True)
class Coefficients:
    """Seconds; t = step + token·P + decode·B + context·K + attention·X, and prompt if P > 0.

    The weights are read once in a step, the products grow with the tokens, attention reads the KV
    cache while decoding and is quadratic while prefilling. What a step with prompts costs besides
    is that it takes another way through the engine: no captured graph, another kernel.

    Attributes:
        accept: before a request can be scheduled.
        accept_token: for each token of its prompt.
        emit: from a step's end to the client, for each token.
        prompt: a step with tokens of prompts, however few.

    """

    step: float
    token: float
    decode: float
    context: float
    attention: float
    accept: float = 0.0
    accept_token: float = 0.0
    emit: float = 0.0
    prompt: float = 0.0

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0 or self.step + self.decode <= 0:
            raise ValueError(f"no coefficient is negative, and a step takes time: {self}")


class StepTime:
    """The model in ticks."""

    def __init__(self, coefficients: Coefficients) -> None:
        self.step = ticks(coefficients.step)
        self.prompt = ticks(coefficients.prompt)
        self.token = ticks(coefficients.token)
        self.decode = ticks(coefficients.decode)
        self.context = ticks(coefficients.context)
        self.half_attention = ticks(coefficients.attention / 2)

    def of(self, work: Work) -> Ticks:
        """Of one step."""
        return (
            self.step
            + (self.prompt if work.prefill else 0)
            + self.token * work.prefill
            + self.decode * work.decodes
            + self.context * work.context
            + self.half_attention * work.attention
        )

    def stretch(self, decodes: int, context: int, steps: int) -> Ticks:
        """Of steps in which the same sequences decode, all of whose contexts grow by 1 each."""
        first = self.step + self.decode * decodes + self.context * context
        return steps * first + self.context * decodes * (steps * (steps - 1) // 2)

    def until(self, decodes: int, context: int, time: Ticks, most: int) -> int:
        """The fewest such steps that take at least `time`, at least 1; `most` if they do not."""
        if self.stretch(decodes, context, most) < time:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            if self.stretch(decodes, context, middle) < time:
                low = middle
            else:
                high = middle
        return high


@dataclass(frozen=True)
class Box:
    """What a fit has seen: the least and the most of each of P, B, K and 2X."""

    least: Work
    most: Work

    @classmethod
    def around(cls, works: Sequence[Work]) -> "Box":
        columns = list(zip(*map(astuple, works), strict=True))
        return cls(Work(*map(min, columns)), Work.most_of(works))

    def outside(self, work: Work) -> Iterator[str]:
        """The names of what is more than the fit has seen; less is between it and nothing."""
        for name in ("prefill", "decodes", "context", "attention"):
            if getattr(work, name) > getattr(self.most, name):
                yield name
