"""Owns the way of a question, from its text to the last event: recall, decide, prompt, generate, cite.

Must not know wire formats, nor what is behind its ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import struct
from collections.abc import AsyncGenerator, Sequence

from msgspec.structs import replace

from appliance.answer import excerpts, prompt
from appliance.answer.calling import CallDeltas, constrained, told_apart
from appliance.answer.citations import Citer
from appliance.answer.generation import Generation
from appliance.answer.ladder import Rung
from appliance.answer.language import speaks
from appliance.answer.layout import Layout
from appliance.answer.merge import merged
from appliance.answer.pilot import Course, Pilot
from appliance.answer.ports import Generator, Searcher
from appliance.answer.types import (
    Delta,
    Event,
    Finished,
    PromptReport,
    Question,
    Reason,
    Report,
    Source,
    Sources,
    TokenCounts,
)
from appliance.config import AnswerSettings
from appliance.engine.protocol import Done, FinishReason, Ready, Sampling, Started, Token
from appliance.errors import ApplianceError, BadRequest, Overloaded, PromptTooLong, Quarantined, Unavailable
from appliance.retrieval.types import Passage, SearchRequest, SearchResult
from appliance.telemetry import StageTimes, note, note_text

# A question is searched for as one passage-sized text; beyond this it is a document, not a question.
MAX_QUESTION_CHARACTERS = 8000
RETRY = "Retry in a moment."
PARAGRAPH = "\n\n"
EXCERPTS_MS = 20.0  # to put quotations together


class Answerer:
    """Answers questions, grounded in a collection or not.

    Args:
        recall: searches the collections.
        generator: the engine; may be down, the answer then consists of excerpts.
        languages: ISO 639-1 codes that the generator writes; a grounded question in another language gets
            excerpts.
        quotes: the generator is too weak to be believed alone; the best quotation follows each grounded answer.
        settings: budgets and thresholds.
        layout: how passages stand in prompts; by default by what is asked for most.
        pilot: chooses what each answer may use; by default one with the default settings.
    """

    def __init__(
        self,
        recall: Searcher,
        generator: Generator,
        languages: Sequence[str],
        settings: AnswerSettings,
        *,
        quotes: bool = False,
        layout: Layout | None = None,
        pilot: Pilot | None = None,
    ) -> None:
        self._recall = recall
        self._generator = generator
        self._languages = tuple(languages)
        self._quotes = quotes
        self._settings = settings
        self._layout = layout or Layout()
        self._pilot = pilot or Pilot()

    @property
    def busy(self) -> bool:
        """Whether questions wait for their turn."""
        return self._pilot.busy

    async def ask(self, question: Question) -> AsyncGenerator[Event]:
        """The events of one answer: `Sources` when grounded, `Delta`…, then `Finished`.

        Raises:
            BadRequest: the question is empty or too long; its constraint cannot be enforced.
            PromptTooLong: the conversation does not fit the model's context.
            NotFound, NothingIngested: no such collection; nothing in it.
            Unavailable, EngineDied, Overloaded: the engine cannot answer (without a collection), or died.
        """
        _check(question)
        run = _Run(question, self._settings)
        note({"appliance.deadline_ms": run.deadline_ms, "appliance.priority": question.priority})
        note_text("appliance.question", question.messages[-1].content)
        way = self._plain(run) if question.collection is None else self._grounded(run)
        async with contextlib.aclosing(way) as events:
            async for event in events:
                yield event

    async def _plain(self, run: _Run) -> AsyncGenerator[Event]:
        ready = await self._ready(run, restarts=True)
        if ready is None:
            raise Unavailable("The generation engine is not running.", remedy=RETRY)
        asked, run.question = run.question, constrained(run.question)
        with run.times.stage("prompt"):
            built = await prompt.plain(asked.messages, ready, self._generator.count, run.max_tokens, asked.tools)
        run.report = built.report
        choices = [self._generate(run, built, None, choice) for choice in run.choices]
        if asked.tools is not None:
            for choice in run.choices:
                choice.calls = CallDeltas(choice.index, asked.stop)
                choices[choice.index] = told_apart(choices[choice.index], choice.calls)
        async with contextlib.aclosing(merged(choices)) as deltas:
            async for delta in deltas:
                yield delta
        yield run.finished()

    async def _grounded(self, run: _Run) -> AsyncGenerator[Event]:
        asked = run.question.messages[-1].content
        run.memory = self._generator.memory
        found = await self._search(run, asked)
        passages = found.passages
        run.grounded = bool(passages) and self._answers(found)
        ready = await self._may_generate(run, asked) if run.grounded else None
        built = await self._build(run, passages, ready) if ready is not None else None
        if built is not None:
            passages = passages[: len(built.passages)]
            run.report = built.report
        numbers = {passage.chunk_id: n for n, passage in enumerate(built.passages if built else passages, start=1)}
        texts = excerpts.best_quotes(asked, passages, self._recall.terms)
        quotes = [(numbers[passage.chunk_id], text) for passage, text in zip(passages, texts, strict=True)]
        sources = [_source(n, passage, text) for passage, (n, text) in zip(passages, quotes, strict=True)]
        run.sources = tuple(sorted(sources, key=lambda source: source.n))
        yield Sources(sources=run.sources, degraded=tuple(run.degraded), timings_ms=run.times.as_dict())
        if built is not None:
            citer = Citer([passage.text for passage in built.passages], self._recall.terms)
            begun_ms = run.times.elapsed_ms()
            try:
                with self._pilot.generating() as others:
                    async with contextlib.aclosing(self._generate(run, built, citer, run.choices[0])) as deltas:
                        async for delta in deltas:
                            yield delta
                self._pilot.learn_generation(others, run.times.elapsed_ms() - begun_ms)
                if citer.repeats:
                    run.degraded.append("repetition: the answer was ended where it began to repeat itself")
                if citer.used and self._quotes:
                    yield Delta("\n\n" + excerpts.quoted(*quotes[0]))
                elif not citer.used:
                    run.grounded = False
                    run.degraded.append("unsupported: no source bears the generated text out; quotations added")
                    yield Delta("\n\n" + excerpts.compose(asked, quotes, "unsupported"))
                yield run.finished()
                return
            except (Unavailable, Overloaded, Quarantined) as error:
                if run.started:
                    raise
                run.degraded.append(f"{error.code}: excerpts instead of a generated answer")
        why: excerpts.Why = "instead" if run.grounded else "not_found"
        yield Delta(excerpts.compose(asked, quotes, why))
        yield run.finished()

    def _answers(self, found: SearchResult) -> bool:
        """Whether the documents answer the question; where recall cannot tell, the passages are believed."""
        return found.answered is None or found.answered >= self._settings.abstain_threshold

    async def _search(self, run: _Run, asked: str) -> SearchResult:
        """Passages, as good as the time allows."""
        question = run.question
        assert question.collection is not None  # noqa: S101  # the caller's branch
        generates = question.effort == "full" and speaks(self._languages, asked)
        best = Rung.FULL
        if question.effort == "fast" or (generates and self._generator.state not in ("ready", "starting")):
            best, generates = Rung.EXCERPTS, False  # nobody waits for reranking to see the quotations of a bad hour
        async with contextlib.AsyncExitStack() as stack:
            with run.times.stage("queue"):
                await stack.enter_async_context(self._pilot.turn(run.left_ms))
            course = self._pilot.course(run.left_ms, best=best, generates=generates)
            request = SearchRequest(
                query=asked,
                collection=question.collection,
                mode="lexical" if course.rung == Rung.WORDS else "hybrid",
                rerank=course.rung == Rung.FULL,
                rerank_budget_ms=course.rerank_ms or None,
                top_k=run.top_k,
                filters=question.filters,
                recall=question.recall,
                label=question.label,
            )
            begun_ms = run.times.elapsed_ms()
            found = await asyncio.to_thread(self._recall.search, request)
        took_ms = run.times.elapsed_ms() - begun_ms - found.timings_ms.get("rerank", 0.0)
        self._pilot.learn_recall(course.rung, took_ms)
        note({"appliance.rung": course.rung.name.lower(), "appliance.passages": len(found.passages)})
        run.course = course
        run.degraded += [course.reason] if course.reason else []
        run.degraded += found.degraded
        for name, ms in found.timings_ms.items():
            if name != "total":
                run.times.add(name, ms)
        return found

    async def _ready(self, run: _Run, *, restarts: bool) -> Ready | None:
        """What the engine says of its model, while it takes requests.

        One that starts is waited for, but no longer than half of what is left: excerpts must be in time as well.
        `restarts`: so is one that starts again.
        """
        if self._generator.state == "starting" or (restarts and self._generator.state == "restarting"):
            with run.times.stage("queue"):
                try:
                    await self._generator.wait_ready(max(0.0, run.left_ms) / 2000)
                except Unavailable as error:
                    run.engine_fault = error.message
        return self._generator.ready if self._generator.state == "ready" else None

    async def _may_generate(self, run: _Run, asked: str) -> Ready | None:
        """The model to write the answer; when there is none for it, the reason is named in `degraded`."""
        if run.question.effort == "fast":
            run.degraded.append("effort_fast: excerpts, not reranked, as asked")
        elif not speaks(self._languages, asked):
            spoken = ", ".join(self._languages)
            run.degraded.append(f"generator_language: the model writes {spoken} only; excerpts instead")
        elif run.course.reason and run.course.rung >= Rung.EXCERPTS:
            pass  # it says why
        elif late := self._pilot.too_late_to_generate(run.left_ms):
            run.degraded.append(late)
        else:
            ready = await self._ready(run, restarts=False)
            if ready is None:
                run.degraded.append(
                    f"engine_unavailable: excerpts instead of a generated answer. {run.engine_fault}".rstrip()
                )
            return ready
        return None

    async def _build(self, run: _Run, passages: Sequence[Passage], ready: Ready) -> prompt.Prompt | None:
        try:
            with run.times.stage("prompt"):
                built = await prompt.grounded(
                    run.question.messages,
                    passages,
                    ready,
                    self._generator.count,
                    self._layout,
                    answer_tokens=run.max_tokens,
                    passage_tokens=self._settings.passage_tokens,
                )
        except (Unavailable, Overloaded) as error:
            run.degraded.append(f"{error.code}: excerpts instead of a generated answer")
            return None
        if not built.passages:
            run.degraded.append("no_room_for_passages: excerpts instead of a generated answer")
            return None
        return built

    async def _generate(
        self, run: _Run, built: prompt.Prompt, citer: Citer | None, choice: _Choice
    ) -> AsyncGenerator[Delta]:
        question = run.question
        # Before its first word an answer may become quotations, and they must be in time.
        deadline_ms = max(1.0, run.left_ms - (EXCERPTS_MS if citer else 0.0))
        choice.generation.begin(self._generator.ready, question, run.max_tokens, deadline_ms)
        stream = self._generator.generate(
            prompt=built.segments,
            max_tokens=run.max_tokens,
            sampling=_sampling(question.sampling, choice.index),
            # A weak model's second paragraph is never about the question.
            stop=(*question.stop, PARAGRAPH) if citer and self._quotes else question.stop,
            priority=question.priority,
            deadline_ms=deadline_ms,
            label=question.label,
            constraint=question.constraint,
            pinned=built.pinned,
            memory=run.memory,
        )
        fault = ""
        try:
            async with contextlib.aclosing(stream) as messages:  # type: ignore[type-var]
                async for message in messages:
                    match message:
                        case Started():
                            choice.tokens = TokenCounts(prompt=message.prompt_tokens, cached=message.cached_tokens)
                            choice.generation.start(message)
                        case Token():
                            choice.generation.hear(run.times)
                            if not run.started:
                                run.times.add("ttft", choice.generation.ttft_ms)
                            choice.started = True
                            choice.tokens = replace(choice.tokens, generated=choice.tokens.generated + len(message.ids))
                            text = citer.feed(message.text) if citer else message.text
                            if text or message.logprobs:
                                yield Delta(text, choice.index, message.logprobs)
                            if citer is not None and citer.repeats:
                                break
                        case Done():
                            run.end(choice, message)
        except ApplianceError as error:
            fault = error.code
            raise
        finally:
            choice.generation.tell(choice.tokens, run.times, fault)
        if choice.reason == "cancelled":
            raise Unavailable("The answer was cancelled before it was whole.", remedy=RETRY)
        rest = citer.finish() if citer else ""
        if rest:
            yield Delta(rest, choice.index)


class _Choice:
    """What is known so far of one generation."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.started = False  # the first token came
        self.tokens = TokenCounts()
        self.reason: FinishReason = "stop"
        self.generation = Generation(counts=index == 0)
        self.calls: CallDeltas | None = None  # where it may call tools

    @property
    def finish_reason(self) -> Reason:
        if self.reason == "length":
            return "length"
        return "tool_calls" if self.calls is not None and self.calls.called else "stop"


class _Run:
    """What is known so far of one answer; what the question leaves open is filled from the settings."""

    def __init__(self, question: Question, settings: AnswerSettings) -> None:
        self.question = question
        self.top_k = question.top_k or settings.passages
        self.max_tokens = question.max_tokens or settings.max_tokens
        self.deadline_ms = question.deadline_ms or settings.deadline_ms
        self.times = StageTimes()
        self.degraded: list[str] = []
        self.sources: tuple[Source, ...] = ()
        self.grounded = False
        self.course = Course(Rung.FULL, 0.0, "")
        self.report = PromptReport(kept={})
        self.engine_fault = ""  # why it was waited for in vain
        self.memory: int | None = None  # the generator's, before documents were searched
        self.choices = [_Choice(index) for index in range(question.n)]

    @property
    def left_ms(self) -> float:
        """Milliseconds until its deadline."""
        return self.deadline_ms - self.times.elapsed_ms()

    @property
    def started(self) -> bool:
        """The first token of any choice came."""
        return any(choice.started for choice in self.choices)

    def end(self, choice: _Choice, done: Done) -> None:
        """A generation came to its end."""
        choice.reason = done.finish_reason
        choice.generation.end(done)
        choice.tokens = TokenCounts(
            prompt=done.prompt_tokens,
            cached=done.cached_tokens,
            generated=done.generated_tokens,
            speculated_accepted=done.accepted_tokens,
        )
        late = f"deadline: the answer was cut off after {self.deadline_ms:.0f} ms"
        if done.deadline_hit and late not in self.degraded:
            self.degraded.append(late)

    def finished(self) -> Finished:
        """The last event."""
        first = self.choices[0].tokens
        report = Report(
            request_id=self.question.request_id,
            cache="miss",
            degraded=tuple(self.degraded),
            sources=self.sources,
            grounded=self.grounded,
            prompt=self.report,
            timings_ms=self.times.as_dict(),
            tokens=TokenCounts(
                prompt=first.prompt,  # one prompt, however many choices
                cached=first.cached,
                generated=sum(choice.tokens.generated for choice in self.choices),
                speculated_accepted=sum(choice.tokens.speculated_accepted for choice in self.choices),
            ),
        )
        note({"appliance.grounded": self.grounded, "appliance.degraded": codes(self.degraded)})
        reasons = [choice.finish_reason for choice in self.choices]
        return Finished(reasons[0], report, tuple(reasons[1:]))


def codes(degraded: Sequence[str]) -> list[str]:
    """What was done without, by name alone: the reasons may have figures in them."""
    return [reason.partition(":")[0] for reason in degraded]


def _sampling(asked: Sampling, index: int) -> Sampling:
    """With a seed of the choice's own, that follows from the request's; the first choice has that itself."""
    if asked.seed is None or index == 0:
        return asked
    digest = hashlib.blake2b(struct.pack("<QQ", asked.seed % (1 << 64), index), digest_size=8).digest()
    return replace(asked, seed=int.from_bytes(digest, "little", signed=True))


def _check(question: Question) -> None:
    last = question.messages[-1] if question.messages else None
    if last is not None and last.role == "tool" and question.collection is None:
        return  # what came of a call may be empty
    if last is None or last.role != "user":
        raise BadRequest("The last message must be the user's.", param="messages")
    asked = last.content
    if not asked.strip():
        raise BadRequest("The question is empty.", remedy="Write what you want to know.", param="messages")
    if question.collection is not None and len(asked) > MAX_QUESTION_CHARACTERS:
        raise PromptTooLong(
            f"The question has {len(asked)} characters; at most {MAX_QUESTION_CHARACTERS} can be searched for.",
            remedy="Ask a shorter question, or ingest the text as a document.",
            param="messages",
        )


def _source(number: int, passage: Passage, quote: str) -> Source:
    return Source(
        n=number,
        document=passage.document,
        title=passage.title,
        page=passage.page_first,
        heading=passage.heading,
        chunk=passage.chunk_id,
        score=round(passage.score, 4),
        quote=quote,
        document_id=passage.document_id,
    )
