"""Requests that arrive at the same time, asked as one: an engine takes hardly longer for four rows than for one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from avcg.explainers.records import Row
from avcg.serve.engine import Engine

_PATIENCE = 0.0003  # seconds


@dataclass(frozen=True, eq=False)
class _Waiting:
    rows: Sequence[Mapping[str, Any]]
    target: Any
    n: int
    answer: asyncio.Future[list[Row]]


class MicroBatcher:
    """Gathers requests that arrive at the same time.

    Whoever comes alone is answered at once. While several ask at a time, the first waits for as many as there were the
    last time, but never longer than a fraction of what an answer takes.

    Args:
        engine: Who answers; to it a row's answer must not depend on its neighbours.
        most: Answers asked for at once, so that others have their turn in between.
    """

    def __init__(self, engine: Engine, most: int) -> None:
        self._engine = engine
        self._most = most
        self._waiting: list[_Waiting] = []
        self._usual = 1  # requests answered together the last time
        self._alarm: asyncio.TimerHandle | None = None

    async def answer(self, rows: Sequence[Mapping[str, Any]], target: Any, n: int) -> list[Row]:
        """One entry for each row, as `Engine.answer` gives it where nothing else is asked.

        Args:
            rows: Few.
            target: The decision wanted, or None.
            n: Answers for each row.
        """
        loop = asyncio.get_running_loop()
        mine = _Waiting(rows, target, n, loop.create_future())
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            self._alarm = loop.call_later(_PATIENCE if self._usual > 1 else 0.0, self._ask, loop)
        elif len(self._waiting) == self._usual and self._alarm is not None:
            self._alarm.cancel()
            self._alarm = loop.call_later(0.0, self._ask, loop)
        return await mine.answer

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer those who ask for the same as the first, as many as fit; the others next turn."""
        now: list[_Waiting] = []
        later: list[_Waiting] = []
        size = 0
        for one in self._waiting:
            if one.answer.done():  # hung up
                continue
            alike = not now or (one.target, one.n) == (now[0].target, now[0].n)
            if alike and (not now or size + len(one.rows) * one.n <= self._most):
                now.append(one)
                size += len(one.rows) * one.n
            else:
                later.append(one)
        self._waiting, self._usual = later, len(now)
        if later:
            loop.call_soon(self._ask, loop)
        if now:
            self._finalize(now)

    def _finalize(self, waiting: list[_Waiting]) -> None:
        try:
            rows = [row for one in waiting for row in one.rows]
            found = self._engine.answer(rows, waiting[0].target, n=waiting[0].n)
        except Exception as error:
            if len(waiting) == 1:
                waiting[0].answer.set_exception(error)
                return
            for one in waiting:  # what is wrong with one is no matter of the others
                self._finalize([one])
            return
        for one in waiting:
            one.answer.set_result(found[: len(one.rows)])
            found = found[len(one.rows) :]
