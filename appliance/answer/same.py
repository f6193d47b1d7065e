"""Owns when two questions are the same question: the key under which an answer is kept.

Must not know caches, wire formats or how answers are made.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

import msgspec

from appliance.answer.types import Message, Question

_ENDING = re.compile(r"[?!.,;:…。、]+(?=\s|$)")
_WORD = re.compile(r"[^\W\d_]+")
_CAPITALS = 4  # letters of a word in capitals that is no unit, symbol or abbreviation: "PUMP", not "MW" or "HVA"
_ORDINARY = 3  # letters of a capitalized word that is none: "Pump", not "Mg" or "Pa"

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def normalized(text: str) -> str:
    """A question without what makes no other question of it: width and form of characters, spaces, the punctuation at
    the end of words, capitals of ordinary words. Not a sign inside a word (3.5, HX-200, -5), nor capitals that tell
    units apart (mW, MW)."""
    text = unicodedata.normalize("NFKC", text)
    text = " ".join(_ENDING.sub(" ", text).split())
    return _WORD.sub(lambda found: _folded(found[0], first=found.start() == 0), text)


def key(question: Question, version: bytes) -> bytes:
    """32 bytes that are the same for the same question only; `version`: what else an answer follows from."""
    grounded = question.collection is not None
    messages = [message_key(message, grounded=grounded) for message in question.messages]
    asked = msgspec.structs.replace(
        question,
        messages=(),
        request_id="",
        priority="interactive",
        deadline_ms=None,
        cache="default",
    )
    return hashlib.blake2b(_encode([version, messages, asked]), digest_size=32).digest()


def message_key(message: Message, *, grounded: bool) -> list[str]:
    """What of a message its answer follows from. Without documents, a model answers the very text."""
    same = grounded and message.role == "user"
    calls = [text for call in message.calls for text in (call.name, call.arguments)]
    return [message.role, normalized(message.content) if same else message.content, *calls]


def repeatable(question: Question) -> bool:
    """Whether the same question would get the same answer: nothing is drawn at random, or from a seed."""
    return question.sampling.temperature <= 0 or question.sampling.seed is not None


def _folded(word: str, *, first: bool) -> str:
    rest = word[1:]
    capitalized = rest == rest.lower() and (first or len(word) >= _ORDINARY)
    shouted = word == word.upper() and len(word) >= _CAPITALS
    return word.casefold() if capitalized or shouted else word
