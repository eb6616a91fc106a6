"""The script that launches an exported configuration."""

from __future__ import annotations

from autopar_core.api import ExportRequest
from autopar_torchtitan.plan import Plan


def launch_script(request: ExportRequest, plan: Plan, arguments: str) -> str:
    """``torchrun`` with as many processes as the strategy has devices.

    Args:
        arguments: What selects the configuration; ``$HERE`` is the folder of the script.
    """
    machines, each = nodes(request)
    # The first rank of the last stage sees the loss; ranks are numbered with pp outermost.
    shown = (plan.devices - plan.devices // plan.pipeline) % each
    return (
        f"#!/usr/bin/env bash\n{request.comment()}set -euo pipefail\n"
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'
        'export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"\n'
        'export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"\n'
        f"torchrun --nnodes {machines} --nproc_per_node {each} \\\n"
        '  --rdzv_backend c10d --rdzv_endpoint "${MASTER_ADDR:-localhost}:${MASTER_PORT:-29500}" \\\n'
        f'  --local-ranks-filter "${{LOG_RANK:-{shown}}}" --role rank --tee 3 \\\n'
        f'  -m torchtitan.train {arguments} "$@"\n'
    )


def nodes(request: ExportRequest) -> tuple[int, int]:
    """(machines, devices on each): scale-up domains, at most the devices that there are.

    Domains of more than eight devices are launched as machines of eight where that divides.
    """
    devices = request.cluster.devices
    each = min(request.cluster.devices_per_domain, devices)
    if each > 8 and devices % 8 == 0:
        each = 8
    while devices % each:
        each -= 1
    return devices // each, each
