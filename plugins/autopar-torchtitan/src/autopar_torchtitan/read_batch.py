"""Sequence length, micro-batches and global batch, with what TorchTitan would refuse."""

from __future__ import annotations

from autopar_core.api import Findings, InputError, counted
from autopar_torchtitan.degrees import Degrees
from autopar_torchtitan.settings import TOKENS, TOML, Settings


MICRO = "parallelism.pipeline_parallel_microbatch_size"
COUNT, OLD_COUNT = "parallelism.num_pp_microbatches", "parallelism.pipeline_parallel_microbatches"
LOCAL, TOTAL, LENGTH = (
    "training.local_batch_size", "training.global_batch_size", "training.seq_len"
)  # fmt: skip
TOKENS_EACH = "training.num_tokens_per_microbatch_per_dp_rank"
TOKENS_STEP = "training.num_tokens_per_train_step"
TOKENS_LONGEST = "training.max_context_length"


def read_length(settings: Settings, degrees: Degrees, found: Findings) -> int:
    """Put and return the tokens of a sequence.

    Raises:
        InputError: When they cannot be split, or the model has no positions for them.
    """
    key = TOKENS_LONGEST if settings.dialect == TOKENS else LENGTH
    if key == TOKENS_LONGEST and key not in settings:
        raise InputError(settings.label, f"has no {key}; give the tokens of a sequence there")
    length = settings.whole(key)
    found.put("training.seq_len", length, settings.place(key))
    parallel = settings.dialect == TOML or settings.flag("parallelism.enable_sequence_parallel")
    parts = (degrees.tensor if parallel else 1) * (
        2 * degrees.context if degrees.context > 1 else 1
    )
    if length % parts:
        near = max(parts, length // parts * parts)
        raise settings.wrong(
            key, f"{length} tokens do not divide by {parts} (tp {degrees.tensor} of sequence parallelism "
            f"x 2 x cp {degrees.context}); nearest legal: {near} and {near + parts}",
        )  # fmt: skip
    longest = found.get("model.max_position_embeddings")
    if length > longest and settings.dialect != TOML:
        raise settings.wrong(
            key,
            f"{length} tokens are more than the {longest} of the model's RoPE table; at most {longest}",
        )
    return length


def read_batch(settings: Settings, degrees: Degrees, length: int, found: Findings) -> None:
    """Put the micro-batch, the number of them and the global batch, as far as the file says them.

    Raises:
        InputError: When one does not divide into the next.
    """
    if settings.dialect == TOKENS:
        size, number, total, place = _from_tokens(settings, degrees, length, found)
    else:
        size, number, total, place = _from_sequences(settings, degrees, found)
    if number:
        found.put("strategy.micro_batch_num", number, place)
    if total:
        found.put("training.global_batch_size", total, place)
    elif number:
        found.note(
            f"the global batch is {counted(size * number, 'sequence')} for every data-parallel "
            f"rank; give "
            "training.global_batch_size"
        )


def _from_sequences(
    settings: Settings, degrees: Degrees, found: Findings
) -> tuple[int, int, int, str]:
    """(sequences of a micro-batch, micro-batches, global batch, place); 0 where it is left open."""
    local, place = settings.whole(LOCAL), settings.place(LOCAL)
    size, number = local, 1
    if degrees.pipeline > 1:
        size, number, place = _pipelined(settings, degrees, local)
    found.put("strategy.micro_batch_size", size, place)
    total = settings.typed(TOTAL, int)
    if total < 0:
        return size, number, local * degrees.data, f"inferred: one local batch ({place}) per rank"
    if not total or (degrees.data and total % (local * degrees.data)):
        each = local * max(1, degrees.data)
        raise settings.wrong(
            TOTAL, f"global batch {total} does not divide by local batch {local} "
            f"({settings.place(LOCAL)}) "
            f"x dp {degrees.data}; nearest legal: {max(each, total // each * each)}",
        )  # fmt: skip
    found.put("training.global_batch_size", total, settings.place(TOTAL))
    if not degrees.data:
        return size, 0, 0, ""
    steps = total // (local * degrees.data)
    _drains(settings, degrees, number, steps, found)
    return size, number * steps, total, settings.place(TOTAL)


def _pipelined(settings: Settings, degrees: Degrees, local: int) -> tuple[int, int, str]:
    """(sequences of a micro-batch, micro-batches of the pipeline, place)."""
    old = settings.dialect == TOML and MICRO not in settings and (
        OLD_COUNT in settings or "parallelism.pipeline_parallel_split_points" in settings
    )  # fmt: skip
    if old:
        # Releases before 0.2 count micro-batches, as many as stages by default.
        number = settings.whole(OLD_COUNT) if OLD_COUNT in settings else degrees.pipeline
        if local % number:
            raise settings.wrong(
                LOCAL, f"local batch {local} does not divide into "
                f"{counted(number, 'micro-batch')}; nearest legal: "
                f"{max(1, local // number) * number}",
            )  # fmt: skip
        return local // number, number, settings.place(LOCAL)
    size = settings.whole(MICRO)
    if local % size:
        raise settings.wrong(
            MICRO if MICRO in settings else LOCAL, f"local batch {local} ({settings.place(LOCAL)}) does "
            f"not divide by {size}; nearest legal: {LOCAL} = {max(1, local // size) * size}",
        )  # fmt: skip
    return size, local // size, settings.place(MICRO)


def _drains(settings: Settings, degrees: Degrees, number: int, steps: int, found: Findings) -> None:
    """Accumulated steps fill and drain the pipeline once each."""
    if degrees.pipeline > 1 and steps > 1:
        key = COUNT if settings.dialect == TOKENS else LOCAL
        found.note(
            f"the pipeline fills and drains {steps} times in a step, with "
            f"{counted(number, 'micro-batch')} "
            f"each; it is estimated as one of {number * steps}, which {key} times {steps} would run"
        )


def _from_tokens(
    settings: Settings, degrees: Degrees, length: int, found: Findings
) -> tuple[int, int, int, str]:
    if TOKENS_EACH not in settings:
        raise InputError(settings.label, f"has no {TOKENS_EACH}; give the tokens of a micro-batch")
    each, place = settings.whole(TOKENS_EACH), settings.place(TOKENS_EACH)
    if each % length:
        raise settings.wrong(
            TOKENS_EACH, f"{each} tokens are not whole sequences of {length}; nearest legal: "
            f"{max(1, each // length) * length}",
        )  # fmt: skip
    size = each // length
    found.put("strategy.micro_batch_size", size, place)
    number = settings.whole(COUNT) if degrees.pipeline > 1 and COUNT in settings else 1
    total = settings.get(TOKENS_STEP)
    if total is None or (type(total) is int and total < 0):
        return size, number, size * number * degrees.data, f"inferred: one micro-batch ({place})"
    step = settings.whole(TOKENS_STEP)
    share = each * number * max(1, degrees.data)
    if step % share:
        raise settings.wrong(
            TOKENS_STEP, f"{step} tokens do not divide by {each} ({place}) x "
            f"{counted(number, 'micro-batch')} x dp "
            f"{degrees.data}; nearest legal: {max(share, step // share * share)}",
        )  # fmt: skip
    if not degrees.data:
        found.put("training.global_batch_size", step // length, settings.place(TOKENS_STEP))
        return size, 0, 0, ""
    steps = step // share
    _drains(settings, degrees, number, steps, found)
    return size, number * steps, step // length, settings.place(TOKENS_STEP)
