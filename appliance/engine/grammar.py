"""Owns constrained output: which tokens may come next, so that a text is what its constraint says.

Must not know requests, batches or how a token is chosen.

llguidance does the work. JSON is written in one form, that of Python's `json.dumps`: one space after a colon and a
comma and no other white space, so that no model can fill its answer with it, and all between two values is forced.
"""

from __future__ import annotations

import ctypes
import json
import re
import threading
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.engine import tools
from appliance.engine.protocol import Constraint
from appliance.engine.schema import MAX_NODES, MAX_SOURCE_BYTES, UnsupportedConstraint, enforceable, refuse

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Grammar", "Grammars", "Matcher", "UnsupportedConstraint"]

# A compiled grammar's tables grow with every new kind of text, up to a limit: it is given up before.
MAX_USES = 500
MAX_REGEX_BYTES = 16 << 10
_LIMITS = {
    "max_items_in_row": 20_000,  # ways to go on: an object of 512 optional properties has 2,000
    "max_lexer_states": 100_000,  # of 1 to 2 kB
    "verbose_errors": False,
}
_JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',  # no \u: a key could hide behind one
    "lenient": False,
    "coerce_one_of": False,
}
# llguidance's words in messages, and the keywords that they stand for.
_TERMS = {
    "Schema intersection stack level exceeded": "allOf and what stands beside $ref are merged without an end",
    "patternProperty": "patternProperties",
    "min/maxProperties": "minProperties and maxProperties are",
    "determine if regex is empty": "determine if any text fits pattern, format, minLength and maxLength together",
}
_REGEX_SYNTAX = re.compile(r"[\\.+*?()|\[\]{}^$/]")
_DEFINITION = re.compile(r"(?:json-schema:///)?#/\$defs/([0-9]+)")


class Vocabulary(Protocol):
    """What is needed of the model; `Llama` has it."""

    n_vocab: int

    @property
    def vocab(self) -> Any:
        """llama.cpp's own vocabulary."""

    def piece(self, token: int) -> bytes:
        """The bytes of a token; control tokens have none."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends the text."""


class Grammar:
    """A compiled constraint. `broken`: a text under it reached a limit, which it may share with all others."""

    def __init__(self, start: LLMatcher, vocabulary: Vocabulary) -> None:
        self.start = start
        self.broken = False
        self._vocabulary = vocabulary
        self._uses = 0

    @property
    def worn(self) -> bool:
        """Whether it is to be compiled anew for the next text."""
        return self.broken or self._uses >= MAX_USES

    def matcher(self) -> Matcher:
        """A new text, at its beginning."""
        self._uses += 1
        return Matcher(self, self._vocabulary)


class Grammars:
    """Compiles constraints for one model's vocabulary.

    Cheap to make: llguidance and the table of tokens are loaded at first need (half a second). Any thread may call,
    also several at once; most of a compilation leaves the interpreter lock free.
    """

    def __init__(self, llama: Vocabulary) -> None:
        self._vocabulary = llama
        self._tokenizer: LLTokenizer | None = None
        self._loading = threading.Lock()

    def compile(self, constraint: Constraint) -> Grammar:
        r"""The grammar of texts under `constraint`.

        `json_schema`: see `schema.enforceable`. `regex`: the whole text matches; the syntax is that of Rust's
        `regex`, without look-around, back references and word boundaries; `\d` and `\w` are ASCII, as in a schema's
        `pattern`, and `.` is no newline. `choice`: exactly one of the strings. `tools`: calls in the form that `tools`
        describes, or an answer.

        Raises:
            UnsupportedConstraint: it can't be enforced, or no text fits; the message names the keyword or the fault,
                and `param` the tool, where one is at fault.
        """
        return Grammar(self._compile(constraint), self._vocabulary)

    def _compile(self, constraint: Constraint) -> LLMatcher:
        source = constraint.source
        if constraint.kind == "json_object":
            return self._json({"type": "object"}, "JSON object")
        if constraint.kind == "json_schema":
            return self._schema(source)[1]
        if constraint.kind == "tools":
            return self._calls(source)
        if constraint.kind == "choice":
            source = "|".join(_REGEX_SYNTAX.sub(r"\\\g<0>", choice) for choice in _choices(source))
        elif len(source.encode("utf-8", "replace")) > MAX_REGEX_BYTES:
            refuse(f"the regex is over {MAX_REGEX_BYTES >> 10} KiB")
        from llguidance import LLMatcher, regex_to_lark

        try:
            grammar = LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(source, 'dw')}/")
        except ValueError as error:  # half a surrogate pair
            refuse(f"the {constraint.kind} is no text: {error}")
        return self._start(grammar, constraint.kind)

    def _schema(self, source: str, *, arguments: bool = False) -> tuple[dict[str, Any], LLMatcher]:
        """A schema as the compiler takes it, and its grammar; `arguments`: it is that of a tool's."""
        schema, patterns, references = enforceable(source)
        for pattern, keyword in patterns.items():
            # Alone, so that a fault is named, and one that no text fits is seen: in a schema it is a dead end.
            self._json({"type": "string", "pattern": pattern}, f"{keyword} {json.dumps(pattern)[:200]}")
        if arguments:
            schema = tools.closed(schema)
        return schema, self._json(schema, "schema", references)

    def _calls(self, source: str) -> LLMatcher:
        from llguidance import LLMatcher

        calling = tools.read_calling(source)
        schemas = []
        for number, tool in enumerate(calling.toolset.tools):
            try:
                schemas.append(self._schema(json.dumps(tool.parameters), arguments=True)[0])
            except UnsupportedConstraint as error:
                message = f"The tool {tool.name}: {error.message}"
                raise UnsupportedConstraint(message, param=f"tools[{number}].function.parameters") from error
        try:
            answer = None if calling.answer is None else self._schema(calling.answer)[0]
        except UnsupportedConstraint as error:
            error.param = "response_format"
            raise
        written = tools.grammar(calling.toolset, schemas, answer, _JSON_OPTIONS)
        return self._start(LLMatcher.grammar_from_lark(written), "tools")

    def _json(self, schema: dict[str, Any], what: str, references: tuple[str, ...] = ()) -> LLMatcher:
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(
                json.dumps(schema),
                overrides=_JSON_OPTIONS,  # type: ignore[arg-type]  # a TypedDict of the stub alone
            )
        except ValueError as error:  # nested too deeply, by branches of oneOf that were put in place
            refuse(f"{what}: {error}")
        return self._start(grammar, what, references)

    def _start(self, grammar: str, what: str, references: tuple[str, ...] = ()) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = _tokenizer(self._vocabulary)
        limits = LLParserLimits(**_LIMITS)  # type: ignore[arg-type]  # of int and bool
        start = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if not start.is_error():
            start.consume_tokens([])  # sees that nothing can follow, where nothing can
            start.compute_bitmask()
            if not start.is_error() and not start.get_grammar_warnings():
                return start
            if start.is_error():
                refuse(f"no text fits {what}")
        faults = start.get_grammar_warnings() or [start.get_error()]
        fault = " ".join(" ".join(faults).replace("<non-verbose/>", "").split())[:400].rstrip(".")
        fault = _DEFINITION.sub(lambda found: references[int(found[1])], fault) if references else fault
        for term, keywords in _TERMS.items():
            fault = fault.replace(term, keywords)
        refuse(f"{what}: {fault}")


class Matcher:
    """One text under a constraint. Made by `Grammar.matcher`."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self._grammar = grammar
        self._vocabulary = vocabulary
        self._state = grammar.start.deep_copy()
        self._bits = np.zeros((vocabulary.n_vocab + 31) // 32, np.uint32)

    def mask(self, logits: npt.NDArray[np.float32]) -> None:
        """Set to minus infinity, in place, what must not come next.

        Tokens that end the text are left exactly where it is complete; control tokens never.

        Args:
            logits: float32 `(vocabulary,)`.

        Raises:
            ArithmeticError: nothing can come next, or to know it is beyond llguidance's limits. It stays so.
        """
        self._state.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._state.is_error():
            self._grammar.broken = True
            raise ArithmeticError(f"the constraint can't be followed further: {self._state.get_error()[:200]}")
        allowed = np.unpackbits(self._bits.view(np.uint8), count=self._vocabulary.n_vocab, bitorder="little")
        np.copyto(logits, -np.inf, where=allowed == 0)

    def accept(self, token: int) -> None:
        """The text goes on with `token`, or ends with it.

        Raises:
            ArithmeticError: the token is not allowed here; the text is where it was.
        """
        if self.finished and self._vocabulary.is_end(token):
            return
        known = 0 <= token < self._vocabulary.n_vocab
        if not known or self._state.try_consume_tokens([token]) != 1:
            raise ArithmeticError(f"token {token} is not allowed by the constraint")

    def forced(self, most: int) -> list[int]:
        """The tokens, at most `most`, that must come next whatever the model says: `mask` leaves no other."""
        return self._state.compute_ff_tokens()[: max(most, 0)]

    @property
    def finished(self) -> bool:
        """The text is complete: only its end may follow."""
        return self._state.is_stopped() and not self._state.is_error()


def _choices(source: str) -> list[str]:
    if len(source.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
        refuse(f"the choice is over {MAX_SOURCE_BYTES >> 10} KiB")
    try:
        choices = msgspec.json.decode(source, type=list[str])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        refuse(f"choice must be a JSON list of strings: {error}")
    if not 1 <= len(choices) <= MAX_NODES:
        refuse(f"choice must have 1 to {MAX_NODES} strings")
    return choices


def _tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """The table of tokens. A token without text, and one that ends the text, is marked as none of the text's."""
    import llama_cpp
    from llguidance import LLTokenizer

    tokens, ends = [], []
    for token in range(vocabulary.n_vocab):
        piece = vocabulary.piece(token)
        if vocabulary.is_end(token):
            ends.append(token)
        if not piece or token in ends[-1:]:
            piece = b"\xff<%d>" % token
        tokens.append(piece)
    if not ends:
        refuse("the model has no token that ends a text")
    return LLTokenizer.from_llamacpp(  # type: ignore[attr-defined,no-any-return]  # missing in the stub
        tokens=tokens,
        vocab_ptr=vocabulary.vocab,
        tokenize_fptr=ctypes.cast(llama_cpp.llama_tokenize, ctypes.c_void_p).value,
        eos_token=ends,
        slices=LLTokenizer.json_slices(),
    )
