"""One sequence, from its arrival to its last token."""

from dataclasses import dataclass

from loadtest.simulator.ticks import Ticks


@dataclass(eq=False, slots=True)
class Job:
    """What is asked for, and how far it is.

    Attributes:
        number: its own, in order of arrival.
        prompt: tokens.
        output: tokens that it will make; at least 1.
        arrived: at the front door.
        prefix: whose first tokens it shares; None: nobody's.
        shared: how many of them.
        tenant: whose it is.
        priority: lower goes first.
        computed: tokens in the KV cache.
        produced: output tokens.
        prefilling: what is known of it is not computed yet.
        blocks: of the KV cache, held.
        born: the engine's count of decoding steps minus `produced`, while it decodes.
        started: when it was first scheduled; None: it was not.
        first: when its first token was there.
        ended: when its last token was there, or when it was refused.
        refused: why; None: it was not.

    """

    number: int
    prompt: int
    output: int
    arrived: Ticks = 0
    prefix: int | None = None
    shared: int = 0
    tenant: str = ""
    priority: int = 0
    computed: int = 0
    produced: int = 0
    prefilling: bool = True
    blocks: int = 0
    born: int = 0
    preemptions: int = 0
    started: Ticks | None = None
    first: Ticks | None = None
    ended: Ticks | None = None
    refused: str | None = None

    @property
    def tokens(self) -> int:
        """Known ones: a request that was preempted has its output computed again."""
        return self.prompt + self.produced
