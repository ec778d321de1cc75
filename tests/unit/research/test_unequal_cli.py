# SPDX-License-Identifier: MIT
"""pal simulate --cluster TYPE:GPUS,... as a user meets it, and pal trace with a throughput table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.cli.pal import main
from slurm_pal.cli.simulate import run as simulate_run
from slurm_pal.simulate.pool import Watch

from ...doubles.json_page import differences, read

GAVEL_CSV = "model,scale_factor,fast,slow\nM,1,2,1\nM,2,3,2\n"
GAVEL_JSON = {
    "fast": {"('M', 1)": {"null": 2}, "('M', 2)": {"null": 3}},
    "slow": {"('M', 1)": {"null": 1}, "('M', 2)": {"null": 2}},
}
SITE_CSV = "application,gpus,type,steps_per_s\nM,1,fast,2\nM,1,slow,1\nM,2,fast,3\nM,2,slow,2\n"
SITE_ROWS = [
    {"application": "M", "gpus": gpus, "type": name, "steps_per_s": rate}
    for gpus, name, rate in ((1, "fast", 2), (1, "slow", 1), (2, "fast", 3), (2, "slow", 2))
]
TABLES = {
    "gavel.csv": GAVEL_CSV,
    "quoted.csv": GAVEL_CSV.replace("model", '"model"'),
    "gavel.json": json.dumps(GAVEL_JSON),
    "site.csv": SITE_CSV,
    "site.json": json.dumps({"schema": "pal.throughput-table/1", "throughputs": SITE_ROWS}),
}
SACCT = (
    "JobIDRaw|Partition|User|Account|State|Submit|Eligible|ElapsedRaw|TimelimitRaw|NNodes|ReqTRES|AllocTRES|JobName\n"
)


def line(steps: int, gpus: int = 1, at_s: float = 0.0, slo: float = -1) -> str:
    return f"M\tpython3\tdir\t-n\t0\t{steps}\t{gpus}\t1\t{slo}\t{at_s}"


class Pal:
    """`run` is one command line of pal in a folder with traces and tables."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.folder, self._capsys, self._patch = folder, capsys, patch

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text, encoding="utf-8")
        return str(self.folder / name)

    def run(self, *argv: str) -> tuple[int, str, str]:
        self._patch.setattr(sys, "argv", ["pal", *argv])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        return int(ended.value.code or 0), out, err

    def simulate(self, *argv: str) -> str:
        code, out, err = self.run("simulate", "--jobs", "1", *argv)
        assert code == 0, err
        return out

    def told(self, *argv: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.simulate("--json", *argv))
        return found


@pytest.fixture
def pal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pal:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    return Pal(tmp_path, capsys, monkeypatch)


@pytest.fixture
def base(pal: Pal) -> list[str]:
    """Two jobs of 1000 and 3000 steps on one fast and one slow GPU."""
    trace = pal.write("t.trace", f"{line(1000)}\n{line(3000)}\n")
    return ["--trace", trace, "--throughputs", pal.write("gavel.csv", GAVEL_CSV), "--cluster", "fast:1,slow:1"]


# -- results --------------------------------------------------------------------------------


def test_figures_worked_out_by_hand(pal: Pal, base: list[str]) -> None:
    told = pal.told(*base, "--policy", "slurm,pal-share", "--move-cost", "50")
    slurm, ours = told["policies"]["slurm"], told["policies"]["pal-share"]
    # Slurm: the first job on the fast GPU, 500 s; the second one stays on the slow one, 3000 s.
    assert (slurm["avg_jct_s"], slurm["makespan_s"], slurm["moves"]) == (1750, 3000, 0)
    assert slurm["utilisation"] == pytest.approx(3500 / 6000)
    # All work on both GPUs would take 4000 / 3 s, the longer job alone 1500 s.
    assert slurm["makespan_bound_s"] == ours["makespan_bound_s"] == 1500
    assert (slurm["ratio_to_first"], slurm["ratio_interval"], slurm["runs"]) == (1, None, 1)
    assert ours["avg_jct_s"] < 1750 and ours["makespan_s"] >= 1500
    assert ours["ratio_to_first"] == ours["avg_jct_s"] / 1750
    assert differences(told, read()) == []
    assert (told["schema"], told["cluster"], told["move_cost_s"]) == ("pal.simulate-unequal/1", "fast:1,slow:1", 50)
    assert (told["jobs"], told["reference_type"], told["jobs_with_estimates"]) == (2, None, 0)


def test_nodes_and_slowdowns(pal: Pal, base: list[str]) -> None:
    """The same GPUs for all policies of a seed; who knows them never runs on slower ones than the others alone."""
    policies = "sia,pal-sia,pal-sia-V,pal-sia-L,pal-sia-type,pal-sia-restart,pal-sia-relabel,pal-sia-moves"
    argv = (*base, "--cluster", "fast:4/2,slow:4/4", "--policy", policies)
    told = pal.told(*argv, "--profile", "drawn", "--move-cost", "50")
    assert told["profile"].startswith("drawn") and told["cluster"] == "fast:4/2,slow:4/4"
    assert list(told["policies"]) == policies.split(",")
    alike = pal.told(*argv)  # nodes without slowdowns
    assert alike["profile"] is None
    assert told["policies"]["pal-sia-moves"]["moves"] == 0 == alike["policies"]["pal-sia-moves"]["moves"]
    assert all(row["worst_finish_time_ratio"] > 0 for row in told["policies"].values())
    slower = told["policies"]["sia"]["avg_jct_s"] / alike["policies"]["sia"]["avg_jct_s"]
    assert slower != 1.0, "slowdowns have no effect"


def test_earlier_names_of_policies(pal: Pal, base: list[str]) -> None:
    """They are the same policies, shown by the name that was asked for."""
    now = ("nonpreemptive-makespan", "gavel:makespan+nonpreemptive", "gavel:max-min+nonpreemptive")
    before = ("pal-share+steady", "gavel:makespan+steady", "gavel:max-min+steady")
    found, earlier = (pal.told(*base, "--policy", ",".join(("slurm", *names)))["policies"] for names in (now, before))
    assert list(earlier) == ["slurm", *before] and list(found) == ["slurm", *now]
    assert list(earlier.values()) == list(found.values())
    assert found[now[0]] == found[now[1]] and found[now[0]]["moves"] == 0
    assert "+steady" not in pal.simulate("--list")


def test_every_move_is_charged(pal: Pal, base: list[str]) -> None:
    free, dear = (
        pal.told(*base, "--policy", "gavel:max-min-agnostic", "--move-cost", cost)["policies"] for cost in ("0", "100")
    )
    assert free["gavel:max-min-agnostic"]["lost_gpu_h"] == 0 < free["gavel:max-min-agnostic"]["moves"]
    assert dear["gavel:max-min-agnostic"]["lost_gpu_h"] > 0
    assert dear["gavel:max-min-agnostic"]["avg_jct_s"] > free["gavel:max-min-agnostic"]["avg_jct_s"]


def test_the_table_and_what_stands_below_it(pal: Pal, base: list[str]) -> None:
    lines = pal.simulate(*base).splitlines()
    assert lines[0].startswith("POLICY ") and "MAKESPAN(h)  BOUND(h)  UTIL   MOVES  LOST(GPUh)  RATIO" in lines[0]
    assert [text.split()[0] for text in lines[1:4]] == ["slurm", "gavel:max-min", "pal-share"]
    assert lines[1].split()[1:] == ["0.49", "0.49", "0.83", "0.8", "0.4", "0.583", "0", "0.0", "1.000"]
    assert "t.trace: 2 jobs on fast:1,slow:1; 1 seed" in lines
    assert any("Each move costs 180 s" in text for text in lines)
    assert not any("Run times are taken" in text or "estimated" in text for text in lines)
    parsable = pal.simulate(*base, "--policy", "slurm", "-P", "--noheader")
    assert parsable == "slurm|0.49|0.49|0.83|0.8|0.4|0.583|0|0.0|1.000\n"


def test_completion_times_of_a_window(pal: Pal, base: list[str]) -> None:
    told = pal.told(*base, "--policy", "slurm", "--window", "1:2")
    assert told["policies"]["slurm"]["avg_jct_s"] == 3000
    assert "completion times of jobs 1 to 1" in pal.simulate(*base, "--policy", "slurm", "--window", "1:2")


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_both_kinds_say_the_same(pal: Pal, base: list[str], name: str) -> None:
    table = pal.write(name, TABLES[name])
    first = pal.told(*base)
    assert pal.told(*base, "--throughputs", table)["policies"] == first["policies"]


@pytest.mark.long
def test_seeds_are_pairs_and_processes_change_nothing(pal: Pal, base: list[str]) -> None:
    told = pal.told(*base, "--seeds", "3", "--policy", "slurm,pal-share")
    assert (told["seeds"], told["jitter_s"]) == ([1, 2, 3], 600)
    assert told["policies"]["slurm"]["ratio_to_first"] == 1 and told["policies"]["pal-share"]["runs"] == 3
    assert told["policies"]["pal-share"]["ratio_interval"] is None, "three seeds of one trace are one piece"
    again = pal.told(*base, "--seeds", "3", "--policy", "slurm,pal-share", "--jobs", "2")
    assert again["policies"] == told["policies"]
    assert pal.told(*base, "--seed", "9")["policies"] == pal.told(*base)["policies"], "one seed: the trace as it is"
    assert "3 seeds, submissions moved by up to 30 s" in pal.simulate(*base, "--seeds", "3", "--jitter", "30")


@pytest.mark.long
def test_intervals_are_over_weeks_of_a_trace(pal: Pal, base: list[str]) -> None:
    """Six weeks of pairs of jobs that come together: who gets the fast GPU matters each time, and differs each week."""
    week_s, six = 7 * 86400, range(6)
    rows = [
        line(1000 + 500 * (k % 2) * (week + 1), at_s=week * week_s + 6000.0 * (k // 2))
        for week in six
        for k in range(20)
    ]
    words = (*base[2:], "--trace", pal.write("weeks.trace", "\n".join(rows) + "\n"), "--policy", "slurm,pal-share")
    told = pal.told(*words)["policies"]["pal-share"]
    low, high = told["ratio_interval"]
    assert told["pieces"] == 6 and low < told["ratio_to_first"] < high
    assert told["verdict"] == ("gain" if high < 1 else "loss" if low > 1 else "unclear")
    assert f"{told['ratio_to_first']:.3f} ({low:.3f} to {high:.3f})" in (said := pal.simulate(*words))
    assert "cannot tell" not in said
    seeds = pal.told(*words, "--seeds", "2")["policies"]["pal-share"]
    assert seeds["pieces"] == 6, "another seed is not another week"
    few = pal.simulate(*words, "--window", "0:100")
    assert "RATIO: cannot tell a gain or a loss: 5 independent traces or weeks, at least 6 are needed." in few


@pytest.mark.long
def test_made_up_traces_are_one_for_each_seed(pal: Pal, base: list[str]) -> None:
    words = [*base[2:], "--generate", "jobs=5,gpus=1", "--policy", "slurm,pal-share", "--jobs", "1"]
    assert pal.told(*words, "--seeds", "6")["policies"]["pal-share"]["pieces"] == 6
    assert "2 seeds with a trace each" in pal.simulate(*words, "--seeds", "2")


def sacct_row(number: int, partition: str, seconds: int, name: str) -> str:
    return f"{number}|{partition}|u|a|COMPLETED|1000|1000|{seconds}|120|1|gres/gpu=1|gres/gpu=1|{name}\n"


def test_a_sites_own_history(pal: Pal) -> None:
    rows = sacct_row(1, "gpu", 500, "m") + sacct_row(2, "slow", 3000, "M") + sacct_row(3, "gpu", 10, "mystery")
    trace, table = pal.write("sacct.txt", SACCT + rows), pal.write("site.csv", SITE_CSV)
    argv = ("--trace", trace, "--throughputs", table, "--cluster", "fast:1,slow:1", "--policy", "slurm")
    told = pal.told(*argv)
    # Job 1 has 500 s on the fast type, so 1000 steps; job 2 ran on the slow one, so 3000 steps: as above.
    assert told["policies"]["slurm"]["makespan_s"] == 3000
    assert (told["reference_type"], told["jobs_with_estimates"], told["jobs"]) == ("fast", 1, 3)
    out = pal.simulate(*argv)
    assert "Run times are taken as those on fast, or on the type that a job asked for." in out
    assert "so that it is estimated: 1." in out
    assert pal.told(*argv, "--app-pattern", "myst*=M")["jobs_with_estimates"] == 0


def test_our_own_csv_and_a_made_up_trace(pal: Pal) -> None:
    table = pal.write("site.csv", SITE_CSV)
    made = pal.write("made.csv", pal.run("trace", "generate", "jobs=12,gpus=4")[1])
    argv = ("--throughputs", table, "--cluster", "fast:8,slow:8", "--policy", "pal-share")
    assert pal.told("--trace", made, *argv)["jobs"] == pal.told("--generate", "jobs=12", *argv)["jobs"] == 12


def test_made_up_jobs_are_no_wider_than_a_type(pal: Pal) -> None:
    argv = ("--throughputs", pal.write("site.csv", SITE_CSV), "--cluster", "fast:4,slow:4", "--policy", "slurm")
    code, _, err = pal.run("simulate", *argv, "--generate", "jobs=50")
    assert code == Exit.USAGE and "no type of fast:4,slow:4 has more than 4" in err
    assert "--generate gpus=4,load=1.6" in err
    assert pal.told(*argv, "--generate", "jobs=50,gpus=4,load=1.6")["jobs"] == 50


def test_bad_rows_are_told(pal: Pal) -> None:
    trace = pal.write("sacct.txt", SACCT + sacct_row(1, "gpu", 500, "M") + "2|gpu\n")
    table = pal.write("site.csv", SITE_CSV)
    argv = ("simulate", "--trace", trace, "--throughputs", table, "--cluster", "fast:1", "--policy", "slurm")
    code, _, err = pal.run(*argv)
    assert code == 0 and "line 3: " in err


def test_interrupted(pal: Pal, base: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def after_the_first(total: int) -> Iterator[Watch]:
        seen: list[int] = []

        def watch(done: int) -> None:
            seen.append(done)
            if done < seen[-2:][0] or (len(seen) > 1 and done == seen[-2] and len(seen) > 4):
                raise KeyboardInterrupt

        yield watch

    monkeypatch.setattr(simulate_run, "bar", after_the_first)
    code, out, err = pal.run("simulate", *base, "--jobs", "1", "--policy", "slurm,gavel:max-min,pal-share")
    assert code == Exit.INTERRUPTED and "1 of 3 replays" in err
    assert [text.split()[0] for text in out.splitlines()[:2]] == ["POLICY", "slurm"]


def test_the_lists(pal: Pal) -> None:
    rows = [text.split("|") for text in pal.run("simulate", "--list", "-P", "--noheader")[1].splitlines()]
    found = {(row[0], row[1]): row[2] for row in rows}
    assert len(found) == len(rows)
    for name in ("pal-share", "nonpreemptive-makespan", "gavel:max-min", "gavel:max-min+nonpreemptive", "gavel:allox"):
        assert found["--policy", name].startswith("study: unequal GPUs: ")
    for name in ("gavel:gandiva", "gavel:max-min+packing"):
        assert found["--policy", name].startswith("study: replica gavel: ")
    assert ("--replica", "gavel") in found and ("--replica", "blox-pal") in found


# -- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--cluster", "fast:1,h100:1"), "GPU type 'h100' of --cluster is not in the throughput table"),
        (("--cluster", "fast:none"), "must be TYPE:GPUS,... with own names"),
        (("--cluster", "fast:1,fast:1"), "must be TYPE:GPUS,... with own names"),
        (("--policy", "best"), "policy 'best' is not one of slurm, pal-share"),
        (("--policy", "pal-fit"), "policy 'pal-fit' is not one of slurm, pal-share"),
        (("--policy", "gavel:max-min+packing"), "simulated with --replica gavel only"),
        (("--policy", "gavel:cost"), "no price of GPU type 'fast'; those that have one are v100, p100, k80"),
        (("--window", "1:9"), "within 0:2"),
        (("--window", "all"), "must be FIRST:END"),
        (("--out", "report"), "--out means nothing with --cluster TYPE:GPUS"),
        (("--profile", "drawn:2"), "profile drawn takes nothing after a colon, not '2'"),
        (("--locality-penalty", "2"), "--locality-penalty needs nodes: --cluster fast:"),
        (("--cluster", "v100:2/2,k80:2"), "give /GPUS_PER_NODE for every type or for none"),
        (("--cluster", "v100:3/2,k80:2/2"), "and whole nodes"),
        (("--sweep", "load"), "--sweep means nothing with --cluster TYPE:GPUS"),
        (("--generate", ""), "--trace FILE, or --generate"),
        (("--format", "sia"), "as sia: "),
        (("--site",), "means nothing with --site"),
        (("--move-cost", "-1"), "must be a number at least 0"),
    ],
)
def test_bad_values_are_told_in_one_line(pal: Pal, base: list[str], argv: tuple[str, ...], words: str) -> None:
    code, out, err = pal.run("simulate", *base, *argv)
    assert (code, out) == (Exit.USAGE, "") and words in err.splitlines()[-1], err


def test_a_table_is_needed_and_must_be_readable(pal: Pal, base: list[str]) -> None:
    trace = base[:2]
    code, _, err = pal.run("simulate", *trace, "--cluster", "fast:1,slow:1")
    assert code == Exit.USAGE and "fast:1,slow:1, needs --throughputs FILE" in err
    code, _, err = pal.run("simulate", *base, "--throughputs", str(pal.folder / "none.csv"))
    assert code == Exit.DATA and "none.csv: No such file" in err
    code, _, err = pal.run("simulate", *base, "--throughputs", pal.write("bad.csv", "colour\nred\n"))
    assert code == Exit.DATA and "bad.csv: the header has 'colour', which is not a column" in err


def test_jobs_that_fit_nowhere_and_bad_lines_of_a_gavel_trace(pal: Pal, base: list[str]) -> None:
    wide = pal.write("wide.trace", f"{line(10)}\n{line(10, gpus=2)}\n")
    base = base[2:]
    code, _, err = pal.run("simulate", *base, "--trace", wide)
    assert code == Exit.USAGE and "no type of fast:1,slow:1 has the GPUs and a throughput for job 1 (2 GPUs)" in err
    code, _, err = pal.run("simulate", *base, "--trace", wide, "--cluster", "fast:2", "--policy", "gavel:allox")
    assert code == Exit.USAGE and "gavel:allox is for jobs of 1 GPU; job 1 has 2" in err
    bad = pal.write("bad.trace", f"{line(10)}\nnonsense\n")
    code, _, err = pal.run("simulate", *base, "--trace", bad)
    assert code == Exit.DATA and "bad.trace line 2: 1 tab-separated columns" in err


def test_allocation_policies_need_a_cluster_of_types(pal: Pal, base: list[str]) -> None:
    for name in ("gavel:max-min", "pal-share"):
        code, _, err = pal.run("simulate", *base[:4], "--cluster", "2x4", "--policy", name)
        assert code == Exit.USAGE and f"policy '{name}' is for GPUs of several types: give --cluster TYPE:GPUS" in err
    code, _, err = pal.run("simulate", *base[:4], "--cluster", "2x4", "--window", "0:1")
    assert code == Exit.USAGE and "--window means nothing without --replica gavel or --cluster TYPE:GPUS" in err


# -- pal trace ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_describe_and_convert_a_gavel_trace(pal: Pal, base: list[str], name: str) -> None:
    table = pal.write(name, TABLES[name])
    code, out, _ = pal.run("trace", "describe", base[1], "--throughputs", table, "--json")
    told = json.loads(out)
    assert (code, told["jobs"], told["gpu_hours"]) == (0, 2, pytest.approx(2000 / 3600))
    code, out, _ = pal.run("trace", "convert", base[1], "--throughputs", table)
    assert code == 0 and [text.split(",")[7] for text in out.splitlines()[2:]] == ["500.0", "1500.0"]


def test_a_gavel_trace_without_a_table(pal: Pal, base: list[str]) -> None:
    code, _, err = pal.run("trace", "describe", base[1])
    assert code == Exit.USAGE and "with --throughputs FILE" in err


def test_missed_deadlines_are_told_by_job(pal: Pal) -> None:
    trace = pal.write("slo.trace", f"{line(1000, slo=2)}\n{line(3000, slo=1.2)}\n")
    asked = ["simulate", "--format", "gavel", "--trace", trace, "--throughputs", pal.write("gavel.csv", GAVEL_CSV)]
    asked += ["--cluster", "fast:1,slow:1", "--policy", "slurm,gavel:cost-slo", "--prices", "fast=2,slow=1"]
    code, out, _ = pal.run(*asked, "--json")
    told = json.loads(out)["policies"]
    # 3,000 steps on the slow GPU take 3,000 s; 1.2 times the time on the fast one is 1,800 s.
    assert (code, told["slurm"]["missed"], told["slurm"]["late_s"]) == (0, 1, {"1": 1200})
    text = pal.run(*asked)[1]
    assert "slurm: 1 of 2 deadlines missed: job 1 by 0.33 h" in text.splitlines()
    assert any(row.startswith("gavel:cost-slo: ") and "of 2 deadlines missed" in row for row in text.splitlines())


def test_no_word_of_deadlines_where_there_are_none(pal: Pal) -> None:
    trace = pal.write("plain.trace", f"{line(1000)}\n")
    table = pal.write("gavel.csv", GAVEL_CSV)
    asked = ["simulate", "--trace", trace, "--throughputs", table, "--cluster", "fast:1", "--policy", "slurm"]
    assert "deadline" not in pal.run(*asked)[1]


@pytest.mark.parametrize("prices", ["fast=2,new=1", "fast", "fast=0", "fast=inf", "=1"])
def test_prices_that_mean_nothing(pal: Pal, base: list[str], prices: str) -> None:
    code, _, err = pal.run("simulate", *base, "--policy", "gavel:cost", "--prices", prices)
    assert code == Exit.USAGE and "must be TYPE=PRICE with a type of fast:1,slow:1" in err


def test_a_policy_without_its_prices(pal: Pal, base: list[str]) -> None:
    code, _, err = pal.run("simulate", *base, "--policy", "gavel:cost", "--prices", "fast=2")
    assert code == Exit.USAGE and "no price of GPU type 'slow'" in err and "--prices slow=1.5" in err
