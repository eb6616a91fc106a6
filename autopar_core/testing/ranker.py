"""What every ranker keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from autopar_core.domain.arrays import Floats, Ints
from autopar_core.hooks.named import Ranker
from autopar_core.testing.bench import Bench, Plugins


TIMES, MEMORIES = 40, 10


class RankerConformance:
    """Subclass it in a test module: ``class TestMine(RankerConformance): plugin, name = ...``.

    Attributes:
        plugin: The plugin that registers the ranker.
        name: The ranker.
        files: One-file plugins to load.
        extra: Plugins that are in the process already.
        job: Input tables that are merged into the small job.
    """

    plugin: ClassVar[str]
    name: ClassVar[str]
    files: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[Plugins] = ()
    job: ClassVar[Mapping[str, Any]] = {}

    def bench(self) -> Bench:
        """The plugin with the core; loaded once per class."""
        return Bench.once(type(self), self.plugin, self.job, self.files, self.extra)

    def ranker(self) -> Ranker:
        """The ranker under test."""
        manager = self.bench().contexts.manager
        many: Sequence[Ranker] = manager.call(self.plugin, "autopar_rankers")
        known = {ranker.name: ranker for ranker in many}
        assert self.name in known, f"no ranker '{self.name}'; there are {', '.join(known)}"
        return known[self.name]

    def key(self, seconds: Floats, memory_bytes: Ints) -> Floats:
        """Keys of some costs, (N,)."""
        key = np.asarray(self.ranker().key(seconds, memory_bytes, self.bench().contexts.core))
        assert key.shape == seconds.shape, f"{len(seconds)} rows, keys of shape {key.shape}"
        return key

    def costs(self) -> tuple[Floats, Ints]:
        """Feasible costs of every size, (N,) each."""
        limit = self.bench().contexts.job.cluster.memory_limit
        seconds, share = np.meshgrid(
            np.geomspace(1e-3, 1e3, TIMES), np.linspace(0.1, 1.0, MEMORIES)
        )
        return seconds.ravel(), np.asarray(share.ravel() * limit, dtype=np.int64)

    def test_is_documented(self) -> None:
        """One sentence says what comes first."""
        assert self.ranker().doc

    def test_keys_are_numbers(self) -> None:
        """(N,) finite floats."""
        assert np.isfinite(self.key(*self.costs())).all(), "a key is not finite"

    def test_rows_do_not_see_each_other(self) -> None:
        """The key of a row stays when other rows come or go."""
        seconds, memory = self.costs()
        whole = self.key(seconds, memory)
        for row in range(0, len(seconds), 7):
            alone = self.key(seconds[row : row + 1], memory[row : row + 1])
            assert alone[0] == whole[row], f"row {row} has key {whole[row]}, alone {alone[0]}"

    def test_is_monotone_as_promised(self) -> None:
        """A monotone key never falls when time or memory grows."""
        if not self.ranker().monotone:
            return
        key = self.key(*self.costs()).reshape(MEMORIES, TIMES)
        assert (key[:, 1:] >= key[:, :-1]).all(), "the key falls when time grows"
        assert (key[1:] >= key[:-1]).all(), "the key falls when memory grows"
