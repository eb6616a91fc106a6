"""How TorchTitan spells which layers, and which recomputed layers, stand on which virtual stage."""

from __future__ import annotations

from collections.abc import Sequence

from autopar_core.api import counted


EMBEDDING, NORM = "tok_embeddings", "norm"
LAYER = "layers."
# Schedules that place the second chunk of every rank in reverse.
V_SHAPED = ("zbv", "dualpipev")


def module_names(stages: Sequence[int], head: str) -> list[list[str]]:
    """``module_fqns_per_model_part`` of layer counts, in the order of execution.

    Args:
        stages: Layers of every virtual stage.
        head: Name of the output projection: ``output`` up to 0.2.2, ``lm_head`` since 0.3.0.
    """
    parts, at = [], 0
    for count in stages:
        parts.append([f"{LAYER}{index}" for index in range(at, at + count)])
        at += count
    parts[0].insert(0, EMBEDDING)
    parts[-1] += [NORM, head]
    return parts


def layer_counts(parts: Sequence[Sequence[str]], layers: int, head: str) -> tuple[int, ...]:
    """Layers of every stage of a list of module names.

    TorchTitan checks none of this: a layer that is not named is left out of the model, and a name
    that no module has is ignored (``distributed/pipeline_parallel.py``).

    Raises:
        ValueError: With a sentence, when the names are not every module once, in order.
    """
    named = [name for part in parts for name in part]
    wanted = [EMBEDDING, *(f"{LAYER}{index}" for index in range(layers)), NORM, head]
    known = set(wanted)
    strange = next((name for name in named if name not in known), None)
    if strange is not None:
        raise ValueError(
            f"names {strange}, which this model does not have: TorchTitan ignores it; it has "
            f"{EMBEDDING}, {LAYER}0 to {LAYER}{layers - 1}, {NORM} and {head}"
        )
    seen = set()
    for name in named:
        if name in seen:
            raise ValueError(f"names {name} twice; name every module once")
        seen.add(name)
    missing = [name for name in wanted if name not in seen]
    if missing:
        raise ValueError(
            f"leaves out {', '.join(missing[:3])}: TorchTitan would train without; name every module once"
        )
    if named != wanted:
        place = next(one for one, other in zip(named, wanted, strict=True) if one != other)
        raise ValueError(f"names {place} out of order; name modules in the order of the model")
    return tuple(sum(name.startswith(LAYER) for name in part) for part in parts)


def automatic(stages: int, layers: int, first_less: int, last_less: int) -> tuple[int, ...]:
    """Layers of every stage without a list (``generate_llm_fqn_per_model_part``).

    The embedding counts as ``first_less`` layers and the head as ``last_less``; what is left over
    goes to the first stages.

    Raises:
        ValueError: With a sentence, when TorchTitan refuses.
    """
    if stages == 1:
        return (layers,)
    total = layers + first_less + last_less
    share, rest = divmod(total, stages)
    if not share:
        raise ValueError(
            f"{counted(stages, 'stage')}: more than {counted(layers, 'layer')} with "
            f"{first_less} and {last_less} for the "
            f"embedding and the head can fill; at most {total}"
        )
    for name, less in (("first", first_less), ("last", last_less)):
        if less > share:
            raise ValueError(
                f"pipeline_parallel_{name}_stage_less_layers = {less} is more than the "
                f"{counted(share, 'layer')} "
                f"of a stage; at most {share}"
            )
    counts = [share + (stage < rest) for stage in range(stages)]
    counts[0] -= first_less
    counts[-1] -= last_less
    return tuple(counts)


def every_nth(stages: Sequence[int], ranks: int, nth: int) -> tuple[int, ...]:
    """Recomputed layers of every stage with ``selective_ac_option = "nth"``.

    One counter runs over the layers of a rank, chunk after chunk; each ``nth`` layer is recomputed in
    full (torchtitan 0.2.2, ``distributed/activation_checkpoint.py: _apply_layer_sac``; 0 means all).
    """
    if nth == 0:
        return tuple(stages)
    done = [0] * ranks
    counts = []
    for stage, layers in enumerate(stages):
        rank = stage % ranks
        counts.append((done[rank] + layers) // nth - done[rank] // nth)
        done[rank] += layers
    return tuple(counts)


def nth_of(stages: Sequence[int], ranks: int, wanted: Sequence[int]) -> int:
    """The step whose recomputed layers are these; 0 when no step gives them."""
    most = max(2, sum(stages))
    return next((n for n in range(2, most + 1) if every_nth(stages, ranks, n) == tuple(wanted)), 0)


def nearest_nth(stages: Sequence[int], ranks: int, wanted: Sequence[int]) -> tuple[int, ...]:
    """Recomputed layers of the step that recomputes no stage less and as little more as it can."""
    found = [every_nth(stages, ranks, n) for n in range(1, max(2, sum(stages)) + 1)]
    enough = [f for f in found if all(a >= b for a, b in zip(f, wanted, strict=True))]
    return min(enough, key=sum)


def spread(layers: int, stages: int) -> tuple[int, ...]:
    """Layers over stages as evenly as possible, more to the first ones."""
    share, rest = divmod(layers, stages)
    return tuple(share + (place < rest) for place in range(stages))


def turned(counts: Sequence[int], schedule: str) -> tuple[int, ...]:
    """Counts by chunk and rank in the order of the model's layers, and back.

    V-shaped schedules place the second chunk in reverse: the model ends on the rank where it begins
    (torchtitan distributed/pipeline_parallel.py: style "v").
    """
    if schedule not in V_SHAPED:
        return tuple(counts)
    half = len(counts) // 2
    return (*counts[:half], *reversed(counts[half:]))


def rows(counts: Sequence[int], ranks: int) -> list[int] | list[list[int]]:
    """``[stage]``, or ``[chunk][stage]`` with several chunks."""
    made = [list(counts[start : start + ranks]) for start in range(0, len(counts), ranks)]
    return made if len(made) > 1 else made[0]
