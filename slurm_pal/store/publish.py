# SPDX-License-Identifier: MIT
"""From the database to the snapshot: classify all records and replace the file if that changes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError
from slurm_pal.base.files import read_trusted
from slurm_pal.store import gpus_text, kernels, late, reduced, snapshot
from slurm_pal.store.database import Database, open_database
from slurm_pal.store.snapshot import FLAGS, GpuScore, LevelRatio
from slurm_pal.variability.params import DAY_S, Params
from slurm_pal.variability.runs import SweepRuns, horizon_s, in_order

if TYPE_CHECKING:
    from slurm_pal.variability.classify import Classification, GpuStanding

KERNELS_D = 30.0
"""The sweep's kernels come from this many days before the newest record; they distinguish the classes of jobs."""


class PublishReport(NamedTuple):
    """What one publication did."""

    path: str
    changed: bool  # false: the snapshot already says this, and was left alone
    epoch: int
    gpus: int
    classes: dict[str, list[float]]  # sensitivity class -> slowdown of v0, v1, ...
    flagged: int  # GPUs with any flag
    classification: Classification
    levels: Mapping[int, LevelRatio] = {}  # of the network


def params_of(config: Config, method: str | None = None) -> Params:
    """The constants of classification, as far as configured."""
    return Params(
        method=method or config.text("classes", "method"),
        k=int(config.number("classes", "k")) or None,
        stale_after_d=config.number("classes", "stale_after_d"),
        unknown_after_d=config.number("classes", "unknown_after_d"),
        retention_d=max(Params().retention_d, 2 * config.number("classes", "unknown_after_d")),
    )


def publish(
    config: Config,
    now_s: float,
    database: Database | None = None,
    *,
    method: str | None = None,
    cluster: str | None = None,
    network: Mapping[int, LevelRatio] | None = None,
) -> PublishReport:
    """Classify what the database holds and publish it as the snapshot and as gpus.txt.

    The same records on the same day give the same classes, and then neither the file nor
    its epoch changes. `method` overrides `classes.method`. Default for `cluster` is the one
    of the newest record, for `database` (open for writing) the one of the state directory. A `network` of None
    leaves the ratios of its levels as they are published.

    Raises BusyError if another writer is at work; DataError if there is nothing to publish, if
    the current snapshot has a newer schema, or if the new one cannot be written (the old one then
    stays); and, with the new snapshot in place, if gpus.txt beside it cannot be written.
    """
    from slurm_pal.variability.classify import classify_sweeps  # numpy: most ticks and commands publish nothing

    if database is None:
        with open_database(config.state_dir, write=True) as opened:
            return publish(config, now_s, opened, method=method, cluster=cluster, network=network)
    params = params_of(config, method)
    held = _Held(database, now_s, params)
    if not held.extents:
        raise DataError(
            f"{database.path} holds no measurement of the last {params.retention_d:g} days, "
            "the snapshot is left as it is: run pal-profile run"
        )
    found = classify_sweeps(in_order(held.batches(), now_s), now_s, params)
    measured = [_score(gpu) for gpu in found.gpus]
    scores = late.shown(measured, _late(config), found.centroids)
    notices = [notice._asdict() for notice in found.notices]
    name = database.newest_cluster() if cluster is None else cluster
    path = config.snapshot_path
    old = _old(path)
    epoch = 0 if old is None else old.epoch  # an empty snapshot is also false
    levels = network if network is not None else old.levels if old is not None else {}
    changed = old is None or read_trusted(path) != snapshot.encode(
        scores,
        cluster=name,
        epoch=old.epoch,
        now_s=old.written_s,
        centroids=found.centroids,
        met_cap=found.met_cap,
        notices=notices,
        network=levels,
    )
    if changed:
        epoch = database.next_epoch(epoch)
        try:
            snapshot.publish(
                path,
                scores,
                cluster=name,
                epoch=epoch,
                now_s=now_s,
                centroids=found.centroids,
                met_cap=found.met_cap,
                notices=notices,
                network=levels,
            )
        except OSError as error:
            raise DataError(
                f"snapshot {path} cannot be written ({error.strerror}); the old one, if any, stays"
            ) from None
    gpus_text.write(config.gpus_path, snapshot.read(path))
    kernels.write(kernels.path_of(config.gpus_path), held.points.kernels())
    flagged = sum(1 for score in scores if score.flags)
    return PublishReport(path, changed, epoch, len(scores), found.centroids, flagged, found, levels)


def _late(config: Config) -> tuple[late.LateGpu, ...]:
    """GPUs that jobs wait for; () where that file cannot be read: measurements count without it."""
    try:
        return late.read(late.path_of(config.state_dir))
    except DataError:
        return ()


class _Held:
    """The sweeps of the retention, one after another: not all records of thousands of nodes fit into memory."""

    def __init__(self, database: Database, now_s: float, params: Params) -> None:
        self.extents = database.extents(horizon_s(now_s, params))
        self.points = kernels.Points()
        self._database, self._now_s, self._params = database, now_s, params

    def batches(self) -> Iterator[tuple[float, SweepRuns | None]]:
        """For `runs.in_order`; on the way, what the kernels need is noted."""
        recent_s = max(extent.last_s for extent in self.extents) - KERNELS_D * DAY_S
        for extent in self.extents:
            found = reduced.read(self._database, extent, self._now_s, self._params)
            for kernel in found.kernels if extent.last_s >= recent_s else ():
                self.points.take(kernel)
            sweep = found.sweep
            del found  # the fold needs the memory
            yield extent.first_s, sweep
            del sweep
        reduced.forget_others(self._database, self.extents)


def _old(path: str) -> snapshot.Snapshot | None:
    """The current snapshot; None if there is none worth keeping. Raises DataError for a newer schema."""
    try:
        return snapshot.read(path)
    except snapshot.NewerSchemaError:
        raise
    except DataError:
        return None


def _score(gpu: GpuStanding) -> GpuScore:
    return GpuScore(
        node=gpu.node,
        index=gpu.slot,
        uuid=gpu.uuid,
        model=gpu.model,
        slowdown=gpu.slowdown,
        variability_class={c: f"v{number}" for c, number in gpu.variability_class.items()},
        measured_s=gpu.measured_s,
        confidence=gpu.confidence,
        flags=tuple(flag for flag in FLAGS if flag in gpu.flags),
    )
