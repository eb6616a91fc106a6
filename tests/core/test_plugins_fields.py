"""Fields and dimensions of a run: order, owners, and what an absent plugin leaves behind."""

from __future__ import annotations

from pathlib import Path

import tomli

from autopar_core.api import Field, Level, PluginInfo, hookimpl
from autopar_core.plugins import PluginManager, all_dimensions, declared_fields


ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests" / "fakes"
TABLE = tomli.loads((ROOT / "autopar_core/catalogue/dimensions.toml").read_text("utf-8"))


def load(*names: str, extra: tuple[tuple[str, object], ...] = ()) -> PluginManager:
    files = [FAKES / f"{name}.py" for name in names]
    return PluginManager.load(files=files, extra=extra, entry_points=False)


class Knobs:
    """Owns a field of its own and one of the standard table."""

    @hookimpl
    def autopar_plugin_info(self) -> PluginInfo:
        return PluginInfo(
            api=(1, 0),
            summary="Knobs.",
            fields=(
                Field(name="zeal", short="z", level=Level.SHARDING, neutral=0),
                Field(
                    name="schedule",
                    short="schedule",
                    level=Level.SCHEDULE,
                    neutral="none",
                    choices=("none", "zero_bubble"),
                ),
                Field(name="awe", short="a", level=Level.SHARDING, neutral=0),
            ),
        )


def test_without_plugins_the_table_remains() -> None:
    fields = declared_fields(load())
    assert list(fields) == [
        *(entry["degree"] for entry in TABLE["dimension"]),
        "micro_batch_size",
        "micro_batch_num",
        *(entry["name"] for entry in TABLE["field"]),
        "partition_plan",
        "recompute_plan",
    ]
    assert fields["cp_degree"] == Field(
        name="cp_degree",
        short="cp",
        level=Level.DEGREE,
        neutral=1,
        owner="cp",
        doc="Degree of the dimension cp.",
    )
    assert fields["vpp_degree"].owner == "pp"
    assert fields["vpp_degree"].level is Level.CHUNKS
    assert fields["schedule"].choices == ("none", "1f1b", "interleaved", "gpipe")
    assert fields["sequence_parallel"].boolean
    for name, field in fields.items():
        assert field.name == name
        assert field.owner
        assert field.doc
        field.encode(field.neutral)


def test_fields_of_the_core() -> None:
    fields = declared_fields(load())
    assert [
        (f.name, f.short, f.level, f.neutral) for f in fields.values() if f.owner == "core"
    ] == [
        ("micro_batch_size", "mbs", Level.BATCH, 1),
        ("micro_batch_num", "m", Level.BATCH, 1),
        ("partition_plan", "partition", Level.RECOMPUTE, 0),
        ("recompute_plan", "recompute", Level.RECOMPUTE, 0),
    ]


def test_plugins_fill_in_and_add() -> None:
    fields = declared_fields(load("complete", "rival", extra=(("knobs", Knobs()),)))
    standard = [entry["name"] for entry in TABLE["field"]]
    assert list(fields) == [
        "dp_degree", "tp_degree", "pp_degree", "cp_degree", "ep_degree",
        "micro_batch_size", "micro_batch_num",
        *standard,
        "awe", "ep_overlap", "zeal",
        "partition_plan", "recompute_plan",
    ]  # fmt: skip
    assert fields["tp_degree"].owner == "rival"
    assert fields["ep_degree"].owner == fields["ep_overlap"].owner == "complete"
    assert fields["schedule"].owner == "knobs"
    assert fields["schedule"].choices == ("none", "zero_bubble")
    spellings = [s for field in fields.values() for s in {field.name, field.short}]
    assert len(spellings) == len(set(spellings))


def test_all_dimensions() -> None:
    dimensions = all_dimensions(load("complete", "rival", "half"))
    assert [(d.name, d.degree.owner) for d in dimensions] == [
        ("dp", "dp"),
        ("tp", "rival"),
        ("pp", "pp"),
        ("cp", "cp"),
        ("ep", "complete"),
        ("hp", "half"),
    ]
    by_name = {dimension.name: dimension for dimension in dimensions}
    assert by_name["dp"].splits_batch
    assert by_name["dp"].replicates == ("parameters",)
    assert by_name["pp"].splits_layers
