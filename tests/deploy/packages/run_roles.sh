# The very commands of the units, then what a person asks of each; prints the host's ledger.
begun=()
units=/usr/lib/systemd/system
begin() {
    local command role=$1
    command=$(sed -n 's/^ExecStart=//p' "$units/pointillist-$1.service")
    shift
    [ "$role" != web ] || command="setpriv --reuid pointillist-web --regid pointillist-web --clear-groups $command"
    eval "exec $command $*" 2>"/tmp/begun.$role.err" &
    begun+=($!)
}
asked() {
    for _ in $(seq 240); do
        if "$@" >/dev/null 2>/tmp/said; then return 0; fi
        sleep 0.5
    done
    tail -n 5 /tmp/said /tmp/begun.*.err >&2
    return 1
}
begin helper
begin leader
asked pointillist helper status --config /etc/pointillist/helper.toml
asked pointillist leader status --config /etc/pointillist/leader.toml
# No program in the kernel of the machine that this root lies on.
begin agent --set sources.ebpf=false --set sources.probes.enabled=false --set diagnosis.enabled=false
asked pointillist agent top --once --json
# What systemd does before it: the user, its folders, the options.
install -d -o pointillist-web -m 0700 /var/lib/pointillist/web /var/cache/pointillist/web
export POINTILLIST_WEB="" XDG_DATA_HOME=/var/lib/pointillist/web XDG_CACHE_HOME=/var/cache/pointillist/web
begin web --listen 127.0.0.1:8765
asked python3 -c 'import urllib.request as r; r.urlopen("http://127.0.0.1:8765/", timeout=2)'
for role in agent leader helper web; do
    pgrep -u pointillist-$role -f "pointillist $role" >/dev/null
done
pointillist agent ledger show --json
kill "${begun[@]}"
for number in 0 1 2; do
    wait "${begun[$number]}" # Helper, Leader and agent end well when they are asked to
done
