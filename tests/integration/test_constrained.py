"""A few texts of the campaign of constrained output: build_scripts/bench/constrained has a thousand."""

from __future__ import annotations

import pytest

from appliance.config import EngineSettings
from appliance.engine.core import Core
from appliance.engine.llama import Llama
from appliance.engine.protocol import EngineConfig
from appliance.packs import ResolvedPack
from build_scripts.bench.constrained_bench.campaign import run


@pytest.mark.parametrize(("kv_type", "texts"), [("f16", 24), ("q8_0", 12)])
def test_every_drawn_schema_and_tool_call_is_kept_to(kv_type: str, texts: int, pocket: ResolvedPack) -> None:
    settings = EngineSettings(kv_tokens=4096, max_sequences=8, threads=1, kv_type=kv_type)  # type: ignore[arg-type]
    spec = pocket.generator
    llama = Llama(EngineConfig(str(spec.path), spec.name, settings=settings, device="cpu"))
    core = Core(llama, settings)
    try:
        outcome = run(core, 0, texts, at_once=8)
        core.check_integrity()
    finally:
        core.close()
        llama.close()
    assert outcome.faults == ()
    assert outcome.texts == texts and outcome.tool_calls == texts // 2
