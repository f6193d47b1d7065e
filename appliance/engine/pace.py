"""Owns the estimate of how long a step takes on this machine, and so how much of a prompt fits the next one.

Must not know llama.cpp, requests or clocks: it is told what a step held and how long it took.

The model is `base + prefill · prompt tokens + decode · decoded tokens` seconds, kept by a Kalman filter in relative
terms: it remembers what a prompt's token costs through thousands of steps that had none, and its process noise is
largest along the direction in which all three grow together, which is what another load on the machine looks like.
"""

from __future__ import annotations

from appliance.engine.policy import MIN_PREFILL_TOKENS

# A step should not be longer: cancels, new arrivals and heartbeats wait for its end. Nor much shorter while nobody
# waits for a token: two cores read 217 tokens/s in steps of 64 tokens, 262 in steps of 256, up to 310 in steps of 512.
STEP_TARGET_S = 2.0
_FIRST_BUDGET_TOKENS = 32  # until the speed is known: even 5 tokens/s are no hang then
_GROWTH = 8  # a step is at most so many times the largest one that was measured
_HEADROOM = 0.9  # of the inter-token target: steps scatter around their estimate
_NOISE = 0.15  # a step's own scatter, relative to its length
_DRIFT_TOGETHER = 0.05  # how much all costs may change from step to step …
_DRIFT_EACH = 0.02  # … and each by itself
_SURPRISE = 1.5  # a step that is so many times longer or shorter is believed when it is the second in a row
_CLOCK_S = 1e-6  # no step is shorter, whatever a coarse clock says
_TRUST_LOST = 0.9  # by a refusal: what nobody tests is believed a little less each time


class Pace:
    """Learns what a step costs. All times are in seconds."""

    def __init__(self, batch_tokens: int, itl_target_s: float, warm: tuple[int, float] | None = None) -> None:
        """`warm`: tokens and seconds of one batch that was timed when nothing was cold any more."""
        self._most = batch_tokens
        self._itl_target_s = itl_target_s
        self._costs: list[float] = []  # base, per prompt token, per decoded token; empty: unknown
        self._spread: list[list[float]] = []  # covariance of the costs
        self._largest = 0
        self._surprise = 0  # direction of the last step's surprise: -1, 0 or 1
        self._reading = True  # whether the last step that was no surprise read a prompt
        self._trust = 1.0
        if warm is not None:
            self._begin(*warm)

    def observe(self, decode_tokens: int, prefill_tokens: int, seconds: float) -> None:
        """A step of so many tokens took `seconds`."""
        tokens = decode_tokens + prefill_tokens
        if tokens < 1:
            return
        seconds = max(seconds, _CLOCK_S)
        self._trust = 1.0
        self._largest = max(self._largest, tokens)
        if not self._costs:
            self._begin(tokens, seconds)
            return
        held = [1.0, float(prefill_tokens), float(decode_tokens)]
        predicted = self._step_s(held)
        ratio = seconds / predicted
        surprise = (ratio > _SURPRISE) - (ratio < 1 / _SURPRISE)
        together, each = _DRIFT_TOGETHER**2, _DRIFT_EACH**2
        if not surprise:
            self._reading = prefill_tokens > 0
        elif surprise != self._surprise:  # one odd step (a page fault, another process) is no news
            seconds = min(max(seconds, predicted / _SURPRISE), predicted * _SURPRISE)
        elif self._reading == (prefill_tokens > 0):  # such steps were understood: the machine is another one now
            together += (ratio - 1) ** 2
        else:  # another kind of step: what the one kind cost was taken for a cost of the other
            each += (ratio - 1) ** 2
        self._surprise = surprise
        self._drift(together, each)
        self._correct(held, seconds)

    def budget(self, decodes: int) -> int:
        """Tokens that the next step may hold in all, `decodes` of them decoded ones; never below `MIN_PREFILL_TOKENS`.

        While others decode, they get their next token within the target; else a step is as long as the loop may be.
        """
        if not self._costs:
            return min(_FIRST_BUDGET_TOKENS, self._most)
        base, prefill, decode = self._costs
        target = min(self._itl_target_s * _HEADROOM, STEP_TARGET_S) if decodes else STEP_TARGET_S
        fit = decodes + int((target - base - decode * decodes) / prefill)
        return min(max(min(fit, _GROWTH * self._largest), MIN_PREFILL_TOKENS), self._most)

    def prefill_s(self, tokens: int) -> float:
        """How long the first token of a prompt of `tokens` takes at least, if it starts now; 0.0 while unknown."""
        if not self._costs:
            return 0.0
        base, prefill, _ = self._costs
        steps = -(-tokens // self.budget(0))
        return self._trust * (steps * base + tokens * prefill)

    def doubt(self) -> None:
        """A request was refused for `prefill_s`. Until a step is measured, the next one is refused less readily:
        else an estimate from a slow hour could refuse all that would correct it."""
        self._trust *= _TRUST_LOST

    def marginal(self, decodes: int) -> float:
        """What one more token costs a step of `decodes` decoding sequences, relative to what each of them costs it.

        1.0: a guess costs as much as the token that it may save (and while nothing is known); 0.0: it is free.
        """
        if not self._costs:
            return 1.0
        base, _, decode = self._costs
        own = decode * max(1, decodes)
        return own / (base + own)

    def _begin(self, tokens: int, seconds: float) -> None:
        """One measurement cannot tell the fixed cost from the cost of tokens: a guess, and wide doubts about it."""
        seconds = max(seconds, _CLOCK_S)
        self._largest = max(self._largest, tokens)
        self._costs = [0.2 * seconds, 0.8 * seconds / tokens, 0.8 * seconds / tokens]
        deviations = [0.4 * seconds, self._costs[1], 2 * self._costs[2]]
        self._spread = [[a * a if i == j else 0.0 for j in range(3)] for i, a in enumerate(deviations)]
        self._correct([1.0, float(tokens), 0.0], seconds)

    def _step_s(self, held: list[float]) -> float:
        return sum(cost * amount for cost, amount in zip(self._costs, held, strict=True))

    def _drift(self, together: float, each: float) -> None:
        """What was learned gets older; relative variances of a change of all costs at once, and of each by itself."""
        costs, spread = self._costs, self._spread
        for i in range(3):
            for j in range(3):
                spread[i][j] += together * costs[i] * costs[j]
            spread[i][i] += each * costs[i] ** 2
        # What no step has shown for long is unknown, but not without bounds: days of decodes must not add up.
        shrink = [min(1.0, (1 + (together + each) ** 0.5) * costs[i] / spread[i][i] ** 0.5) for i in range(3)]
        for i in range(3):
            for j in range(3):
                spread[i][j] *= shrink[i] * shrink[j]

    def _correct(self, held: list[float], seconds: float) -> None:
        """The filter's update, within what costs can be: positive, and a decoded token no free one."""
        costs, spread = self._costs, self._spread
        predicted = self._step_s(held)
        along = [sum(spread[i][j] * held[j] for j in range(3)) for i in range(3)]
        variance = sum(along[i] * held[i] for i in range(3)) + (_NOISE * min(predicted, seconds)) ** 2
        for i in range(3):
            costs[i] += along[i] / variance * (seconds - predicted)
            for j in range(3):
                spread[i][j] -= along[i] * along[j] / variance
        base = max(costs[0], 0.0)
        costs[1] = max(costs[1], 1e-4 * base, 1e-9)
        costs[0] = max(base, 0.5 * costs[1])
        costs[2] = max(costs[2], 0.5 * costs[1])
        for i in range(3):  # rounding must not make a variance negative, nor zero for good
            spread[i][i] = max(spread[i][i], (_DRIFT_EACH * costs[i]) ** 2)
