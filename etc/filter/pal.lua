-- SPDX-License-Identifier: MIT
-- What the filters call: they set table_path, tests set now; submit and client come from server.lua and client.lua.
--
-- It decides nothing by itself: `pal publish-table` ranks the nodes by the placement rule in force and
-- writes the table; here a request is read, the answer looked up, and what was given away since
-- the table was written is remembered. Nothing is executed from the table, no process is started,
-- and the table's first line is read at most once a second. docs/filter.md has the formats.

return { table_path = "/etc/slurm/pal_table.lua", now = os.time }
