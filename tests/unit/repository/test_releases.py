# SPDX-License-Identifier: MIT
"""The table of what differs between Slurm's releases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import SlurmError
from slurm_pal.slurm import releases

RELEASE = st.tuples(st.integers(20, 40), st.integers(1, 12))


@given(RELEASE, st.sampled_from(["slurm {}.8", "slurm-wlm {}.0-rc1\n", "slurm {}"]))
def test_a_release_as_slurm_writes_it_is_read_back(release: releases.Release, form: str) -> None:
    assert releases.printed(form.format(releases.text(release)), "scontrol --version") == release


def test_what_names_no_release() -> None:
    with pytest.raises(SlurmError, match="scontrol --version printed 'slurm', not a release"):
        releases.printed("slurm\n", "scontrol --version")


@given(RELEASE, st.sampled_from(sorted(releases.SINCE)))
def test_a_difference_holds_from_one_release_to_another(one: releases.Release, name: str) -> None:
    first, end = releases.SINCE[name], releases.UNTIL.get(name, (99, 1))
    assert releases.has(one, name) == (first <= one < end)
    assert releases.OLDEST < first <= releases.NEWEST and first < end  # else it is no difference


def test_only_a_difference_ends() -> None:
    assert set(releases.UNTIL) <= set(releases.SINCE)


def test_what_is_known() -> None:
    assert [releases.known(r) for r in ((21, 8), (22, 5), (24, 11), (26, 5), (26, 11))] == [
        False,
        True,
        True,
        True,
        False,
    ]
