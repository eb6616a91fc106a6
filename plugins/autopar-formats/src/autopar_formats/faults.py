"""What a framework has no way to say about one strategy, and the nearest strategy that it can say."""

from __future__ import annotations

from typing import Any

from autopar_core.api import CannotExpress, ExportRequest


class Faults:
    """Collects every fault of a strategy, so that the nearest one named has none of them.

    Args:
        request: The strategy.
        framework: Its name, for the sentences.
    """

    def __init__(self, request: ExportRequest, framework: str) -> None:
        self.request, self.framework = request, framework
        self._found: list[tuple[str, str]] = []
        self._nearest: dict[str, Any] = {}

    def add(self, field: str, reason: str, **nearest: Any) -> None:
        """A fault; ``nearest`` are the fields that would repair it.

        ``reason`` follows the framework's name.
        """
        self._found.append((field, f"{self.framework} {reason}"))
        self._nearest.update(nearest)

    def value(self, field: str) -> int:
        """A number of the strategy as repaired so far."""
        return int(self._nearest.get(field, self.request[field]))

    def replan(self) -> None:
        """Name a partition and a recompute for the stages that are left after repair."""
        stages, layers = self.value("pp_degree"), self.request.model.num_layers
        most = -(-layers // stages)
        while (stages - 1) * most >= layers:
            most -= 1
        self._nearest["stage_partition"] = [most] * (stages - 1) + [layers - most * (stages - 1)]
        some = any(self.request.recomputed("full"))
        word = "selective" if sum(self.request.recomputed("selective")) == layers else "none"
        self._nearest["layer_recompute"] = "full" if some else word

    def raise_any(self) -> None:
        """Stop if there was a fault.

        Raises:
            CannotExpress: For the first one.
        """
        if self._found:
            field, reason = self._found[0]
            raise CannotExpress(field, reason, self._whole())

    def _whole(self) -> dict[str, Any]:
        """The nearest strategy: freed ranks become replicas, and the batch is dealt anew.

        Empty where the global batch does not divide among that many replicas.
        """
        nearest = dict(self._nearest)
        if "dp_degree" in nearest:
            share, rest = divmod(self.request.training.global_batch_size, nearest["dp_degree"])
            if rest:
                return {}
            most = self.value("micro_batch_size")
            size = max(b for b in range(1, most + 1) if share % b == 0)
            nearest |= {"micro_batch_size": size, "micro_batch_num": share // size}
        if not {"dp_degree", "zero_stage", "shard_degree"}.isdisjoint(nearest):
            replicas = self.value("dp_degree")
            moved = "dp_degree" in nearest or not self.request.count("zero_stage")
            shard = replicas if moved else self.value("shard_degree")
            shard = shard if self.value("zero_stage") else 1
            nearest |= {"shard_degree": shard, "replicate_degree": replicas // shard}
        same = [name for name, value in nearest.items() if self._has(name, value)]
        return {name: value for name, value in nearest.items() if name not in same}

    def _has(self, name: str, value: Any) -> bool:
        """Whether the strategy has a value already."""
        return name in self.request.strategy.fields and self.request[name] == value

    # Faults that several frameworks share.

    def no_virtual_stages(self) -> None:
        """No virtual stages, no interleaving, no split backward."""
        schedule = str(self.request["schedule"])
        if self.request.count("vpp_degree") > 1 or schedule == "interleaved":
            self.add("vpp_degree", "has no virtual stages", vpp_degree=1, schedule="1f1b")
        elif schedule in ("zb-h1", "zbv", "dualpipev"):
            self.add("schedule", f"has no {schedule}", schedule="1f1b")
            rows = self.request.strategy.stage_partition
            if isinstance(rows[0], list):  # V-shaped: as many layers on every rank
                layers = [sum(column) for column in zip(*rows, strict=True)]
                self.add("schedule", f"has no {schedule}", stage_partition=layers)

    def one_stage(self) -> None:
        """No pipeline: its ranks become replicas in the nearest strategy."""
        stages = self.request.count("pp_degree")
        if stages > 1:
            self.add(
                "pp_degree", "has no pipeline stages in its configuration", pp_degree=1,
                vpp_degree=1, schedule="none", dp_degree=self.value("dp_degree") * stages,
            )  # fmt: skip

    def whole_kv_heads(self) -> None:
        """Every tensor-parallel rank needs whole KV heads."""
        tensor, heads = self.request.count("tp_degree"), self.request.model.kv_heads
        if heads % tensor:
            fits = max(d for d in range(1, tensor + 1) if tensor % d == 0 and heads % d == 0)
            self.add(
                "tp_degree", f"needs whole KV heads on every rank and there are {heads}",
                tp_degree=fits, dp_degree=self.value("dp_degree") * tensor // fits,
            )  # fmt: skip

    def shard_all(self) -> None:
        """States are sharded over every replica or not at all."""
        replicas = self.request.count("dp_degree")
        if self.request.count("zero_stage") and self.request.count("shard_degree") < replicas:
            self.add(
                "shard_degree", "shards over every replica or not at all",
                shard_degree=self.value("dp_degree"), replicate_degree=1,
            )  # fmt: skip

    def whole_recompute(self) -> bool:
        """All layers are recomputed in full, or none; whether all are."""
        full = sum(self.request.recomputed("full"))
        selective = sum(self.request.recomputed("selective"))
        layers = self.request.model.num_layers
        if selective or full not in (0, layers):
            # Recomputing more fits where recomputing less did.
            self.add("layer_recompute", "recomputes all layers or none", layer_recompute="full")
        return full == layers
