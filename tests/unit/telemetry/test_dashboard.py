"""The dashboard that is shipped shows figures that exist, by labels that they have, and all of them."""

from __future__ import annotations

import json
import re

from click.testing import CliRunner

from appliance.cli.root import root
from appliance.telemetry.metrics import METRICS

KNOWN = {metric.prometheus: metric for metric in METRICS}


def queries() -> list[tuple[str, str]]:
    done = CliRunner().invoke(root, ["metrics", "dashboard"])
    assert done.exit_code == 0, done.output
    panels = json.loads(done.output)["panels"]
    return [(target["expr"], target["legendFormat"]) for panel in panels for target in panel["targets"]]


def shown(expression: str) -> set[str]:
    """The metrics of a query, without what Prometheus adds for parts of histograms."""
    names = set(re.findall(r"\b((?:appliance|http|gen_ai|process|hw)_\w+)\b(?!=)", expression))
    labels = {label for metric in METRICS for label in metric.prometheus_labels}
    return {name if name in KNOWN else re.sub(r"_(bucket|sum|count)$", "", name) for name in names - labels}


def test_every_figure_of_the_dashboard_exists_and_every_figure_is_on_it() -> None:
    found: set[str] = set()
    for expression, legend in queries():
        names = shown(expression)
        assert names, expression
        assert names <= KNOWN.keys(), names - KNOWN.keys()
        known_labels = {label for name in names for label in KNOWN[name].prometheus_labels}
        used = set(re.findall(r"\{\{(\w+)\}\}", legend)) | set(re.findall(r"(\w+)=\"", expression))
        for grouping in re.findall(r"by \(([^)]*)\)", expression):
            used |= {label.strip() for label in grouping.split(",")} - {"le"}
        assert used <= known_labels, (expression, legend)
        for histogram in re.findall(r"(\w+)_bucket", expression):
            assert KNOWN[histogram].kind == "histogram"
        for counter in re.findall(r"(\w+_total)\b(?!\[|\{)", expression):
            assert counter in KNOWN
        found |= names
    assert found == KNOWN.keys()


def test_panels_do_not_lie_on_each_other() -> None:
    done = CliRunner().invoke(root, ["metrics", "dashboard"])
    places = [
        (x, y)
        for panel in json.loads(done.output)["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
