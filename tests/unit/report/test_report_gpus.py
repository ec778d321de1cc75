# SPDX-License-Identifier: MIT
"""What the report of a site's GPUs says, against what is known of the made-up site; the map in the terminal."""

from __future__ import annotations

import itertools
import json
import math
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.report.evidence import findings, values_beside
from slurm_pal.report.gpus.as_json import to_json
from slurm_pal.report.gpus.cost import HOURS_PER_DAY, cost
from slurm_pal.report.gpus.course import steps
from slurm_pal.report.gpus.gpu_report import coverage, flagged, gpu_report, slowest
from slurm_pal.report.gpus.heatmap import lines, marked, printed, render
from slurm_pal.report.gpus.job_shapes import JobShapes, job_shapes, lost
from slurm_pal.report.gpus.opening import claims
from slurm_pal.report.gpus.page import tiles
from slurm_pal.report.gpus.reasons import MEANINGS, by_gravity, meaning
from slurm_pal.report.gpus.scale import EDGES, STEPS, counts, step_of
from slurm_pal.report.gpus.single import known
from slurm_pal.report.gpus.text import gpu_text, text
from slurm_pal.report.gpus.words import advice, changes
from slurm_pal.report.inventory import NEVER_MEASURED, GpuRow
from slurm_pal.store.snapshot import FLAGS
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import sweeps

from ...doubles.gpus_site import by_time, records, rows_of, site_of, steps_of
from ...doubles.records_factory import DAY_S, NOW_S, record, sweep, truth, uuid_of
from ...doubles.running_factory import job


def row(node: str = "n1", index: int = 0, slowdown: float | None = 1.0, *flags: str, **changes: object) -> GpuRow:
    scores = {} if slowdown is None else {"A": slowdown}
    made = GpuRow(node, index, f"GPU-{node}-{index}", "V100", scores, {"A": "v0"}, 60.0, None, flags)
    return made._replace(**changes)  # type: ignore[arg-type]


# The scale and the map


@given(st.floats(0.1, 10.0))
def test_every_slowdown_is_within_its_step(slowdown: float) -> None:
    step = step_of(slowdown)
    assert (step.low is None or step.low <= slowdown) and (step.high is None or slowdown < step.high)


@given(st.lists(st.floats(0.5, 2.0)))
def test_counts_count_every_gpu_once(slowdowns: list[float]) -> None:
    found = counts(slowdowns)
    assert sum(found) == len(slowdowns)
    assert found == [sum(1 for s in slowdowns if step_of(s) is step) for step in STEPS]


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_digits_can_be_read_on_their_colours() -> None:
    """WCAG 2: a contrast of 3 for large or bold text; ours is at least that, most far above."""
    for step in STEPS:
        light, dark = sorted((luminance(step.colour), luminance(step.ink)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.0, step


def test_the_scale_is_ordered_by_depth_from_the_middle() -> None:
    depth = [luminance(step.colour) for step in STEPS]
    assert depth[:5] == sorted(depth[:5]) and depth[4:] == sorted(depth[4:], reverse=True)
    assert len(STEPS) == len(EDGES) + 1 == 10


def test_the_map_shows_every_gpu_flag_and_gap() -> None:
    rows = [row("n1", 0, 1.0), row("n1", 1, 1.2, "outlier"), row("n2", 0, None, NEVER_MEASURED), row("n2", 2, 0.9)]
    body = [text.plain for text in render(rows, "A", 80)]
    assert body[0].endswith("4 GPUs of 2 nodes")
    assert body[1] == "n1 4 9!     n2 ?   0"
    assert not body[2]


def test_a_forgotten_score_is_unknown_in_the_map() -> None:
    assert lines([row("n1", 0, 1.0, "unknown")], "A")[0].cells[0].slowdown is None
    assert lines([row("n1", 0, 1.3, "stale")], "A")[0].cells[0].slowdown == 1.3


def test_a_flag_of_age_is_no_mark() -> None:
    assert not marked(row("n1", 0, 1.0, "stale", "small_group"))
    assert marked(row("n1", 0, 1.0, "stale", "xid"))


def test_neighbours_that_look_the_same_share_a_line_and_no_others_do() -> None:
    rows = [row(f"n{i}", g, 1.2 if (i, g) == (7, 0) else 1.0) for i in range(1, 11) for g in range(2)]
    assert [line.name for line in lines(rows, "A")] == ["n[1-6]", "n7", "n[8-10]"]


@pytest.mark.parametrize("nodes", [1, 7, 1000])
@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_map_fits_the_terminal_and_loses_nothing(nodes: int, width: int) -> None:
    draw = np.random.default_rng(nodes)
    rows = [row(f"node{i:04d}", g, float(draw.normal(1, 0.03))) for i in range(nodes) for g in range(8)]
    found = [text.plain for text in render(rows, "A", width)]
    assert max(map(len, found)) <= width
    body = "\n".join(found[1 : found.index("")])
    digits = [step_of(r.slowdown["A"]).digit for r in rows]
    if nodes < 1000:  # few enough that no two neighbours look the same
        assert all(row.node in body for row in rows)
    shown = [step_of(c.slowdown or 0).digit for line in lines(rows, "A") for _ in line.nodes for c in line.cells]
    assert shown == digits
    assert len(found) <= nodes // (width // 30) + 12


def test_a_map_in_a_narrow_terminal_is_no_wider() -> None:
    found = [text.plain for text in render([row(f"n{i}", g, 1 + g / 50) for i in range(9) for g in range(8)], "A", 40)]
    assert max(map(len, found)) <= 40
    assert " ".join(found).count("median GPU; 72 GPUs of 9 nodes") == 1


def test_a_map_without_colour_has_no_escapes_and_with_colour_the_same_text() -> None:
    made = render([row("n1", g, 0.9 + g / 20) for g in range(8)], "A", 80)
    plain, coloured = printed(made, colored=False), printed(made, colored=True)
    assert not any("\x1b" in line for line in plain)
    assert "\x1b[" in coloured[1] and "38;2" in coloured[1]
    assert [line.rstrip() for line in (text.plain for text in made)] == plain


# Figures


def test_spread_is_that_of_the_truth() -> None:
    true = truth(200, sd=0.02)
    found = site_of(sweep(true) + sweep(true, "s2", ts=NOW_S - 60)).measured.groups
    a = next(g for g in found if g.group.sensitivity == "A")
    slow = np.array(true["A"]) / np.median(true["A"])
    assert a.spread.gpus == 200 and a.spread.runs_per_gpu == 2
    assert a.spread.between_sd_pct == pytest.approx(100 * slow.std(), rel=0.02)
    assert a.spread.slowest == pytest.approx(slow.max(), abs=0.002)
    assert a.spread.icc > 0.99
    assert a.slowdown[uuid_of(0)] == pytest.approx(slow[0], abs=0.002)


def test_a_gpu_counts_in_the_group_of_its_newest_run_only() -> None:
    old = [record(uuid_of(i), index=i, ts=NOW_S - 9 * DAY_S, sweep="s0", slowdown=2.0) for i in range(6)]
    new = [record(uuid_of(i), index=i, ts=NOW_S - DAY_S, sweep="s1", method_hash="new") for i in range(4)]
    found = site_of([*old, *new]).measured.groups
    assert {g.group.method_hash: g.spread.gpus for g in found} == {"new": 4, "hash": 2}


def test_a_gpu_counts_with_the_preferred_of_its_benchmarks_only() -> None:
    """Whenever that was measured: the others come before it, and after it."""
    names = ("gemm_tf32", "gemm_bf16", "zz", "gemm_fp16", "gemm_bf16", "gemm_fp32")
    slowdowns = (3.0, 1.0, 4.0, 5.0, 1.1, 6.0)
    made = [
        record(uuid_of(0), slowdown=slow, bench=name, ts=NOW_S - 100 + i, sweep="s1")
        for i, (name, slow) in enumerate(zip(names, slowdowns, strict=True))
    ]
    (found,) = site_of(made).measured.groups
    assert found.group.benchmark == "gemm_bf16" and found.spread.runs_per_gpu == 2
    assert found.median_value == pytest.approx((250 / 1.0 + 250 / 1.1) / 2)


class Telemetry(dict[str, object]):
    """One that can be watched: a record cannot."""


def test_records_are_not_held_but_for_those_of_the_gpu_shown() -> None:
    made, most = by_time(records(gpus=8, sweeps=3)), 0
    held: list[weakref.ref[Telemetry]] = []

    def stream() -> Iterator[Record]:
        nonlocal most
        for one in made:
            telemetry = Telemetry(one.telemetry)
            if one.gpu.uuid != uuid_of(0):
                held.append(weakref.ref(telemetry))
            yield replace(one, telemetry=telemetry)
            del telemetry
            most = max(most, sum(1 for known in held if known() is not None))

    found = gpu_report(rows_of(made), stream(), steps_of(made), NOW_S, Params(), "lab", uuid=uuid_of(0))
    assert found == site_of(made, uuid=uuid_of(0)) and len(held) == 63
    assert [r.gpu.uuid for r in found.measured.own] == 9 * [uuid_of(0)]
    values_beside(found.measured.own, stream())
    assert most <= 1  # the one that the loop looks at


def test_what_all_gpus_went_through_is_no_spread() -> None:
    """Half of them were measured since a minor driver made all 2 % slower."""
    true = {"A": [1.0 + 0.002 * (i % 8) for i in range(48)]}
    made = [r for n in range(3) for r in sweep(true, f"s{n}", ts=NOW_S - DAY_S * (60 - 10 * n), noise=0.0003)]
    later = {"A": [1.02 * s for s in true["A"]]}
    before = site_of(made)
    made += sweep(later, "s9", ts=NOW_S - DAY_S, noise=0.0003, only=range(24))
    after = site_of(made, uuid=uuid_of(0))
    (old,), (new,) = before.measured.groups, after.measured.groups
    assert new.spread.icc == pytest.approx(old.spread.icc, abs=0.01) and new.spread.icc > 0.95
    assert new.spread.within_cv_pct < 0.06 and new.median_value < old.median_value
    assert new.spread.between_sd_pct == pytest.approx(old.spread.between_sd_pct, abs=0.02)
    assert max(abs(p.slowdown - new.slowdown[p.uuid]) for p in new.points) < 0.002
    assert "newest run" not in gpu_text(after, uuid_of(0), 400)[3]


@pytest.mark.parametrize(("all_of_them", "kinds"), [(True, []), (False, ["step"])])
def test_what_all_gpus_went_through_is_no_step_of_one(all_of_them: bool, kinds: list[str]) -> None:
    """A vendor who gets the bundle of one GPU would take it for a fault of that GPU."""
    true = {"A": [1.0 + 0.002 * i for i in range(8)]}
    later = {"A": [1.03 * s if all_of_them or i == 5 else s for i, s in enumerate(true["A"])]}
    made = [r for n in range(8) for r in sweep(true if n < 5 else later, f"s{n}", ts=NOW_S - DAY_S * (80 - 10 * n))]
    own = [r for r in made if r.gpu.uuid == uuid_of(5)]
    assert [f.kind for f in findings(own, values_beside(own, by_time(made)), NOW_S)] == kinds
    assert [f.kind for f in findings(own, values_beside(own, own), NOW_S)] == ["step"], "nobody to compare it with"


def test_runs_that_do_not_count_are_left_out() -> None:
    good = [record(uuid_of(i), index=i) for i in range(4)]
    bad = replace(record(uuid_of(9), index=9, valid=False, flags=["foreign_process"]), reason="somebody is there")
    found = site_of([*good, bad])
    assert found.measured.groups[0].spread.gpus == 4
    assert found.measured.refused == {"another process was on the GPU": 1}


def test_runs_are_refused_without_naming_anybody() -> None:
    bad = [
        replace(record(uuid_of(i), index=i, valid=False, flags=["foreign_process"]), reason=f"in use by {i} (alice)")
        for i in range(8)
    ]
    found = site_of(bad)
    assert found.measured.refused == {"another process was on the GPU": 8}
    said = json.dumps(to_json(found, uuid_of(0))) + "\n".join([*text(found), *gpu_text(found, uuid_of(0))])
    assert "alice" not in said


def test_points_take_the_newest_run() -> None:
    found = next(g for g in site_of(records()).measured.groups if g.group.sensitivity == "A")
    slow = {p.uuid: p for p in found.points}[uuid_of(47)]
    assert slow.slowdown == pytest.approx(1.2, abs=0.03)
    assert slow.sensors["sm_clk_mhz"] < 1200 < slow.sensors["sm_clk_mhz"] + 100


# Cost


def test_cost_of_a_known_node() -> None:
    rows = [row("n1", 0, 1.0), row("n1", 1, 1.25), row("n2", 0, 0.8), row("n2", 1, 0.8)]
    found = cost(rows, "A")
    assert found is not None
    assert found.behind_share == pytest.approx((1 - 1 / 1.25) / 4)
    assert found.waiting_share == pytest.approx((1 - 1.0 / 1.25) / 4)
    assert found.waiting_gpu_h == pytest.approx(0.2 * HOURS_PER_DAY)


@given(st.lists(st.floats(0.7, 3.0), min_size=1, max_size=40), st.integers(1, 8))
def test_costs_are_shares(slowdowns: list[float], per_node: int) -> None:
    rows = [row(f"n{i // per_node}", i % per_node, s) for i, s in enumerate(slowdowns)]
    found = cost(rows, "A")
    assert found is not None and 0 <= found.waiting_share < 1 and 0 <= found.behind_share < 1
    if per_node == 1 or max(slowdowns) == min(slowdowns):
        assert found.waiting_share == 0


def test_models_of_one_node_do_not_wait_for_each_other() -> None:
    rows = [row("n1", 0, 1.0), row("n1", 1, 1.5, model="A100")]
    found = cost(rows, "A")
    assert found is not None and found.waiting_share == 0


def running(name: str = "train", **gpus: tuple[int, ...]) -> SlurmJob:
    return job(7, gpus, name=name)


SIZES = {"n1": 4, "n2": 4}


def test_jobs_that_fill_nodes_save_nothing_inside_them() -> None:
    rows = [row(node, i, s) for node in SIZES for i, s in enumerate((1.0, 1.2, 1.0, 1.2))]
    filling = job_shapes([running(n1=(0, 1, 2, 3), n2=(0, 1, 2, 3))], SIZES)
    assert filling is not None and filling.filling == 1.0
    found = cost(rows, "A", filling)
    assert found is not None and found.saved_share == 0.0 < found.waiting_share
    assert found.waiting_share == pytest.approx((1 - 1 / 1.2) / 2)
    single = cost(rows, "A", job_shapes([running(n1=(0,)), running(n1=(1,))], SIZES))
    assert single is not None and single.saved_share == single.waiting_share == 0.0


def test_what_jobs_of_half_a_node_save_is_the_mean_over_all_pairs() -> None:
    """Of the six pairs four hold a fast and a slow GPU, in which the fast one waits a sixth of its time."""
    rows = [row("n1", i, s) for i, s in enumerate((1.0, 1.2, 1.0, 1.2))]
    halves = job_shapes([running(n1=(0, 3)), running(n2=(1, 2)), running("pal-profile:s1", n2=(0, 1, 2, 3))], SIZES)
    assert halves is not None and (halves.jobs, halves.gpus, halves.filling) == (2, 4, 0.0)
    found = cost(rows, "A", halves)
    assert found is not None and found.saved_share == pytest.approx(4 / 6 * (1 - 1 / 1.2) / 2)
    assert found.waiting_share == pytest.approx(4 / 6 * (1 - 1 / 1.2) / 2), "two jobs of half a node wait less"
    guessed = cost(rows, "A")
    assert guessed is not None and guessed.saved_share == found.saved_share, "without jobs that is what is assumed"
    assert guessed.waiting_share == pytest.approx((1 - 1 / 1.2) / 2)
    mixed = job_shapes([running(n1=(0, 3)), running(n2=(0, 1, 2, 3))], SIZES)
    some = cost(rows, "A", mixed)
    assert some is not None and some.saved_share == pytest.approx(found.saved_share / 3)


@given(st.lists(st.floats(0.7, 3.0), min_size=1, max_size=8), st.integers(1, 8))
def test_by_chance_is_the_mean_over_all_choices_and_least_is_no_more(slowdowns: list[float], taken: int) -> None:
    by_chance, least = lost(slowdowns, taken)
    choices = list(itertools.combinations(slowdowns, taken))
    waits = [sum(1 - s / max(chosen) for s in chosen) / taken for chosen in choices] or [0.0]
    assert by_chance == pytest.approx(sum(waits) / len(waits), abs=1e-9) and 0 <= least <= by_chance + 1e-12


def test_no_running_job_is_no_shape() -> None:
    assert job_shapes([running()], SIZES) is None and job_shapes([running(n9=(0,))], SIZES) is None


def test_the_advice_names_what_the_saving_rests_on() -> None:
    made = records()
    rows = rows_of(made)
    sizes = {r.node: 4 for r in rows}
    jobs = [running(**{node: (0, 1, 2, 3)}) for node in sizes]

    def lines_of(shapes: JobShapes | None) -> str:
        return " ".join(advice(gpu_report(rows, by_time(made), (), NOW_S, Params(), shapes=shapes)))

    single = gpu_report(rows, (), (), NOW_S, Params(), shapes=job_shapes([running(n0002=(0,))], sizes))
    assert not any("GPU-hours" in line for line in claims(single))
    tile = next(tile for tile in tiles(single) if tile.name == "GPU-hours lost a day")
    assert (tile.value, tile.detail) == ("0.0", "0.0 % of the time: the jobs that run now, at full load")
    assert "if jobs take half of a node each" in lines_of(None)
    assert "saves" not in lines_of(job_shapes(jobs, sizes))
    mixed = [running(**{node: (0, 1)}) for node in sizes if node != "n0002"] + [running(n0002=(0, 1, 2, 3))]
    assert len(sizes) == 12
    assert "by the jobs that run now (15 % of their GPUs are in nodes that one fills)" in lines_of(
        job_shapes(mixed, sizes)
    )


def test_unconfirmed_gpus_get_the_command_that_confirms_them() -> None:
    rows = [row("n3", 0, 1.2, "outlier", "unconfirmed"), row("n4", 1, 1.0, "unconfirmed"), row("n5", 0, 1.0)]
    found = advice(gpu_report(rows, (), (), NOW_S, Params()))
    assert any("confirm n[3-4]: pal-profile run -w n[3-4]" in line for line in found)


def test_the_headline_of_a_gpu_agrees_with_its_newest_run() -> None:
    true = truth(16, outliers=[])
    made = [r for n in range(4) for r in sweep(true, f"s{n}", ts=NOW_S - DAY_S * (40 - 10 * n), noise=0.0003)]
    slow = {c: [s * (1.25 if i == 5 else 1.0) for i, s in enumerate(v)] for c, v in true.items()}
    made += sweep(slow, "s9", ts=NOW_S - 3600, noise=0.0003)
    headline = gpu_text(site_of(made, uuid=uuid_of(5)), uuid_of(5), 400)[3]
    assert f"newest run took {1.25 * true['A'][5]:.2f} times" in headline and "not confirmed yet" in headline
    assert f"its score is {true['A'][5]:.2f}" in headline and headline.endswith("pal-profile run -w n0002")
    assert "newest run" not in gpu_text(site_of(made, uuid=uuid_of(4)), uuid_of(4), 400)[3]


def test_gpus_without_a_score_cost_nothing() -> None:
    assert cost([row("n1", 0, None, NEVER_MEASURED), row("n1", 1, 1.4, "unknown")], "A") is None


# Sweeps


def test_a_gpu_that_changes_class_is_churn() -> None:
    first, second = truth(48, sd=0.02), truth(48, sd=0.02)
    second["A"][5] = 1.3
    made = sweep(first, "s1", ts=NOW_S - 3 * DAY_S) + sweep(first, "s2", ts=NOW_S - 2 * DAY_S)
    made += sweep(second, "s3", ts=NOW_S - DAY_S) + sweep(second, "s4", ts=NOW_S - 3600)
    found = steps_of(made)
    assert [s.sweep_id for s in found] == ["s1", "s2", "s3", "s4"]
    assert found[0].churn("A") is None and found[1].churn("A") is not None
    last = found[-1]
    moved = [m for m in last.moves if m.uuid == uuid_of(5)]
    assert moved and moved[0].slowdown["A"][1] == pytest.approx(1.3, abs=0.03)
    assert last.compared["A"] == 48 and 1 <= last.changed["A"] <= 4
    assert last.churn("C") == 0.0


def test_new_and_gone_gpus_are_named() -> None:
    true = truth(12)
    made = sweep(true, "s1", ts=NOW_S - DAY_S, only=range(11))
    made += sweep(true, "s2", ts=NOW_S - 3600)
    swapped = [record("GPU-new", "n0001", 0, ts=NOW_S - 60, sweep="s3")]
    found = steps_of([*made, *swapped])
    assert found[1].new == (uuid_of(11),) and found[1].gone == ()
    assert found[2].new == ("GPU-new",) and found[2].gone == (uuid_of(0),)


def test_the_first_sweep_shown_is_compared_with_the_one_before_it() -> None:
    made = [one for i in range(5) for one in sweep(truth(12, sd=0.02), f"s{i}", ts=NOW_S - (6 - i) * DAY_S)]
    known = sweeps(made, NOW_S, Params())
    whole = steps_of(made)
    for skip in range(6):
        assert steps(iter(known), Params(), skip=skip) == whole[skip:]
    assert whole[0].compared == {} and whole[3].compared["A"] == 12


def test_sweeps_of_other_nodes_do_not_count() -> None:
    true = truth(8)
    made = sweep(true, "s1", ts=NOW_S - DAY_S) + sweep(true, "s2", ts=NOW_S - 60)
    found = steps_of(made, present={uuid_of(0), uuid_of(1)})
    assert [s.gpus for s in found] == [2, 2] and set(found[-1].classes["A"]) <= {uuid_of(0), uuid_of(1)}


# The whole


def test_the_report_says_what_is_known() -> None:
    found = site_of(records())
    said = "\n".join(text(found))
    assert found.coverage.scored == 48 and found.coverage.gpus == 48
    assert "lab: 48 GPUs of 12 nodes" in said and "These GPUs are emulated" in said
    lost, basis, spread = claims(found)
    assert re.fullmatch(
        r"2\.\d % of the GPUs' capacity is lost where .*: 29\.\d GPU-hours a day, the work of 1 GPU\.", lost
    )
    assert basis == "This is an estimate, for full load with compute-bound work in jobs that fill nodes."
    assert spread.startswith("In compute-bound work the 48 GPUs of model Emu V100 differ by ")
    assert "the slowest, n0012:3, takes 1.2" in spread
    assert found.slowest[0].uuid == uuid_of(47)
    assert changes(found)[0].startswith("Sweep s1 ") and "changed class" in changes(found)[1]
    assert max(len(line) for line in text(found, 80) if line.startswith(("In ", "- ", "At "))) <= 80


def test_the_order_of_records_does_not_matter() -> None:
    made = records()
    rows = rows_of(made)
    assert text(gpu_report(rows, by_time(made), steps_of(made), NOW_S, Params(), "lab")) == text(site_of(made[::-1]))


def test_a_slow_gpu_of_the_rarer_model_is_told_first() -> None:
    """24 GPUs of one model that are alike, 8 of another, one of which is slow."""
    common = [record(uuid_of(i), f"n{i // 4}", i % 4, 1.0 + i / 2000) for i in range(24)]
    rare = [
        record(uuid_of(i), f"n{i // 4}", i % 4, 1.3 if i == 30 else 1.0 + (i - 24) / 100, model="Rare")
        for i in range(24, 32)
    ]
    found = site_of([*common, *rare])
    assert "GPUs of the same kind differ by up to" in claims(found)[-1]
    assert re.search(r"the slowest, n7:2, takes 1\.[23]", claims(found)[-1])


def test_advice_names_faults_first_then_what_to_measure() -> None:
    rows = [row("n1", 0, 1.0), row("n1", 1, 1.2, "xid"), row("n2", 0, None, NEVER_MEASURED), row("n3", 0, 1.1, "stale")]
    rows += [row("n1", 2, 1.0), row("n1", 3, 1.2)]
    found = advice(gpu_report(rows, [], [], NOW_S, Params()))
    assert found[0].startswith("Look at the hardware of 1 GPU: xid n1:1.")
    assert found[1] == "1 GPU has no score for class A: pal-profile run --nodelist n2"
    assert found[2] == "1 GPU was measured more than 30 days ago: pal-profile run --nodelist n3"
    assert "palsub" in found[3]
    assert advice(gpu_report([row("n1", 0), row("n1", 1)], [], [], NOW_S, Params()))[0].startswith("Nothing now.")
    assert advice(gpu_report([row("n1", 0, None)], [], [], NOW_S, Params()))[0].endswith("pal-profile run")


def test_a_uuid_may_be_a_beginning_that_one_gpu_has() -> None:
    found = gpu_report([row("n1", 0), row("n1", 1), row("n10", 0)], [], [], NOW_S, Params())
    assert known(found, "GPU-n10").node == "n10" and known(found, "GPU-n1-1").gpu_index == 1
    with pytest.raises(UsageError, match="3 GPUs begin with 'GPU-n1'"):
        known(found, "GPU-n1")
    with pytest.raises(UsageError, match="no GPU '' here"):
        known(found, "")


def test_one_gpu() -> None:
    found = site_of(records(gpus=1, sweeps=1))
    said = "\n".join(text(found))
    assert "there is nothing to compare" in said and "small_group" in said
    assert "It is the first one" in said
    json.dumps(to_json(found), allow_nan=False)


def test_only_invalid_records() -> None:
    made = [record(uuid_of(i), index=i, valid=False, flags=["foreign_process"]) for i in range(4)]
    found = site_of(made)
    assert claims(found) == ["Nothing usable has been measured yet: run pal-profile run."]
    assert found.coverage.scored == 0 and not found.costs and not found.measured.groups
    json.dumps(to_json(found), allow_nan=False)


def test_nothing_at_all() -> None:
    found = gpu_report([row("n1", 0, None, NEVER_MEASURED, age_s=None)], [], [], NOW_S, Params())
    assert "\n".join(text(found)).count("Nothing usable") == 1
    assert changes(found) == ["No sweep has been ingested."]


def test_a_snapshot_alone_still_has_costs_and_flags() -> None:
    found = gpu_report([row("n1", 0, 1.0), row("n1", 1, 1.2, "outlier")], [], [], NOW_S, Params())
    said = "\n".join(text(found))
    assert found.costs and "outlier" in said and "Only the published snapshot" in said
    assert claims(found)[-1].startswith("In compute-bound work the slowest of 2 GPUs takes 1.20 times as long")


def test_coverage_states_are_apart() -> None:
    rows = [row("n1", 0), row("n1", 1, 1.0, "stale"), row("n2", 0, 1.0, "unknown")]
    rows.append(row("n2", 1, None, NEVER_MEASURED, age_s=None))
    found = coverage(rows)
    assert (found.fresh, found.stale, found.forgotten, found.never, found.scored) == (1, 1, 1, 1, 2)


def test_flagged_gpus_come_with_the_gravest_first() -> None:
    rows = [
        row("n1", 0, 1.3, "outlier"),
        row("n1", 1, 1.0, "xid"),
        row("n1", 2, 1.0, "stale"),
        row("n1", 3, 1.4, "outlier"),
    ]
    assert [r.gpu_index for r in flagged(rows)] == [1, 3, 0]
    assert [r.gpu_index for r in slowest(rows)] == [3, 0]


def test_every_flag_has_a_meaning_and_an_unknown_one_stays_itself() -> None:
    assert set(FLAGS) <= set(MEANINGS)
    assert meaning("of_tomorrow") == "of_tomorrow"
    assert by_gravity(["of_tomorrow", "stale", "xid"]) == ["xid", "stale", "of_tomorrow"]


def test_one_gpu_of_the_site() -> None:
    found = site_of(records())
    said = "\n".join(gpu_text(found, uuid_of(47)))
    assert "48 of 48" in said and "far from the others of its model" in said and said.count("gemm_bf16") == 2
    with pytest.raises(UsageError, match="no GPU 'GPU-none' here"):
        gpu_text(found, "GPU-none")


def test_json_has_no_nan_and_agrees_with_the_text() -> None:
    found = site_of(records(sweeps=1))
    body = json.loads(json.dumps(to_json(found, uuid_of(47)), allow_nan=False))
    a = next(g for g in body["groups"] if g["sensitivity"] == "A")
    assert a["icc"] is None and math.isnan(found.measured.groups[0].spread.icc)
    assert body["claims"] == claims(found)
    assert body["gpu"]["rank"]["A"] == {"place": 48, "of": 48} and len(body["gpu"]["runs"]) == 3
    assert body["costs"][0]["waiting_gpu_h_per_day"] == pytest.approx(found.costs[0].waiting_share * 48 * 24)
