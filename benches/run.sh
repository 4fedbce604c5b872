#!/usr/bin/env bash
# Measures `dam` beside what people would use instead: as the caller and, when that is
# root, again as an ordinary user. Writes tables, JSON and plots; see
# docs/performance.md. Installs bubblewrap when it is missing (Debian, Ubuntu, as
# root). What else is missing is skipped, and the output says what and why.
#
#   --out DIR      where tables, JSON and plots go; else they are printed, without plots
#   --publish      into docs/performance, and the tables into docs/performance.md
#   --on KIND      on a new file system of that kind (ext4, xfs, btrfs) in an image, as root
#   --with-jj      builds jj from its published source when there is none (takes long)
#   --only-root    not as an ordinary user
#
# All other arguments go to `bench.py`. What is measured is a release build made here;
# DAM names another program.
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONDONTWRITEBYTECODE=1
out='' doc='' on='' with_jj='' as_user=yes rest=()
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=$2 && shift ;;
    --publish) out=docs/performance doc=docs/performance.md ;;
    --on) on=$2 && shift ;;
    --with-jj) with_jj=yes ;;
    --only-root) as_user='' ;;
    *) rest+=("$1") ;;
    esac
    shift
done

if ! command -v bwrap >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq bubblewrap >/dev/null
    else
        echo "run.sh: \`bwrap\` is missing; install the package \`bubblewrap\`" >&2
        exit 1
    fi
fi
target=${CARGO_TARGET_DIR:-target}
cargo build --release --package cofferdam --package cofferdam-core --package cofferdam-tree \
    --bins --example context --example publish
jj=$(command -v jj || true)
if [ -z "$jj" ] && [ -n "$with_jj" ]; then
    cargo install --locked --root "$target/bench-jj" --version 0.45.1 jj-cli
    jj=$target/bench-jj/bin/jj
fi

# Elsewhere than the build directory, where an ordinary user need not be able to look.
place=$(mktemp -d "${TMPDIR:-/var/tmp}/dam-bench-XXXXXX")
clean() {
    # Of a bench that was killed.
    findmnt -rno TARGET | grep -E "^$place(/|$)" | sort -r | xargs -r -n 1 umount || true
    rm -rf "$place" "$place.img"
}
trap clean EXIT
if [ -n "$on" ]; then
    truncate -s 60G "$place.img"
    case $on in
    # For ten times a hundred thousand small files.
    ext4) mkfs.ext4 -q -F -i 8192 "$place.img" ;;
    *) "mkfs.$on" -q "$place.img" ;;
    esac
    mount -o loop "$place.img" "$place"
fi
chmod 755 "$place"
cp "${DAM:-$target/release/dam}" "$place/dam"
cp "$target/release/examples/context" "$place/context"
cp "$target/release/examples/publish" "$place/publish"
cp benches/*.py "$place/"
mkdir "$place/own" "$place/out"
given=(--dam "$place/dam" --library "$place/context" --publication "$place/publish")
given+=(--out "$place/out")
if cc -O1 -static -nostdlib -fno-stack-protector -o "$place/first" benches/first.c; then
    given+=(--first "$place/first")
fi
if [ -n "$jj" ]; then
    cp "$jj" "$place/jj"
    given+=(--jj "$place/jj")
fi

python3 "$place/bench.py" "${given[@]}" --place "$place/own" "${rest[@]}"
if [ "$(id -u)" = 0 ] && [ -n "$as_user" ]; then
    user=dam-tests
    id -u "$user" >/dev/null 2>&1 ||
        useradd --system --no-create-home --home-dir /nonexistent --shell /bin/sh "$user"
    mkdir "$place/user"
    chown "$user" "$place/user" "$place/out"
    (
        cd "$place"
        # Its own path: root's can lead through directories that are closed to it.
        setpriv --reuid "$user" --regid "$user" --init-groups --reset-env \
            env PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin PYTHONDONTWRITEBYTECODE=1 \
            python3 "$place/bench.py" "${given[@]}" --place "$place/user" --again "${rest[@]}"
    )
fi

[ -n "$out" ] || exit 0
mkdir -p "$out"
rm -f "$out"/bench-*.json
cp "$place"/out/*.json "$out/"
python3 benches/report.py ${doc:+--into "$doc"} "$out"/bench-*.json >"$out/tables.md"
venv=$target/bench-venv
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import matplotlib' 2>/dev/null; then
    python3 -m venv "$venv" && "$venv/bin/pip" install --quiet 'matplotlib==3.10.*' || {
        echo "run.sh: no plots: matplotlib can't be had here" >&2
        exit 0
    }
fi
"$venv/bin/python" benches/plots.py "$out" "$out"/bench-*.json
