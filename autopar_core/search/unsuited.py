"""Why rows have no layout at all: the partition, or the recompute, that was asked for does not suit.

Rows share a schedule key and a pair of plans; their layouts may differ, and what is said of a layout
names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Ints
from autopar_core.domain.space import Plan
from autopar_core.domain.terms import MODES
from autopar_core.search.boxes import fits_stages, space
from autopar_core.search.choices import expressible
from autopar_core.search.clock import on_ranks
from autopar_core.search.contexts import CORE, Contexts
from autopar_core.search.problem import Problem, Solution
from autopar_core.search.terms import Objection
from autopar_core.units import counted


NO_PARTITION, NO_RECOMPUTE = "partition-shape", "recompute-shape"
# What a framework can say about the layers that recompute, by ``recompute_granularity``.
_SPELLING = {
    "count": "has one number of fully recomputed layers for every stage, and selective recompute in "
    "all layers or none",
    "model": "recomputes all layers in one mode or none",
}


def objections(
    problem: Problem, solution: Solution, plans: tuple[Plan, Plan], contexts: Contexts
) -> Iterator[tuple[Ints, Objection]]:
    """(Rows of the problem without a layout, why), every such row once.

    Args:
        problem: Rows of one key and one pair of plans.
        solution: What was found for them; nothing is said of its possible rows.
        plans: The partition and the recompute that were asked for.
        contexts: Framework and composer.
    """
    partition, recompute = plans
    open_ = space(contexts.composer, problem.key, problem.layers, partition)
    if not open_.possible:
        reason = _Reason(NO_PARTITION, contexts.composer.owner)
        yield from reason.each(~solution.possible, _of_partition(problem, partition, contexts))
        return
    reason = _Reason(NO_RECOMPUTE, CORE)
    if recompute.kind == "given":
        said: str | list[str] = _of_given(problem, solution, plans, contexts)
    elif recompute.kind == "every":
        name = contexts.job.framework.name
        said = f"{name} cannot recompute one layer in {recompute.given} and keep the others"
    else:
        said = _of_range(problem, solution, recompute, contexts)
    yield from reason.each(~solution.possible, said)


@frozen
class _Reason:
    code: str
    owner: str

    def each(self, rows: Bools, said: str | list[str]) -> Iterator[tuple[Ints, Objection]]:
        """One objection for all rows, or for each of their (K,) sentences."""
        sentences = np.array([said] * len(rows) if isinstance(said, str) else said, dtype=object)
        for sentence in dict.fromkeys(sentences[rows].tolist()):
            mine = rows & (sentences == sentence)
            yield np.nonzero(mine)[0], Objection(self.code, self.owner, mine, sentence)


def _of_partition(problem: Problem, plan: Plan, contexts: Contexts) -> str:
    key, layers = problem.key, counted(problem.layers, "layer")
    sentence = f"the partition asked for ({plan.text}) does not fit {layers} on {sizes(key.shape)}"
    if contexts.composer.rule and key.stages > 1:
        sentence += f"; {contexts.job.framework.name} {contexts.composer.rule}"
    return sentence


def _of_given(
    problem: Problem, solution: Solution, plans: tuple[Plan, Plan], contexts: Contexts
) -> str | list[str]:
    """Counts of another number of stages, of more layers than there are, or that have no spelling."""
    key = problem.key
    partition, plan = plans
    modes: Mapping[str, Any] = plan.given or {}
    for counts in modes.values():
        if not fits_stages(counts, key):
            return (
                f"layer_recompute lists {sizes(np.shape(counts))}, and here are {sizes(key.shape)}"
            )
    layout = solution.layout
    wanted = layout.selective + layout.full
    total = int(wanted[0].sum())
    if total > problem.layers:
        return (
            f"layer_recompute recomputes {counted(total, 'layer')}, and the model has "
            f"{problem.layers}"
        )
    over = wanted > layout.layers
    open_ = "; name stage_partition, too, to give it more" if partition.kind == "auto" else ""
    spelled = expressible(problem.granularity, layout)
    unsaid = _unsaid(problem, plan, contexts)
    said = []
    for row in range(len(problem)):
        if not over[row].any():
            said.append("" if spelled[row] else unsaid)
            continue
        stage = int(over[row].argmax())
        has = counted(int(layout.layers[row, stage]), "layer")
        said.append(
            f"layer_recompute recomputes {counted(int(wanted[row, stage]), 'layer')} of "
            f"{_place(stage, key)}, which has {has}{open_}"
        )
    return said


def _unsaid(problem: Problem, plan: Plan, contexts: Contexts) -> str:
    granularity = problem.granularity
    asked = ", ".join(f"{mode} {plan.given[mode]}" for mode in MODES if mode in plan.given)
    if granularity != contexts.job.framework.core.recompute_granularity:
        return f"uniform_recompute wants one spelling for all stages, not {asked}"
    return f"{contexts.job.framework.name} {_SPELLING.get(granularity, '')}, not {asked}"


def _of_range(
    problem: Problem, solution: Solution, plan: Plan, contexts: Contexts
) -> str | list[str]:
    """Numbers of recomputed layers that no mode of the framework gives these ranks."""
    least, most = plan.layers.min, plan.layers.max
    if least is None or least == most:
        wanted = counted(most or 0, "recomputed layer")
        wanted = wanted if least is not None else f"at most {wanted}"
    else:
        over = counted(least, "recomputed layer")
        wanted = f"at least {over}" if most is None else f"{least} to {most} recomputed layers"
    name = contexts.job.framework.name
    said = []
    for layers in on_ranks(solution.layout.layers, problem.key):
        low, high = int(layers.min()), int(layers.max())
        have = counted(high, "layer") if low == high else f"{low} to {high} layers"
        said.append(
            f"layer_recompute wants {wanted} on every rank, and no recompute that {name} has gives "
            f"that on ranks of {have}"
        )
    return said


def _place(stage: int, key: Any) -> str:
    chunk, rank = divmod(stage, key.ranks)
    return f"stage {rank}" if key.chunks == 1 else f"stage {rank} of chunk {chunk}"


def sizes(shape: tuple[int, ...]) -> str:
    """``"4 stages"``, or ``"2 chunks of 4 stages"``."""
    stages = counted(shape[-1], "stage")
    return stages if len(shape) == 1 else f"{counted(shape[0], 'chunk')} of {stages}"
