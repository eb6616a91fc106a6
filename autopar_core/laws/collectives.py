"""Collectives by a message-size law per link, with hierarchy: inside the scale-up domain or across.

Every function takes bytes of the full tensor as (N,) and a :class:`Group`, and returns (N,) seconds;
a group of one costs nothing.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Array, Bools, Floats, Ints
from autopar_core.domain.system import Links


@frozen(eq=False)
class Group:
    """Ranks that talk to each other.

    Attributes:
        size: (N,) ranks.
        per_domain: (N,) of them inside one scale-up domain.
        domain: Devices of a domain.
    """

    size: Ints
    per_domain: Ints
    domain: int

    @property
    def inside(self) -> Bools:
        """(N,) the whole group fits into one scale-up domain."""
        return np.asarray(self.size <= self.per_domain)


def _link(links: Links, group: Group) -> tuple[Floats, Floats, Floats]:
    """(bytes/s, latency, half bytes) of the slowest link that a ring over the group crosses.

    Across domains each of the group's ranks on a node drives its own network share; a partly filled
    node rules (its ranks = size modulo ranks per node).
    """
    intra, inter = links.intra, links.inter
    inside = group.inside
    near = np.full(len(group.size), intra.bytes_per_second)
    if intra.full_mesh and group.domain > 1:
        together = np.minimum(group.size, group.per_domain)
        near = near * np.maximum(together - 1, 1) / (group.domain - 1)
    partly = group.size % np.maximum(group.per_domain, 1)
    drivers = np.where(partly == 0, group.per_domain, partly)
    far = np.minimum(near, inter.bytes_per_second * drivers)
    return (
        np.where(inside, near, far),
        np.where(inside, intra.latency_seconds, inter.latency_seconds),
        np.where(inside, intra.half_bytes, inter.half_bytes),
    )


def ring_seconds(links: Links, nbytes: Array, group: Group, with_latency: bool = True) -> Floats:
    """All-gather or reduce-scatter of a tensor of ``nbytes``: latency + (V + half) / B, V = S (n-1)/n.

    ``with_latency`` False leaves the part proportional to the bytes, so that a sum over units can
    carry the fixed part once.
    """
    rate, latency, half = _link(links, group)
    n = group.size
    seconds = np.asarray(nbytes, np.float64) * (n - 1) / n / rate
    if with_latency:
        seconds = seconds + latency + half / rate
    return np.asarray(np.where(n > 1, seconds, 0.0))


RING = "latency + (bytes x (ranks-1)/ranks + half) / bandwidth"
SEND = "latency + bytes / bandwidth"


def ring_inputs(links: Links, nbytes: Array, group: Group) -> dict[str, Array]:
    """What :func:`ring_seconds` evaluates, by name, for people who check it by hand."""
    rate, latency, half = _link(links, group)
    return {
        "bytes": nbytes, "ranks": group.size, "bandwidth (B/s)": rate, "latency (s)": latency,
        "half (B)": half,
    }  # fmt: skip


def send_inputs(links: Links, nbytes: Array, group: Group) -> dict[str, Array]:
    """What :func:`send_seconds` evaluates, by name."""
    rate, latency = _neighbour(links, group)
    return {"bytes": nbytes, "bandwidth (B/s)": rate, "latency (s)": latency}


def fixed_seconds(links: Links, group: Group) -> Floats:
    """The part of :func:`ring_seconds` that does not depend on the bytes."""
    return ring_seconds(links, np.zeros(len(group.size)), group)


def bucket_seconds(links: Links, group: Group) -> Floats:
    """What a message more costs when a ring sends its tensor in buckets: one hop per further rank."""
    inside = group.inside
    hop = np.where(inside, links.intra.hop_seconds, links.inter.hop_seconds)
    return np.asarray(hop * (group.size - 1))


def all_reduce_seconds(links: Links, nbytes: Array, group: Group) -> Floats:
    """Reduce-scatter followed by all-gather."""
    return 2.0 * ring_seconds(links, nbytes, group)


def all_to_all_seconds(links: Links, nbytes: Array, group: Group, calls: int = 1) -> Floats:
    """``calls`` all-to-alls whose local tensors sum to ``nbytes``: V = S (n-1)/n, one latency each."""
    rate, latency, _ = _link(links, group)
    n = group.size
    seconds = calls * latency + np.asarray(nbytes, np.float64) * (n - 1) / n / rate
    return np.asarray(np.where(n > 1, seconds, 0.0))


def send_seconds(links: Links, nbytes: Array, group: Group) -> Floats:
    """One message to the next rank of the group: the slowest neighbour decides."""
    rate, latency = _neighbour(links, group)
    seconds = latency + np.asarray(nbytes, np.float64) / rate
    return np.asarray(np.where(group.size > 1, seconds, 0.0))


def _neighbour(links: Links, group: Group) -> tuple[Floats, Floats]:
    """(bytes/s, latency) between neighbours of a group."""
    inside = group.inside
    rate = np.where(inside, links.intra.bytes_per_second, links.inter.bytes_per_second)
    if links.intra.full_mesh and group.domain > 1:
        mesh = links.intra.bytes_per_second / (group.domain - 1)
        rate = np.where(inside, mesh, rate)
    return rate, np.where(inside, links.intra.latency_seconds, links.inter.latency_seconds)
