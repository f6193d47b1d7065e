"""The console's files: whole, small, in both languages, and nothing in them reaches beyond the service."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import appliance
from appliance.cache.tiers import Figures
from appliance.console import FOLDER, MEDIA_TYPES, assets
from appliance.documents.losses import KINDS

SCRIPT_BUDGET_BYTES = 100_000
ASSETS = assets()
TEXTS = {name: asset.data.decode() for name, asset in ASSETS.items()}
SCRIPTS = {name: text for name, text in TEXTS.items() if name.endswith(".js")}
WORDS: dict[str, dict[str, str]] = {name: json.loads(TEXTS[f"{name}.json"]) for name in ("en", "zh")}
# Keys that the page makes of what the service tells, or of what it is doing.
MADE = {
    "answer": {"waiting", "offline", "stopped", "not_found", "unsupported"},
    "cached": {"miss", "hit", "stale"},
    "component": {"store", "recall", "engine"},
    "measured": {"slow", "failed", "engine", "recall", "ingest", "total", "used", "cached", "pinned", "prompt"}
    | {"miss", "hit", "stale"},
    "nav": {"ask", "documents", "system"},
    "role": {"generator", "embedder", "reranker"},
    "service": {"ready", "loading", "not_ready", "stopping", "unreachable"},
    "state": {"ready", "loading", "degraded", "failed"},
    "upload": {"queued", "reading", "offline", "stopped", "added", "replaced", "unchanged", "skipped"},
}
# Keys for what the service may tell; what it tells besides is shown as it is.
TOLD = {"cache", "degraded", "error", "loss", "stage"}
CALLED = re.compile(r'\b(?:t|count)\("(\w+)"|"((?!console\.)\w+(?:\.\w+)+)"|data-t(?:-label)?="(\w+)"')
REASON = re.compile(r'(?:append\(|return|=|\()\s*f?"([a-z]+(?:_[a-z]+)*): ')


def called() -> set[str]:
    """The keys that scripts and page name."""
    text = "\n".join([*SCRIPTS.values(), TEXTS["index.html"]])
    return {key for found in CALLED.findall(text) for key in found if key}


def expanded(keys: set[str]) -> set[str]:
    """`keys`, with `.one` and `.other` for those that are counted."""
    return {form for key in keys for form in (key, f"{key}.one", f"{key}.other")}


def test_every_file_in_the_folder_is_served_and_there_are_no_others() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(ASSETS)
    assert all(asset.media_type == MEDIA_TYPES[Path(name).suffix] for name, asset in ASSETS.items())


def test_everything_that_a_file_loads_exists() -> None:
    page = set(re.findall(r'(?:src|href)="/console/([^"]+)"', TEXTS["index.html"]))
    imported = {name for text in SCRIPTS.values() for name in re.findall(r'from "\./([^"]+)"', text)}
    assert page | imported <= set(ASSETS)
    loaded = page | imported | {"index.html", "en.json", "zh.json"}
    assert set(ASSETS) == loaded, "nothing loads these"


def test_ids_that_scripts_look_up_are_in_the_page() -> None:
    ids = set(re.findall(r'\bid="([^"]+)"', TEXTS["index.html"]))
    wanted = {name for text in SCRIPTS.values() for name in re.findall(r'byId\("([^"]+)"\)', text)}
    assert wanted <= ids


def test_the_script_stays_small() -> None:
    assert sum(len(ASSETS[name].data) for name in SCRIPTS) < SCRIPT_BUDGET_BYTES


def test_no_file_names_another_host() -> None:
    for name, text in TEXTS.items():
        found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text.replace("http://www.w3.org/2000/svg", ""))
        assert not found, name


@pytest.mark.parametrize(
    "forbidden", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style="]
)
def test_nothing_parses_text_as_markup_or_code(forbidden: str) -> None:
    assert [name for name, text in TEXTS.items() if forbidden in text] == []


def test_both_languages_have_the_same_words_and_places_for_values() -> None:
    assert WORDS["en"].keys() == WORDS["zh"].keys()
    for key, text in WORDS["en"].items():
        places = set(re.findall(r"\{\w+\}", text)) - {"{count}"}
        assert places == set(re.findall(r"\{\w+\}", WORDS["zh"][key])) - {"{count}"}, key
        assert text.strip() and WORDS["zh"][key].strip(), key


def test_every_word_that_is_called_exists_and_every_word_is_called() -> None:
    made = {f"{group}.{name}" for group, names in MADE.items() for name in names}
    words = set(WORDS["en"])
    assert made <= words
    assert {key for key in called() if not expanded({key}) & words} == set()
    told = {key for key in words if key.partition(".")[0] in TOLD}
    assert words - expanded(called()) - made - told == set()


def test_every_loss_stage_and_reason_of_the_service_has_words() -> None:
    words = set(WORDS["en"])
    assert {f"loss.{kind}" for kind in KINDS} <= words
    parts = Path(appliance.__file__).parent
    source = "\n".join(
        path.read_text("utf-8") for part in ("answer", "retrieval") for path in (parts / part).glob("*.py")
    )
    reasons = set(REASON.findall(source))
    assert {"rerank_partial", "words_only", "unsupported"} <= reasons, "the pattern finds them no longer"
    assert {f"degraded.{reason}" for reason in reasons} <= words
    stages = set(re.findall(r'\.stage\("(\w+)"', source))
    assert {"queue", "rerank"} <= stages
    stages |= {"prefill", "decode", "ttft", "total"}  # told by the engine, or no stages
    assert {f"stage.{stage}" for stage in stages} <= words


def test_figures_of_caches_are_those_that_the_page_reads() -> None:
    read = set(re.findall(r"\bfound\.(\w+)", SCRIPTS["system.js"]))
    assert read and read <= set(Figures.__struct_fields__)
