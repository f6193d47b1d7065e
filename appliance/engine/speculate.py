"""Owns the guesses: what a sequence says next, if it repeats what stands in its prompt or its own text.

Must not know models, batches or clocks. A guess is verified by whoever computes it: it costs time, never a token.
"""

from __future__ import annotations

from collections.abc import Sequence

_SHORTEST = 3  # tokens that must match; fewer match by chance
_LONGEST = 8  # more do not make a match more credible
_CREDIBLE = 5  # matches from here on have an acceptance rate of their own
_LOOKED_AT = 16  # earlier places of the same three tokens, the latest first
_LEARNING = 0.15  # weight of one verified token in the acceptance rate
_FIRST_CREDIT = 0.5  # steps that may be lost before anything was won …
_INCOME = 0.01  # … and for each token of text: probes go on at this price
_MOST_CREDIT = 8.0
_FREE = 1e-3  # no token is cheaper than this


class Drafter:
    """Guesses of one sequence, by prompt lookup.

    It holds an account in steps: won by accepted tokens, spent on guessed ones, never overdrawn. So however badly
    the text repeats itself, it costs at most `_FIRST_CREDIT` steps and `_INCOME` of the tokens in all.
    """

    def __init__(self, tokens: Sequence[int], most: int) -> None:
        """`tokens` are the prompt and what is generated so far; a guess has at most `most` tokens."""
        self._most = most
        self._tokens: list[int] = []
        # As LZ77 codecs find repetitions: where the token after three tokens stands last, and from there back.
        self._latest: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []  # of each place the one before it after the same three tokens; -1: none
        self._rates = [0.5, 0.7]  # acceptance after short and after credible matches
        self._credible = False  # the kind of the last guess
        self._price = 0.0  # of each token of it
        self._credit = _FIRST_CREDIT
        self._index(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on with `tokens`."""
        self._index(tokens)
        self._earn(_INCOME * len(tokens))

    def draft(self, marginal: float) -> list[int]:
        """The tokens that probably come next, as many as pay; often none.

        `marginal`: what one more token costs the step, relative to this sequence's share of it (0: nothing,
        1: as much as the token that it may save).
        """
        if marginal >= 1:
            return []
        place, length = self._match()
        if place < 0:
            return []
        self._price = max(marginal, _FREE)
        self._credible = length >= _CREDIBLE
        wanted = self._paying(self._rates[self._credible]) or 1  # one to see whether it pays now, if it did not
        return self._copy(place, min(wanted, self._most, int(self._credit / self._price)))

    def verified(self, drafted: int, accepted: int) -> None:
        """Of the last guess `drafted` tokens were computed, and the first `accepted` of them were right."""
        rate = self._rates[self._credible]
        for place in range(min(drafted, accepted + 1)):
            rate += _LEARNING * ((place < accepted) - rate)
        self._rates[self._credible] = rate
        self._earn(accepted - self._price * drafted)

    def _earn(self, steps: float) -> None:
        self._credit = min(self._credit + steps, _MOST_CREDIT)

    def _index(self, tokens: Sequence[int]) -> None:
        known = self._tokens
        for token in tokens:
            place = len(known)
            before = -1
            if place >= _SHORTEST:
                key = tuple(known[-_SHORTEST:])
                before = self._latest.get(key, -1)
                self._latest[key] = place
            self._before.append(before)
            known.append(token)

    def _match(self) -> tuple[int, int]:
        """The place after the longest match of the text's end, the latest of equals, and its length; (-1, 0): none."""
        known, end = self._tokens, len(self._tokens)
        best, longest = -1, 0
        place = self._latest.get(tuple(known[-_SHORTEST:]), -1)
        for _ in range(_LOOKED_AT):
            if place < 0 or longest == _LONGEST:
                break
            length = _SHORTEST
            while length < min(_LONGEST, place) and known[place - length - 1] == known[end - length - 1]:
                length += 1
            if length > longest:
                best, longest = place, length
            place = self._before[place]
        return best, longest

    def _paying(self, rate: float) -> int:
        """The length of the guess with the most tokens per cost; 0: none beats going without."""
        best, best_value = 0, 1.0
        expected = right = 1.0
        for length in range(1, self._most + 1):
            right *= rate
            expected += right
            value = expected / (1 + self._price * length)
            if value <= best_value:
                break
            best, best_value = length, value
        return best

    def _copy(self, place: int, count: int) -> list[int]:
        """`count` tokens from `place` on; past the end of the text it goes on with what is copied."""
        copied: list[int] = []
        for source in range(place, place + count):
            past = source - len(self._tokens)
            copied.append(self._tokens[source] if past < 0 else copied[past])
        return copied
