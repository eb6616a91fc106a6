"""A plugin that fails is named, wherever it fails."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from autopar_core.api import InputError, PluginInfo, hookimpl
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.errors import PluginCallError
from autopar_core.search.run import search
from autopar_core.testing.bench import SMALL_JOB, load


class Failing:
    @hookimpl
    def autopar_plugin_info(self) -> PluginInfo:
        return PluginInfo(api=(1, 0), summary="Fails.")

    @hookimpl
    def autopar_memory(self) -> list[Any]:
        raise ValueError("no memory model")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_in_a_worker_reaches_the_person(workers: int) -> None:
    manager = load(extra=[("failing", Failing())])
    job = load_job(None, SMALL_JOB, Overrides(), manager)
    message = "plugin 'failing' failed in autopar_memory: ValueError: no memory model"
    with pytest.raises(PluginCallError, match=message):
        search(job, manager, workers=workers, chunk_rows=64)


@pytest.mark.parametrize("error", [PluginCallError("p", "h", "w"), InputError("a.toml: b", "c")])
def test_errors_survive_the_way_between_processes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
