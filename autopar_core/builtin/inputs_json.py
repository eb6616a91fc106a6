"""The effective inputs of a search: every value with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from autopar_core.api import SearchResult
from autopar_core.builtin.json_text import plain


DEFAULT = "default"
DESCRIBED = ("sources", "unverified", "name", "title", "vendor", "aliases", "bases")


def inputs(result: SearchResult) -> dict[str, Any]:
    """Model, training, cluster, system, framework, space, plugin sections, and the raw tables."""
    job = result.job
    system, framework = job.system, job.framework
    return {
        "model": _section(attrs.asdict(job.model), "model", job.sources),
        "parameters": job.model.parameters,
        "training": _section(attrs.asdict(job.training), "training", job.sources),
        "cluster": _section(attrs.asdict(job.cluster), "cluster", job.sources),
        "system": {
            "name": system.name,
            "title": system.title,
            "values": _profile(system, "system", job.sources),
        },
        "framework": {
            "name": framework.name,
            "title": framework.title,
            "fallback_for": framework.fallback,
            "values": _profile(framework, "framework", job.sources),
        },
        "search": _search(result),
        "plugins": {
            name: _section(table, f"plugins.{name}", job.sources)
            for name, table in job.plugin_sections.items()
        },
        "notes": list(job.notes),
        "raw": plain(job.raw),
    }


def source_of(path: str, *tables: Mapping[str, str]) -> str:
    """Where the value at a dotted path comes from: its own entry, or that of a table around it."""
    for table in tables:
        key = path
        while key:
            if key in table:
                return table[key]
            key = key.rpartition(".")[0]
    return DEFAULT


def _section(values: Mapping[str, Any], name: str, sources: Mapping[str, str]) -> dict[str, Any]:
    return {
        key: {"value": plain(value), "source": source_of(f"{name}.{key}", sources)}
        for key, value in values.items()
    }


def _profile(profile: Any, name: str, sources: Mapping[str, str]) -> dict[str, Any]:
    """Every number of a profile by dotted path; the person's own source wins over the profile's."""
    tree = {key: value for key, value in plain(profile).items() if key not in DESCRIBED}
    own = {key: text for key, text in sources.items() if key.startswith(f"{name}.")}
    made = {}
    for path, value in _leaves(tree, ""):
        given = source_of(f"{name}.{path}", own)
        inside = path.removeprefix("sections.").replace("attention_default", "attention.default")
        source = given if given != DEFAULT else source_of(inside, profile.sources)
        source = source if source != DEFAULT else f"{name} profile {profile.name}"
        made[path] = {"value": value, "source": source, "verified": path not in profile.unverified}
    return made


def _leaves(tree: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{before}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def _search(result: SearchResult) -> dict[str, Any]:
    space, sources = result.job.space, result.job.sources
    made: dict[str, Any] = {}
    for name, wanted in space.wanted.items():
        field = result.fields.get(name)
        paths = [f"search.{name}", f"search.{field.short}"] if field else [f"search.{name}"]
        found = [source_of(path, sources) for path in paths]
        source = next((text for text in found if text != DEFAULT), DEFAULT)
        made[name] = {"value": plain(wanted), "source": source}
    settings = {
        "stage_partition": [plan.text for plan in space.partitions],
        "layer_recompute": [plan.text for plan in space.recomputes],
        "habits": space.habits,
        "top_k": space.top_k,
        "rank_by": space.rank_by,
        "generator": space.generator,
        "weights": space.weights,
    }
    return {"wanted": made, "settings": _section(settings, "search", sources)}
