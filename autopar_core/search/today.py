"""What the person runs today, estimated for the same job and put beside the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve

from autopar_core.domain.export import flat
from autopar_core.domain.job import Job
from autopar_core.domain.result import Change, Comparison, Detail, SearchResult
from autopar_core.errors import InputError
from autopar_core.plugins import PluginManager
from autopar_core.search import run
from autopar_core.units import counted


_PLANS = ("stage_partition", "layer_recompute")


def with_today(result: SearchResult, job: Job, manager: PluginManager) -> SearchResult:
    """The result with the comparison that the job asks for, if it asks for one.

    Raises:
        PluginError: A plugin breaks the contract.
    """
    if job.today is None:
        return result
    one = evolve(job, space=job.today.space, framework=job.today.framework, today=None)
    reason, detail = "", None
    try:
        priced = run.search(one, manager)
    except InputError as error:
        reason = str(error)
    else:
        found = (*priced.top, *priced.misses)
        if found:
            detail = evolve(found[0], place=0, row=-1)
            reason = detail.filter_reason
        else:
            sentences = [said for cut in priced.cuts for _, _, said in cut.reasons]
            reason = "; ".join(dict.fromkeys(sentences)) or (
                f"no product of its degrees gives {counted(job.cluster.devices, 'device')}"
            )
    return evolve(result, today=_compared(job.today.label, result, detail, reason))


def _compared(label: str, result: SearchResult, detail: Detail | None, reason: str) -> Comparison:
    best = result.top[0] if result.top else None
    gain, changes = float("nan"), tuple[Change, ...]()
    if detail is not None and best is not None:
        changes = tuple(_changes(result, detail, best))
        gain = 1 - best.performance.seconds / detail.performance.seconds
    if reason:
        sentence = f"{label} cannot run here as it is: {reason}"
    elif best is None:
        sentence = f"{label} fits, and the search found nothing that does"
    else:
        assert detail is not None
        remaining = result.job.bands.time.remaining
        sentence = _sentence(label, detail, best, gain, changes, remaining)
    return Comparison(
        label=label, detail=detail, reason=reason, gain=gain, changes=changes, sentence=sentence
    )


def _sentence(
    label: str, detail: Detail, best: Detail, gain: float, changes: tuple[Change, ...],
    remaining: float,
) -> str:  # fmt: skip
    today, new = detail.performance.seconds, best.performance.seconds
    pace = f"{label} takes {today:.3g} s a step, place 1 takes {new:.3g} s"
    if not changes:
        return f"{label} is what place 1 is: {today:.3g} s a step"
    if abs(new - today) <= remaining * today:
        pace += ", closer than the model can tell"
    else:
        pace += f", {abs(gain):.1%} {'less' if gain > 0 else 'more'}"
    told = ", ".join(
        f"{each.field} {_short(each.today)} to {_short(each.best)}" for each in changes
    )
    return f"{pace}; change {told}"


def _short(value: Any) -> str:
    """A value in a sentence: recompute by its number of layers, switches as words."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        counts = {mode: sum(flat(layers)) for mode, layers in value.items()}
        return " and ".join(f"{mode} {n}" for mode, n in counts.items() if n) or "none"
    return str(value)


def _changes(result: SearchResult, today: Detail, best: Detail) -> Iterator[Change]:
    for name, field in result.fields.items():
        before = today.strategy.fields.get(name, field.neutral)
        after = best.strategy.fields.get(name, field.neutral)
        if before != after:
            yield Change(field=name, today=before, best=after)
    for name in _PLANS:
        old: Any = getattr(today.strategy, name)
        new: Any = getattr(best.strategy, name)
        if old != new:
            yield Change(field=name, today=old, best=new)
