"""Owns the words of the workloads: sentences as in manuals, the same for the same seed.

Must not know tokens or prompts.
"""

from __future__ import annotations

import random

WORDS_PER_TOKEN = 0.82  # of these sentences, with the tokenizer of SmolLM2

_MACHINES = (
    "pump",
    "compressor",
    "generator",
    "conveyor",
    "chiller",
    "boiler",
    "gearbox",
    "turbine",
    "hoist",
    "separator",
    "blower",
    "mixer",
)
_PARTS = (
    "drive belt",
    "oil filter",
    "coupling",
    "pressure switch",
    "mechanical seal",
    "bearing housing",
    "relief valve",
    "control panel",
    "suction line",
    "cooling fan",
    "terminal box",
    "base frame",
    "fuel tank",
    "air cleaner",
    "discharge flange",
    "level gauge",
)
_STATES = ("cold", "clean", "dry", "level", "locked", "empty", "vented", "aligned", "at rest", "free of oil")
_UNITS = ("bar", "millimetres", "newton metres", "degrees", "litres", "hours", "seconds", "volts")
_PEOPLE = ("operator", "technician", "supervisor", "electrician")
_SENTENCES = (
    "Before the {part} is removed, make sure that the {machine} is {state} and that the supply is locked out.",
    "The {part} of the {machine} must be checked every {number} hours and replaced after {larger} hours.",
    "Tighten the bolts of the {part} to {number} {unit}, in a cross pattern, and check them again after a day.",
    "If the {machine} does not start, the {person} first looks at the {part} and then at the {other}.",
    "A reading above {number} {unit} at the {part} means that the {other} is worn or blocked.",
    "The {person} writes the reading of the {part} into the log of the {machine} at the end of each shift.",
    "Do not open the {part} while the {machine} is warm: the pressure behind it can reach {number} {unit}.",
    "When the {other} is put back, leave a gap of {number} {unit} between it and the {part}.",
    "The {machine} may run for {number} hours without the {part} only if the {person} stays beside it.",
    "Spare parts for the {part} are kept in cabinet {number}, those for the {other} in cabinet {larger}.",
    "Rinse the {part} with clean water until it is {state}, then dry it with air of at most {number} {unit}.",
    "After the {other} was replaced, let the {machine} idle for {number} seconds before the load is put on.",
)
_QUESTIONS = (
    "How often must the {part} of the {machine} be checked, and what does case {number} change?",
    "What torque do the bolts of the {part} need after repair {number}?",
    "Why does the {machine} not start when the {part} was replaced on line {number}?",
    "Which gap is left between the {part} and the {other} of unit {number}?",
    "What should the {person} do when the {part} reads more than {number}?",
    "Where are the spare parts for the {part} of {machine} {number} kept?",
)
_INSTRUCTIONS = "You answer questions about the machines of a plant from the passages that are given to you."


def sentence(rng: random.Random) -> str:
    """One sentence of a manual."""
    return _filled(rng, _SENTENCES)


def question(rng: random.Random) -> str:
    """One question about a manual."""
    return _filled(rng, _QUESTIONS)


def prose(rng: random.Random, tokens: int) -> str:
    """Whole sentences of about `tokens` tokens."""
    words = tokens * WORDS_PER_TOKEN
    text: list[str] = []
    count = 0
    while not text or count < words:
        text.append(sentence(rng))
        count += len(text[-1].split())
    return " ".join(text)


def instructions(rng: random.Random, tokens: int) -> str:
    """A system prompt of about `tokens` tokens."""
    return f"{_INSTRUCTIONS} {prose(rng, max(1, tokens - 16))}"


def _filled(rng: random.Random, forms: tuple[str, ...]) -> str:
    part, other = rng.sample(_PARTS, 2)
    number = rng.randint(2, 90)
    return rng.choice(forms).format(
        part=part,
        other=other,
        machine=rng.choice(_MACHINES),
        state=rng.choice(_STATES),
        unit=rng.choice(_UNITS),
        person=rng.choice(_PEOPLE),
        number=number,
        larger=number * rng.randint(3, 9),
    )
