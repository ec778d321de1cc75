# SPDX-License-Identifier: MIT
"""The Grafana dashboard: what it asks for is what ticks write, and Grafana can read it."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel
from prometheus_client.parser import text_string_to_metric_families

from slurm_pal.cli.dashboard import FILE
from slurm_pal.cli.pal import pal
from slurm_pal.tick.metrics import LoanNumbers, text

from ..tick.test_metrics import tick

TEXT = (Path(__file__).parents[3] / "etc" / FILE).read_text()
BOARD: dict[str, Any] = json.loads(TEXT)
PANELS: list[dict[str, Any]] = BOARD["panels"]
ASKED = [(panel["title"], target) for panel in PANELS for target in panel.get("targets", ())]
BY_PROMETHEUS = {"instance", "job"}
"""Labels that a scrape adds."""
METRIC = re.compile(r"\b(pal_\w+)(?:\{([^{}]*)\})?")
FUNCTIONS = {
    "count",
    "count_values",
    "increase",
    "max",
    "min",
    "quantile",
    "sort_desc",
    "sum",
    "time",
    "topk",
    "vector",
}


def written() -> dict[str, set[str]]:
    """Name -> labels of each sample that a tick with everything writes."""
    loans = LoanNumbers({"open": 1, "closed": 1, "used": 1}, 2, 1.5, [])
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text(tick(loans=loans)).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def parts(expression: str) -> tuple[list[tuple[str, set[str]]], set[str]]:
    """Metrics with the labels that their selectors name, and the labels by which is grouped."""
    metrics = []
    for name, selector in METRIC.findall(expression):
        matchers = re.findall(r'(\w+)(?:=~|!~|!=|=)"[^"]*"', selector)
        assert len(matchers) == (selector.count('"') // 2), selector
        metrics.append((name, set(matchers)))
    grouped = {word.strip() for words in re.findall(r"\bby \(([^)]*)\)", expression) for word in words.split(",")}
    return metrics, grouped


def complaints(expression: str, legend: str) -> list[str]:
    """What an expression asks for that is never written."""
    known, said = written(), []
    metrics, grouped = parts(expression)
    for name, labels in metrics:
        if name not in known:
            said.append(f"no metric {name}")
            continue
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend)) - {*re.findall(r'count_values\("(\w+)"', expression)}
        said += [
            f"{name} has no label {label}" for label in sorted((labels | grouped | shown) - known[name] - BY_PROMETHEUS)
        ]
        said += [f"{label} is lost by the sum" for label in sorted(shown - grouped) if grouped]
    return said if metrics else [*said, "no metric of ours"]


@pytest.mark.parametrize(("title", "target"), ASKED, ids=[f"{title} {target['refId']}" for title, target in ASKED])
def test_each_expression_asks_for_what_is_written(title: str, target: dict[str, Any]) -> None:
    assert not complaints(target["expr"], target["legendFormat"])
    bare = re.sub(r'"[^"]*"', "", target["expr"])
    assert {word for word in re.findall(r"\b([a-z_]+)\s*\(", bare)} <= FUNCTIONS | {"by"}
    assert all(bare.count(a) == bare.count(b) for a, b in ("()", "{}", "[]"))
    assert 'instance=~"$instance"' in target["expr"]


def test_a_wrong_expression_is_seen() -> None:
    assert complaints("sum(pal_nothing)", "") == ["no metric pal_nothing"]
    assert complaints('max(pal_gpu_slowdown{gpu="1"})', "") == ["pal_gpu_slowdown has no label gpu"]
    assert complaints("sum by (reason) (pal_moves_total)", "{{reason}}") == ["pal_moves_total has no label reason"]
    assert complaints("sum by (state) (pal_classes)", "{{instance}}") == ["instance is lost by the sum"]
    assert complaints("pal_tick_seconds", "{{node}}") == ["pal_tick_seconds has no label node"]
    assert complaints("up", "") == ["no metric of ours"]


def test_every_metric_is_in_a_panel() -> None:
    shown = {name for _, target in ASKED for name, _ in parts(target["expr"])[0]}
    assert {*written()} - shown == set()


def test_variables_ask_for_what_is_written() -> None:
    variables = {one["name"]: one for one in BOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(PANELS)))
    assert used == {*variables}, "each variable is used, and no other"
    for one in variables.values():
        if one["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", one["query"]["query"])
            assert match and not complaints(match[1], "") and one["definition"] == one["query"]["query"]
            [(metric, _)] = parts(match[1])[0]
            assert match[2] in written()[metric] | BY_PROMETHEUS
    assert [one["value"] for one in variables["class"]["options"]] == variables["class"]["query"].split(",")


def test_the_form_is_that_of_grafana() -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", BOARD["uid"]) and BOARD["id"] is None
    assert BOARD["schemaVersion"] >= 36 and BOARD["title"]  # since Grafana 9: a data source is an object
    ids = [panel["id"] for panel in PANELS]
    assert len(ids) == len({*ids}) and all(isinstance(one, int) and one > 0 for one in ids)
    for panel in PANELS:
        assert panel["title"] and panel["type"] in ("row", "stat", "timeseries", "table")
        if panel["type"] == "row":
            assert panel["panels"] == [] and panel["collapsed"] is False
            continue
        source = {"type": "prometheus", "uid": "${datasource}"}
        assert panel["datasource"] == source and panel["targets"]
        assert all(target["datasource"] == source for target in panel["targets"])
        letters = [target["refId"] for target in panel["targets"]]
        assert len(letters) == len({*letters})
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        values = [step["value"] for step in steps]
        assert values[0] is None and values[1:] == sorted(values[1:])


def lost(mine: object, theirs: object, place: str = "") -> list[str]:
    """Where what Grafana's models give back is not what they were given; what they add are defaults."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return [
            one
            for key, value in mine.items()
            for one in (lost(value, theirs[key], f"{place}.{key}") if key in theirs else [f"{place}.{key}"])
        ]
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        return [one for a, b in zip(mine, theirs, strict=True) for one in lost(a, b, f"{place}[]")]
    return [] if mine == theirs else [f"{place}: {theirs!r} instead of {mine!r}"]


def by_grafana(board: dict[str, Any]) -> tuple[Dashboard, list[str]]:
    """The dashboard as Grafana's own models read it, and what they lose of it."""
    register_default_plugins()
    found = Dashboard.from_json(board)
    return found, lost(board, json.loads(JSONEncoder().encode(found)))


def test_grafana_s_own_models_know_every_word_of_it() -> None:
    found, unknown = by_grafana(BOARD)
    # The first is for imports; the second is in the schema since Grafana 12 and shown in the list of variables before.
    assert sorted({*unknown}) == [".id", ".templating.list[].definition"]
    for panel in found.panels or []:
        if isinstance(panel, Panel):
            assert panel.options is not None and type(panel.options).__module__.endswith(f".{panel.type_val}")
            assert {type(target).__module__.rpartition(".")[2] for target in panel.targets or []} == {"prometheus"}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"colour": "red"}, ".panels[].colour"),
        ({"fieldConfig": {"defaults": {"units": "s"}, "overrides": []}}, ".panels[].fieldConfig.defaults.units"),
        ({"options": {"legend": {"showLegends": True}}}, ".panels[].options.legend.showLegends"),
        ({"targets": [{"refId": "A", "expression": "1"}]}, ".panels[].targets[].expression"),
    ],
)
def test_they_would_lose_a_wrong_word(change: dict[str, Any], place: str) -> None:
    panel = next(one for one in PANELS if one["type"] == "timeseries")
    assert place in by_grafana(BOARD | {"panels": [panel | change]})[1]


def test_panels_fill_the_grid_without_overlap() -> None:
    places = [panel["gridPos"] for panel in PANELS]
    for place in places:
        assert place["x"] >= 0 and place["w"] > 0 and place["h"] > 0 and place["x"] + place["w"] <= 24
    for a, b in combinations(places, 2):
        apart_x = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_y = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_x or apart_y, (a, b)
    tall = max(place["y"] + place["h"] for place in places)
    assert sum(place["w"] * place["h"] for place in places) == 24 * tall, "no holes"


def test_the_program_prints_and_writes_it(tmp_path: Path) -> None:
    said = CliRunner().invoke(pal, ["admin", "dashboard"])
    assert (said.exit_code, said.stdout) == (0, TEXT)
    path = tmp_path / "board.json"
    assert CliRunner().invoke(pal, ["admin", "dashboard", "--output", str(path)]).exit_code == 0
    assert path.read_text() == TEXT and path.stat().st_mode & 0o777 == 0o644
    wrong = CliRunner().invoke(pal, ["admin", "dashboard", "--output", str(tmp_path)])
    assert wrong.exit_code != 0 and "is a directory" in str(wrong.exception)
