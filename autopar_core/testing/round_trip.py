"""Export, then read back: the same strategy, or a refusal whose nearest strategy exports."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, frozen
from hypothesis import reject
from hypothesis import strategies as st

from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.config.source_file import Reading, read_file
from autopar_core.config.tables import deep_merge
from autopar_core.domain.arrays import Ints
from autopar_core.domain.export import ExportEstimate, ExportRequest, flat
from autopar_core.domain.fields import Level
from autopar_core.domain.model import ModelConfig
from autopar_core.domain.space import Plan
from autopar_core.domain.strategy import Strategy, StrategyBatch
from autopar_core.domain.verdict import HARD
from autopar_core.errors import CannotExpress
from autopar_core.hooks.named import Exporter
from autopar_core.hooks.schedule import ScheduleKey
from autopar_core.plugins import PluginManager
from autopar_core.search.contexts import Contexts
from autopar_core.search.dealt import with_dealt_partitions
from autopar_core.search.detail import nested
from autopar_core.search.generate import Generation
from autopar_core.search.rules import broken_rules
from autopar_core.testing.bench import SMALL_JOB, load


_LATE = (Level.SCHEDULE, Level.CHUNKS, Level.SHARDING, Level.RECOMPUTE)
_PLANS = ("partition_plan", "recompute_plan")
_MODES = ("selective", "full")
# Tried nearest strategies before a refusal counts as a dead end.
_STEPS = 3


@frozen(eq=False)
class Space:
    """Every candidate of a small job that all rules let pass."""

    contexts: Contexts
    rows: StrategyBatch

    @classmethod
    def of(cls, changes: Mapping[str, Any], **plugins: Any) -> Space:
        """The candidates of :data:`~autopar_core.testing.bench.SMALL_JOB` with changes."""
        manager = load(**plugins)
        job = load_job(None, deep_merge(SMALL_JOB, changes), Overrides(), manager)
        job = with_dealt_partitions(job, manager)
        generation = Generation(Contexts.build(job, manager))
        rows = generation.grow(generation.degree_tuples())
        assert len(rows), "no candidate passes the rules: choose another job"
        return cls(generation.contexts, rows)

    def request(
        self, row: int, layers: Sequence[int] | None, full: int, mode: str
    ) -> ExportRequest:
        """One candidate as an exporter gets it; the estimate is made up.

        Args:
            row: Row of the candidates.
            layers: Layers of each virtual stage; None for the even split.
            full: Layers of each stage that recompute, at most those that it has.
            mode: Recompute mode; ``"none"`` for no recompute.
        """
        job, one = self.contexts.job, self.rows.take(np.array([row]))
        key = self.key(row)
        counts = np.array(layers if layers is not None else even(job.model.num_layers, key.stages))
        zero = np.zeros_like(counts)
        part = counts if mode != "full" or full < 0 else np.minimum(counts, full)
        done = {name: part if name == mode else zero for name in _MODES}
        fields = {name: value for name, value in one.row(0).items() if name not in _PLANS}
        strategy = Strategy(
            fields=fields, stage_partition=nested(counts, key),
            layer_offset=nested(counts - job.model.num_layers // key.stages, key),
            layer_recompute={name: nested(values, key) for name, values in done.items()},
        )  # fmt: skip
        estimate = ExportEstimate(
            seconds=1.0, low_seconds=0.9, high_seconds=1.1, memory_bytes=2**30, limit_bytes=2**36
        )
        return ExportRequest(
            model=job.model, training=job.training, cluster=job.cluster, system=job.system,
            framework=job.framework, strategy=strategy, estimate=estimate,
            plugins=job.plugin_sections, header=("made up",),
        )  # fmt: skip

    def key(self, row: int) -> ScheduleKey:
        """Schedule of a row."""
        return self.contexts.composer.keys(self.rows.take(np.array([row])))[1][0]

    def allowed(self, row: int, layers: Sequence[int]) -> bool:
        """Whether every hard rule lets a row pass with this partition."""
        key, job = self.key(row), self.contexts.job
        plan = Plan(kind="given", given=nested(np.array(layers), key))
        space = evolve(job.space, partitions=(plan,))
        contexts = Contexts.build(evolve(job, space=space), self.contexts.manager)
        one = self.rows.take(np.array([row]))
        return not any(
            rule.kind == HARD and rule.rows[0]
            for level in _LATE
            for rule in broken_rules(one, level, contexts)
        )


def even(layers: int, stages: int) -> list[int]:
    """As even as it goes, the first stages take the rest."""
    return [layers // stages + (stage < layers % stages) for stage in range(stages)]


@st.composite
def requests(draw: st.DrawFn, space: Space) -> ExportRequest:
    """Random strategies that a framework's rules allow: degrees, batch, partition, recompute."""
    core, layers = space.contexts.job.framework.core, space.contexts.job.model.num_layers
    row = draw(st.integers(0, len(space.rows) - 1))
    stages = space.key(row).stages
    counts = None
    plans = space.contexts.job.space.partitions
    dealt_plan = plans[int(space.rows["partition_plan"][row])]
    if dealt_plan.kind == "given":  # the framework deals layers itself
        counts = list(flat(dealt_plan.given))
    elif stages > 1:
        cuts = draw(
            st.lists(st.integers(1, layers - 1), min_size=stages - 1, max_size=stages - 1, unique=True)
            if stages <= layers else st.just([])
        )  # fmt: skip
        bounds = [0, *sorted(cuts), layers]
        dealt = [b - a for a, b in pairwise(bounds)]
        for drawn in (dealt, even(layers, stages)):
            if len(drawn) == stages and space.allowed(row, drawn):
                counts = drawn
                break
    mode = draw(st.sampled_from(["none", *core.recompute_modes]))
    full = -1 if core.recompute_granularity == "model" else draw(st.integers(1, layers))
    return space.request(row, counts, full, mode)


def exported(exporter: Exporter, request: ExportRequest) -> tuple[ExportRequest, Mapping[str, str]]:
    """(strategy, its files): the strategy, or the nearest one that a refusal names.

    Raises:
        AssertionError: When a refusal names no strategy that exports.
    """
    asked = request
    for _ in range(_STEPS):
        try:
            return asked, exporter.export(asked)
        except CannotExpress as refusal:
            if not refusal.nearest:
                reject()  # no strategy of these devices and this batch comes near
            asked = nearest(asked, refusal.nearest)
    raise AssertionError(f"{refusal_chain(exporter, request)}: no nearest strategy exports")


def refusal_chain(exporter: Exporter, request: ExportRequest) -> str:
    """What an exporter says to a strategy, for messages."""
    try:
        exporter.export(request)
    except CannotExpress as refusal:
        return str(refusal)
    return "exports"


def nearest(request: ExportRequest, changes: Mapping[str, Any]) -> ExportRequest:
    """The strategy with the changes that a refusal names."""
    strategy, model = request.strategy, request.model
    if "precision" in changes:
        request = evolve(request, training=evolve(request.training, precision=changes["precision"]))
    fields = {name: changes.get(name, value) for name, value in strategy.fields.items()}
    stages = list(request.stages)
    if "stage_partition" in changes:
        stages = list(flat(changes["stage_partition"]))
        partition = changes["stage_partition"]
    else:
        partition = strategy.stage_partition
        count = _stages(fields, request)
        if count != len(stages):
            stages = even(model.num_layers, count)
            partition = stages
    recompute = {mode: list(request.recomputed(mode)) for mode in _MODES}
    word = changes.get("layer_recompute")
    if isinstance(word, str):
        recompute = {m: stages if m == word else [0] * len(stages) for m in _MODES}
    elif isinstance(word, Mapping):
        recompute = {m: list(flat(word.get(m, [0] * len(stages)))) for m in _MODES}
    else:
        whole = {m: sum(recompute[m]) == model.num_layers for m in _MODES}
        recompute = {m: stages if whole[m] else recompute[m] for m in _MODES}
    recompute = {
        m: [min(a, b) for a, b in zip(values, stages, strict=False)]
        if len(values) == len(stages) else [0] * len(stages)
        for m, values in recompute.items()
    }  # fmt: skip
    changed = Strategy(
        fields=fields, stage_partition=partition, layer_offset=strategy.layer_offset,
        layer_recompute=recompute,
    )  # fmt: skip
    return evolve(request, strategy=changed)


def _stages(fields: Mapping[str, Any], request: ExportRequest) -> int:
    """Virtual stages of changed fields: in proportion to the numbers that changed with them."""
    before, after = 1, 1
    for name in _stage_fields():
        before *= int(request.strategy.fields[name])
        after *= int(fields[name])
    return len(request.stages) * after // before


@cache
def _stage_fields() -> tuple[str, ...]:
    """Names of the fields whose product is the number of virtual stages: degree and chunks."""
    from autopar_core.plugins.fields import standard

    table = standard()
    split = [d for d in table.dimensions.values() if d.splits_layers]
    owners = {d.degree.owner for d in split}
    chunks = [
        f.name for f in table.fields.values() if f.owner in owners and f.level is Level.CHUNKS
    ]
    return (*(d.degree.name for d in split), *chunks)


def read_back(
    files: Mapping[str, str], main: str, manager: PluginManager, reader: str = ""
) -> Reading:
    """What a reader says about exported files; all of them lie in one folder."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return read_file(Path(folder) / main, main, manager, reader)


def same_strategy(request: ExportRequest, reading: Reading, manager: PluginManager) -> None:
    """Assert that what was read is what was written; a field that was not read is not compared.

    Raises:
        AssertionError: Naming the field.
    """
    from autopar_core.plugins.fields import declared_fields

    fields = declared_fields(manager)
    stages, layers = request.stages, request.model.num_layers
    for name, value in reading.strategy.items():
        if name == "stage_partition":
            assert flat(value) == stages, (name, value, stages)
        elif name == "layer_recompute":
            _same_recompute(value, request)
        elif name == "layer_offset":
            base = layers // len(stages)
            assert tuple(base + one for one in flat(value)) == stages, (name, value, stages)
        elif _means(name, request, fields):
            assert value == request[name], (name, value, request[name])
    told = {"stage_partition", "layer_offset"} & set(reading.strategy)
    if not told and reading.of("model"):
        assert len(set(stages)) == 1, f"the partition {stages} was not read"


def _same_recompute(value: Any, request: ExportRequest) -> None:
    stages = request.stages
    if isinstance(value, str):
        said = {mode: stages if mode == value else (0,) * len(stages) for mode in _MODES}
    else:
        zero = [0] * len(stages)
        said = {
            mode: tuple(np.minimum(_spread(value.get(mode, zero), len(stages)), stages).tolist())
            for mode in _MODES
        }
    for mode in _MODES:
        assert said[mode] == request.recomputed(mode), (mode, value, request.recomputed(mode))


def _spread(value: Any, stages: int) -> Ints:
    row = flat(value)
    assert len(row) == stages, f"{value} is not for {stages} stages"
    return np.array(row)


def _means(name: str, request: ExportRequest, fields: Mapping[str, Any]) -> bool:
    """Whether a field says anything in this strategy; a neutral value may be spelled either way."""
    return name in fields and request[name] != fields[name].neutral


def same_job(request: ExportRequest, reading: Reading) -> None:
    """Assert that model, training and devices were read as they were written.

    Raises:
        AssertionError: Naming the value.
    """
    model = reading.of("model")
    if model:
        read, wrote = (
            evolve(each, name="", max_position_embeddings=0)
            for each in (ModelConfig(**model), request.model)
        )
        assert read == wrote
    for section, written in (("training", request.training), ("cluster", request.cluster)):
        for key, value in reading.of(section).items():
            assert value == getattr(written, key), (section, key, value)
