"""Partitions of layers that a framework can spell.

Sources: Megatron-LM ``pipeline_parallel_layer_layout.py`` (layouts spell any counts, empty stages
too) and ``transformer_config.py`` (first and last stage their own count, others alike; one place
each for embedding and loss); torchtitan ``pipeline_parallel.py`` (module lists); MindFormers
``LayerSetting`` (offsets).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from attrs import frozen

from autopar_core.api import ScheduleKey
from autopar_pp.config import PpProfile
from autopar_pp.orders import Ints


RULES = {
    "any": "",
    "even": "splits layers evenly only",
    "ends": "gives the first and the last stage their own number of layers, all others the same",
}


@frozen
class Speller:
    """What a framework can spell.

    Attributes:
        partitions: One of `autopar_pp.config.PARTITIONS`.
        empty: Stages that may hold no layer: "none", "ends" or "any".
    """

    partitions: str = "any"
    empty: str = "none"

    @property
    def rule(self) -> str:
        """What partitions there are, for people; empty for any."""
        return RULES[self.partitions]

    def fewest(self, key: ScheduleKey) -> Ints:
        """(S,) fewest layers of each virtual stage."""
        least = np.full(key.stages, 0 if self.empty == "any" and key.stages > 1 else 1, np.int64)
        if self.empty == "ends" and key.stages > 1:
            least[[0, key.last]] = 0
        return least

    def listed(self, ranks: int, chunks: int, layers: int) -> Ints | None:
        """(F, S) all partitions; None for any."""
        if self.partitions == "any" or ranks == 1:
            return None
        if self.partitions == "even":
            return _even(ranks * chunks, layers)
        return ends(ranks, chunks, layers)


def _even(stages: int, layers: int) -> Ints:
    whole, rest = divmod(layers, stages)
    return np.full((0 if rest else 1, stages), whole, np.int64)


@lru_cache(maxsize=64)
def ends(ranks: int, chunks: int, layers: int) -> Ints:
    """(F, S) Megatron's splits without a layout.

    The first rank holds F layers, the last Z, the others (layers - F - Z) / (ranks - 2), each divisible
    by its chunks. Or the embedding, the loss or both count as a layer: layers + those divide evenly, and
    the first or the last virtual stage has one less.
    """
    found = set()
    middle = ranks - 2
    for first in range(chunks, layers, chunks):
        for last in range(chunks, layers - first + 1, chunks):
            rest = layers - first - last
            if middle == 0 and rest == 0:
                found.add(tuple([first // chunks, last // chunks] * chunks))
            elif middle > 0 and rest > 0 and rest % (middle * chunks) == 0:
                one = [first // chunks, *[rest // middle // chunks] * middle, last // chunks]
                found.add(tuple(one * chunks))
    stages = ranks * chunks
    for embedding, loss in ((0, 0), (1, 0), (0, 1), (1, 1)):
        whole, rest = divmod(layers + embedding + loss, stages)
        if not rest and whole > 0:
            split = [whole] * stages
            split[0] -= embedding
            split[-1] -= loss
            found.add(tuple(split))
    return np.array(sorted(found), np.int64).reshape(-1, stages)


def speller(profile: PpProfile) -> Speller:
    """What a framework can spell."""
    return Speller(
        partitions=profile.partitions,
        empty="any" if profile.empty_stages else "ends" if profile.empty_ends else "none",
    )
