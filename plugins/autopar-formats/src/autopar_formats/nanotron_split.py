"""How nanotron deals blocks to pipeline stages: by cost, and nobody can choose otherwise."""

from __future__ import annotations

from functools import cache

from autopar_core.api import ModelConfig


@cache
def split(model: ModelConfig, stages: int, vocab: int) -> tuple[int, ...]:
    """Layers of each stage.

    A block joins the current stage; the next stage begins once the cost so far exceeds this stage's
    share of the total. A decoder layer costs ``4 heads x head width x hidden + 3 ffn x hidden``, the
    output head ``vocabulary x hidden``, everything else nothing.

    Args:
        model: Its shape.
        stages: Pipeline degree.
        vocab: Vocabulary rows after padding.

    Source: nanotron ``models/base.py`` (build_model), ``models/llama.py`` (get_block_compute_costs).
    """
    layer = 4 * model.query_width * model.hidden + 3 * model.ffn_hidden * model.hidden
    total = layer * model.num_layers + vocab * model.hidden
    counts = [0] * stages
    stage, done = 0, 0
    for _ in range(model.num_layers):
        counts[stage] += 1
        done += layer
        # The shares are compared as whole numbers: done / total > (stage + 1) / stages.
        if done * stages > total * (stage + 1):
            stage += 1
    return tuple(counts)


def padded_vocab(vocab: int, divisible_by: int, tensor: int) -> int:
    """Vocabulary rows that nanotron allocates: a multiple of ``divisible_by`` x tensor degree."""
    multiple = divisible_by * tensor
    return -(-vocab // multiple) * multiple
