"""Schedules that split the backward: ZB-H1, ZBV and DualPipeV as lists of operations.

The gradient of a stage's input must travel on at once; the gradients of its weights can wait and
fill time in which the rank would be idle.

Sources: Qi et al. 2023 (arXiv 2401.10241), ZB-H1 in section 3 and ZB-V in section 6 (V-shaped
placement: chunk 0 runs through the ranks forwards, chunk 1 backwards); DeepSeek DualPipe (arXiv
2412.19437) in its V form. Orders as in PyTorch ``torch/distributed/pipelining/schedules.py``:
InterleavedZeroBubble with one chunk, ZBVZeroBubble, DualPipeV.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen


FORWARD, BACKWARD, INPUT, WEIGHT, NOTHING = range(5)
SPLIT = ("zb-h1", "zbv", "dualpipev")
# Two chunks per rank, the second one placed in reverse.
V_SHAPED = ("zbv", "dualpipev")

Operation = tuple[int, int, int]  # kind, chunk, micro-batch


@frozen
class Listed:
    """Operations of every rank and where they repeat.

    Attributes:
        ranks: The operations of each rank.
        chunks: Chunks per rank.
        cut: Position after the last repetition, per rank.
        length: Positions before it that repeat, on the rank with the fewest.
        period: Positions of one repetition, which is one micro-batch.
    """

    ranks: list[list[Operation]]
    chunks: int
    cut: list[int]
    length: int
    period: int


def check(schedule: str, p: int, v: int, m: int) -> None:
    """Refuse sizes that a schedule does not have.

    Raises:
        ValueError: Which size.
    """
    wanted = 2 if schedule in V_SHAPED and p > 1 else 1
    if v != wanted:
        raise ValueError(f"schedule {schedule!r} runs {wanted} chunks per rank, got v={v}")
    if schedule == "dualpipev" and p > 1 and m < 2 * p:
        raise ValueError(f"dualpipev needs a micro-batch per stage, got m={m} for {2 * p} stages")


def listed(schedule: str, p: int, m: int) -> Listed:
    """The operations of a schedule on p ranks."""
    if p == 1:
        alone = [(kind, 0, i) for i in range(m) for kind in (FORWARD, BACKWARD)]
        return Listed([alone], 1, [2 * m], 2 * m, 2)
    return {"zb-h1": _zb_h1, "zbv": _zbv, "dualpipev": _dualpipev}[schedule](p, m)


def _zb_h1(p: int, m: int) -> Listed:
    """1F1B whose rank r puts its weight gradients off by r micro-batches.

    Rank r has p - r micro-batches in flight and r waiting for their weights: p on every rank, the
    peak of 1F1B.
    """
    ranks = []
    for rank in range(p):
        warm = min(p - 1 - rank, m)
        operations: list[Operation] = [(FORWARD, 0, i) for i in range(warm)]
        for k in range(m):
            if warm + k < m:
                operations.append((FORWARD, 0, warm + k))
            operations.append((INPUT, 0, k))
            if k >= rank:
                operations.append((WEIGHT, 0, k - rank))
        operations += [(WEIGHT, 0, i) for i in range(max(0, m - rank), m)]
        ranks.append(operations)
    pairs = m - (p - 1)
    cut = [p - 1 - rank + 2 * pairs + max(0, pairs - rank) for rank in range(p)]
    return Listed(ranks, 1, cut, 3 * (pairs - (p - 1)), 3)


class _Rank:
    """Appends operations of a rank, micro-batches counted by themselves."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._next: dict[tuple[int, int], int] = {}
        self.waiting: list[tuple[int, int]] = []

    def _number(self, kind: int, chunk: int) -> int:
        number = self._next.get((kind, chunk), 0)
        self._next[kind, chunk] = number + 1
        return number

    def forward(self, chunk: int) -> None:
        self.operations.append((FORWARD, chunk, self._number(FORWARD, chunk)))

    def backward(self, chunk: int) -> None:
        """Both gradients at once."""
        self.operations.append((BACKWARD, chunk, self._number(BACKWARD, chunk)))

    def gradient(self, chunk: int) -> None:
        """The input's gradient; the weights' waits."""
        number = self._number(BACKWARD, chunk)
        self.operations.append((INPUT, chunk, number))
        self.waiting.append((chunk, number))

    def weight(self, chunk: int | None = None) -> None:
        """The gradient that has waited longest, of one chunk or of any; nothing where none waits."""
        for place, (one, number) in enumerate(self.waiting):
            if chunk is None or one == chunk:
                del self.waiting[place]
                self.operations.append((WEIGHT, one, number))
                return

    def done(self, kind: int, chunk: int) -> int:
        return self._next.get((kind, chunk), 0)

    def within(self, m: int) -> list[Operation]:
        """Without micro-batches that there are not."""
        return [operation for operation in self.operations if operation[2] < m]


def _zbv(p: int, m: int) -> Listed:
    """Steady part: forward, input and weight gradient of chunk 0, then the same of chunk 1."""
    runs = [_zbv_rank(p, rank, max(m, 2 * p - 1)) for rank in range(p)]
    return Listed([run.within(m) for run, _ in runs], 2, [cut for _, cut in runs],
                  6 * (m - 2 * p + 1), 6)  # fmt: skip


def _zbv_rank(p: int, rank: int, m: int) -> tuple[_Rank, int]:
    run = _Rank()
    for _ in range(2 * (p - rank) - 1):
        run.forward(0)
    for _ in range(rank):
        run.forward(1)
        run.forward(0)
    for _ in range(p - rank):
        run.forward(1)
        _both(run, 1)
    while run.done(FORWARD, 0) < m:
        run.forward(0)
        _both(run, 0)
        run.forward(1)
        _both(run, 1)
    cut = len(run.operations)
    while run.done(FORWARD, 1) < m:
        _both(run, 0)
        run.forward(1)
        _both(run, 1)
    for _ in range(rank):
        run.gradient(0)
        run.gradient(1)
    for _ in range(p - rank):
        run.gradient(0)
        run.weight(0)
    for chunk in (1, 0):
        for _ in range(len(run.waiting)):
            run.weight(chunk)
    return run, cut


def _both(run: _Rank, chunk: int) -> None:
    run.gradient(chunk)
    run.weight(chunk)


def _dualpipev(p: int, m: int) -> Listed:
    """Steady part: forward of one chunk beside the backward of the other.

    A dense model gains nothing from running them side by side, so they run one after another.
    """
    runs = list(_dualpipev_ranks(p, m))
    return Listed([run.operations for run, _ in runs], 2, [cut for _, cut in runs],
                  4 * (m - 2 * p + 1), 4)  # fmt: skip


def _dualpipev_ranks(p: int, m: int) -> Iterator[tuple[_Rank, int]]:
    for rank in range(p):
        run, above = _Rank(), p - 1 - rank
        for _ in range(2 * above):
            run.forward(0)
        for _ in range(rank + 1):
            run.forward(0)
            run.forward(1)
        for _ in range(above):
            _both(run, 1)
            run.forward(1)
        for _ in range(m - 2 * p + rank + 1):
            run.forward(0)
            run.backward(1)
            run.forward(1)
            run.backward(0)
        cut = len(run.operations)
        for _ in range(above):
            run.backward(1)
            run.forward(1)
            run.backward(0)
        # The second half puts its weight gradients off.
        for turn in range(2 * (rank + 1)):
            step = run.gradient if turn > rank else run.backward
            step(1 - turn % 2)
        for _ in range(above):
            run.weight()
            run.gradient(0)
        while run.waiting:
            run.weight()
        yield run, cut
