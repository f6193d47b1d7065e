"""Owns the way from messages to a prompt: a model's own Jinja template, with contents kept apart from it.

Must not know tokens or the engine. Whatever a document or a user writes, it stays text: only what the
template itself wrote may become control tokens.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

from appliance.engine.protocol import Segment
from appliance.errors import BadRequest

ROLES = frozenset({"system", "user", "assistant", "tool"})
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Private-use characters around the number of a message. Contents are put in after rendering, so that one
# which holds such characters itself is not mistaken. The spaces show whether the template strips.
_MARK = " \ue000{}\ue001 "
_MARKS = re.compile("( ?)\ue000(\\d+)\ue001( ?)")


def render_chat(
    template: str,
    messages: Sequence[tuple[str, str]],
    *,
    bos: str,
    eos: str,
    add_generation_prompt: bool = True,
) -> tuple[Segment, ...]:
    """Write messages as the prompt that a model was trained on.

    Args:
        template: Jinja, as in `tokenizer_config.json` or the GGUF; "" for ChatML.
        messages: role and content, in order.
        bos: text of the token that begins a text, as the template may write it.
        eos: text of the token that ends one.
        add_generation_prompt: end with the beginning of the assistant's answer.

    Raises:
        BadRequest: a role is unknown; the template forbids these messages in this order, or leaves one out.
    """
    for role, _ in messages:
        if role not in ROLES:
            remedy = f"Use one of {', '.join(sorted(ROLES))}."
            raise BadRequest(f"Unknown role {role!r}.", remedy=remedy, param="messages")
    marked = [
        {"role": role, "content": _MARK.format(number) if content else ""}
        for number, (role, content) in enumerate(messages)
    ]
    text = _render(template or CHATML, marked, bos, eos, add_generation_prompt=add_generation_prompt)
    return _split(text, [content for _, content in messages])


def _render(template: str, messages: list[dict[str, str]], bos: str, eos: str, *, add_generation_prompt: bool) -> str:
    import jinja2

    try:
        prompt: str = _compile(template).render(
            messages=messages, bos_token=bos, eos_token=eos, add_generation_prompt=add_generation_prompt
        )
        return prompt
    except jinja2.TemplateSyntaxError as error:
        raise BadRequest(f"The model's chat template is not valid: {error}.") from error
    except jinja2.TemplateError as error:
        raise BadRequest(f"The model does not take these messages: {error}.", param="messages") from error
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise BadRequest(f"The model's chat template failed: {error}.", param="messages") from error


@functools.lru_cache(maxsize=8)
def _compile(template: str) -> Any:
    """A template with the environment that models' templates are written for (that of `transformers`)."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().astimezone().strftime(format)
    return environment.from_string(template)


def _split(text: str, contents: Sequence[str]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    seen = set()
    end = 0
    for mark in _MARKS.finditer(text):
        before, number, after = mark[1], int(mark[2]), mark[3]
        content = contents[number]
        # A space that is gone was stripped by the template: so would the content's have been.
        content = content if before else content.lstrip()
        content = content if after else content.rstrip()
        segments += [Segment(text[end : mark.start()], template=True), Segment(content)]
        seen.add(number)
        end = mark.end()
    segments.append(Segment(text[end:], template=True))
    for number, content in enumerate(contents):
        if content and number not in seen:
            raise BadRequest(f"The model's chat template leaves out message {number + 1}.", param="messages")
    return tuple(segment for segment in segments if segment.text)
