"""Schedule, virtual stages, layers of each stage, and recompute."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from autopar_core.api import Findings, InputError, counted
from autopar_torchtitan.degrees import PIPELINE, Degrees
from autopar_torchtitan.settings import TOML, Settings
from autopar_torchtitan.stages import (
    LAYER,
    V_SHAPED,
    automatic,
    every_nth,
    layer_counts,
    rows,
    turned,
)


SCHEDULES = {
    "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe", "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}  # fmt: skip
_OURS = {spelled.lower(): name for name, spelled in SCHEDULES.items()}
_OTHERS = ("loopedbfs", "interleavedzerobubble")
SCHEDULE = "parallelism.pipeline_parallel_schedule"
CSV = "parallelism.pipeline_parallel_schedule_csv"
LIST = "parallelism.module_fqns_per_model_part"
POINTS = "parallelism.pipeline_parallel_split_points"
PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
FIRST = "parallelism.pipeline_parallel_first_stage_less_layers"
LAST = "parallelism.pipeline_parallel_last_stage_less_layers"
MODE, OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"


def read_pipeline(settings: Settings, layers: int, degrees: Degrees, found: Findings) -> None:
    """Put schedule, partition and recompute.

    Raises:
        InputError: For what TorchTitan refuses, or would build otherwise than it is written.
    """
    ranks = degrees.pipeline
    if ranks == 1:
        if settings.get(LIST) is not None:
            found.note(f"{LIST} ({settings.place(LIST)}) has no effect with one pipeline stage")
        _recompute(settings, (layers,), 1, found)
        return
    schedule = _schedule(settings)
    found.put("strategy.schedule", schedule, settings.place(SCHEDULE))
    stages, place = _stages(settings, layers, ranks, schedule)
    stages = turned(stages, schedule)
    if schedule not in V_SHAPED:  # two chunks always, which no field says
        found.put("strategy.vpp_degree", len(stages) // ranks, f"inferred: stages / pp ({place})")
    found.put("strategy.stage_partition", rows(stages, ranks), place)
    _recompute(settings, stages, ranks, found)


def _schedule(settings: Settings) -> str:
    if settings.get(CSV):
        raise settings.wrong(CSV, "autopar does not read schedules from CSV files; it has "
                             f"{', '.join(SCHEDULES.values())}")  # fmt: skip
    name = settings.text(SCHEDULE)
    if name.lower() in _OURS:
        return _OURS[name.lower()]
    what = "is not priced by autopar" if name.lower() in _OTHERS else "is no schedule of TorchTitan"
    raise settings.wrong(
        SCHEDULE, f"{name!r:.40} {what}; autopar has {', '.join(SCHEDULES.values())}"
    )


def _stages(
    settings: Settings, layers: int, ranks: int, schedule: str
) -> tuple[tuple[int, ...], str]:
    several = schedule in ("interleaved", *V_SHAPED)
    if settings.get(POINTS):
        stages, key = _from_points(settings, layers), POINTS
    elif settings.get(LIST) is not None:
        stages, key = _from_list(settings, layers), LIST
        _agrees(settings, len(stages), layers)
    else:
        stages, key = _automatic(settings, layers, ranks, several)
    if len(stages) % ranks:
        near = max(1, len(stages) // ranks) * ranks
        raise settings.wrong(
            key, f"{counted(len(stages), 'stage')}: no multiple of pp {ranks} "
            f"({settings.place(PIPELINE)}); legal are {near} or {near + ranks} stages",
        )  # fmt: skip
    chunks = len(stages) // ranks
    if schedule in V_SHAPED and chunks != 2:
        raise settings.wrong(
            key, f"{SCHEDULES[schedule]} takes two stages on each of {ranks} ranks, not "
            f"{len(stages)} in all; write {2 * ranks} stages, or the schedule Interleaved1F1B",
        )  # fmt: skip
    if several and chunks < 2:
        raise settings.wrong(
            key, f"{SCHEDULES[schedule]} needs two stages or more on each of {ranks} ranks, not "
            f"{len(stages)} in all; write {2 * ranks} stages, or the schedule 1F1B",
        )  # fmt: skip
    if not several and chunks != 1:
        raise settings.wrong(
            key, f"{SCHEDULES[schedule]} takes one stage on each of {ranks} ranks, not "
            f"{len(stages)} in all; write {counted(ranks, 'stage')}, or the schedule Interleaved1F1B",
        )  # fmt: skip
    empty = next((s for s, count in enumerate(stages[1:-1], 1) if not count), 0)
    if empty:
        raise settings.wrong(
            key, f"stage {empty} has no module; give every stage between the ends a layer"
        )
    return stages, settings.place(key)


def _from_list(settings: Settings, layers: int) -> tuple[int, ...]:
    parts: Any = settings.get(LIST)
    right = isinstance(parts, list) and all(
        isinstance(part, list) and all(isinstance(name, str) for name in part) for part in parts
    )
    if not right or not parts:
        raise settings.wrong(LIST, "expected a list of lists of module names, one for each stage")
    try:
        return layer_counts(parts, layers, settings.head)
    except ValueError as error:
        raise settings.wrong(LIST, str(error)) from None


def _from_points(settings: Settings, layers: int) -> tuple[int, ...]:
    """Releases before 0.2: the layer with which each stage but the first begins."""
    points = settings.names(POINTS)
    starts = [0]
    for point in points:
        name = point.strip()
        if not name.startswith(LAYER) or not name[len(LAYER) :].isdigit():
            raise settings.wrong(POINTS, f"expected names as layers.8, got {name!r:.40}")
        starts.append(int(name[len(LAYER) :]))
    starts.append(layers)
    counts = tuple(b - a for a, b in pairwise(starts))
    if min(counts) < 0:
        raise settings.wrong(POINTS, f"must grow and stay below {counted(layers, 'layer')}")
    return counts


def _agrees(settings: Settings, stages: int, layers: int) -> None:
    """A list beats the other ways without a word; refuse them where they say something else."""
    if settings.get(PER_STAGE) is None:
        return
    total = layers + settings.whole(FIRST, least=0) + settings.whole(LAST, least=0)
    count = -(-total // settings.whole(PER_STAGE))
    if count != stages:
        raise InputError(
            settings.label, f"{PER_STAGE} ({settings.place(PER_STAGE)}) makes "
            f"{counted(count, 'stage')} and "
            f"module_fqns_per_model_part ({settings.place(LIST)}) has {stages}; only one of them "
            "can hold",
        )  # fmt: skip


def _automatic(
    settings: Settings, layers: int, ranks: int, several: bool
) -> tuple[tuple[int, ...], str]:
    first, last = settings.whole(FIRST, least=0), settings.whole(LAST, least=0)
    key = next((k for k in (PER_STAGE, FIRST, LAST) if k in settings), PIPELINE)
    count = ranks * (2 if several else 1)
    if settings.get(PER_STAGE) is not None:
        each = settings.whole(PER_STAGE)
        count = -(-(layers + first + last) // each)
        if count % ranks:
            total = layers + first + last
            wanted = max(2, round(count / ranks)) * ranks if several else ranks
            near = next((n for n in range(1, total + 1) if -(-total // n) == wanted), 0)
            legal = f"; {near} gives {wanted}" if near else ""
            raise settings.wrong(
                PER_STAGE, f"{counted(each, 'layer')} a stage: {counted(count, 'stage')} of "
                f"{counted(layers, 'layer')} and "
                f"{first} + "
                f"{last} for the ends, no multiple of pp {ranks} ({settings.place(PIPELINE)}){legal}",
            )  # fmt: skip
    try:
        return automatic(count, layers, first, last), key
    except ValueError as error:
        raise settings.wrong(key, str(error)) from None


def _recompute(settings: Settings, stages: tuple[int, ...], ranks: int, found: Findings) -> None:
    key, mode = "strategy.layer_recompute", settings.choice(
        MODE, "none", "selective", "full", "memory_budget"
    )  # fmt: skip
    if mode == "memory_budget":
        raise settings.wrong(MODE, "the compiler chooses what to recompute for a memory budget, which "
                             "autopar does not price; it has none, selective and full")  # fmt: skip
    option = str(settings.get(OPTION))
    if mode != "selective" or option == "op":
        found.put(key, mode, settings.place(MODE))
        return
    if not option.isdigit():
        raise settings.wrong(OPTION, f"{option!r:.40} is neither op nor a whole number")
    nth = int(option)
    if nth < 2:
        found.put(key, "full", settings.place(OPTION))
        return
    counts = every_nth(stages, ranks, nth)
    # The profile plans one way for the whole model, as the single operations of op go.
    found.put("framework.override.core.recompute_granularity", "stage", settings.place(OPTION))
    found.put(
        key, {"selective": rows([0] * len(stages), ranks), "full": rows(counts, ranks)},
        f"{settings.place(OPTION)}: every {nth}th layer of a rank, in full",
    )  # fmt: skip
    if settings.dialect == TOML and OPTION not in settings:
        found.note(f"selective_ac_option is not set: its default, {option}, recomputes every "
        f"{nth}th layer in full; op is the selective recompute of single operations")  # fmt: skip
