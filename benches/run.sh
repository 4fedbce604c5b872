#!/usr/bin/env bash
# Measures `dam` beside what people would use instead: as the caller and, when
# that is root, again as an ordinary user. Arguments go to `bench.py`; see
# docs/performance.md. Installs bubblewrap when it is missing (Debian, Ubuntu,
# as root). What is measured is `DAM`, by default a release build made here.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v bwrap >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq bubblewrap >/dev/null
    else
        echo "run.sh: \`bwrap\` is missing; install the package \`bubblewrap\`" >&2
        exit 1
    fi
fi
if [ -z "${DAM:-}" ]; then
    cargo build --release --package cofferdam
    DAM=${CARGO_TARGET_DIR:-target}/release/dam
fi

# Elsewhere than the build directory, where an ordinary user need not be able to look.
place=$(mktemp -d "${TMPDIR:-/var/tmp}/dam-bench-XXXXXX")
trap 'rm -rf "$place"' EXIT
chmod 755 "$place"
cp "$DAM" "$place/dam"
cp benches/bench.py "$place/"
mkdir "$place/own"
python3 "$place/bench.py" --dam "$place/dam" --place "$place/own" "$@"

[ "$(id -u)" = 0 ] || exit 0
user=dam-tests
id -u "$user" >/dev/null 2>&1 ||
    useradd --system --no-create-home --home-dir /nonexistent --shell /bin/sh "$user"
mkdir "$place/user"
chown "$user" "$place/user"
cd "$place"
setpriv --reuid "$user" --regid "$user" --init-groups --reset-env env PATH="$PATH" \
    python3 "$place/bench.py" --dam "$place/dam" --place "$place/user" "$@"
