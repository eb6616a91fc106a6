"""Runs inside an environment with torch and Megatron: its verdict on argument lists and layouts.

Reads one JSON list of cases a line from standard input and answers each with a line: a JSON list of
verdicts. A case has ``argv`` and ``world`` (arguments of pretrain_gpt.py), or ``config`` (fields of
TransformerConfig).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
import typing
from typing import Any


# Without TransformerEngine on a machine without a GPU.
CPU_ONLY = ["--no-persist-layer-norm", "--no-gradient-accumulation-fusion", "--no-rope-fusion"]


class Megatron:
    """Megatron's own classes, imported once the environment is what they expect."""

    def __init__(self) -> None:
        os.environ.update(RANK="0", WORLD_SIZE="1", CUDA_DEVICE_MAX_CONNECTIONS="1")
        if not hasattr(typing, "override"):  # Megatron core is written for Python 3.12
            import typing_extensions

            typing.override = typing_extensions.override  # type: ignore[attr-defined]
        import torch
        from megatron.core.transformer import transformer_block, transformer_config
        from megatron.training import arguments

        self.torch, self.arguments = torch, arguments
        self.config = transformer_config.TransformerConfig
        self.layers_of = transformer_block.get_num_layers_to_build
        arguments.get_device_arch_version = lambda: 9
        # Releases of TransformerEngine are asked for by name; no kernel of it runs here.
        for module in (arguments, transformer_config):
            if hasattr(module, "is_te_min_version"):
                module.is_te_min_version = lambda *_, **__: True

    def judge_arguments(self, case: dict[str, Any]) -> dict[str, Any]:
        os.environ["WORLD_SIZE"] = str(case["world"])
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        os.environ.update(case.get("environment", {}))
        sys.argv = ["pretrain_gpt.py", *case["argv"], *CPU_ONLY]
        args = self.arguments.parse_args()
        self.arguments.validate_args(args)
        config = self.arguments.core_transformer_config_from_args(args)
        return {
            **self.judged(config), "data": args.data_parallel_size, "ffn": config.ffn_hidden_size,
            "groups": config.num_query_groups, "global": args.global_batch_size,
            "sequence_parallel": config.sequence_parallel,
        }  # fmt: skip

    def judge_config(self, case: dict[str, Any]) -> dict[str, Any]:
        torch = self.torch
        names = {"F.silu": torch.nn.functional.silu, "F.gelu": torch.nn.functional.gelu,
                 "torch.bfloat16": torch.bfloat16, "torch.float16": torch.float16}  # fmt: skip
        fields = {
            key: names.get(value, value) if isinstance(value, str) else value
            for key, value in case["config"].items()
        }
        return self.judged(self.config(**fields))

    def judged(self, config: Any) -> dict[str, Any]:
        """Layers that Megatron would build on every virtual stage, in the order of execution."""
        chunks = config.virtual_pipeline_model_parallel_size or 1
        layout = config.pipeline_model_parallel_layout
        stages = []
        for chunk in range(chunks):
            for rank in range(config.pipeline_model_parallel_size):
                if layout is not None:
                    items = layout.layout[rank][chunk]
                    stages.append(sum(item.name == "decoder" for item in items))
                else:
                    stage = chunk if chunks > 1 else None
                    stages.append(self.layers_of(config, vp_stage=stage, pp_rank=rank))
        return {"stages": stages, "chunks": chunks, "recompute": config.recompute_granularity,
                "recompute_layers": config.recompute_num_layers}  # fmt: skip

    def verdict(self, case: dict[str, Any]) -> dict[str, Any]:
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                judge = self.judge_arguments if "argv" in case else self.judge_config
                found = judge(case)
        except (Exception, SystemExit) as error:
            last = said.getvalue().strip().splitlines()[-1:]
            shown = last if isinstance(error, SystemExit) else []
            where = traceback.extract_tb(error.__traceback__)[-1]
            return {"ok": False, "error": " ".join([str(error), *shown]),
                    "where": f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"}  # fmt: skip
        return {"ok": True, **found}


def main() -> None:
    # Megatron prints: answers alone go to the real standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    megatron = Megatron()
    for line in sys.stdin:
        answers.write(json.dumps([megatron.verdict(case) for case in json.loads(line)]) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
