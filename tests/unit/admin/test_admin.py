# SPDX-License-Identifier: MIT
"""pal admin: plans from texts, blocks that come out again, and the files that are written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.admin import apply, blocks, changes, check, conf_text, gres, lua_text, shipped, site_files, status
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, Exit, PalError, UsageError
from slurm_pal.slurm.client import Completed

SHIPPED = {"job_submit.lua": "-- slurm-pal: s\n", "pal.lua": "-- slurm-pal: p\n", "cli_filter.lua": "-- slurm-pal: c\n"}
SITE_LUA = "function slurm_job_submit()\n  return slurm.SUCCESS\nend\n\nreturn slurm.SUCCESS -- done\n\n-- the end\n"
CONF = "/etc/slurm/slurm.conf"
PLUGSTACK = "/etc/slurm/plugstack.conf"


def make(conf: str = "ClusterName=c\n", **others: object) -> changes.SiteFiles:
    """A site with this slurm.conf and nothing of ours."""
    plain = changes.SiteFiles(
        CONF, CONF, {CONF: conf}, PLUGSTACK, None, {}, {}, {}, SHIPPED, "/usr/lib/pal_spank.so",
        {"server": "/v/t.lua", "client": "/v/t.public.lua"}, "/v/g.txt", "/p/python3",
    )  # fmt: skip
    return plain._replace(**others)  # type: ignore[arg-type]


def after(before: changes.SiteFiles, done: changes.ChangePlan) -> changes.SiteFiles:
    """The site as it is when the plan has been carried out."""
    assert not done.blockers
    texts, files, links = dict(before.texts), dict(before.files), dict(before.table_links)
    stack = before.plugstack_text
    for step in done.steps:
        new = None if step.action == "remove" else step.new
        if step.path == CONF:
            assert new is not None and step.old == texts[CONF]
            texts[CONF] = new
        elif step.path == PLUGSTACK:
            assert step.old == stack
            stack = new
        elif step.action == "link":
            links[step.path] = step.new
        elif step.action in ("copy", "edit"):
            files[step.path] = step.new
        elif step.action == "remove":
            (links if step.path in links else files).pop(step.path)  # type: ignore[attr-defined]
    return before._replace(texts=texts, files=files, table_links=links, plugstack_text=stack)


def conf_after(conf: str, *parts: str) -> str:
    return after(make(conf), changes.install(make(conf), parts)).texts[CONF]


def test_a_bare_site_gets_files_and_one_block() -> None:
    done = changes.install(make(), ["server"])
    assert [(s.action, s.path) for s in done.steps] == [
        ("copy", "/etc/slurm/pal.lua"),
        ("link", "/etc/slurm/pal_table.lua"),
        ("copy", "/etc/slurm/job_submit.lua"),
        ("edit", CONF),
    ]
    assert done.steps[-1].new == (
        "ClusterName=c\n# BEGIN slurm-pal (pal admin install)\nJobSubmitPlugins=lua\n# END slurm-pal\n"
    )


def test_a_key_of_the_site_is_replaced_in_its_place() -> None:
    conf = "A=1\njobsubmit\\\nPlugins = throttle # why\nB=2\n"
    assert conf_after(conf, "server") == (
        "A=1\n# BEGIN slurm-pal (pal admin install)\n#pal-was: jobsubmit\\\n#pal-was: Plugins = throttle # why\n"
        "JobSubmitPlugins=throttle,lua\n# END slurm-pal\nB=2\n"
    )


@pytest.mark.parametrize("value", ["lua", "throttle,lua", "job_submit/lua", '"lua,throttle"'])
def test_a_key_that_has_lua_already_is_left(value: str) -> None:
    conf = f"JobSubmitPlugins={value}\n"
    assert conf_after(conf, "server") == conf


def test_the_last_statement_counts_as_it_does_for_slurm() -> None:
    text = conf_after("JobSubmitPlugins=lua\nJobSubmitPlugins=throttle\n", "server")
    assert conf_text.value(CONF, {CONF: text}, "JobSubmitPlugins") == "throttle,lua"
    assert text.startswith("JobSubmitPlugins=lua\n# BEGIN")


def test_a_key_in_an_included_file_is_named_and_nothing_is_done() -> None:
    texts = {CONF: "Include d/more.conf\n", "/etc/slurm/d/more.conf": "# x\nJobSubmitPlugins=throttle\n"}
    done = changes.install(make(texts=texts), ["server"])
    assert len(done.blockers) == 1
    assert "/etc/slurm/d/more.conf line 2" in done.blockers[0]
    assert "JobSubmitPlugins=throttle,lua" in done.blockers[0]


def test_includes_are_read_as_slurm_reads_them() -> None:
    files = {
        CONF: "ClusterName=k\ninclude  d/%c.conf # x\n Include not/read\n#Include nor/this\nA=last\n",
        "/etc/slurm/d/k.conf": "Include e.conf\nA=second\n",
        "/etc/slurm/d/e.conf": "A=first\nB=deep\n",
    }
    texts = conf_text.read_all(CONF, files.__getitem__)
    assert texts == files
    assert conf_text.value(CONF, texts, "a") == "last"
    place = conf_text.in_force(CONF, texts, "B")
    assert place is not None and (place.path, place.statement.first) == ("/etc/slurm/d/e.conf", 1)


def test_a_missing_include_is_one_line() -> None:
    def read(path: str) -> str:
        if path == CONF:
            return "\nInclude gone.conf\n"
        raise FileNotFoundError(2, "No such file or directory")

    with pytest.raises(UsageError, match=r"slurm\.conf line 2 includes /etc/slurm/gone\.conf, which cannot be read"):
        conf_text.read_all(CONF, read)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("K=a\\#b", "a\\#b"),
        ("K=a#b", "a"),
        ("K=a\\  \n,z", "a,z"),
        ("K=a\\ # c\n,z", "a,z"),
        ("K=a\\\\\n,z", "a\\\\"),
        ("#K=a\\\nK=b", "b"),
        ('K = "a b"', "a b"),
        ("K=a\\", "a"),
    ],
)
def test_comments_and_continuations(line: str, value: str) -> None:
    assert [s.value for s in conf_text.statements(line) if s.key == "k"] == [value]


def test_the_sites_own_filter_is_called_from_not_overwritten() -> None:
    path = "/etc/slurm/job_submit.lua"
    before = make("JobSubmitPlugins=lua\n", files={path: SITE_LUA})
    done = changes.install(before, ["server"])
    now = after(before, done)
    assert [s.path for s in done.steps if s.action == "copy"] == [
        "/etc/slurm/slurm-pal/pal.lua",
        "/etc/slurm/slurm-pal/job_submit.lua",
    ]
    assert now.files[path] == SITE_LUA.replace(
        "\nreturn slurm.SUCCESS -- done",
        '\n-- BEGIN slurm-pal (pal admin install)\npcall(dofile, "/etc/slurm/slurm-pal/job_submit.lua") -- slurm-pal\n'
        "-- END slurm-pal\nreturn slurm.SUCCESS -- done",
    )
    assert changes.install(now, ["server"]).steps == ()
    assert after(now, changes.uninstall(now)).files == {path: SITE_LUA}


@pytest.mark.parametrize(
    "text",
    [
        "return rc\n",
        "",
        "do return slurm.SUCCESS end\n",
        "--[[\nreturn slurm.SUCCESS\n-- ]]\n",
        "return slurm.SUCCESS --[[ x\n]]\n",
        "x = [[\nreturn slurm.SUCCESS\n-- ]]",
    ],
)
def test_a_filter_with_another_end_gets_the_line_by_hand(text: str) -> None:
    done = changes.install(make("JobSubmitPlugins=lua\n", files={"/etc/slurm/job_submit.lua": text}), ["server"])
    assert any('pcall(dofile, "/etc/slurm/slurm-pal/job_submit.lua")' in b for b in done.blockers)


def test_a_line_by_hand_is_enough() -> None:
    text = 'pcall(dofile, "/etc/slurm/slurm-pal/job_submit.lua")\nreturn rc\n'
    before = make("JobSubmitPlugins=lua\n", files={"/etc/slurm/job_submit.lua": text})
    assert after(before, changes.install(before, ["server"])).files["/etc/slurm/job_submit.lua"] == text
    assert lua_text.calls("--" + text, "/etc/slurm/slurm-pal/job_submit.lua") is None


def test_a_filter_that_is_not_in_force_is_not_switched_on() -> None:
    done = changes.install(make(files={"/etc/slurm/job_submit.lua": SITE_LUA}), ["server"])
    assert any("not in force" in blocker for blocker in done.blockers)


def test_new_logic_touches_what_slurmctld_looks_at() -> None:
    one = after(make(), changes.install(make(), ["server"]))
    newer = one._replace(shipped=SHIPPED | {"pal.lua": "-- slurm-pal: newer\n"})
    assert [(s.action, s.path) for s in changes.install(newer, []).steps] == [
        ("copy", "/etc/slurm/pal.lua"),
        ("touch", "/etc/slurm/job_submit.lua"),
    ]


def test_who_may_not_read_slurmctlds_table_looks_at_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {"server": str(tmp_path / "t.lua"), "client": str(tmp_path / "t.public.lua")}
    assert status.table_of(make(tables=tables)) == tables["server"]  # there is none
    (tmp_path / "t.lua").touch(0o600)
    assert status.table_of(make(tables=tables)) == tables["server"]
    monkeypatch.setattr(os, "access", lambda path, how: False)
    assert status.table_of(make(tables=tables)) == tables["client"]


def test_each_filter_reads_the_table_that_is_for_it() -> None:
    """What users' jobs were measured to be is for slurmctld alone."""
    links = {
        step.path: step.new for step in changes.install(make(), ["server", "client"]).steps if step.action == "link"
    }
    assert links == {
        "/etc/slurm/pal_table.lua": "/v/t.lua",
        "/etc/slurm/pal_table.public.lua": "/v/t.public.lua",
    }


def test_files_and_links_that_are_not_ours_stay() -> None:
    links = {"/etc/slurm/pal_table.lua": None, "/etc/slurm/pal_table.public.lua": None}
    foreign = make(files={"/etc/slurm/pal.lua": "x"}, table_links=links)
    done = changes.install(foreign, ["server"])
    assert len(done.blockers) == 2
    assert len(changes.install(foreign, ["server", "client"]).blockers) == 3
    assert changes.uninstall(foreign).steps == ()


def test_uninstall_never_leaves_slurm_without_the_file_it_names() -> None:
    files = {"/etc/slurm/job_submit.lua": SHIPPED["job_submit.lua"]}
    done = changes.uninstall(make("JobSubmitPlugins=lua\n", files=files))
    assert any("line 1 still sets JobSubmitPlugins=lua" in blocker for blocker in done.blockers)


def test_the_plug_in_gets_a_file_or_a_line() -> None:
    now = after(make(), changes.install(make(), ["spank"]))
    assert "\noptional /usr/lib/pal_spank.so gpus=/v/g.txt python=/p/python3\n" in (now.plugstack_text or "")
    assert now.texts == make().texts
    assert after(now, changes.uninstall(now)).plugstack_text is None
    own = make(plugstack_text="optional /x/pal_spank.so gpus=/y\n")
    assert changes.install(own, ["spank"]).steps == ()
    assert changes.install(make(plugin=""), ["spank"]).blockers
    assert changes.install(make(plugin="/a b/pal_spank.so"), ["spank"]).blockers
    assert changes.install(make(python="/a b/python3"), ["spank"]).blockers


LINES = st.sampled_from(
    [
        "",
        "#",
        "A=1",
        "JobSubmitPlugins=throttle",
        "jobsubmitplugins = x,\\",
        "lua",
        "CliFilterPlugins=\\",
        "y # c\r",
        "\\",
    ]
) | st.text(max_size=12).filter(lambda line: "slurm-pal" not in line)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, st.lists(LINES, max_size=8), st.sampled_from(["", "\n"]))
PARTS = st.lists(st.sampled_from(["server", "client", "spank"]), min_size=1, unique=True)


@given(TEXTS, st.none() | TEXTS, PARTS, PARTS)
def test_what_goes_in_comes_out_byte_for_byte(conf: str, stack: str | None, parts: list[str], more: list[str]) -> None:
    before = make(conf, plugstack_text=stack)
    if changes.install(before, parts).blockers or changes.install(before, more).blockers:
        return
    one = after(before, changes.install(before, parts))
    assert changes.install(one, parts).steps == ()
    assert changes.installed_parts(one) >= set(parts) & {"spank"}
    two = after(one, changes.install(one, more))
    for each in shipped.FILTERS:
        if each.part in {*parts, *more}:
            assert changes.runs_lua(conf_text.value(CONF, two.texts, each.key))
    assert changes.install(two, parts).steps == ()
    removed = changes.uninstall(two)
    if not removed.blockers:
        gone = after(two, removed)
        assert (gone.texts, gone.plugstack_text, gone.files, gone.table_links) == (before.texts, stack, {}, {})
        assert changes.uninstall(gone).steps == ()


def test_text_after_the_block_stays_a_line_of_its_own() -> None:
    text = blocks.append("A=1", blocks.CONF, ["B=2"]) + "C=3\n"
    assert blocks.remove(text, blocks.CONF, "f").text == "A=1\nC=3\n"


@pytest.mark.parametrize("cut", [0, -1])
def test_a_damaged_block_is_said(cut: int) -> None:
    lines = blocks.split(blocks.append("", blocks.CONF, ["B=2"]))
    del lines[cut]
    with pytest.raises(DataError, match="repair it by hand"):
        blocks.remove("".join(lines), blocks.CONF, "f")


@pytest.mark.parametrize(
    ("lines", "mixed"),
    [
        (["Type=v0 File=/dev/nvidia[0-1]", "Type=v1 File=/dev/nvidia[2-3]"], 0),
        (["File=/dev/nvidia[0-3]"], 0),
        (["Type=v0 File=/dev/nvidia[0,2]", "Type=v1 File=/dev/nvidia[1,3]"], 1),
        (["Type=v0 File=/dev/nvidia[2-3]", "Type=v1 File=/dev/nvidia[0-1]"], 1),
        (["Type=v0 File=/dev/nvidia0", "Type=v1 File=/dev/nvidia1", "Type=v0 File=/dev/nvidia2"], 1),
    ],
)
def test_gpu_types_out_of_order_are_found(lines: list[str], mixed: int) -> None:
    text = "".join(f"NodeName=n[0-3] Name=gpu {line}\n" for line in lines) + "Name=mps Count=4\n"
    assert len(gres.mixed_types(text)) == mixed


# On real files below.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site of the caller's own: SlurmUser is whoever runs the test."""
    etc = tmp_path / "etc"
    etc.mkdir(mode=0o755)
    (etc / "slurm.conf").write_text(f"SlurmUser={os.geteuid()}\nJobSubmitPlugins=throttle")
    monkeypatch.setattr(site_files, "lua_files", lambda: SHIPPED)
    return etc


def read(folder: Path) -> changes.SiteFiles:
    config = Config()
    config.set("paths", "state_dir", str(folder.parent / "state"), "test")
    return site_files.read(str(folder / "slurm.conf"), config, str(folder / "pal_spank.so"))


def everything(folder: Path) -> dict[str, bytes | str]:
    return {
        str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if not p.is_dir() or p.is_symlink()
    }


def test_files_keep_mode_and_the_link_to_slurm_conf_stays(folder: Path) -> None:
    real = folder.parent / "real.conf"
    (folder / "slurm.conf").rename(real)
    real.chmod(0o640)
    (folder / "slurm.conf").symlink_to("../real.conf")
    was = real.read_bytes()
    backups = apply.carry_out(changes.install(read(folder), ["server"]), 0.0)
    assert backups == [f"{real}.pal-backup-19700101T000000Z"]
    assert Path(backups[0]).read_bytes() == was
    assert {stat.S_IMODE(p.stat().st_mode) for p in (real, Path(backups[0]))} == {0o640}
    assert stat.S_IMODE((folder / "pal.lua").stat().st_mode) == 0o644
    assert os.readlink(folder / "slurm.conf") == "../real.conf"
    assert os.readlink(folder / "pal_table.lua") == str(folder.parent / "state" / "pal_table.lua")
    second = apply.carry_out(changes.uninstall(read(folder)), 0.0)
    assert second == [f"{real}.pal-backup-19700101T000000Z-2"]
    assert real.read_bytes() == was
    assert everything(folder) == {"slurm.conf": "../real.conf"}


def test_a_failing_step_puts_everything_back(folder: Path) -> None:
    apply.carry_out(changes.install(read(folder), ["server"]), 0.0)
    (folder / "pal.lua").write_text("-- slurm-pal: old\n")
    (folder / "plugstack.conf").write_text("# mine\n")
    todo = changes.install(read(folder), ["server", "client", "spank"])
    was = everything(folder)
    broken = changes.FileChange("edit", str(folder / "slurm.conf"), "", "new", "not what it is")
    with pytest.raises(PalError, match="has changed meanwhile"):
        apply.carry_out(todo._replace(steps=(*todo.steps, broken)), 1.0)
    now = everything(folder)
    assert {name: text for name, text in now.items() if "pal-backup-19700101T000001Z" not in name} == was


def test_what_slurmctld_reloads_by_its_time_gets_a_later_second(folder: Path) -> None:
    path = folder / "job_submit.lua"
    apply.carry_out(changes.ChangePlan((changes.FileChange("copy", str(path), "", "x"),)), 4e9)
    assert path.stat().st_mtime == 4e9 + 1
    apply.carry_out(changes.ChangePlan((changes.FileChange("touch", str(path), ""),)), 5.0)
    assert path.stat().st_mtime == 4e9 + 2


def test_what_others_can_write_is_refused(folder: Path) -> None:
    todo = changes.install(read(folder), ["server"])
    assert site_files.distrust(read(folder), todo) == ()
    folder.chmod(0o757)
    assert site_files.distrust(read(folder), todo) == (f"{folder} can be written by everyone: chmod o-w {folder}",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_others_own_is_refused(folder: Path) -> None:
    todo = changes.install(read(folder), ["server"])
    os.chown(folder / "slurm.conf", 65534, -1)
    assert [r for r in site_files.distrust(read(folder), todo) if "belongs to uid 65534" in r]
    (folder / "slurm.conf").write_text("SlurmUser=65534\n")
    assert site_files.distrust(read(folder), todo) == ()


def test_slurms_words_against_the_candidate_are_shown(folder: Path) -> None:
    seen: list[str] = []

    def sbatch(argv: object, stdin: str) -> Completed:
        assert isinstance(argv, list) and argv[2:] == ["sbatch", "--version"]
        path = argv[1].removeprefix("SLURM_CONF=")
        seen.append(Path(path).read_text())
        complaint = f"sbatch: error: {os.path.dirname(path)}: bad\n" if "lua" in seen[-1] else ""
        return Completed(0, "", "sbatch: error: old trouble\n" + complaint)

    todo = changes.install(read(folder), ["server"])
    assert check.complaints(read(folder), todo, sbatch) == (f"sbatch: error: {folder}: bad",)
    assert seen == [todo.steps[-1].new, todo.steps[-1].old]


def test_a_missing_lua_plug_in_of_slurm_is_said(tmp_path: Path) -> None:
    (tmp_path / "cli_filter_lua.so").touch()
    assert check.missing_plugins(["client"], str(tmp_path)) == ()
    assert len(check.missing_plugins(["server", "client"], str(tmp_path))) == 1
    assert check.missing_plugins(["server"], "") == ()


def test_status_follows_the_installation(folder: Path) -> None:
    def judged(running: dict[str, str] | None) -> tuple[Exit, set[str]]:
        items = status.examine(read(folder), running, 100.0)
        return status.exit_code(items), {item.part for item in items if item.state == "wrong"}

    assert judged({}) == (Exit.FAILED, {"filter"})
    apply.carry_out(changes.install(read(folder), ["server"]), 0.0)
    assert judged({"JobSubmitPlugins": "throttle"}) == (Exit.FAILED, {"server", "table"})
    assert judged(None) == (Exit.SLURM, {"server", "table"})
    runs = {"JobSubmitPlugins": "throttle,lua"}
    assert judged(runs) == (Exit.DATA, {"table"})
    table = folder.parent / "state" / "pal_table.lua"
    table.parent.mkdir()
    head = '["epoch"] = "7", ["written_s"] = "90", ["max_age_s"] = "30", ["clears"] = "daemon",'
    table.write_text(f'return {{ ["schema"] = "pal.table/1", {head}\n["end"] = "7" }}\n')
    assert judged(runs) == (Exit.OK, set())
    table.write_text(table.read_text().replace('"90"', '"60"'))
    assert judged(runs) == (Exit.DATA, {"table"})
    (folder / "pal.lua").write_text("-- slurm-pal: old\n")
    assert judged(runs) == (Exit.FAILED, {"server", "table"})


def test_the_shipped_files_are_recognised_as_ours() -> None:
    assert all(lua_text.is_ours(text) for text in shipped.lua_files().values())
