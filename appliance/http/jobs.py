"""Owns the routes of jobs: documents on their way in.

Must not know how a job is done, nor how one is queued: `stored` does that.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Controller, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from appliance.errors import BadRequest
from appliance.http.given import GivenBackend
from appliance.store.jobs import STATES, Job, JobState

MOST_JOBS = 1000  # in one reply


class JobList(msgspec.Struct, frozen=True):
    """Jobs: the newest first, or those that changed `since` a revision in the order of their changes."""

    jobs: list[Job]
    counts: dict[str, int]  # of all jobs that are kept, by state
    revision: int  # to ask with the next time


class JobController(Controller):
    """Documents on their way in."""

    tags = ("documents",)

    @get("/v1/jobs")
    async def jobs(
        self,
        backend: GivenBackend,
        states: FromQuery[list[JobState] | None] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=MOST_JOBS)] = 100,
        before: Annotated[int | None, QueryParameter(ge=0)] = None,
        since: Annotated[int | None, QueryParameter(ge=0)] = None,
    ) -> JobList:
        """The newest jobs, before the one numbered `before`; or those that changed `since` a revision."""
        if before is not None and since is not None:
            raise BadRequest("before and since cannot be combined.", param="since")
        return JobList(*await backend.jobs(states or STATES, limit=limit, before=before, since=since))

    @get("/v1/jobs/{job_id:int}")
    async def job(self, job_id: FromPath[int], backend: GivenBackend) -> Job:
        """One job, with how far it is."""
        return await backend.job(job_id)

    @post("/v1/jobs/{job_id:int}/cancel", status_code=200)
    async def cancel(self, job_id: FromPath[int], backend: GivenBackend) -> Job:
        """End a job that has not ended; nothing of it is stored when this returns."""
        return await backend.cancel_job(job_id)

    @post("/v1/jobs/{job_id:int}/retry", status_code=200)
    async def retry(self, job_id: FromPath[int], backend: GivenBackend) -> Job:
        """Queue a job again that failed for a reason which may have passed."""
        return await backend.retry_job(job_id)
