#!/usr/bin/env bash
# Takes a guest kernel out of Debian's archive; nothing is installed on the host.
#
#   kernel.sh OUT
#
# Writes OUT/vmlinux (uncompressed: it boots faster), OUT/modules (a tree with /lib/modules/VERSION, only
# what modules.list names) and OUT/kernel-version. Downloads are kept in OUT/../cache.
#
# KERNEL_PACKAGE  a meta package or an exact image package (linux-image-cloud-$DEBIAN_ARCH)
# ARCH            the guest's architecture, x86_64 or aarch64 (the host's)
set -euo pipefail

out=${1:?usage: kernel.sh OUT}
arch=${ARCH:-$(uname -m)}
here=$(cd "$(dirname "$0")" && pwd)

die() { echo "kernel.sh: $*" >&2; exit 1; }

case $arch in
  x86_64) debian=amd64 ;;
  aarch64) debian=arm64 ;;
  *) die "no kernel known for $arch: set ARCH to x86_64 or aarch64" ;;
esac
package=${KERNEL_PACKAGE:-linux-image-cloud-$debian}
qualify=
[ "$debian" = "$(dpkg --print-architecture)" ] || qualify=:$debian

# A meta package depends on the image of the day; an exact image depends on no other image.
resolve() {
  { apt-cache depends "$package$qualify" 2>/dev/null || true; } | awk -v image="$package" '
    $1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { image = $2 }
    END { sub(/:.*/, "", image); if (NR) print image }'
}

cached() { find "$cache" -name "$1_*_$debian.deb" | sort -V | tail -n 1; }

# apt's sandbox user may not be able to write into the cache; only root has one to give up.
fetch() {
  [ -n "$1" ] && (cd "$cache" && apt-get -qq -o APT::Sandbox::User=root download "$1$qualify")
}

download() {
  local name
  name=$(resolve)
  if [ -z "$name" ] || [ -z "$(cached "$name")" ]; then
    # Once a security update is out, older package lists name a file that the archive no longer has.
    fetch "$name" 2>/dev/null || {
      if [ "$(id -u)" = 0 ]; then apt-get -qq update; else sudo apt-get -qq update; fi
      name=$(resolve)
      fetch "$name" || die "apt finds no kernel to download for $package$qualify"
    } >&2
  fi
  cached "$name"
}

# Little-endian unsigned integer of $3 bytes at offset $2 of file $1.
number() { od -A n -v -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; }
hex() { od -A n -v -t x1 -j "$2" -N "$3" "$1" | tr -d ' \n'; }

# The compressed ELF lies where the boot protocol says (Documentation/arch/x86/boot.rst, 2.08). Every format
# but gzip is followed by four bytes with the size, which its own tool would call garbage.
extract_bzimage() {
  [ "$(hex "$1" $((0x202)) 4)" = 48647253 ] || die "$1 is not a bzImage"
  local sectors offset length tail=4
  sectors=$(number "$1" $((0x1f1)) 1)
  offset=$(((${sectors/#0/4} + 1) * 512 + $(number "$1" $((0x248)) 4)))
  length=$(number "$1" $((0x24c)) 4)
  local -a decompress
  case $(hex "$1" "$offset" 4) in
    1f8b*) decompress=(gzip -dc) tail=0 ;;
    fd377a58) decompress=(xz -dc) ;;
    28b52ffd) decompress=(zstd -dcq) ;;
    02214c18 | 04224d18) decompress=(lz4 -dcq) ;;
    *) die "the payload of $1 is in a format unknown here" ;;
  esac
  dd if="$1" iflag=skip_bytes,count_bytes skip="$offset" count=$((length - tail)) bs=1M status=none | "${decompress[@]}"
}

extract() {
  case $arch in
    x86_64)
      extract_bzimage "$1" >"$2"
      [ "$(hex "$2" 0 4)" = 7f454c46 ] || die "what came out of $1 is not an ELF file" ;;
    aarch64) # An Image, perhaps in gzip: the boot protocol leaves decompression to the loader.
      if [ "$(hex "$1" 0 2)" = 1f8b ]; then gzip -dc "$1" >"$2"; else cp "$1" "$2"; fi ;;
  esac
}

# The files of the listed modules and of all they need, relative to the version's directory.
wanted() {
  local root=$1 version=$2 name
  sed 's/#.*//' "$here/modules.list" | while read -r name; do
    [ -n "$name" ] || continue
    modprobe -d "$root" -S "$version" --show-depends "$name" 2>/dev/null || true
  done | sed -n "s|^insmod $root/lib/modules/$version/\([^ ]*\).*|\1|p" | sort -u
}

# Symbols stay, debug information and signatures go: 0.2 s of boot time for 35 modules. A host without the
# other architecture's binutils gets them as they are.
strip_debug() {
  local tool=strip
  [ "$arch" = "$(uname -m)" ] || tool=$arch-linux-gnu-strip
  if command -v "$tool" >/dev/null; then "$tool" --strip-debug "$1"; fi
}

stage_modules() {
  local from=$1 to=$2 version=$3
  local source=$from/lib/modules/$version target=$to/lib/modules/$version file
  depmod -b "$from" "$version"
  mkdir -p "$target"
  cp "$source/modules.builtin" "$source/modules.builtin.modinfo" "$source/modules.order" "$target/"
  wanted "$from" "$version" | while read -r file; do
    install -D -m 644 "$source/$file" "$target/$file"
    case $file in *.ko) strip_debug "$target/$file" ;; esac
  done
  depmod -b "$to" "$version"
  # The agent reads the text forms; the rest serves tools that the image does not have.
  find "$target" -maxdepth 1 \( -name '*.bin' -o -name modules.symbols -o -name modules.order \
    -o -name modules.devname -o -name modules.builtin.modinfo \) -delete
}

mkdir -p "$out"
out=$(cd "$out" && pwd)
cache=$(dirname "$out")/cache
mkdir -p "$cache"
work=$(mktemp -d "$out/.kernel.XXXXXX")
trap 'rm -rf "$work"' EXIT

deb=$(download)
dpkg -x "$deb" "$work/package"
image=$(find "$work/package/boot" -name 'vmlinuz-*')
version=${image##*/vmlinuz-}

# Debian 13 and later have /usr/lib/modules only; depmod looks below /lib.
[ -d "$work/package/lib/modules" ] || ln -s usr/lib "$work/package/lib"
stage_modules "$work/package" "$work/modules" "$version"
extract "$image" "$work/vmlinux"

rm -rf "$out/modules"
mv "$work/modules" "$out/modules"
echo "$version" >"$out/kernel-version"
# Last, and by rename: where it is, all of it is.
mv "$work/vmlinux" "$out/vmlinux"
touch "$out/vmlinux"
