"""Owns the types of what handlers are given by name: the backend and the lifecycle.

Must not know who provides them: `app` does.
"""

from __future__ import annotations

from litestar.di import NamedDependency
from litestar.params import SkipValidation

from appliance.http.lifecycle import Lifecycle
from appliance.http.ports import Backend
from appliance.telemetry.whole import Telemetry

GivenBackend = NamedDependency[SkipValidation[Backend]]
GivenLifecycle = NamedDependency[SkipValidation[Lifecycle]]
GivenTelemetry = NamedDependency[SkipValidation[Telemetry]]
