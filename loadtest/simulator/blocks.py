"""The KV cache in blocks: by count, or with a prefix cache block by block.

The order in which blocks are reused follows `block_pool.py` of vLLM 0.32: those without a hash
first, the latest before others; then the one that has been free for longest.
"""

from collections import OrderedDict
from typing import TypeAlias

from loadtest.simulator.job import Job

Key: TypeAlias = tuple[str, int, int]


class Blocks:
    """Counted only: nothing is ever found again.

    Args:
        total: blocks.
        size: tokens of one.

    """

    def __init__(self, total: int, size: int) -> None:
        self.total = self.free = total
        self.size = size

    def of(self, tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-tokens // self.size)

    @property
    def usage(self) -> float:
        """Share of the cache that is held."""
        return 1 - self.free / self.total

    def admit(self, job: Job) -> int | None:
        """The tokens that it need not compute; None when all that is known of it has no room."""
        return 0 if self.of(job.tokens) <= self.free else None

    def grow(self, job: Job, tokens: int) -> bool:
        """Hold blocks for so many tokens in all; False, and nothing is changed, without room."""
        need = self.of(tokens) - job.blocks
        if need > self.free:
            return False
        self.free -= need
        job.blocks += need
        return True

    def release(self, job: Job) -> None:
        """Give all of its blocks back."""
        self.free += job.blocks
        job.blocks = 0


class CachedBlocks(Blocks):
    """With a prefix cache: each full block has a key, and stays until it is needed."""

    def __init__(self, total: int, size: int) -> None:
        super().__init__(total, size)
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))
        self._held: dict[int, list[int]] = {}
        self._holders = [0] * total
        self._keys: dict[int, Key] = {}
        self._cached: dict[Key, dict[int, None]] = {}

    def admit(self, job: Job) -> int | None:
        hits = self._hits(job)
        evictable = sum(self._holders[block] == 0 for block in hits)
        if self.of(job.tokens) - len(hits) + evictable > self.free:
            return None
        for block in hits:
            if self._holders[block] == 0:
                del self._queue[block]
                self.free -= 1
            self._holders[block] += 1
        self._held[job.number] = hits
        job.blocks = len(hits)
        return len(hits) * self.size

    def grow(self, job: Job, tokens: int) -> bool:
        need = self.of(tokens) - job.blocks
        if not super().grow(job, tokens):
            return False
        held = self._held[job.number]
        held += [self._take() for _ in range(need)]
        for index in range(min(tokens, job.tokens) // self.size):
            self._keep(held[index], self._key(job, index))
        return True

    def release(self, job: Job) -> None:
        first: list[int] = []
        last: list[int] = []
        for block in reversed(self._held.pop(job.number)):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                (last if block in self._keys else first).append(block)
        for block in reversed(first):
            self._queue[block] = None
            self._queue.move_to_end(block, last=False)
        self._queue.update(dict.fromkeys(last))
        self.free += len(first) + len(last)
        job.blocks = 0

    def _key(self, job: Job, index: int) -> Key:
        if job.prefix is not None and (index + 1) * self.size <= job.shared:
            return ("prefix", job.prefix, index)
        return ("job", job.number, index)

    def _hits(self, job: Job) -> list[int]:
        """Cached blocks from its beginning on; one token at least is computed again."""
        found = []
        for index in range((job.tokens - 1) // self.size):
            blocks = self._cached.get(self._key(job, index))
            if not blocks:
                break
            found.append(next(iter(blocks)))
        return found

    def _take(self) -> int:
        block, _ = self._queue.popitem(last=False)
        self._holders[block] = 1
        key = self._keys.pop(block, None)
        if key is not None:
            del self._cached[key][block]
            if not self._cached[key]:
                del self._cached[key]
        return block

    def _keep(self, block: int, key: Key) -> None:
        if block not in self._keys:
            self._keys[block] = key
            self._cached.setdefault(key, {})[block] = None
