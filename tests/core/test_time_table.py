"""Device, host and windows of one phase against arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest

from autopar_core.compose.time_table import compose_phase, with_host
from autopar_core.domain.framework import LayerHost
from autopar_core.domain.terms import TimeTerm, Window
from autopar_core.work.profile_terms import host_terms


def test_the_slower_of_device_and_host() -> None:
    # 3 and 4: (243 + 1024) ^ (1/5) = 4.17423; far apart it is the longer one
    assert with_host(np.array([3.0]), np.array([4.0])) == pytest.approx(1267**0.2, rel=1e-12)
    assert with_host(np.array([1.0]), np.array([20.0])) == pytest.approx(20.0, rel=1e-6)


def test_rows_without_host_time_stay_as_they_are() -> None:
    device = np.array([0.1, 0.3, 0.0])
    assert (with_host(device, np.zeros(3)) == device).all()
    # one row's host time does not touch the others, to the last bit
    mixed = with_host(device, np.array([0.0, 0.2, 0.0]))
    assert (mixed[[0, 2]] == device[[0, 2]]).all()
    assert mixed[1] > device[1]


def test_host_times_of_all_owners_add_up_under_the_phase() -> None:
    # device 2 and an exposed collective of 1; host 1.5 + 2.5 = 4: (3^5 + 4^5)^(1/5)
    made = [
        TimeTerm(name="work", seconds=np.array([2.0])),
        TimeTerm(name="collective", seconds=np.array([1.0]), resource="link"),
        TimeTerm(name="launches", seconds=np.array([1.5]), resource="host", owner="one"),
        TimeTerm(name="launches", seconds=np.array([2.5]), resource="host", owner="two"),
    ]
    cost = compose_phase(made, 1)
    assert cost.host == 4.0
    assert cost.total == pytest.approx(1267**0.2, rel=1e-12)


def test_gathers_of_a_block_hide_under_what_the_host_makes_of_it() -> None:
    # a gather of 5 under device 3 and host 4: 5 shows max(0, 5 - 4.17423) and 0.1 x 4.17423
    window = Window(name="block", contention=0.1)
    made = [
        TimeTerm(name="work", seconds=np.array([3.0])),
        TimeTerm(name="launches", seconds=np.array([4.0]), resource="host"),
        TimeTerm(name="gather", seconds=np.array([5.0]), resource="link", window=window),
    ]
    slower = 1267**0.2
    shown = 5 - slower + 0.1 * slower
    assert compose_phase(made, 1).total == pytest.approx(slower + shown, rel=1e-12)


def test_host_terms_of_a_profile() -> None:
    # two layers' worth: 2 x 1 ms, 2 x 2 ms; full recompute adds half of the 3 ms, twice
    host = LayerHost(forward_seconds=1e-3, backward_seconds=2e-3, recompute={"full": 0.5})
    found = {t.phase: float(t.seconds[0]) for t in host_terms(host, np.array([2.0]))}
    assert found == pytest.approx({"forward": 2e-3, "backward": 4e-3, "recompute_full": 3e-3})
    assert host_terms(LayerHost(), np.ones(1)) == []
