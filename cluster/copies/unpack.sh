#!/bin/bash
# Unpack the archives in RUN/copies/archives to FOLDER, in one task per node before the ranks
# start, or write the error to RUN/copies/NODE.failed. The script needs no Python.
#   bash unpack.sh RUN FOLDER
# FOLDER.NAME is the broadcast copy of the archive NAME. If it is incomplete, the archive is read.
run=$1
folder=$2
partial=$folder.partial
node=${SLURMD_NODENAME:-$(hostname)}
node=${node%%.*}
began=$(date +%s.%N)
umask 077  # other users of the node can read /tmp

fail() {
  rm -rf "$folder".*  # also removes broadcast archives
  echo "$*" | tail -n 1 > "$run/copies/$node.failed"
  echo "copies: $node: $*" >&2
  exit 1
}

size() {
  stat --dereference --format %s "$1"
}

rm -rf "$partial" "$folder"  # left by an interrupted attempt of this job
said=$(mkdir "$partial" 2>&1) || fail "$said"
mapfile -t archives < "$run/copies/archives"
needed=0
for archive in "${archives[@]}"; do
  bytes=$(size "$archive" 2>&1) || fail "$bytes"
  needed=$((needed + bytes))
done
free=$(($(df --output=avail --block-size=1 "$partial" | tail -n 1)))
[ "$free" -ge "$needed" ] || fail "$(dirname "$folder"): $free bytes are free, $needed are needed"

for archive in "${archives[@]}"; do
  copy=$folder.${archive##*/}
  [ -O "$copy" ] && [ "$(size "$copy")" = "$(size "$archive")" ] || copy=$archive
  case $archive in
    *.tar) said=$(tar --extract --no-same-owner --file "$copy" --directory "$partial" 2>&1) ;;
    *) said=$(cp "$copy" "$partial/image" 2>&1) ;;
  esac || fail "$said"
  rm -f "$folder.${archive##*/}"
done
said=$(mv --no-target-directory "$partial" "$folder" 2>&1) || fail "$said"
LC_ALL=C awk "BEGIN { printf \"%.2f\n\", $(date +%s.%N) - $began }" > "$run/copies/$node.seconds"
