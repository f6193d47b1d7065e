"""Owns telemetry: how a request says where its time went, what is kept of that, and the figures of the service.

Must not know HTTP routes, prompts or documents: callers name their stages.
"""

from appliance.telemetry.spans import Attribute, Span, current, inside, note, note_text, past, span, traceparent
from appliance.telemetry.stages import StageTimes

__all__ = ["Attribute", "Span", "StageTimes", "current", "inside", "note", "note_text", "past", "span", "traceparent"]
