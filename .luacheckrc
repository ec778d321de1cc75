-- Slurm's Lua plug-ins embed Lua 5.1 on the supported distributions.
std = "lua51"
read_globals = { "slurm" }
files["etc/job_submit.lua"].globals = { "slurm_job_submit", "slurm_job_modify" }
files["etc/cli_filter.lua"].globals = { "slurm_cli_setup_defaults", "slurm_cli_pre_submit", "slurm_cli_post_submit" }
files["etc/cli_filter.lua"].ignore = { "212" }
files["etc/job_submit.lua"].ignore = { "212" }
-- Each part of pal.lua sees those before it (slurm_pal/filter/source.py); the whole, which is looked at too, shows the order.
files["etc/filter"].read_globals = {
  "terms", "texts", "hosts", "tables", "claims", "answers", "decisions", "requests", "scripts", "classes", "marks",
  "steering", "goals",
  pal = { fields = { table_path = {}, now = {} } },
}
files["tests/lua/clock.lua"].globals = { "slurm", "string", "table" }
files["tests/lua/timing.lua"].globals = { "slurm", "slurm_job_submit" }
files["tests/lua/harness.lua"].globals = { "slurm", "slurm_job_submit", "slurm_cli_pre_submit" }
