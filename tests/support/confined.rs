//! A scope in which a request may do its worst.
//!
//! Beside the namespaces of every test's agent it has UTS, IPC, cgroup and time namespaces, a root of its own on a
//! tmpfs with a bound, no node of a disk, and lacks the capabilities for what no namespace holds back: the machine's
//! clock, its power switch, its modules and its ports. `/sys` and what is the machine's in `/proc/sys` cannot be
//! written. All its processes are in control groups that can open no device but those every container has.

use std::{path::Path, process::Command};

/// Enters new control groups, drops capabilities and goes on in new namespaces with `SCOPE`.
const GROUPS: &str = r#"set -e
    name=${1##*/}
    while IFS=: read -r _ controllers _; do
        group=/sys/fs/cgroup/${controllers#name=}
        [ -n "$controllers" ] || group=/sys/fs/cgroup/unified
        [ -d "$group" ] || group=/sys/fs/cgroup
        # A tree that somebody has mounted elsewhere, to look at.
        [ -e "$group/cgroup.procs" ] || continue
        mkdir "$group/$name"
        case $controllers in
            cpuset)
                for file in cpuset.cpus cpuset.mems; do cat "$group/$file" > "$group/$name/$file"; done ;;
            devices)
                echo a > "$group/$name/devices.deny"
                for rule in 'c *:* m' 'b *:* m' 'c 1:3 rwm' 'c 1:5 rwm' 'c 1:7 rwm' 'c 1:8 rwm' 'c 1:9 rwm' \
                    'c 5:0 rwm' 'c 5:2 rwm' 'c 136:* rwm'; do
                    echo "$rule" > "$group/$name/devices.allow"
                done ;;
            memory) echo 2G > "$group/$name/memory.limit_in_bytes" ;;
            pids) echo 4096 > "$group/$name/pids.max" ;;
        esac
        echo $$ > "$group/$name/cgroup.procs"
    done < /proc/self/cgroup
    scope=$1; shift
    exec setpriv --bounding-set -sys_time,-sys_boot,-sys_module,-sys_rawio,-wake_alarm -- \
        unshare --mount --pid --net --uts --ipc --cgroup --time --fork --kill-child=KILL -- \
        sh -c "$SCOPE" scope "$scope" "$@""#;

/// Makes the root and starts what the last arguments say.
const SCOPE: &str = r#"set -e
    dir=$1; rootfs=$2; agent=$3; shift 2
    mkdir "$dir/root"
    mount -t tmpfs -o size=256m,nr_inodes=100k scratch "$dir/root"
    cd "$dir/root"
    mkdir -p bin dev/pts etc old proc run/kata-containers sys tmp ".$dir" ".$rootfs" ".${agent%/*}"
    cp /bin/busybox bin
    cp -a "$rootfs/." ".$rootfs"
    touch ".$agent"
    mount -o bind "$dir" ".$dir"
    mount -o bind "$agent" ".$agent"
    for node in null zero full random urandom tty; do
        touch dev/$node
        mount -o bind /dev/$node dev/$node
    done
    mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    mount -t tmpfs -o size=64m,nr_inodes=20k berth-shared run/kata-containers
    mount -t proc proc proc
    for place in proc/sys/fs proc/sys/kernel proc/sys/vm proc/sysrq-trigger; do
        [ ! -e $place ] || mount -o bind,ro $place $place
    done
    mount -t sysfs -o ro sysfs sys
    mount -t tmpfs cgroup sys/fs/cgroup
    while IFS=: read -r _ controllers _; do
        group=sys/fs/cgroup/${controllers#name=}
        case $controllers in
            '') group=sys/fs/cgroup/unified; options='-t cgroup2' ;;
            name=*) options="-t cgroup -o none,$controllers" ;;
            *) options="-t cgroup -o $controllers" ;;
        esac
        mkdir "$group"
        mount $options cgroup "$group"
    done < /proc/self/cgroup
    pivot_root . old
    cd /
    /bin/busybox umount -l /old
    /bin/busybox ip link set lo up
    "$@" & wait"#;

/// What starts the program that follows in such a scope, from where `rootfs` is a copy.
pub fn command(dir: &Path, rootfs: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", GROUPS, "groups"]).arg(dir).arg(rootfs).env("SCOPE", SCOPE);
    command
}
