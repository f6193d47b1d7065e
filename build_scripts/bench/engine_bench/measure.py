"""Owns figures: from answers to metrics.

Must not know engines, or how figures are shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from build_scripts.bench._lib.figures import percentile

from .answers import Answer, gaps_s
from .drive import Run


class Metrics(msgspec.Struct, frozen=True):
    """One workload by one engine in one round. Where some asked interactively, times are theirs."""

    requests_per_s: float
    tokens_per_s: float  # generated
    ttft_p50_ms: float  # from the request to the first token
    ttft_p99_ms: float
    itl_p50_ms: float  # from a token to the next
    itl_p99_ms: float
    long_ttft_p50_ms: float | None  # of the long requests, where there are some
    prompt_tokens: int
    cached_tokens: int  # of them
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    span_s: float
    client_cpu: float  # share of one core that the measuring took


def metrics(run: Run) -> Metrics:
    """The figures of one run."""
    answers = run.answers
    timed = [answer for answer in answers if answer.kind == "interactive"] or list(answers)
    first = [_first_ms(answer) for answer in timed]
    gaps = [gap * 1000 for answer in timed for gap in gaps_s(answer)]
    long = [_first_ms(answer) for answer in answers if answer.kind == "long"]
    generated = sum(answer.generated_tokens for answer in answers)
    return Metrics(
        requests_per_s=len(answers) / run.span_s,
        tokens_per_s=generated / run.span_s,
        ttft_p50_ms=percentile(first, 0.5),
        ttft_p99_ms=percentile(first, 0.99),
        itl_p50_ms=percentile(gaps, 0.5),
        itl_p99_ms=percentile(gaps, 0.99),
        long_ttft_p50_ms=percentile(long, 0.5) if long else None,
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        generated_tokens=generated,
        drafted_tokens=sum(answer.drafted_tokens for answer in answers),
        accepted_tokens=sum(answer.accepted_tokens for answer in answers),
        span_s=run.span_s,
        client_cpu=run.client_cpu_s / run.span_s,
    )


def agreement(ours: Sequence[Answer], theirs: Sequence[Answer]) -> float:
    """Share of the answers that are the same text; both are of the same requests, and not empty."""
    return sum(a.text == b.text for a, b in zip(ours, theirs, strict=True)) / len(ours)


def _first_ms(answer: Answer) -> float:
    return (answer.arrivals[0][0] - answer.asked_s) * 1000
