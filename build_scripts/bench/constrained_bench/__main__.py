"""Owns the command line of `build_scripts/bench/constrained`, and what its runs leave behind.

Must not know what is asked for.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

import msgspec

from appliance.config import EngineSettings, load
from appliance.engine.core import Core
from appliance.engine.llama import Llama
from appliance.engine.protocol import EngineConfig
from appliance.errors import ApplianceError
from appliance.packs import PackStore, load_manifest
from build_scripts.bench._lib import record
from build_scripts.bench._lib.conditions import Conditions, conditions, say
from build_scripts.bench._lib.tables import table

from .campaign import Outcome, run

_TEXTS = 1000
_AT_ONCE = 8
_PART = 50  # texts after which a run that is stopped has lost nothing


class Piece(msgspec.Struct, frozen=True):
    """One run, or what there is of it."""

    conditions: Conditions
    outcome: Outcome


class Results(msgspec.Struct):
    """Pieces by model and type of KV cells, in order of their texts."""

    pieces: dict[str, list[Piece]] = msgspec.field(default_factory=dict)


def results_text(results: Results) -> str:
    """The results as a section of RESULTS.md."""
    rows = []
    faults: list[str] = []
    for name, pieces in sorted(results.pieces.items()):
        outcomes = [piece.outcome for piece in pieces]
        texts = sum(outcome.texts for outcome in outcomes)
        calls = sum(outcome.tool_calls for outcome in outcomes)
        wrong = [fault for outcome in outcomes for fault in outcome.faults]
        tokens = sum(outcome.tokens for outcome in outcomes)
        rows.append([name, str(texts), str(calls), str(tokens), str(len(wrong))])
        faults += [f"- {name}: {fault}" for fault in wrong]
    head = ["model, KV cells", "texts", "of them tool calls", "tokens", "invalid"]
    ran = sorted({str(piece.conditions) for pieces in results.pieces.values() for piece in pieces})
    return "\n".join([table([head, *rows]), "", *faults, *([""] if faults else []), *ran])


def merged(pieces: list[Piece], new: Piece) -> list[Piece]:
    """`pieces` with `new` in the place of those that it repeats."""
    first, end = new.outcome.first, new.outcome.end
    kept = [piece for piece in pieces if piece.outcome.end <= first or piece.outcome.first >= end]
    return sorted([*kept, new], key=lambda piece: piece.outcome.first)


def main(arguments: list[str]) -> int:
    """Run the command; the exit code is 1 if a text is invalid."""
    parser = argparse.ArgumentParser(
        prog="constrained", description="Have texts written under drawn schemas and tool calls; check every one."
    )
    parser.add_argument("--model", default="pocket", help="a model pack; default: pocket")
    parser.add_argument("--kv-type", choices=("f16", "q8_0"), default="f16")
    parser.add_argument("--first", type=int, default=0, help="number of the first text; default: 0")
    parser.add_argument("--texts", type=int, default=_TEXTS, help=f"default: {_TEXTS}")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--record", action="store_true", help="keep the results and write RESULTS.md")
    given = parser.parse_args(arguments)
    try:
        store = PackStore(Path(load().models_dir), load_manifest())
        store.pull(given.model, say)
        path = store.resolve(given.model).generator.path
        command = shlex.join(["build_scripts/bench/constrained", *arguments])
        where = conditions(command, given.threads, ("llama-cpp-python", "llguidance"))
        settings = EngineSettings(kv_type=given.kv_type, max_sequences=_AT_ONCE, threads=given.threads)
        llama = Llama(EngineConfig(str(path), path.stem, settings=settings))
        core = Core(llama, settings)
        faults = 0
        try:
            end = given.first + given.texts
            for first in range(given.first, end, _PART):
                outcome = run(core, first, min(first + _PART, end), _AT_ONCE)
                faults += len(outcome.faults)
                say(f"{outcome.end - given.first} of {given.texts}: {faults} invalid")
                for fault in outcome.faults:
                    say(fault)
                if given.record:
                    _record(f"{given.model}, {given.kv_type}", Piece(where, outcome))
        finally:
            core.close()
            llama.close()
    except ApplianceError as error:
        print(f"Error: {error.text}", file=sys.stderr)
        return error.exit_code
    print(f"{faults} of {given.texts} texts are invalid.")
    return 1 if faults else 0


def _record(name: str, piece: Piece) -> None:
    path = record.RESULTS / "constrained.json"
    results = record.read(path, Results) or Results()
    results.pieces[name] = merged(results.pieces.get(name, []), piece)
    record.write(path, results)
    record.write_section("Constrained output", results_text(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
