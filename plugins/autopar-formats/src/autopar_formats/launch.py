"""The shell script that launches an exported configuration."""

from __future__ import annotations

from collections.abc import Mapping

from autopar_core.api import ExportRequest


def nodes(request: ExportRequest) -> tuple[int, int]:
    """(machines, devices on each): scale-up domains, at most the devices that there are.

    Racks of more than eight devices are launched as machines of eight where that divides.
    """
    devices = request.cluster.devices
    each = min(request.cluster.devices_per_domain, devices)
    if each > 8 and devices % 8 == 0:
        each = 8
    while devices % each:
        each -= 1
    return devices // each, each


def launch_script(
    request: ExportRequest, command: str, environment: Mapping[str, str] | None = None
) -> str:
    """``torchrun`` with as many processes as the strategy has devices."""
    machines, each = nodes(request)
    exports = "".join(f"export {name}={value}\n" for name, value in (environment or {}).items())
    return (
        f"#!/usr/bin/env bash\n{request.comment()}set -euo pipefail\n{exports}"
        f"torchrun --nnodes {machines} --nproc_per_node {each} \\\n"
        '  --rdzv_backend c10d --rdzv_endpoint "${MASTER_ADDR:-localhost}:${MASTER_PORT:-29500}" \\\n'
        f"  {command}\n"
    )
