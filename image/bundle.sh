#!/usr/bin/env bash
# Makes an OCI bundle to run in the guest: one static busybox under all its names.
#
#   bundle.sh OUT
#
# Writes OUT/bundle/busybox/{config.json,rootfs}. BUSYBOX names another static binary than /bin/busybox.
set -euo pipefail

out=${1:?usage: bundle.sh OUT}
busybox=${BUSYBOX:-/bin/busybox}
here=$(cd "$(dirname "$0")" && pwd)

die() { echo "bundle.sh: $*" >&2; exit 1; }

[ -x "$busybox" ] || die "$busybox is missing: install busybox-static"
if readelf --program-headers --wide "$busybox" | grep -q INTERP; then die "$busybox is not static: install busybox-static"; fi

mkdir -p "$out/bundle"
work=$(mktemp -d "$out/bundle/.busybox.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
root=$work/rootfs

mkdir -p "$root"/{bin,dev,etc,home,proc,root,run,sys,tmp,usr,var}
chmod 1777 "$root/tmp"
ln -s bin "$root/sbin"
ln -s ../bin "$root/usr/bin"
ln -s ../bin "$root/usr/sbin"
ln -s ../run "$root/var/run"
install -m 755 "$busybox" "$root/bin/busybox"
"$busybox" --list | while read -r applet; do
  [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
done

printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
printf 'NAME="BusyBox"\nID=busybox\nPRETTY_NAME="BusyBox %s"\n' \
  "$("$busybox" | sed -n '1s/^BusyBox v\([^ ]*\).*/\1/p')" >"$root/etc/os-release"
install -m 644 "$here/config.json" "$work/config.json"

find "$root" -exec touch -h -d @0 {} +
rm -rf "$out/bundle/busybox"
mv "$work" "$out/bundle/busybox"
trap - EXIT
