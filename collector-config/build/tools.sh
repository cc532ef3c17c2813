#!/usr/bin/env bash
# Gets what the page path needs into .tools/: builds the Collector of manifest.yaml with Go, and installs Debian's
# Prometheus, Alertmanager and Redis where it may. What is there already is left alone.
#   tools.sh              all of it
#   tools.sh collector    only the Collector
# TOOLS_DIR: where to put it (default: .tools at the root). GOFLAGS=-p=1 builds with one core. POLICY_RC_D: another path
# for Debian's policy-rc.d, for the tests of this script.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=${TOOLS_DIR:-$here/../../.tools}
manifest=$here/manifest.yaml

say() { echo "tools: $*"; }
fail() { echo "tools: $*" >&2; exit 1; }

collector() {
    local key binary=$tools/otelcol-breaker
    key=$(sha256sum <"$manifest")
    if [[ -x $binary && $(cat "$binary.key" 2>/dev/null) == "$key" ]]; then
        return
    fi
    command -v go >/dev/null || fail "no go, which builds the Collector: install Go 1.26 or newer (https://go.dev/dl)," \
        "or run otelcol-contrib 0.161.0 with collector-config/otelcol.yaml"
    local version work proxy
    version=$(sed -n 's/^  version: //p' "$manifest")
    work=$tools/build
    rm -rf "$work" && mkdir -p "$work"
    say "building the Collector $version with $(go env GOVERSION); minutes the first time"
    # Modules come from the proxy alone: a version that it lacks is an error here, not a clone of a repository.
    sed "s#output_path: .*#output_path: $work/src#" "$manifest" >"$work/manifest.yaml"
    proxy=$(go env GOPROXY)
    {
        GOWORK=off GOPROXY=${proxy%,direct} GOBIN=$work/bin \
            go install "go.opentelemetry.io/collector/cmd/builder@v$version" &&
            GOWORK=off GOPROXY=${proxy%,direct} "$work/bin/builder" --config "$work/manifest.yaml"
    } >"$work/log" 2>&1 || fail "the Collector could not be built: $(tail -n 5 "$work/log"); all of it: $work/log"
    "$work/src/otelcol-breaker" --version >/dev/null
    mv "$work/src/otelcol-breaker" "$binary"
    echo "$key" >"$binary.key"
    rm -rf "$work" "$tools/versions.txt"
}

# Debian starts a service when its package is installed, unless policy-rc.d forbids it, and again at the next boot, unless
# it is disabled. Here they are only programs.
packages() {
    local missing=() package as_root=() policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d} ours= failed=
    command -v prometheus >/dev/null && command -v promtool >/dev/null || missing+=(prometheus)
    { command -v prometheus-alertmanager || command -v alertmanager; } >/dev/null && command -v amtool >/dev/null ||
        missing+=(prometheus-alertmanager)
    command -v redis-server >/dev/null || missing+=(redis-server)
    [[ ${#missing[@]} -gt 0 ]] || return 0
    if [[ $(id -u) != 0 ]]; then
        as_root=(sudo -n)
        "${as_root[@]}" true 2>/dev/null || as_root=()
    fi
    if ! command -v apt-get >/dev/null || [[ $(id -u) != 0 && ${#as_root[@]} -eq 0 ]]; then
        fail "not installed: ${missing[*]}. On Debian and Ubuntu: sudo apt-get install --no-install-recommends ${missing[*]}"
    fi
    say "installing ${missing[*]}"
    if [[ ! -e $policy ]]; then
        ours=yes
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
        "${as_root[@]}" chmod 755 "$policy"
    fi
    {
        "${as_root[@]}" apt-get -q update &&
            "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "${missing[@]}"
    } </dev/null >"$tools/apt.log" 2>&1 || failed=yes
    [[ -z $ours ]] || "${as_root[@]}" rm -f "$policy"
    [[ -z $failed ]] || fail "apt-get did not install ${missing[*]}: $(tail -n 3 "$tools/apt.log")"
    if command -v systemctl >/dev/null; then
        for package in "${missing[@]}"; do
            "${as_root[@]}" systemctl disable "$package" >/dev/null 2>&1 || true
        done
    fi
    rm -f "$tools/versions.txt"
}

versions() {
    local name
    "$tools/otelcol-breaker" --version
    for name in prometheus promtool prometheus-alertmanager alertmanager amtool redis-server; do
        if command -v "$name" >/dev/null; then
            echo "$name: $("$name" --version 2>&1 | head -n 1)"
        fi
    done
}

mkdir -p "$tools"
tools=$(cd "$tools" && pwd)
exec 9>"$tools/lock"
flock 9
collector
[[ ${1-} == collector ]] || packages
[[ -e $tools/versions.txt ]] || versions >"$tools/versions.txt"
cat "$tools/versions.txt"
