# SPDX-License-Identifier: MIT
"""Pictures and the HTML page: what they show, that they ask for nothing, and that they stay the same."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.simulate.result import Timeline
from slurm_pal.simulate.statistics import WorstGpus, summary
from slurm_pal.simulate.trace import Trace

matplotlib = pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("jinja2", reason="the page needs Jinja2")

from slurm_pal.report.drawing import Picture  # noqa: E402
from slurm_pal.report.html import inline  # noqa: E402
from slurm_pal.report.simulation import page as report_page  # noqa: E402
from slurm_pal.report.simulation.files import JOBS, PAGE, SUMMARY  # noqa: E402
from slurm_pal.report.simulation.page import page, write_report  # noqa: E402
from slurm_pal.report.simulation.pictures import (  # noqa: E402
    BASELINE_COLOUR,
    PLANS,
    binned,
    file_names,
    pictures,
    style,
)
from slurm_pal.report.simulation.study import ParameterSweep, PolicyComparison, Study, compare  # noqa: E402

from ...doubles.html_reader import HOSTILE, Reader, dumped_dom  # noqa: E402
from ...doubles.replay_factory import drawn, outcome, replay, trace_of  # noqa: E402


def study(**changes: object) -> Study:
    factors = {"packed": 1.0, "pal": 1.1, "class-fit": 0.85}
    runs = [drawn(p, s, jobs=40, slowdown=f) for p, f in factors.items() for s in range(1, 4)]
    gain = summary([0.8, 0.82, 0.79])
    sweep = ParameterSweep("offered load", {"class-fit": [(0.5, gain), (0.9, summary([0.7, 0.72, 0.69]))]})
    made = Study(
        runs,
        "class-fit",
        "packed",
        trace_of(runs[0], bad=25, skipped={"no GPUs asked for": 12}),
        cluster="64 GPUs",
        charged=(("a move", "180 s"),),
        caveats=("slowdowns are drawn",),
        command="pal simulate made-up.csv",
        load=sweep,
        move_cost=sweep._replace(label="cost of a move, s"),
        worst=WorstGpus(2, gain, summary([0.9, 0.91, 0.9])),
    )
    return made._replace(**changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def painted() -> list[Picture]:
    """Drawing them takes a second or two."""
    return pictures(compare(study()))


@pytest.fixture(scope="module")
def full(painted: list[Picture]) -> tuple[PolicyComparison, str]:
    comparison = compare(study())
    return comparison, page(comparison, painted)


def test_the_page_says_what_was_found(full: tuple[PolicyComparison, str]) -> None:
    comparison, html = full
    reader = Reader(html)
    assert reader.open == []
    text = re.sub(r"\s+", " ", " ".join(reader.text))  # the blank before % does not break
    ratio = comparison.headline.ratio["mean_jct_s"]
    assert ratio is not None
    assert f"class-fit takes {ratio.mean:.2f} of packed's mean job completion time" in text
    assert "2 slowest GPUs" in text and "an estimate from these two comparisons" in text
    for said in ("a move", "180 s", "slowdowns are drawn", "no GPUs asked for", "pal simulate made-up.csv", "64 GPUs"):
        assert said in text
    assert "gpus is '0', allowed is 1 or more" in text and "and 5 more" in text
    assert reader.tags.count("svg") == len(PLANS)
    assert "Not shown" not in text


def test_the_page_asks_for_nothing(full: tuple[PolicyComparison, str]) -> None:
    _, html = full
    assert not re.search(r"https?://|<script|\bsrc\s*=|@import|<link|<iframe|javascript:", html, re.IGNORECASE)
    assert not re.search(r"url\([^#]", html)
    links = [value for _, name, value in Reader(html).attributes if name.endswith("href")]
    assert links and all(value.startswith("#") for value in links)


def test_ids_are_unique_and_every_reference_has_one(full: tuple[PolicyComparison, str]) -> None:
    _, html = full
    attributes = Reader(html).attributes
    ids = [value for _, name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = {value[1:] for _, name, value in attributes if name.endswith("href")}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", html))
    assert wanted <= set(ids)


def test_hostile_names_stay_text() -> None:
    run = drawn("packed", 1, jobs=20)
    other = drawn("pal", 1, jobs=20, slowdown=0.9)._replace(policy=HOSTILE)
    trace = Trace(HOSTILE, (), trace_of(run, bad=1).bad, {HOSTILE: 1})
    trace = trace._replace(bad=(trace.bad[0]._replace(reason=HOSTILE),))
    hostile = Study([run, other], HOSTILE, "packed", trace, "", HOSTILE, ((HOSTILE, HOSTILE),), (HOSTILE,), HOSTILE)
    comparison = compare(hostile)
    html = page(comparison, pictures(comparison, ("svg",)))
    reader = Reader(html)
    assert reader.open == []
    assert not {"script", "img"} & set(reader.tags)
    assert not [name for _, name, _ in reader.attributes if name == "src" or name.startswith("on")]
    assert " ".join(reader.text).count(HOSTILE) >= 8
    assert "49" not in re.findall(r"\{\{.*?\}\}", html)


def test_pictures_without_data_are_said_to_be_missing() -> None:
    bare = study(load=None, move_cost=ParameterSweep("s", {"pal": []}), worst=None, charged=())
    comparison = compare(bare)
    drawn_now = pictures(comparison, ("svg",))
    missing = {p.name: p.missing for p in drawn_now if p.missing}
    assert missing == {
        "gain-load": "no runs with another load were made",
        "gain-move-cost": "no runs with another move cost were made",
    }
    text = " ".join(Reader(page(comparison, drawn_now)).text)
    assert "Gain against load: no runs with another load were made." in text
    assert "slowest GPUs" not in text
    assert "Nothing: starts, moves and warm-up were free" in text


def test_interrupted_runs_leave_a_page_without_pictures() -> None:
    runs = [r._replace(complete=False) for r in study().runs]
    comparison = compare(Study(runs, "pal", "packed", Trace("t", ())))
    found = pictures(comparison)
    assert all(p.missing for p in found)
    assert "nothing to compare" in page(comparison, found)


def test_a_single_job_of_no_length_can_be_drawn() -> None:
    nothing = outcome(finish_s=0.0, ideal_s=0.0)
    runs = [replay([nothing], policy=p) for p in ("packed", "pal")]
    found = {p.name: p for p in pictures(compare(Study(runs, "pal", "packed", Trace("t", ()))))}
    assert found["jct-cdf"].images and found["over-time"].missing == "the runs took no time"
    assert found["ratio"].missing == "no finished pair of runs"


def test_a_policy_of_another_queue_is_not_drawn_here() -> None:
    runs = [*study().runs, drawn("easy-only", 1, jobs=20)._replace(queue="easy")]
    comparison = compare(study(runs=runs))
    assert "easy-only" in comparison.policies
    assert not [p for p in pictures(comparison, ("svg",)) if p.missing]


def test_the_same_study_gives_the_same_bytes_whatever_the_user_has_set(
    painted: list[Picture], full: tuple[PolicyComparison, str]
) -> None:
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 7}):
        again = pictures(compare(study()))
        assert matplotlib.rcParams["font.size"] == 30
    assert again == painted
    assert b"Date" not in b"".join(image for p in painted for image in p.images.values())
    assert page(compare(study()), again) == full[1]


def test_pictures_are_1000_pixels_wide_and_well_formed(painted: list[Picture]) -> None:
    for picture in painted:
        assert struct.unpack(">I", picture.images["png"][16:20]) == (1000,)
        assert ElementTree.fromstring(picture.images["svg"]).tag.endswith("svg")
        assert "<metadata" not in inline(picture) and "xmlns" not in inline(picture)


def test_a_policy_has_one_look() -> None:
    comparison = compare(study(load=ParameterSweep("load", {"late": [(1.0, summary([0.9]))]})))
    looks = [style(comparison, policy) for policy in (*comparison.policies, "late")]
    assert looks[0].colour == BASELINE_COLOUR
    assert len({look.colour for look in looks}) == 4  # late is the fourth policy
    names = ["packed", *(f"p{i}" for i in range(9))]
    many = comparison._replace(policies=tuple(names))
    assert len({style(many, name) for name in names}) == 10


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 9)), min_size=1, max_size=30), st.integers(1, 40))
def test_bins_keep_the_area(steps: list[tuple[float, int]], n: int) -> None:
    steps.sort(key=lambda step: step[0])
    times, values = zip(*steps, strict=True)
    edges = np.linspace(0.0, 60.0, n + 1)
    found = binned(Timeline(times, values, values), values, edges)
    area = sum(v * (b - a) for a, b, v in zip(times, (*times[1:], 60.0), values, strict=True))
    assert float((found * np.diff(edges)).sum()) == pytest.approx(area)
    assert found.min() >= -1e-9 and found.max() <= max(values) + 1e-9


def test_a_written_report(tmp_path: Path, painted: list[Picture], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "report"
    monkeypatch.setattr(report_page, "pictures", lambda comparison: painted)
    paths = write_report(str(folder), compare(study()))
    assert {Path(p).name for p in paths} == {SUMMARY, JOBS, PAGE, *file_names()}
    monkeypatch.undo()
    write_report(str(folder), compare(study(load=None)))
    assert {p.name for p in folder.iterdir()} == {SUMMARY, JOBS, PAGE, *file_names()} - {
        "gain-load.svg",
        "gain-load.png",
    }


def test_a_browser_shows_the_page(full: tuple[PolicyComparison, str], tmp_path: Path) -> None:
    path = tmp_path / PAGE
    path.write_text(full[1], encoding="utf-8")
    reader = Reader(dumped_dom(path))
    assert reader.tags.count("svg") == len(PLANS)
    assert "class-fit takes" in " ".join(reader.text)


def test_tables_and_files_cost_no_matplotlib() -> None:
    code = (
        "import sys, slurm_pal.report.simulation.tables, slurm_pal.report.simulation.files\n"
        "sys.exit(bool({'matplotlib', 'jinja2', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
