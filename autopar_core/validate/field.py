"""Reports from the field judged: does it fit, and which of two configurations is faster?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from autopar_core.config.catalogue import Profiles
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.result import Detail
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.errors import InputError
from autopar_core.search.contexts import Contexts
from autopar_core.search.detail import Describer, model_flops
from autopar_core.search.evaluate import Estimator
from autopar_core.search.terms import collect
from autopar_core.units import GIB
from autopar_core.validate.field_reader import Case, Pair, as_run, words
from autopar_core.validate.mapping import MissingFactError, map_run
from autopar_core.validate.rows import Run


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager


@frozen(kw_only=True)
class Verdict:
    """One case: ``right`` is None where it cannot be judged, and ``why`` names the missing fact.

    Memory runs out where what the allocator reserves, with the reserves outside it, exceeds the limit;
    ``predicted`` is the verdict that a search would print.
    """

    id: str
    framework: str
    reported: str
    predicted: str = ""
    memory_gib: float | None = None
    reserved_gib: float | None = None
    limit_gib: float | None = None
    right: bool | None = None
    why: str = ""


@frozen(kw_only=True)
class Order:
    """One pair: ``predicted`` is the ratio that the model gives, above 1 the right way round."""

    id: str
    metric: str
    measured: float
    predicted: float | None = None
    right: bool | None = None
    why: str = ""


def describe(run: Run, manager: PluginManager) -> tuple[Detail, float]:
    """Memory and time of a run's configuration, and the model FLOPs of its step.

    Raises:
        MissingFactError: When a fact is missing or a plugin objects.
    """
    mapped = map_run(run, Profiles("system", manager))
    try:
        job = load_job(None, mapped.tables, Overrides(), manager)
        contexts = Contexts.build(job, manager)
        fields = contexts.fields
        batch = StrategyBatch.of(
            fields, {name: [fields[name].encode(value)] for name, value in mapped.fields.items()}
        )
    except InputError as error:
        raise MissingFactError(f"a configuration that can be described ({error.what})") from None
    for objection in collect(batch, contexts).objections:
        if objection.rows[0]:
            raise MissingFactError(objection.sentence)
    return Describer(Estimator(contexts)).describe(batch, 0, 0, (), ""), model_flops(job)


def judge_cases(cases: Iterable[Case], manager: PluginManager) -> list[Verdict]:
    """Cases that say whether memory sufficed, complete enough to ask the model."""
    chosen = (
        case
        for case in cases
        if case.kind == words()["verdict_kind"] and case.confidence >= words()["least_confidence"]
    )
    return [_verdict(case, manager) for case in chosen]


def _verdict(case: Case, manager: PluginManager) -> Verdict:
    reported = {True: "out of memory", False: "fits", None: ""}[case.out_of_memory]
    known: dict[str, Any] = {
        "id": case.id, "framework": case.line.text("framework"), "reported": reported,
    }  # fmt: skip
    if case.out_of_memory is None:
        return Verdict(**known, why="the outcome says nothing of memory")
    try:
        run, assumed = as_run(case, least=True)
        memory = describe(run, manager)[0].memory
    except MissingFactError as fact:
        return Verdict(**known, why=str(fact))
    known |= {
        "predicted": memory.verdict, "memory_gib": memory.total_bytes / GIB,
        "reserved_gib": memory.reserved_bytes / GIB, "limit_gib": memory.limit_bytes / GIB,
    }  # fmt: skip
    over = memory.reserved_bytes > memory.limit_bytes
    if assumed and not over:
        return Verdict(**known, why=f"fits with the least {' and '.join(assumed)}, not stated")
    return Verdict(**known, right=over == case.out_of_memory)


def judge_pairs(
    pairs: Iterable[Pair], cases: Mapping[str, Case], manager: PluginManager
) -> list[Order]:
    """Pairs that differ by more than noise."""
    return [_order(pair, cases, manager) for pair in pairs if pair.ratio >= words()["least_ratio"]]


def _order(pair: Pair, cases: Mapping[str, Case], manager: PluginManager) -> Order:
    known: dict[str, Any] = {"id": pair.id, "metric": pair.metric, "measured": pair.ratio}
    try:
        better, worse = (_cost(name, pair, cases, manager) for name in (pair.better, pair.worse))
    except MissingFactError as fact:
        return Order(**known, why=str(fact))
    return Order(**known, predicted=worse / better, right=worse > better)


def _cost(name: str, pair: Pair, cases: Mapping[str, Case], manager: PluginManager) -> float:
    """Seconds of a step per what the metric counts."""
    if name not in cases:
        raise MissingFactError("the other configuration is not given")
    run, _ = as_run(cases[name])
    detail, flops = describe(run, manager)
    seconds = detail.performance.seconds
    devices, sequences = run.whole("gpus"), run.whole("global_batch")
    counted = {
        "step": 1.0, "sequence": sequences,
        "token and device": sequences * run.whole("seq_len") / devices,
        "flop and device": flops / devices,
    }  # fmt: skip
    for entry in words()["metric"]:
        if re.search(entry["pattern"], pair.metric, re.IGNORECASE):
            return seconds / float(counted[entry["per"]])
    raise MissingFactError(f"metric {pair.metric!r} is not known")


def share_right(judged: Sequence[Verdict] | Sequence[Order]) -> tuple[int, int]:
    """(right, judged)."""
    known = [each.right for each in judged if each.right is not None]
    return sum(known), len(known)


def as_document(judged: Sequence[Verdict] | Sequence[Order]) -> dict[str, Any]:
    """The content of a JSON file: every row and the share that is right."""
    right, count = share_right(judged)
    summary = {
        "rows": len(judged), "judged": count, "right": right,
        "right_share": right / count if count else None,
    }  # fmt: skip
    return {"rows": [asdict(each) for each in judged], "summary": summary}
