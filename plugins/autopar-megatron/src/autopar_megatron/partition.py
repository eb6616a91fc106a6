"""Layers of each virtual stage, from every way that Megatron and MindSpeed have to say them.

Stages are in the order of execution: stage ``v * pp + r`` is chunk ``v`` of pipeline rank ``r``
(megatron/core/transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from autopar_core.api import InputError, counted
from autopar_megatron.settings import Settings


MAX_LAYOUT = 100_000
LAYOUT = "pipeline_model_parallel_layout"
PER_CHUNK = "num_layers_per_virtual_pipeline_stage"
CHUNKS = "num_virtual_stages_per_pipeline_rank"
FIRST, LAST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
_GROUP = re.compile(r"\(([^)]+)\)\*(\d+)")
_TIMES = re.compile(r"(.)\*(\d+)")


def layout_text(stages: Sequence[int]) -> str:
    """The layout string of some stages: ``Et*9|(t*10|)*6t*11L``."""
    if len(stages) == 1:
        return f"E{_layers(stages[0])}L"
    first, *middle, last = stages
    text = f"E{_layers(first)}|"
    for count, run in groupby(middle):
        times = len(list(run))
        stage = f"{_layers(count)}|"
        text += f"({stage})*{times}" if times > 2 else stage * times
    return f"{text}{_layers(last)}L"


def _layers(count: int) -> str:
    return f"t*{count}" if count > 1 else "t" * count


def parse_layout(text: str) -> list[str]:
    """Stages of a layout string as texts of E, t, m and L.

    Raises:
        ValueError: With a sentence, when it is no layout.
    """
    text = text.replace(",", "")
    if any(char.isspace() for char in text):
        raise ValueError("a layout has no blanks")
    for pattern in (_GROUP, _TIMES):
        size = len(text) + sum(
            len(found[1]) * min(int(found[2][:9]), MAX_LAYOUT) for found in pattern.finditer(text)
        )
        if size > MAX_LAYOUT:
            raise ValueError(f"it stands for more than {MAX_LAYOUT:,} layers")
        text = pattern.sub(lambda found: found[1] * int(found[2]), text)
    stages = text.split("|")
    odd = next((char for stage in stages for char in stage if char not in "EtmL"), "")
    if odd:
        raise ValueError(f"{odd!r} is none of E (embedding), t (layer), m (MTP layer), L (loss)")
    whole = "".join(stages)
    if "m" in whole:
        raise ValueError("it has multi-token-prediction layers (m), which are not counted here")
    if whole.count("E") != 1 or whole[0] != "E":
        raise ValueError("the first item must be E, once")
    if whole.count("L") != 1 or whole[-1] != "L":
        raise ValueError("the last item must be L, once")
    return stages


def spread(layers: int, stages: int) -> tuple[int, ...]:
    """Layers over stages as evenly as possible, more to the first ones."""
    share, rest = divmod(layers, stages)
    return tuple(share + (place < rest) for place in range(stages))


def alternative(layers: int, ranks: int, chunks: int = 1) -> str:
    """A legal way to spread layers that do not divide: a layout, and end counts where they exist."""
    even = spread(layers, ranks * chunks)
    said = f"--pipeline-model-parallel-layout '{layout_text(even)}' ({slashes(even)})"
    if chunks == 1:
        inner = -(-layers // ranks)
        for middle in (inner, inner - 1, inner + 1):
            ends = layers - middle * (ranks - 2)
            if ranks > 2 and ends >= 2 and middle > 0:
                first, last = ends // 2, ends - ends // 2
                counts = (first, *[middle] * (ranks - 2), last)
                return (
                    f"{said}, or --decoder-first-pipeline-num-layers {first} "
                    f"--decoder-last-pipeline-num-layers {last} ({slashes(counts)})"
                )
    return said


def slashes(stages: Sequence[int]) -> str:
    """``8/8/7/7``, shortened in the middle."""
    texts = [str(n) for n in stages]
    return "/".join([*texts[:8], "...", *texts[-2:]] if len(texts) > 12 else texts)


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of a number that is nearest to another one, the smaller of two."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return min(divisors, key=lambda d: (abs(d - wanted), d))


def stages_of(settings: Settings, layers: int, ranks: int) -> tuple[tuple[int, ...], str]:
    """((stages,) layers of every virtual stage, where that stands).

    Raises:
        InputError: When the ways contradict each other, lose layers, or do not divide.
    """
    _one_way(settings)
    if LAYOUT in settings:
        return _from_layout(settings, layers, ranks), settings.place(LAYOUT)
    if "num_layer_list" in settings:
        return _from_list(settings, layers, ranks), settings.place("num_layer_list")
    if "pipeline_num_transformer_layers" in settings:
        name = "pipeline_num_transformer_layers"
        return _from_nested(settings, layers, ranks), settings.place(name)
    if FIRST in settings or LAST in settings:
        return _from_ends(settings, layers, ranks), settings.place(FIRST, LAST)
    accounts = EMBEDDING in settings or LOSS in settings
    place = settings.place(*((EMBEDDING, LOSS) if accounts else (CHUNKS, PER_CHUNK)))
    return _even(settings, layers, ranks, settings.on(EMBEDDING), settings.on(LOSS)), place


def _one_way(settings: Settings) -> None:
    """Ways that exclude each other (megatron/training/arguments.py, transformer_config.py)."""
    ways = [
        (LAYOUT, CHUNKS), (LAYOUT, PER_CHUNK), (CHUNKS, PER_CHUNK), (LAYOUT, FIRST), (LAYOUT, LAST),
        (LAYOUT, EMBEDDING), (LAYOUT, LOSS), (FIRST, EMBEDDING), (FIRST, LOSS), (LAST, EMBEDDING),
        (LAST, LOSS), ("num_layer_list", CHUNKS), ("num_layer_list", PER_CHUNK),
        ("num_layer_list", LAYOUT), ("num_layer_list", "noop_layers"),
        ("pipeline_num_transformer_layers", LAYOUT), (PER_CHUNK, FIRST), (PER_CHUNK, LAST),
    ]  # fmt: skip
    for one, other in ways:
        if _said(settings, one) and _said(settings, other):
            spelled = settings.found[one].spelled, settings.found[other].spelled
            raise InputError(
                settings.label, f"{spelled[0]} ({settings.place(one)}) and {spelled[1]} "
                f"({settings.place(other)}) exclude each other; keep one of them",
            )  # fmt: skip


def _said(settings: Settings, name: str) -> bool:
    if name in (EMBEDDING, LOSS):
        return settings.on(name)
    return name in settings


def _from_layout(settings: Settings, layers: int, ranks: int) -> tuple[int, ...]:
    text = settings.text(LAYOUT)
    try:
        stages = parse_layout(text.strip("'\""))
    except ValueError as error:
        raise settings.wrong(LAYOUT, f"{text!r:.60} is no layout: {error}") from None
    if len(stages) % ranks:
        raise settings.wrong(
            LAYOUT, f"has {counted(len(stages), 'stage')}, which is no multiple of pipeline "
            f"size {ranks}; "
            f"legal is {alternative(layers, ranks)}",
        )  # fmt: skip
    counts = tuple(stage.count("t") for stage in stages)
    if sum(counts) != layers:
        raise settings.wrong(
            LAYOUT, f"has {counted(sum(counts), 'layer')} of {layers} (--num-layers); "
            f"legal is '{layout_text(spread(layers, len(stages)))}'",
        )  # fmt: skip
    return counts


def _from_list(settings: Settings, layers: int, ranks: int) -> tuple[int, ...]:
    counts = settings.numbers("num_layer_list")
    if len(counts) != ranks or sum(counts) != layers or ranks == 1:
        even = ",".join(map(str, spread(layers, ranks)))
        raise settings.wrong(
            "num_layer_list", f"{counts} must be {ranks} counts whose sum is {layers}, with several "
            f"stages; legal is {even}",
        )  # fmt: skip
    return counts


def _from_nested(settings: Settings, layers: int, ranks: int) -> tuple[int, ...]:
    name = "pipeline_num_transformer_layers"
    text = settings.text(name)
    rows = [settings.numbers(name)] if "],[" not in text.replace(" ", "") else [
        tuple(int(n) for n in re.findall(r"\d{1,6}", row)) for row in re.findall(r"\[([^][]*)\]", text)
    ]  # fmt: skip
    width = {len(row) for row in rows}
    if len(rows) != ranks or len(width) != 1 or sum(map(sum, rows)) != layers:
        raise settings.wrong(
            name, f"must be {ranks} lists of equal length whose sum is {layers}, got {text!r:.80}"
        )
    chunks = len(rows[0])
    return tuple(rows[rank][chunk] for chunk in range(chunks) for rank in range(ranks))


def _chunks(settings: Settings, layers: int, ranks: int, accounted: int) -> int:
    """Virtual stages per rank; ``accounted`` slots hold the embedding or the loss."""
    if CHUNKS in settings:
        return settings.whole(CHUNKS)
    if PER_CHUNK not in settings:
        return 1
    each = settings.whole(PER_CHUNK)
    total = layers + accounted
    if total % ranks:
        raise _not_divisible(settings, layers, ranks, accounted, 1)
    share = total // ranks
    if share % each:
        near = nearest_divisor(share, each)
        raise settings.wrong(
            PER_CHUNK, f"is layers per virtual stage: {share} layers of a rank are not divisible by "
            f"{each}; nearest legal is {near} ({share // near} virtual stages)",
        )  # fmt: skip
    return share // each


def _even(
    settings: Settings, layers: int, ranks: int, embedding: bool, loss: bool
) -> tuple[int, ...]:
    """Every virtual stage the same number of slots; the embedding and the loss may take one each."""
    accounted = embedding + loss
    chunks = _chunks(settings, layers, ranks, accounted)
    total = layers + accounted
    if total % ranks:
        raise _not_divisible(settings, layers, ranks, accounted, chunks)
    share = total // ranks
    if share % chunks:
        near = nearest_divisor(share, chunks)
        unit = "slots" if accounted else "layers"
        what = (
            f" ({counted(layers, 'layer')}, {accounted} for embedding and loss)"
            if accounted
            else ""
        )
        raise settings.wrong(
            CHUNKS, f"{share} {unit} of a rank{what} are not divisible into {chunks} virtual stages; "
            f"nearest legal is {near} ({share // near} {unit} each)",
        )  # fmt: skip
    counts = [share // chunks] * (ranks * chunks)
    counts[0] -= embedding
    counts[-1] -= loss
    return tuple(counts)


def _not_divisible(
    settings: Settings, layers: int, ranks: int, accounted: int, chunks: int
) -> InputError:
    what = f"{counted(layers, 'layer')}" + (
        f" and {counted(accounted, 'slot')} for embedding and loss" if accounted else ""
    )
    hint = ""
    for extra, flags in ((1, "one of "), (2, "both of ")):
        if not accounted and (layers + extra) % (ranks * chunks) == 0:
            hint = (
                f"; or {flags}--account-for-embedding-in-pipeline-split and "
                "--account-for-loss-in-pipeline-split"
            )
    return settings.wrong(
        "pipeline_model_parallel_size", f"{what} are not divisible by pipeline size {ranks}; legal is "
        f"{alternative(layers, ranks, chunks)}{hint}",
    )  # fmt: skip


def _from_ends(settings: Settings, layers: int, ranks: int) -> tuple[int, ...]:
    chunks = _chunks(settings, layers, ranks, 0)
    first = settings.whole(FIRST) if FIRST in settings else 0
    last = settings.whole(LAST) if LAST in settings else 0
    ends = [n for n in (first, last) if n]
    middles = ranks - len(ends)
    rest = layers - sum(ends)
    name = FIRST if first else LAST
    if middles < 0 or rest < 0 or bool(rest) != bool(middles) or (middles and rest % middles):
        if ranks == 1:
            legal = f"leave it out: the one stage holds all {counted(layers, 'layer')}"
        else:
            legal = f"legal is {alternative(layers, ranks)}"
        raise settings.wrong(
            name, f"stage counts must add up to {counted(layers, 'layer')}: {rest} remain for "
            f"{counted(middles, 'stage')} "
            f"between the given ends; {legal}",
        )  # fmt: skip
    middle = rest // middles if middles else 0
    totals = [*([first] if first else []), *[middle] * middles, *([last] if last else [])]
    odd = next((n for n in totals if n % chunks), 0)
    if odd:
        raise settings.wrong(
            CHUNKS, f"a stage of {counted(odd, 'layer')} is not divisible into {chunks} virtual stages; "
            f"legal is {alternative(layers, ranks, chunks)} without {CHUNKS.replace('_', '-')}",
        )  # fmt: skip
    return tuple(n // chunks for _ in range(chunks) for n in totals)
