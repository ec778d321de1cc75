# SPDX-License-Identifier: MIT
"""Page and pictures of a site's GPUs: what they show, that they ask for nothing, and that they stay the same."""

from __future__ import annotations

import re
import struct
import time
from dataclasses import replace
from functools import partial
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from slurm_pal.report.inventory import NEVER_MEASURED
from slurm_pal.variability.params import Params

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("jinja2", reason="the page needs Jinja2")

from slurm_pal.report.drawing import DPI, WIDTH_IN, Figure, draw
from slurm_pal.report.gpus import words
from slurm_pal.report.gpus.gpu_report import GpuReport, gpu_report
from slurm_pal.report.gpus.heatmap import render
from slurm_pal.report.gpus.history_picture import class_changes, events, history
from slurm_pal.report.gpus.map_picture import BAND_IN, heat_map
from slurm_pal.report.gpus.opening import map_title, measured_when
from slurm_pal.report.gpus.page import gpu_page, page, tiles
from slurm_pal.report.gpus.pictures import PLANS, churn, correlation, distribution, pictures, single_map

from ...doubles.gpus_site import records, rows_of, site_of, steps_of
from ...doubles.html_reader import HOSTILE, Reader, framed
from ...doubles.records_factory import DAY_S, NOW_S, record, uuid_of


@pytest.fixture(scope="module")
def made() -> GpuReport:
    return site_of(records())


@pytest.fixture(scope="module")
def html(made: GpuReport) -> str:
    return page(made)


@pytest.fixture(scope="module")
def hostile() -> GpuReport:
    found = [
        replace(r, gpu=replace(r.gpu, model=HOSTILE), sweep_id=HOSTILE, env=replace(r.env, driver=HOSTILE))
        for r in records(gpus=8, sweeps=1)
    ]
    rows = [row._replace(node=HOSTILE, flags=(*row.flags, HOSTILE)) for row in rows_of(found)]
    return gpu_report(rows, found, steps_of(found), NOW_S, Params(), HOSTILE, HOSTILE)


@pytest.fixture(scope="module")
def hostile_html(hostile: GpuReport) -> str:
    return page(hostile)


def test_the_page_says_what_was_found(made: GpuReport, html: str) -> None:
    reader = Reader(html)
    assert reader.open == []
    said = re.sub(r"\s+", " ", " ".join(reader.text))
    assert "lab: 48 GPUs of 12 nodes" in said
    assert "the slowest, n0012:3, takes 1.2" in said and "GPU-hours a day" in said
    assert "quarantined 2 slow for good, in 2 of its last 4 sweeps: slow, not broken" in said
    assert "Look at the hardware" not in said
    assert "These GPUs are emulated" in said and "Assumes that every measured GPU" in said
    missing = said.count("all scores are within 1 %") + said.count("no GPU changed class")
    assert reader.tags.count("svg") == len(PLANS) + 1 - missing
    assert next(t for t in reader.tags if t in ("h1", "h2")) == "h1" and reader.tags.count("h1") == 1


def test_the_page_asks_for_nothing(html: str) -> None:
    assert not re.search(r"https?://|<script|\bsrc\s*=|@import|<link|<iframe|javascript:", html, re.IGNORECASE)
    assert not re.search(r"url\([^#]", html)
    links = [value for _, name, value in Reader(html).attributes if name.endswith("href")]
    assert links and all(value.startswith(("#", "data:image/png;base64,")) for value in links)


def test_ids_are_unique_and_every_reference_has_one(html: str) -> None:
    attributes = Reader(html).attributes
    ids = [value for _, name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = {value[1:] for _, name, value in attributes if name.endswith("href") and value.startswith("#")}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", html)) | {v for _, n, v in attributes if n == "aria-labelledby"}
    assert wanted <= set(ids)


def test_every_picture_has_a_name_for_those_who_cannot_see_it(html: str) -> None:
    attributes = Reader(html).attributes
    labels = [value for tag, name, value in attributes if tag == "svg" and name == "aria-label"]
    assert len(labels) == html.count("<svg ") and all(len(label) > 60 for label in labels)
    assert [value for tag, name, value in attributes if tag == "html" and name == "lang"] == ["en"]


def test_pictures_follow_the_scheme_of_the_page(html: str) -> None:
    assert "prefers-color-scheme: dark" in html and "@media print" in html
    drawn = html[html.index("<svg") :]
    assert "fill: var(--paper)" in drawn and "fill: var(--ink)" in drawn
    assert not re.search(r"(fill|stroke): (#ffffff|#1d2733|#5b6876|#e3e3e3)", drawn)


def test_hostile_names_stay_text(hostile: GpuReport, hostile_html: str) -> None:
    for text in (hostile_html, gpu_page(hostile, hostile.rows[0].uuid)):
        reader = Reader(text)
        assert reader.open == []
        assert not {"script", "img"} & set(reader.tags)
        assert not [name for _, name, _ in reader.attributes if name == "src" or name.startswith("on")]
        assert " ".join(reader.text).count(HOSTILE) >= 3
        assert "49" not in re.findall(r"\{\{.*?\}\}", text)


def test_the_same_records_give_the_same_bytes(made: GpuReport, html: str) -> None:
    again = site_of(records()[::-1])
    assert page(again) == html
    assert single_map(made.rows, "A", ("png",)) == single_map(again.rows, "A", ("png",))


def test_pictures_are_well_formed_and_1000_pixels_wide(made: GpuReport) -> None:
    drawn = [*pictures(made, ("png",)), history(made, uuid_of(47), ("svg", "png"))]
    assert {p.name for p in drawn if not p.missing} >= {"map-A", "distribution", "causes", "history"}
    for picture in drawn:
        if not picture.missing:
            assert struct.unpack(">I", picture.images["png"][16:20]) == (1000,)
    for image in (drawn[-1].images["svg"], single_map(made.rows, "A", ("svg",)).images["svg"]):
        assert ElementTree.fromstring(image).tag.endswith("svg")


def test_a_site_without_measurements_says_so() -> None:
    row = rows_of(records(gpus=4, sweeps=1))[0]
    bare = row._replace(slowdown={}, age_s=None, flags=(NEVER_MEASURED,), variability_class={})
    found = gpu_report([bare], [], [], NOW_S, Params())
    reader = Reader(page(found))
    said = " ".join(reader.text)
    assert "Nothing usable has been measured yet: run pal-profile run." in said
    assert "svg" not in reader.tags and "no GPU has a score for class A" in said
    assert tiles(found)[0].verdict == "loss"


def test_one_gpu_and_only_invalid_records_have_a_page() -> None:
    for found in (site_of(records(gpus=1)), site_of([record(valid=False, flags=["xid"])])):
        assert Reader(page(found)).open == []
        assert Reader(gpu_page(found, found.rows[0].uuid)).open == []


def test_ten_thousand_points_do_not_become_ten_thousand_outlines(made: GpuReport) -> None:
    group = made.measured.groups[0]
    causes = next(plan for plan in PLANS if plan.name == "causes")
    sizes: dict[int, int] = {}
    for gpus in (400, 1600):
        rows = [made.rows[i % 48]._replace(node=f"n{i // 4:04d}", gpu_index=i % 4) for i in range(gpus)]
        many = group._replace(points=tuple(group.points[i % 48] for i in range(gpus)))
        found = made._replace(measured=made.measured._replace(groups=(many,)))
        drawn = draw("causes", "", "", partial(causes.paint, found), ("svg",))
        sizes[gpus] = len(single_map(rows, "A", ("svg",)).images["svg"]) + len(drawn.images["svg"])
        assert (b"data:image/png;base64," in drawn.images["svg"]) == (gpus == 1600)
    assert sizes[1600] < 1.3 * sizes[400]


def test_of_ten_thousand_gpus_the_slowest_of_each_node_is_seen() -> None:
    one = rows_of(records(gpus=8, sweeps=1))[0]._replace(slowdown=dict.fromkeys("ABC", 1.0), flags=())
    every = [one._replace(node=f"n{node:04d}", gpu_index=i) for node in range(1250) for i in range(8)]
    every[5003] = every[5003]._replace(slowdown=dict.fromkeys("ABC", 1.3), flags=("outlier",))
    every[80:88] = [row._replace(slowdown={}, flags=(NEVER_MEASURED,)) for row in every[80:88]]
    figure = Figure(figsize=(WIDTH_IN, 4.8), dpi=DPI)
    assert heat_map(every, "A", figure, title="site: A") == ""
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert BAND_IN * DPI / (high - low) >= 15, "pixels of a square"
    assert [text.get_text() for text in axes.texts] == [f"n{node:04d}" for node in range(0, 1250, 50)]
    legend = axes.get_legend()
    assert legend is not None and legend.get_title().get_text() == "slowdown: nodes"
    counts = [text.get_text() for text in legend.get_texts()]
    assert ">=1.10: 1" in counts and "0.99-1.01: 1,248" in counts and {"unknown (?): 1", "flag: 1"} <= {*counts}
    assert figure.get_suptitle() == "site: A\nthe slowest GPU of each node"
    assert figure.get_figheight() < 8, "one screen"


def test_each_gpu_of_a_large_site_can_be_seen_in_the_map() -> None:
    one = rows_of(records(gpus=8, sweeps=1))[0]
    every = [one._replace(node=f"n{node:04d}", gpu_index=i) for node in range(500) for i in range(8)]
    figure = Figure(figsize=(WIDTH_IN, 4.8), dpi=DPI)
    assert heat_map(every, "A", figure) == ""
    (axes,) = figure.axes
    pixels = BAND_IN * DPI / axes.get_xlim()[1]
    assert pixels >= 9
    assert all(not squares.get_linewidth()[0] for squares in axes.collections), "outlines would darken the map"
    labels = [text for text in axes.texts if text.get_text().isdecimal()]
    assert labels and all(text.get_fontsize() <= 72 * pixels / DPI for text in labels), "labels do not touch"


def test_a_map_says_of_what_and_of_when_it_is(made: GpuReport) -> None:
    old = [row._replace(age_s=(row.age_s or 0.0) + 30 * DAY_S * (i < 3)) for i, row in enumerate(made.rows)]
    days = [time.strftime("%Y-%m-%d", time.gmtime(NOW_S - ago_s)) for ago_s in (31 * DAY_S, DAY_S)]
    title = map_title("lab", old, "B", NOW_S)
    assert title == f"lab: slowdown in mixed work (class B), measured from {days[0]} to {days[1]}"
    assert map_title("", made.rows, "A", NOW_S).endswith(f"(class A), measured on {days[1]}")
    half = [
        row._replace(age_s=(row.age_s or 0.0) + 5 * DAY_S * (i < 30) + DAY_S * (i < 3)) for i, row in enumerate(old)
    ]
    assert measured_when(half, NOW_S).count(", half of them since ") == 1
    assert measured_when([row._replace(age_s=None) for row in old], NOW_S) == ""
    assert f"measured from {days[0]} to {days[1]}" in page(made._replace(rows=tuple(old)))


def test_the_page_begins_with_the_share_of_capacity_and_what_to_do(html: str) -> None:
    said = re.sub(r"\s+", " ", " ".join(Reader(html).text))
    parts = (
        "capacity is lost", "This is an estimate", "What to do", "GPUs with a score", "GPUs of model Emu V100",
        "Pictures",
    )  # fmt: skip
    order = [said.index(part) for part in parts]
    assert order == sorted(order)


def test_every_short_word_over_a_column_is_explained_below(made: GpuReport) -> None:
    """All capitals but those that are words themselves."""
    plain = {"GPU", "GPUS", "MODEL", "BENCHMARK", "MEDIAN", "FLAGS", "BEHIND", "WAITING", "SAVED", "RUNS", "JOBS",
             "ACCOUNT", "PARTITION", "COST"}  # fmt: skip
    sections = [
        words.spread_table(made), words.cost_table(made), words.slowest_table(made, 5), words.method_table(made),
        words.flagged_table(made, 5), words.money_table(made, 5),
    ]  # fmt: skip
    for section in sections:
        known = {*re.findall(r"[A-Z][A-Z0-9/-]*", section.note.replace("of this class", "CLASS"))}
        assert {*section.header} - plain <= known, section.title


def test_all_classes_are_drawn_on_one_scale(made: GpuReport) -> None:
    figure = Figure()
    assert distribution(made, figure) == ""
    assert len(figure.axes) == 3 and len({axes.get_xlim() for axes in figure.axes}) == 1
    low, high = figure.axes[0].get_xlim()
    assert low < 1.0 < 1.2 < high


def test_sweeps_that_changed_nothing_are_no_picture(made: GpuReport) -> None:
    steps = [step._replace(changed=dict.fromkeys(step.changed, 0)) for step in made.steps]
    assert churn(made._replace(steps=tuple(steps)), Figure()) == "no GPU changed class with the last 1 sweep"


def test_invisible_and_endless_names_do_no_harm() -> None:
    odd = "\u202eGPU \x1b[31m \ud800 \u05d0 \u663e\u5361 " + 200 * "x"
    found = [replace(r, gpu=replace(r.gpu, model=odd)) for r in records(gpus=8, sweeps=1)]
    rows = [row._replace(node=f"n{row.node[-1]}{odd}") for row in rows_of(found)]
    shown = page(gpu_report(rows, found, steps_of(found), NOW_S, Params(), odd))
    assert not set("\u202e\x1b") & set(shown) and shown.encode() and "x" * 60 not in shown[: shown.index("<h2>What")]
    picture = single_map(rows, "A", ("svg",)).images["svg"]  # a warning of matplotlib's would be an error here
    assert b"nx" not in picture and 200 * b"x" not in picture
    lines = [line.plain for line in render(rows, "A", 40)]
    assert not set("\u202e\x1b") & set("".join(lines))


def test_history_marks_what_happened_between_the_runs() -> None:
    own = [record("GPU-1", ts=NOW_S - (4 - i) * DAY_S, sweep=f"s{i}") for i in range(4)]
    own[2] = replace(own[2], env=replace(own[2].env, driver="560.2"))
    own[3] = replace(own[3], env=replace(own[3].env, driver="560.2", power_limit_w=250.0), node_name="n9")
    assert [e.text for e in events(own)] == ["driver 560.2", "moved to n9:0, settings changed"]
    assert [e.ts for e in events(own)] == [own[2].ts_end, own[3].ts_end]


def test_history_marks_changes_of_class() -> None:
    found = site_of(records())
    first, second = found.steps[-2], found.steps[-1]
    uuid = uuid_of(0)
    now = second.classes["A"][uuid]
    moved = first._replace(classes={**first.classes, "A": {**first.classes["A"], uuid: now + 1}})
    assert [e.text for e in class_changes([moved, second._replace(findings=())], uuid, "A")] == [
        f"v{now + 1} to v{now}"
    ]


def test_history_of_a_gpu_without_runs_is_missing(made: GpuReport) -> None:
    assert history(made, "GPU-none").missing == "no stored run of it has a value"


def test_correlation_is_spearmans() -> None:
    draw = np.random.default_rng(1)
    x = draw.normal(size=50)
    assert correlation(x, np.exp(x)) == pytest.approx(1.0)
    assert correlation(x, -(x**3)) == pytest.approx(-1.0)
    assert correlation(x, np.ones(50)) is None
    assert abs(correlation(x, draw.normal(size=50)) or 1) < 0.4


@pytest.fixture(scope="module")
def seen(html: str, hostile_html: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What Chromium has made of three pages, in frames of one page: a start of the browser takes seconds."""
    pages = {"wide": (html, 1280), "narrow": (html, 400), "hostile": (hostile_html, 1280)}
    return framed(tmp_path_factory.mktemp("browser"), pages)


def test_a_browser_shows_the_page(html: str, seen: dict[str, dict[str, Any]]) -> None:
    for name in ("wide", "narrow"):
        assert seen[name]["svgs"] == html.count("<svg ")
        assert "GPU-hours a day" in seen[name]["text"]
        assert seen[name]["styled"]  # what the page forbids others it does not forbid itself


@pytest.mark.parametrize(("name", "width"), [("wide", 1280), ("narrow", 400), ("hostile", 1280)])
def test_nothing_is_wider_than_the_window_and_nothing_is_fetched(
    seen: dict[str, dict[str, Any]], name: str, width: int
) -> None:
    assert seen[name]["fetched"] == 0
    assert seen[name]["wide"] <= seen[name]["window"] <= width
    assert seen[name]["scripts"] == 1  # ours, in the copy
