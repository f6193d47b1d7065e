"""Owns which traces are worth keeping, decided when they are over: pure policy over names, times and a clock.

Must not know spans or files. Slow and failed ones always are; of the others, so many a second; watching (health,
metrics, traces, the console's files) only where it failed.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from appliance.telemetry.records import Kind

ORDINARY_A_SECOND = 2.0
BURST = 20.0
_LATELY = 200  # traces of a name, by which the next is judged
_ENOUGH = 20  # fewer of them say nothing
_NAMES = 64  # of which this is known; what was asked for least recently is forgotten
_SLOW_SHARE = 0.95
_SLOWER = 1.5  # times as long as that share: where all take alike, one in twenty is not slow
WATCHING = ("/healthz", "/readyz", "/metrics", "/v1/traces", "/v1/metrics", "/console", "/openapi.json", "/favicon.ico")


class Sampler:
    """Decides about one trace after the other.

    Args:
        slow_ms: what takes longer is slow, whatever it is.
    """

    def __init__(self, slow_ms: float) -> None:
        self._slow_ms = slow_ms
        self._lately: OrderedDict[str, deque[float]] = OrderedDict()
        self._tokens = BURST
        self._refilled_s = 0.0

    def verdict(self, name: str, ms: float, *, failed: bool, now_s: float) -> Kind | None:
        """What kind of trace it is; None: not worth keeping. `now_s` by any clock that does not go back."""
        slow = self._is_slow(name, ms)
        if failed:
            return "failed"
        if is_watching(name):
            return None
        if slow:
            return "slow"
        self._tokens = min(BURST, self._tokens + (now_s - self._refilled_s) * ORDINARY_A_SECOND)
        self._refilled_s = now_s
        if self._tokens < 1:
            return None
        self._tokens -= 1
        return "ordinary"

    def _is_slow(self, name: str, ms: float) -> bool:
        """Longer than the limit, or clearly longer than nearly all of its name lately."""
        lately = self._lately.setdefault(name, deque(maxlen=_LATELY))
        self._lately.move_to_end(name)
        if len(self._lately) > _NAMES:
            self._lately.popitem(last=False)
        unusual = False
        if len(lately) >= _ENOUGH:
            ordered = sorted(lately)
            edge = ordered[int(len(ordered) * _SLOW_SHARE)]
            unusual = ms > _SLOWER * edge
        lately.append(ms)
        return unusual or ms > self._slow_ms


def is_watching(name: str) -> bool:
    """Whether a request, by method and route, only looks at the service itself."""
    _, _, route = name.partition(" ")
    return route == "/" or route.startswith(WATCHING)
