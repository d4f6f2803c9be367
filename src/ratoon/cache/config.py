"""The cache's limits."""

from __future__ import annotations

from dataclasses import dataclass

from ratoon.cache.placement import MemoryKind


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """``n_*`` are tokens or cells; see ``ModelShape`` for all that describe the model."""

    n_ctx: int
    n_cells: int
    n_seq: int
    n_ubatch: int
    memory: MemoryKind
    is_unified: bool
    bytes_per_token: int
    host_bytes: int
    state_bytes: int = 0
    window: int = 0
    save_step: int = 1
    has_disk: bool = False
    min_reuse: int = 16  # gains smaller than this are not worth a copy or a wait
    min_snapshot: int = 32  # a state that saves fewer tokens is dropped, not saved
    max_tail: int = 0  # a parked state may lose this much to the request that continues it
    max_burden: int = 512  # unshared cells of parked states that running requests put up with
    park_s: float = 2.0  # a parked state stays on the device this long beside running requests

    def n_bytes(self, n_tokens: int, *, is_part: bool = False) -> int:
        """An estimate of a saved state's size."""
        tokens = 0 if is_part else n_tokens * self.bytes_per_token
        return max(1, tokens + self.state_bytes)

    def floor(self, n_tokens: int) -> int:
        """The most tokens up to ``n_tokens`` whose state can be saved and used as it is."""
        past = n_tokens - self.window
        return n_tokens if past <= 0 else n_tokens - past % self.save_step
