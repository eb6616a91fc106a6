"""A model in Megatron's terms, shared by the exporters."""

from __future__ import annotations

from attrs import frozen

from autopar_core.api import CannotExpress, ExportRequest, ModelConfig


@frozen(kw_only=True)
class Words:
    """What Megatron's model arguments need beside plain sizes.

    Attributes:
        bias: Every linear layer has biases.
        qkv_bias: Only the query, key and value projections have.
        sandwich: Norms also after attention and MLP (MindSpeed-LLM).
        position: As ``--position-embedding-type`` spells it.
        positions: Rows of the position table, or the longest sequence.
    """

    bias: bool
    qkv_bias: bool
    sandwich: bool
    position: str
    positions: int


def words_of(request: ExportRequest, mindspeed: bool = False) -> Words:
    """The model in Megatron's terms.

    Raises:
        CannotExpress: When its GPT model has no such part.
    """
    model = request.model
    _refuse_parts(model, mindspeed)
    triple = (model.qkv_bias, model.attention_out_bias, model.mlp_bias)
    if triple not in ((True, True, True), (True, False, False), (False, False, False)):
        raise _cannot(
            "biases",
            "Megatron has biases in all linear layers, in query/key/value only, or in none",
        )
    positions = max(model.max_position_embeddings, request.training.seq_len)
    if model.position == "learned":
        positions = model.position_rows
        if positions < request.training.seq_len:
            raise _cannot(
                "position_rows", f"{positions} learned positions are fewer than the "
                f"{request.training.seq_len} tokens of a sequence",
            )  # fmt: skip
    kind = {"rope": "rope", "learned": "learned_absolute", "alibi": "alibi"}[model.position]
    return Words(
        bias=all(triple), qkv_bias=triple == (True, False, False),
        sandwich=model.norms_per_layer == 4, position=kind, positions=positions,
    )  # fmt: skip


def _refuse_parts(model: ModelConfig, mindspeed: bool) -> None:
    norms = (2, 4) if mindspeed else (2,)
    parts = (
        (model.position == "alibi" and not mindspeed, "position", "Megatron has no ALiBi"),
        (model.embedding_norm and not mindspeed, "embedding_norm",
         "Megatron has no norm after the embedding"),
        (model.embedding_width not in (0, model.hidden), "embedding_width",
         "Megatron's embedding is as wide as the hidden size"),
        (model.head_bias, "head_bias", "Megatron's output head has no bias"),
        (not model.final_norm, "final_norm", "Megatron always has a norm after the last layer"),
        (model.norms_per_layer not in norms, "norms_per_layer",
         f"Megatron has two norms in a layer, not {model.norms_per_layer}"),
        (model.qk_norm == "full", "qk_norm", "Megatron norms queries and keys per head"),
        (model.activation_parameters > 0, "activation_parameters",
         "Megatron's activations have no parameters"),
    )  # fmt: skip
    for broken, field, why in parts:
        if broken:
            raise _cannot(field, why)


def _cannot(field: str, why: str) -> CannotExpress:
    return CannotExpress(f"model.{field}", f"{why}: this needs a model of your own", {})
