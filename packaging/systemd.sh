#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Boot systemd in a fresh Debian of this machine's release, with Slurm's services and our Debian packages of dist/, and
# do there what an admin does. Its first process is systemd, in namespaces of its own: this machine's services, network
# and settings are left alone.
#
# usage: packaging/systemd.sh [run|clean]      (make test-systemd)
#   PAL_ROOTS, DEBIAN_MIRROR      as in tests/roots.sh; 2 GB
# Where systemd cannot be booted (no cgroup v2 hierarchy that can be written, no namespaces) it fails, and says why.
set -euo pipefail

PROGRAM=$(readlink -f "$0")
TREE=$(dirname "$(dirname "$PROGRAM")")
# shellcheck source=tests/roots.sh
. "$TREE/tests/roots.sh"
# shellcheck source=packaging/inside.sh
. "$TREE/packaging/inside.sh"

PACKAGES="systemd-sysv dbus man-db python3 libstdc++6 munge slurm-client slurmctld slurmd"
BOOT_S=60
GROUP=  # the control group of the booted systemd
INIT=   # its process
SERVICES="pal-lease-guard pal-publish-table pal-rebalance pal-rebalance-once pal-profile"
RESTRICTED=15  # tenths: what systemd-analyze security may find open at the most
WORST_S=60     # the watchdog waits for 45 s
CHANGING=(/root /tmp /var/cache /var/log /var/tmp)  # whatever we do
CHANGING+=(/var/lib/apt /var/lib/dpkg /var/lib/munge /var/lib/slurm /var/lib/systemd)

# -- around the root directory --------------------------------------------------------------

# What systemd needs of this machine.
find_group() {
    local hierarchy
    hierarchy=$(findmnt --noheadings --types cgroup2 --output TARGET | head -n 1)
    [ -n "$hierarchy" ] || die "NOT TESTED: systemd cannot be booted, since no cgroup v2 hierarchy is mounted here"
    GROUP=$hierarchy/pal-systemd-$$
    mkdir "$GROUP" 2>/dev/null || die "NOT TESTED: $hierarchy cannot be written, so systemd cannot be booted here"
}

remove_group() {
    [ -d "$GROUP" ] || return 0
    local tries=50
    while ! find "$GROUP" -depth -type d -exec rmdir {} + 2>/dev/null && [ $((tries -= 1)) -gt 0 ]; do
        sleep 0.1  # the kernel is ending its processes
    done
}

end() {
    stop KILL  # unshare, and with it all that it has started
    [ -z "$CHILD" ] || { wait "$CHILD"; } 2>/dev/null || true
    remove_group
}

boot() {
    # Whatever ends this script ends all of that.
    setpriv --pdeathsig KILL unshare --mount --pid --ipc --uts --net --fork --kill-child \
        "$PROGRAM" --boot "$1" "$GROUP" </dev/null >"$ROOTS/boot.log" 2>&1 &
    CHILD=$!
    local tries=$((BOOT_S * 5)) state=
    while [ $((tries -= 1)) -gt 0 ]; do
        INIT=$(pgrep --parent "$CHILD" || true)
        [ -z "$INIT" ] || state=$(in_booted systemctl is-system-running 2>/dev/null || true)
        case $state in running | degraded) break ;; esac
        kill -0 "$CHILD" 2>/dev/null || { cat "$ROOTS/boot.log" && die "NOT TESTED: systemd ended as it booted"; }
        sleep 0.2
    done
    [ -n "$state" ] || { cat "$ROOTS/boot.log" && die "NOT TESTED: systemd has not booted within $BOOT_S s"; }
    [ "$state" = running ] || { in_booted systemctl --no-pager --failed && die "systemd is $state after the boot"; }
    echo "ok: $(in_booted systemctl --version | head -n 1), booted"
}

halt() {
    kill -s RTMIN+3 "$INIT"  # halt.target
    wait "$CHILD" || true
    CHILD=
    echo "ok: halted"
}

# Run a command in the booted system.
in_booted() {
    nsenter --target "$INIT" --mount --pid --ipc --uts --net --cgroup env -i HOME=/root LANG=C.UTF-8 TERM=dumb \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# What the first process does in its namespaces, before it is systemd.
become_systemd() {
    local root=$1 device
    mount --make-rprivate /
    echo 0 >"$2/cgroup.procs"
    ip link set lo up
    ip address add 192.0.2.1/32 dev lo  # one that is no loopback address: glibc looks names up only then
    mount --bind "$root" "$root"
    mount -t proc -o nosuid,noexec,nodev proc "$root/proc"
    mount --bind "$root/proc/sys" "$root/proc/sys"
    mount -o remount,bind,ro "$root/proc/sys"  # the settings of this machine's kernel
    mount -t sysfs -o ro,nosuid,noexec,nodev sysfs "$root/sys"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    mkdir "$root/dev/pts" "$root/dev/shm"
    for device in null:3 zero:5 full:7 random:8 urandom:9; do
        mknod -m 666 "$root/dev/${device%:*}" c 1 "${device#*:}"
    done
    mknod -m 666 "$root/dev/tty" c 5 0
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    cd "$root"
    pivot_root . mnt
    umount --lazy /mnt
    # Its own control groups, those below GROUP; and neither modules nor the clock of this machine.
    exec env -i container=other PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin unshare --cgroup \
        sh -c 'mount -t cgroup2 -o nosuid,noexec,nodev cgroup2 /sys/fs/cgroup &&
            exec setpriv --bounding-set -sys_module,-sys_time /sbin/init'
}

run() {
    local bare=$ROOTS/bare root=$ROOTS/booted suite
    "$TREE/etc/install-packages.sh" iproute2
    find_group
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    bare_root "$suite" "$bare"
    rm -rf --one-file-system "$root"
    cp -a "$bare" "$root"
    mkdir -p "$root/packages/packaging" "$root/packages/tests"
    find "$TREE/dist" -name "slurm-pal*.deb" -exec cp -t "$root/packages" {} +
    cp "$PROGRAM" "$TREE/packaging/inside.sh" "$root/packages/packaging"
    cp "$TREE/tests/roots.sh" "$root/packages/tests"
    in_root "$root" /packages/packaging/systemd.sh --prepare
    rm "$root/usr/sbin/policy-rc.d"
    local step
    boot "$root"
    for step in site set-up act killed; do
        in_booted /packages/packaging/systemd.sh "--$step"
    done
    halt
    boot "$root"
    for step in rebooted units gone; do
        in_booted /packages/packaging/systemd.sh "--$step"
    done
    halt
    rm -rf --one-file-system "$root"
}

clean() {
    rm -rf --one-file-system "${ROOTS:?}/bare" "$ROOTS/booted"
    rm -f "$ROOTS/lock" "$ROOTS/boot.log"
    rmdir --ignore-fail-on-non-empty "$ROOTS"
}

# -- inside it, before the boot -------------------------------------------------------------

prepare() {
    begin
    # shellcheck disable=SC2086  # words on purpose
    install_quietly $PACKAGES
    echo controller >/etc/hostname
    echo 127.0.1.1 controller >>/etc/hosts
    mkdir /opt/gpus
    local index
    for index in 0 1 2 3; do
        ln -s /dev/null "/opt/gpus/nvidia$index"
    done
    cat >/etc/slurm/slurm.conf <<'END'
ClusterName=site
SlurmctldHost=controller
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
MailProg=/bin/true
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
DefMemPerCPU=100
SchedulerParameters=sched_interval=1,sched_min_interval=50000,bf_interval=1,batch_sched_delay=0,ignore_prefer_validation
NodeName=DEFAULT CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=2000 Gres=gpu:4
NodeName=n[0-2] NodeHostname=controller NodeAddr=127.0.0.1 Port=[7001-7003]
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
    echo 'Name=gpu File=/opt/gpus/nvidia[0-3]' >/etc/slurm/gres.conf
    case $(slurmctld -V) in
        *' 22.'*) echo CgroupPlugin=cgroup/v1 ;;  # slurmd leaves the control groups alone
        *) echo CgroupPlugin=disabled ;;
    esac >/etc/slurm/cgroup.conf
    # Three nodes on one machine: Debian's unit, as a template.
    # shellcheck disable=SC2016  # systemd expands it
    sed 's/\$SLURMD_OPTIONS/-N %i/; /^PIDFile/d' /lib/systemd/system/slurmd.service >/etc/systemd/system/slurmd@.service
    systemctl disable --quiet slurmd
    systemctl enable --quiet slurmctld slurmd@n0 slurmd@n1 slurmd@n2
}

# -- inside it, booted: each step goes on from the one before -------------------------------

# usage: soon WHAT command...: it succeeds within some seconds.
soon() {
    local what=$1 tries=100
    shift
    until "$@" >/dev/null 2>&1; do
        [ $((tries -= 1)) -gt 0 ] || { "$@" || true; journalctl --no-pager --lines 40 || true; die "not so: $what"; }
        sleep 0.2
    done
    echo "ok: $what"
}

idle() {
    [ "$(sinfo --noheader --format '%T %D')" = 'idle 3' ]
}

site() {
    soon "three nodes of Slurm are idle" idle
    listing "${CHANGING[@]}" >/root/before-packages
}

# usage: doctor EXPECTED: what pal doctor warns of, by topic.
doctor() {
    local said code=0
    said=$(pal doctor) || code=$?
    # Of the spool it cannot know that the nodes are on this host.
    said=$(sed -nE '/^WARN +spool /d; s/^(FAIL|WARN) +([^ ]+) .*/\2/p' <<<"$said" | xargs)
    same "pal doctor${1:+ warns of $1}" "0 $1" "$code $said"
}

set_up() {
    cd /packages
    timed 'apt-get install -y ./slurm-pal*.deb'
    listing "${CHANGING[@]}" >/root/before
    timed 'pal setup --yes'
    local unit said
    for unit in pal-lease-guard pal-publish-table; do
        said="$(systemctl is-active $unit) $(systemctl is-enabled $unit)"
        same "$unit runs, and at each boot" "active enabled" "$said"
    done
    for unit in $SERVICES; do
        systemd-analyze verify "$unit.service" || die "systemd finds something wrong in $unit.service"
        said=$(systemd-analyze security --no-pager --threshold "$RESTRICTED" "$unit.service") ||
            die "$unit.service leaves too much open: $said"
        tail -n 1 <<<"$said"
    done
    systemd-analyze verify pal-rebalance.timer pal-profile.timer
    # The sweep's own service, with emulated GPUs; beside the slurm.conf of all their file would make this a lab.
    /usr/lib/slurm-pal/bin/python3 -I - <<'END'
from slurm_pal.emulation.gpus import draw_registry, write_registry
write_registry("/opt/gpus/emu_gpus.json", draw_registry(["n0", "n1", "n2"], 4, 1))
END
    chmod 644 /opt/gpus/emu_gpus.json
    ln -s /etc/slurm/slurm.conf /etc/slurm/pal.toml /opt/gpus
    drop_in pal-profile.service Service Environment=SLURM_CONF=/opt/gpus/slurm.conf ExecStart= \
        'ExecStart=/usr/bin/pal-profile run -y'
    timed 'systemctl start pal-profile.service'
    timed "as_user palsub --pal-class A --gres=gpu:1 --wait -o out --wrap 'echo done'"
    grep -q 'decision: sent to' < <(as_user pal explain --last) || die "palsub has not placed the job"
    grep -qx 'done' /home/ada/out || die "the job has not run to its end"
    echo "ok: a job placed by palsub, and run"
    doctor ''
}

# usage: drop_in UNIT SECTION LINE ...: until the next boot.
drop_in() {
    mkdir -p "/run/systemd/system/$1.d"
    printf '%s\n' "[$2]" "${@:3}" >"/run/systemd/system/$1.d/test.conf"
    systemctl daemon-reload
}

# The setting that makes the daemon act, and setup again.
act() {
    sed -i 's/^# mode = "advise"/mode = "act"   /' /etc/slurm/pal.toml
    pal setup --yes >/tmp/said 2>&1 || { cat /tmp/said && die "pal setup has failed"; }
    same "the daemon has replaced the publisher" "inactive active active" \
        "$(systemctl is-active pal-publish-table pal-rebalance pal-lease-guard | xargs)"
    same "it was started once" 1 "$(journalctl --unit pal-rebalance --output cat | grep -c '^Started ')"
    ticked() { systemctl show --property StatusText --value pal-rebalance | grep -q '^last tick: '; }
    soon "systemctl status shows what its last tick did" ticked
    doctor ''
    systemctl restart pal-rebalance && systemctl reload-or-restart pal-lease-guard
    soon "both have restarted" systemctl is-active --quiet pal-rebalance pal-lease-guard
}

listed() {
    squeue --noheader --states PENDING --format %n | grep -c n1 || true
}

killed() {
    local number pid since_us took_s
    echo "-- the guard is stopped while it takes lists back"
    as_user sbatch --quiet --nodelist n1 --gres=gpu:4 -o /dev/null --wrap 'sleep 600' >/dev/null
    taken() { [ "$(squeue --noheader --format %T)" = RUNNING ]; }
    soon "n1 is taken" taken
    drop_in pal-rebalance.service Service Restart=no
    systemctl kill --signal STOP --kill-whom main pal-rebalance  # else it takes them back itself
    for number in $(seq 40); do
        as_user sbatch --quiet --nodelist n1 --gres=gpu:1 -o /dev/null --wrap 'sleep 600' \
            --comment 'pal:lease=600;req=;exc=;act=nodelist;set=n1' >/dev/null
    done
    same "jobs wait with a list of ours" 40 "$(listed)"
    systemctl kill --signal KILL pal-rebalance
    working() { journalctl --unit pal-lease-guard --output cat --lines 3 | grep -q 'they are taken back now$'; }
    until working; do sleep 0.02; done
    systemctl stop pal-lease-guard
    same "none has it after systemctl stop" 0 "$(listed)"
    scancel --user ada
    rm -r /run/systemd/system/pal-rebalance.service.d
    systemctl daemon-reload
    systemctl start pal-lease-guard pal-rebalance

    echo "-- kill -9, then a hang"
    for number in pal-rebalance pal-lease-guard; do
        pid=$(systemctl show --property MainPID --value "$number")
        systemctl kill --signal KILL --kill-whom main "$number"
        soon "$number is started again" anew "$number" "$pid"
    done
    for number in pal-rebalance pal-lease-guard; do
        pid=$(systemctl show --property MainPID --value "$number")
        since_us=${EPOCHREALTIME/./}
        systemctl kill --signal STOP --kill-whom main "$number"
        until anew "$number" "$pid"; do
            sleep 0.1
            took_s=$(since "$since_us")
            [ "${took_s%.*}" -lt "$WORST_S" ] || die "the watchdog has not restarted $number"
        done
        echo "ok: $number hung, and ran again after $took_s s"
        journalctl --unit "$number" --output cat | grep -q '^.*: Watchdog timeout' || die "it was not the watchdog"
    done
    doctor ''
}

# usage: anew UNIT PID: it runs as another process.
anew() {
    local state
    state=$(systemctl show --property MainPID,ActiveState --value "$1" | xargs)
    [ "${state#* }" = active ] && [ "${state% *}" != "$2" ]
}

rebooted() {
    soon "three nodes of Slurm are idle" idle
    same "after a boot what ran before runs" "inactive active active" \
        "$(systemctl is-active pal-publish-table pal-rebalance pal-lease-guard | xargs)"
    as_user palsub --pal-class A --gres=gpu:1 --wait -o /dev/null --wrap true 2>/tmp/said
    grep -q 'decision: sent to' < <(as_user pal explain --last) || die "palsub has not placed the job: $(cat /tmp/said)"
    doctor ''
}

# A timer in place of the daemon; what is stopped or has failed is told.
units() {
    systemctl --quiet disable --now pal-rebalance
    drop_in pal-rebalance.timer Timer OnActiveSec=1s AccuracySec=100ms
    systemctl --quiet enable --now pal-rebalance.timer
    finished() { journalctl --unit pal-rebalance-once --output cat | grep -q '^Finished '; }
    soon "the timer has started a tick" finished
    doctor ''
    systemctl stop pal-rebalance.timer
    doctor services
    systemctl start --no-block pal-rebalance-once
    systemctl stop pal-rebalance-once
    same "a tick that is stopped has not failed" inactive "$(systemctl is-active pal-rebalance-once)"
    drop_in pal-profile.service Service ExecStart= 'ExecStart=/bin/sh -c "exit 5"'
    systemctl start pal-profile 2>/dev/null && die "a sweep that fails is none that has failed"
    doctor 'services services'
    systemctl --quiet enable --now pal-profile.timer  # which leaves a stamp
}

gone() {
    rm -r /run/systemd/system/pal-*.d
    sed -i 's/^mode = "act"   /# mode = "advise"/' /etc/slurm/pal.toml  # else it is the site's own, and stays
    pal setup --undo --purge --yes >/tmp/said 2>&1 || { cat /tmp/said && die "pal setup --undo has failed"; }
    rm /opt/gpus/emu_gpus.json /opt/gpus/slurm.conf /opt/gpus/pal.toml
    same "units of ours that systemd knows" "" "$(systemctl list-units --all --plain --no-legend 'pal-*')"
    same "unit files" "" "$(systemctl list-unit-files --no-legend 'pal-*')"
    same "what systemd keeps of them on disk" "" "$(find /var/lib/systemd /etc/systemd -name '*pal-*')"
    nothing_left /root/before "pal setup --undo --purge" "${CHANGING[@]}"
    purge
    nothing_left /root/before-packages "apt-get purge" "${CHANGING[@]}"
    soon "Slurm goes on" idle
}

trap 'exit 130' INT TERM HUP
case ${1:-run} in
    --mounted) shift && mounted "$@" ;;
    --boot) become_systemd "$2" "$3" ;;
    --prepare) prepare ;;
    --site) site ;;
    --set-up) set_up ;;
    --act) act ;;
    --killed) killed ;;
    --rebooted) rebooted ;;
    --units) units ;;
    --gone) gone ;;
    run | clean)
        as_root "$@"
        claim_roots
        trap end EXIT
        apt_proxy
        "${1:-run}"
        ;;
    *) die "unknown command $1: run or clean" ;;
esac
