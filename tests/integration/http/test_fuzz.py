"""Requests made from the OpenAPI document: none ends in an error of the service, and every reply is as it is described.

The long form: `FUZZ_EXAMPLES=500 build_scripts/test tests/integration/http/test_fuzz.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from appliance.http.app import create_app
from appliance.http.openapi import describe, operations
from appliance.store.db import Store
from appliance.store.keys import KeyTable, NewKey
from appliance.store.responses import RESPONSES_FILE, ResponseStore
from tests.unit.http.backend import ScriptedBackend
from tests.unit.http.test_auth import reaching

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "5"))  # of each operation, well-formed and not
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
BASE = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyTable]:
    with closing(Store.open(tmp_path_factory.mktemp("d") / "store.sqlite3")) as store:
        yield store.keys


@pytest.fixture(scope="module")
def responses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResponseStore]:
    with closing(ResponseStore(tmp_path_factory.mktemp("d") / RESPONSES_FILE)) as store:
        yield store


@pytest.fixture(scope="module")
def admin(table: KeyTable) -> str:
    return table.create(NewKey("admin", ("admin",))).secret


DESCRIBED = describe(create_app(ScriptedBackend()))
SCHEMA = schemathesis.openapi.from_dict(DESCRIBED)
WAYS = [
    (path, method, mode)
    for path, method, operation in operations(DESCRIBED)
    for mode in GenerationMode
    # Of an address there is hardly anything that is no text.
    if mode == GenerationMode.POSITIVE or "requestBody" in operation
]


@pytest.mark.parametrize(("path", "method", "mode"), WAYS, ids=[" ".join((*way[:2], way[2].value)) for way in WAYS])
def test_an_operation(
    table: KeyTable, responses: ResponseStore, admin: str, path: str, method: str, mode: GenerationMode
) -> None:
    backend = ScriptedBackend(key_table=table)
    backend.response_store = responses
    app = create_app(backend)
    operation = SCHEMA[path][method.upper()]

    async def send(case: schemathesis.Case[Any]) -> httpx.Response:
        sent = case.as_transport_kwargs(base_url=BASE)
        content = json.dumps(sent["json"]) if "json" in sent else sent.get("data")
        async with reaching(app) as client:
            return await client.request(
                sent["method"],
                sent["url"],
                params=sent.get("params"),
                headers={**sent["headers"], "Authorization": f"Bearer {admin}"},
                content=content,
            )

    with asyncio.Runner() as runner:

        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
        @hypothesis.given(case=operation.as_strategy(mode))
        def ask(case: schemathesis.Case[Any]) -> None:
            case.validate_response(runner.run(send(case)), checks=CHECKS)

        ask()
