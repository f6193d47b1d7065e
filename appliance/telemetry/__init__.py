"""Owns spans and stage times: how a request says where its time went.

Must not know HTTP routes, prompts or documents: callers name their stages.
"""

from appliance.telemetry.stages import StageTimes, setup_tracing, span

__all__ = ["StageTimes", "setup_tracing", "span"]
