"""Laws of collectives and operations against arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar_core.domain.system import (
    AttentionLaw,
    FormatLaw,
    GemmLaw,
    KernelLaw,
    LinkLaw,
    Links,
    MemoryLaw,
    SystemProfile,
)
from autopar_core.laws.collectives import (
    Group,
    all_reduce_seconds,
    all_to_all_seconds,
    bucket_seconds,
    fixed_seconds,
    ring_seconds,
    send_seconds,
)
from autopar_core.laws.compute import (
    attention_law,
    attention_seconds,
    gemm_seconds,
    linear_seconds,
    moved_seconds,
    unfused_attention_seconds,
    wave_share,
)


# 100 GB/s, 10 us and 1 MB inside a domain of 8; 10 GB/s, 50 us and 2 MB per device across.
INTER = LinkLaw(bytes_per_second=10e9, latency_seconds=50e-6, half_bytes=2e6)
INTRA = LinkLaw(bytes_per_second=100e9, latency_seconds=10e-6, half_bytes=1e6)
LINKS = Links(intra=INTRA, inter=INTER)
MESH = Links(
    intra=LinkLaw(
        bytes_per_second=100e9, latency_seconds=10e-6, half_bytes=1e6, full_mesh=True
    ),
    inter=INTER,
)  # fmt: skip
BYTES = np.array([400e6])

LAW = AttentionLaw(eta_f=0.5, s0_f=1000.0, tail_f=0.5, eta_b=0.4, s0_b=500.0, tail_b=0.25)
SMALL = AttentionLaw(eta_f=0.25, s0_f=0.0, tail_f=0.0, eta_b=0.25, s0_b=0.0, tail_b=0.0)
SYSTEM = SystemProfile(
    name="hand", devices_per_domain=8, memory_bytes=1, compute_units=10,
    peak_flops={"bf16": 100e12, "fp8": 200e12},
    gemm=GemmLaw(efficiency=0.5, k0=100.0, formats={"fp8": FormatLaw(speed=2.0)}),
    kernel=KernelLaw(launch_seconds=3e-6),
    memory=MemoryLaw(bytes_per_second=2e12, elementwise_efficiency=0.5),
    attention={"flash": {"128": LAW, "64": SMALL}}, links=LINKS,
)  # fmt: skip


def group(size: int, per_domain: int, domain: int = 8) -> Group:
    return Group(np.array([size]), np.array([per_domain]), domain)


# --- collectives ------------------------------------------------------------------------------


def test_ring_inside_a_domain() -> None:
    # V = 400 MB x 3/4 = 300 MB; (300 + 1) MB / 100 GB/s = 3.01 ms; + 10 us.
    assert ring_seconds(LINKS, BYTES, group(4, 8))[0] == pytest.approx(3.02e-3, rel=1e-12)


def test_ring_across_full_domains() -> None:
    # 8 devices of each domain drive 8 network shares: 80 GB/s, below the 100 GB/s inside.
    # V = 400 MB x 15/16 = 375 MB; (375 + 2) MB / 80 GB/s = 4.7125 ms; + 50 us.
    assert ring_seconds(LINKS, BYTES, group(16, 8))[0] == pytest.approx(4.7625e-3, rel=1e-12)


def test_ring_with_a_partly_filled_domain() -> None:
    # 12 = 8 + 4: the domain with 4 devices has 4 network shares, 40 GB/s.
    # V = 400 MB x 11/12 = 366.667 MB; 9.16667 ms + 2 MB / 40 GB/s = 50 us; + 50 us.
    seconds = ring_seconds(LINKS, BYTES, group(12, 8))[0]
    assert seconds == pytest.approx(9.1666667e-3 + 100e-6, rel=1e-8)


def test_ring_of_one_device_per_domain() -> None:
    # One network share: V = 400 MB x 3/4 = 300 MB; 302 MB / 10 GB/s = 30.2 ms; + 50 us.
    assert ring_seconds(LINKS, BYTES, group(4, 1))[0] == pytest.approx(30.25e-3, rel=1e-12)


def test_the_network_is_never_faster_than_the_domain() -> None:
    # 16 shares of 10 GB/s are 160 GB/s, the domain gives 100: 400 MB x 31/32 = 387.5 MB.
    seconds = ring_seconds(LINKS, BYTES, group(32, 16, 16))[0]
    assert seconds == pytest.approx(389.5e6 / 100e9 + 50e-6, rel=1e-12)


def test_full_mesh() -> None:
    # 4 of 8 devices use 3 of their 7 direct links: 300/7 GB/s.
    # 300 MB at 42.857 GB/s = 7 ms; 1 MB = 23.333 us; + 10 us.
    seconds = ring_seconds(MESH, BYTES, group(4, 4))[0]
    assert seconds == pytest.approx(7e-3 + 23.333333e-6 + 10e-6, rel=1e-8)
    # all 8 have all links
    whole = ring_seconds(MESH, BYTES, group(8, 8))[0]
    assert whole == pytest.approx(ring_seconds(LINKS, BYTES, group(8, 8))[0], rel=1e-12)


def test_all_reduce_is_two_rings() -> None:
    for size, near in ((4, 8), (16, 8), (12, 8)):
        one = ring_seconds(LINKS, BYTES, group(size, near))
        two = all_reduce_seconds(LINKS, BYTES, group(size, near))
        np.testing.assert_allclose(two, 2 * one, rtol=1e-15)


def test_all_to_all() -> None:
    # 4 calls, local tensors of 400 MB in all: 4 x 10 us + 400 MB x 3/4 / 100 GB/s.
    seconds = all_to_all_seconds(LINKS, BYTES, group(4, 8), calls=4)[0]
    assert seconds == pytest.approx(3.04e-3, rel=1e-12)


def test_send() -> None:
    assert send_seconds(LINKS, BYTES, group(2, 2))[0] == pytest.approx(4.01e-3, rel=1e-12)
    # one message crosses with one device's share of the network
    assert send_seconds(LINKS, BYTES, group(2, 1))[0] == pytest.approx(40.05e-3, rel=1e-12)
    # one of seven direct links: 400 MB / (100/7 GB/s) = 28 ms
    assert send_seconds(MESH, BYTES, group(2, 2))[0] == pytest.approx(28.01e-3, rel=1e-12)


@pytest.mark.parametrize(
    "collective", [ring_seconds, all_reduce_seconds, all_to_all_seconds, send_seconds]
)
@pytest.mark.parametrize("links", [LINKS, MESH])
def test_a_group_of_one_is_free(collective, links) -> None:  # type: ignore[no-untyped-def]
    assert collective(links, BYTES, group(1, 8))[0] == 0.0
    assert collective(links, BYTES, group(1, 1))[0] == 0.0


def test_fixed_and_proportional_parts_add_up() -> None:
    several = Group(np.array([1, 4, 12, 16]), np.array([1, 4, 8, 8]), 8)
    nbytes = np.full(4, 123e6)
    parts = fixed_seconds(LINKS, several) + ring_seconds(LINKS, nbytes, several, False)
    np.testing.assert_allclose(parts, ring_seconds(LINKS, nbytes, several), rtol=1e-14)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    size=st.integers(1, 512), near=st.sampled_from([1, 2, 4, 8]), nbytes=st.floats(0, 1e11),
    faster=st.floats(1, 10), link=st.sampled_from(["intra", "inter"]), mesh=st.booleans(),
)  # fmt: skip
def test_a_faster_link_never_slows_a_collective(
    size: int, near: int, nbytes: float, faster: float, link: str, mesh: bool
) -> None:
    links = MESH if mesh else LINKS
    old = getattr(links, link)
    new = LinkLaw(
        bytes_per_second=old.bytes_per_second * faster, latency_seconds=old.latency_seconds,
        half_bytes=old.half_bytes, full_mesh=old.full_mesh,
    )  # fmt: skip
    quick = Links(
        intra=new if link == "intra" else links.intra,
        inter=new if link == "inter" else links.inter,
    )
    members, moved = group(size, min(near, size)), np.array([nbytes])
    for collective in (ring_seconds, all_reduce_seconds, all_to_all_seconds, send_seconds):
        assert collective(quick, moved, members)[0] <= collective(links, moved, members)[0]


# --- operations -------------------------------------------------------------------------------


def test_gemm() -> None:
    # 2 x 1000 x 2000 x 400 = 1.6e9 FLOP at 50 TFLOP/s = 32 us; x (1 + 100/400) = 40 us; + 3 us.
    seconds = gemm_seconds(SYSTEM, "bf16", np.array([1000]), np.array([2000]), np.array([400]))
    assert seconds[0] == pytest.approx(43e-6, rel=1e-12)


def test_gemm_takes_the_speed_of_its_format() -> None:
    # the products of 32 us take 16 us at twice the speed; the output of 16 bits still takes 8 us
    sizes = np.array([1000]), np.array([2000]), np.array([400])
    assert gemm_seconds(SYSTEM, "fp8", *sizes)[0] == pytest.approx(27e-6, rel=1e-12)
    # an implementation that reaches 0.8 of that speed: 20 us
    slower = gemm_seconds(SYSTEM, "fp8", *sizes, speed_share=0.8)[0]
    assert slower == pytest.approx(31e-6, rel=1e-12)
    with pytest.raises(KeyError):
        gemm_seconds(SYSTEM, "nvfp4", *sizes)
    # 16-bit formats stand in for each other
    assert gemm_seconds(SYSTEM, "fp16", *sizes) == gemm_seconds(SYSTEM, "bf16", *sizes)


def test_linear() -> None:
    # Forward as above. Backward: input gradient with inner 2000: 32 us x 1.05 + 3 us = 36.6 us;
    # weight gradient with inner 1000 (tokens): 32 us x 1.1 + 3 us = 38.2 us.
    tokens, n_in, n_out = np.array([1000]), np.array([400]), np.array([2000])
    forward, backward, weight = linear_seconds(SYSTEM, "bf16", tokens, n_in, n_out)
    assert forward[0] == pytest.approx(43e-6, rel=1e-12)
    assert backward[0] == pytest.approx(74.8e-6, rel=1e-12)
    assert weight[0] == pytest.approx(38.2 / 74.8, rel=1e-12)


def test_attention() -> None:
    # 2 sequences, 5 heads of 128, 2000 x 2000 causal:
    #   W = 4 x 2 x 5 x 2000 x 2000 x 128 x 1/2 = 1.024e10
    #   longest row block on one of 10 units: 4 x 128 x 2000 x 128 x 10 = 1.31072e9
    # forward: 1.024e10 / 50e12 x (1 + 1000/2000) = 307.2 us; 0.5 x 1.31072e9 / 50e12 = 13.1072 us;
    #   + 3 us = 323.3072 us.
    # backward: 2.5 x (1.024e10 / 40e12 x (1 + 500/2000) + 0.25 x 1.31072e9 / 40e12)
    #   = 2.5 x (320 us + 8.192 us) = 820.48 us; + 9 us = 829.48 us.
    call = (np.array([2]), np.array([5]), np.array([2000]), np.array([2000]), np.array([0.5]))
    forward, backward = attention_seconds(SYSTEM, "flash", 128, *call)
    assert forward[0] == pytest.approx(323.3072e-6, rel=1e-12)
    assert backward[0] == pytest.approx(829.48e-6, rel=1e-12)
    # an implementation with half the efficiency: everything but the launches twice
    forward, backward = attention_seconds(SYSTEM, "flash", 128, *call, scale=0.5)
    assert forward[0] == pytest.approx(643.6144e-6, rel=1e-12)
    assert backward[0] == pytest.approx(1649.96e-6, rel=1e-12)


def test_attention_of_small_and_odd_heads() -> None:
    # Heads of 64 take their own law: W = 5.12e9 at 25 TFLOP/s = 204.8 us, no tail; + 3 us.
    call = (np.array([2]), np.array([5]), np.array([2000]), np.array([2000]), np.array([0.5]))
    forward, _ = attention_seconds(SYSTEM, "flash", 64, *call)
    assert forward[0] == pytest.approx(207.8e-6, rel=1e-12)
    # Heads of 96 take the law of 128 and pay the square root of their padding: W = 7.68e9 and
    # sqrt(128/96) = 1.154701: 7.68e9 x 1.154701 / 50e12 x 1.5 = 266.0431 us; tail 9.8304 us.
    forward, _ = attention_seconds(SYSTEM, "flash", 96, *call)
    assert forward[0] == pytest.approx((266.0431 + 9.8304 + 3) * 1e-6, rel=1e-6)
    assert attention_law(SYSTEM, "unknown", 128) is LAW


def test_moved() -> None:
    # 1e9 B at half of 2 TB/s = 1 ms; 4 kernels x 3 us.
    assert moved_seconds(SYSTEM, np.array([1e9]), 4)[0] == pytest.approx(1.012e-3, rel=1e-12)


def test_buckets_pay_a_hop_per_further_rank() -> None:
    # 16 ranks across nodes: 15 hops of 2 us; the 8 of one node have none here
    links = evolve(LINKS, inter=evolve(INTER, hop_seconds=2e-6))
    assert bucket_seconds(links, group(16, 8)) == pytest.approx(30e-6, rel=1e-12)
    assert bucket_seconds(links, group(8, 8)) == 0


def test_unfused_attention() -> None:
    # 4 x 2 x 8 x 1024 x 1024 x 128 = 8.589934592e9 at 0.7 x 50 TFLOP/s = 245.4266 us, two launches;
    # backward twice that and four launches
    sizes = [np.array([v]) for v in (2, 8, 1024, 1024)]
    forward, backward = unfused_attention_seconds(SYSTEM, 128, *sizes)
    assert forward == pytest.approx(245.42670263e-6 + 6e-6, rel=1e-9)
    assert backward == pytest.approx(490.85340526e-6 + 12e-6, rel=1e-9)
    # 150 is no multiple of 8: a quarter of the rate
    slow, _ = unfused_attention_seconds(SYSTEM, 150, *sizes)
    work = 245.42670263e-6 * 150 / 128
    assert slow == pytest.approx(4 * work + 6e-6, rel=1e-9)


def test_whole_waves_of_tiles() -> None:
    # 10 units, tiles of 128 x 256: 1280 x 256 is one wave, 1408 x 256 takes two for 1.1
    waves = evolve(SYSTEM, gemm=evolve(SYSTEM.gemm, tile=(128, 256)))
    rows = np.array([128, 1280, 1408, 2560])
    columns = np.full(4, 256)
    assert wave_share(waves, rows, columns) == pytest.approx([1, 1, 2 / 1.1, 1])
    assert wave_share(SYSTEM, rows, columns) == 1.0


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 5_000))
def test_more_rows_never_take_less_time(rows: int, columns: int, more: int) -> None:
    waves = evolve(SYSTEM, gemm=evolve(SYSTEM.gemm, tile=(128, 256)))
    both = np.array([rows, rows + more])
    one = gemm_seconds(waves, "bf16", both, np.full(2, columns), np.full(2, 1024))
    assert one[1] >= one[0] * (1 - 1e-12)
