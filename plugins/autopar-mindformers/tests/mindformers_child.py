"""Runs inside an environment with MindSpore: MindFormers' verdict on configuration files.

Reads a JSON list of cases from standard input, writes a JSON list of verdicts to the file that the
first argument names; the second argument is the folder of MindFormers' modules. A case has ``yaml`` (a
file of graph mode), ``pynative`` (the same of PyNative), or ``offset`` with ``layers``, ``ranks`` and
``chunks``.

MindFormers' packages import every model with all that these need. Here they are left empty, so that
only the modules that judge configurations are imported, unchanged.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any


HOME = Path(sys.argv[2])
EMPTY = (
    "mindformers", "mindformers.modules", "mindformers.modules.transformer", "mindformers.core",
    "mindformers.models", "mindformers.models.auto", "mindformers.models.llama",
    "mindformers.models.qwen3", "mindformers.models.telechat3", "mindformers.parallel_core",
    "mindformers.parallel_core.training_graph", "mindformers.parallel_core.utils",
    "mindformers.parallel_core.training_graph.transformer", "mindformers.pynative",
    "mindformers.pynative.config",
)  # fmt: skip
NAMES = ("TransformerSwapConfig", "TransformerRecomputeConfig", "TransformerOpParallelConfig")


def empty_packages() -> None:
    for name in EMPTY:
        module = types.ModuleType(name)
        module.__path__ = [str(HOME.joinpath(*name.split(".")))]
        sys.modules[name] = module
    sys.modules["mindformers"].__version__ = HOME.name  # type: ignore[attr-defined]
    importlib.import_module("mindformers.tools")
    source = importlib.import_module("mindformers.modules.transformer.transformer")
    for name in NAMES:
        setattr(sys.modules["mindformers.modules.transformer"], name, getattr(source, name))


def module(name: str) -> Any:
    return importlib.import_module(f"mindformers.{name}")


def judge_graph(case: dict[str, Any]) -> dict[str, Any]:
    """Sections against MindFormers' templates, then its configuration classes, then its layers."""
    template = module("tools.register.template")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(case["yaml"])
        config = module("tools.register.config").MindFormerConfig(str(path))
    template.ConfigTemplate.apply_template(config)
    config = module("tools.register.config").MindFormerConfig(**config)  # as its entry script does
    older = bool(config.use_legacy)
    parallel = dict(config.parallel_config)
    if parallel["pipeline_stage"] > 1:
        parallel["vocab_emb_dp"] = False  # as core/parallel_config.py does
    recompute = module("modules.transformer.transformer").TransformerRecomputeConfig(
        **config.recompute_config
    )
    layout = module("modules.transformer.transformer").TransformerOpParallelConfig(
        recompute=recompute, **parallel
    )
    table = {k: v for k, v in dict(config.model.model_config).items() if k not in ("type", "arch")}
    pipeline_context(dict(config.parallel.pipeline_config))
    if older:
        made = module("models.llama.llama_config").LlamaConfig(**table, parallel_config=layout)
        setting = layers(made.num_layers, made.offset, layout, made.pp_interleave_num, older)
        shape = [made.num_layers, made.hidden_size, made.num_heads, made.n_kv_heads]
    else:
        made = newer(table, layout)
        chunks = made.virtual_pipeline_model_parallel_size
        setting = layers(made.num_layers, made.offset, made, chunks, older)
        shape = [made.num_layers, made.hidden_size, made.num_attention_heads, made.num_query_groups]
    return {**dealt(setting), "shape": shape, "degrees": degrees(layout), "batch": batch(config)}


def newer(table: dict[str, Any], layout: Any) -> Any:
    kind = table["model_type"]
    names = {"qwen3": "Qwen3Config", "telechat3": "TeleChat3Config"}
    config = getattr(module(f"models.{kind}.configuration_{kind}"), names[kind])(
        **{k: v for k, v in table.items() if k != "model_type"}, parallel_config=layout
    )
    converter = module(f"models.{kind}.config_converter_{kind}")
    (own,) = (v for k, v in vars(converter).items() if k.lower() == f"{kind}configconverter")
    return own.convert(config.to_dict(), is_mla_model=False)


def pipeline_context(pipeline: dict[str, Any]) -> None:
    import mindspore

    mindspore.set_auto_parallel_context(pipeline_config=pipeline)


def layers(count: int, offset: Any, config: Any, chunks: int, older: bool) -> Any:
    utils = module("parallel_core.training_graph.transformer.utils")
    utils.is_legacy_model = lambda: older
    if isinstance(offset, list | tuple):
        offset = [list(each) if isinstance(each, list | tuple) else each for each in offset]
    return utils.LayerSetting(count, offset, config, chunks)


def dealt(setting: Any) -> dict[str, Any]:
    """Per virtual stage: layers, layers in full, further layers with silu and mul."""
    counts = setting.layer_list.tolist()
    full = [list(map(int, row)) for row in setting.layer_recompute]
    some = {key: [list(map(int, row)) for row in rows]
            for key, rows in setting.select_recompute.items() if "shared" not in key}  # fmt: skip
    (first, *others) = some.values()
    assert all(rows == first for rows in others), some
    part = [[max(0, min(s, n) - f) for s, f, n in zip(*rows, strict=True)]
            for rows in zip(first, full, counts, strict=True)]  # fmt: skip
    return {"stages": counts, "full": full, "selective": part, "patterns": sorted(some)}


def degrees(layout: Any) -> list[int]:
    return [
        layout.data_parallel,
        layout.model_parallel,
        layout.pipeline_stage,
        layout.context_parallel,
    ]


def batch(config: Any) -> int:
    """The global batch of MindFormers' own trainer."""
    source = (HOME / "mindformers/trainer/base_trainer.py").read_text(encoding="utf-8")
    name = "_check_global_batch_size_for_auto_parallel"
    import ast

    tree = ast.parse(source)
    (function,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)
    space: dict[str, Any] = {"ms": Context(config), "logger": Context(config),
                             "get_real_group_size": lambda: 0}  # fmt: skip
    exec(compile(ast.Module([function], []), "base_trainer.py", "exec"), space)
    trainer = types.SimpleNamespace(
        config=config, get_pipeline_stages=lambda: config.parallel_config.pipeline_stage,
        _reset_wrapper_for_pipeline_parallel=lambda: None,
    )  # fmt: skip
    space[name](trainer)
    return int(trainer.global_batch_size)


class Context:
    """Stands for MindSpore's parallel context, which needs devices, and for the logger."""

    def __init__(self, config: Any) -> None:
        full = config.parallel.full_batch
        self.values = {
            "parallel_mode": {1: "semi_auto_parallel"}[config.parallel.parallel_mode],
            "full_batch": full,
            "dataset_strategy": "full_batch" if full else config.parallel.dataset_strategy,
        }

    def get_auto_parallel_context(self, name: str) -> Any:
        return self.values[name]

    def set_auto_parallel_context(self, **_: Any) -> None:
        raise AssertionError("the trainer resets the parallel context")

    def info(self, *_: Any) -> None:
        pass

    def warning(self, message: str, *_: Any) -> None:
        raise AssertionError(f"the trainer warns: {message}")


def judge_offset(case: dict[str, Any]) -> dict[str, Any]:
    pipeline_context({"pipeline_interleave": case["chunks"] > 1, "pipeline_scheduler": "1f1b"})
    transformer = module("modules.transformer.transformer")
    layout = transformer.TransformerOpParallelConfig(
        pipeline_stage=case["ranks"],
        recompute=transformer.TransformerRecomputeConfig(recompute=case.get("recompute", False)),
    )
    setting = layers(case["layers"], case["offset"], layout, case["chunks"], True)
    return dealt(setting)


def judge_pynative(case: dict[str, Any]) -> dict[str, Any]:
    import yaml

    table = yaml.safe_load(case["pynative"])
    classes = module("pynative.config.config")
    layout = classes.ParallelismConfig.from_dict(table["parallelism"])
    training = classes.TrainingConfig.from_dict(table["training"])
    return {"tensor": layout.tensor_parallel, "batch": training.global_batch_size}


def verdict(case: dict[str, Any]) -> dict[str, Any]:
    judges = {"yaml": judge_graph, "offset": judge_offset, "pynative": judge_pynative}
    (judge,) = (judge for key, judge in judges.items() if key in case)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return {"ok": True, **judge(case)}
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.path.insert(0, str(HOME))
    empty_packages()
    cases = json.load(sys.stdin)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump([verdict(case) for case in cases], out)
