#!/usr/bin/env bash
# Say in one sentence why something could not be fetched: that there is no network, or what was said last.
#   scripts/say_failed.sh WHAT OUTPUT
if grep -qiE 'dns error|name resolution|\(connect\)|connection (refused|reset|timed)|timed out|unreachable' <<<"$2"; then
    why="the network or the package index did not answer"
else
    why=$(grep -v '^$' <<<"$2" | tail -n 1 | sed -E 's/^ *((error|cause|E): )?//I')
fi
echo "$1: $why" >&2
