#!/usr/bin/env bash
# Packs the guest's initial file system: the agent, the kernel's modules and empty mount points.
#
#   initrd.sh OUT AGENT
#
# Reads OUT/modules (kernel.sh makes it), writes OUT/initrd.cpio. The same input gives the same bytes. It is
# not compressed: decompression costs what reading less saves.
set -euo pipefail

out=${1:?usage: initrd.sh OUT AGENT}
agent=${2:?usage: initrd.sh OUT AGENT}

die() { echo "initrd.sh: $*" >&2; exit 1; }

[ -d "$out/modules/lib/modules" ] || die "$out/modules is missing: run kernel.sh first"
# A dynamic binary would be loaded by nobody: the image has no libc.
if readelf --program-headers --wide "$agent" | grep -q INTERP; then die "$agent is not static"; fi

work=$(mktemp -d "$out/.initrd.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root

mkdir -p "$root"/{dev,etc,proc,root,run,sbin,sys,tmp,var}
chmod 1777 "$root/tmp"
chmod 700 "$root/root"
ln -s ../run "$root/var/run"
# Hosts bind the sandbox's name servers over it, and leave DNS alone where it does not exist.
: >"$root/etc/resolv.conf"
cp -r "$out/modules/lib" "$root/lib"

install -m 755 "$agent" "$root/init"
ln "$root/init" "$root/sbin/berth-agent"
# Called by that name it loads modules, which the kernel asks for when a file system is first mounted.
ln -s berth-agent "$root/sbin/modprobe"

find "$root" -exec touch -h -d @0 {} +
(cd "$root" && find . -mindepth 1 -print0 | LC_ALL=C sort -z |
  cpio --quiet --null --create --format=newc --owner=0:0 --reproducible) >"$work/initrd.cpio"
mv "$work/initrd.cpio" "$out/initrd.cpio"
