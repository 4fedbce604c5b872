#!/usr/bin/env bash
# Runs all tests: as the caller and, when that is root, again as an ordinary
# user, because isolation takes another path for each. Installs what the tests
# need and is missing (Debian and Ubuntu, as root).
set -euo pipefail
cd "$(dirname "$0")"

need() { # PROGRAM PACKAGE
    command -v "$1" >/dev/null && return
    get "$1" "$2"
}
get() { # WHAT PACKAGE
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2" >/dev/null
    else
        echo "test.sh: \`$1\` is missing; install the package \`$2\`" >&2
        exit 1
    fi
}
need git git
need git-lfs git-lfs
need cc gcc
need strace strace
need python3 python3
need node nodejs
need npm npm
# In /usr/sbin, which an ordinary user's PATH need not have.
PATH="$PATH:/usr/sbin:/sbin" need apparmor_parser apparmor
# Of the system's own Python: others can't be copied into a test's home.
/usr/bin/python3 -c 'import pytest' 2>/dev/null || get pytest python3-pytest

# Changes what a program takes for the time.
ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || get libfaketime libfaketime

python3 -m pip --version >/dev/null 2>&1 || get pip python3-pip

# Where these can't be had, the tests that run them fail and say so.
agents=${DAM_TEST_AGENTS:-$(crates/cofferdam/tests/agents.sh)} || agents=
projects=${DAM_TEST_PROJECTS:-$(crates/cofferdam/tests/projects.sh)} || projects=

if command -v cargo-nextest >/dev/null; then
    cargo nextest run --workspace --no-fail-fast --retries 1
else
    cargo test --workspace --no-fail-fast
fi
cargo test --workspace --doc

[ "$(id -u)" = 0 ] || exit 0

need useradd passwd
need setpriv util-linux
user=dam-tests
id -u "$user" >/dev/null 2>&1 || useradd --system --no-create-home --home-dir /nonexistent --shell /bin/sh "$user"

# The build directory may lie where that user can't look: the programs are copied.
place=$(mktemp -d /var/tmp/dam-tests-XXXXXX)
trap 'rm -rf "$place"' EXIT
chmod 755 "$place"
mkdir "$place/bin"
cargo test --workspace --no-run 2>&1 |
    sed -n 's/^ *Executable [^(]*(\(.*\))$/\1/p' |
    while IFS= read -r program; do cp "$program" "$place/bin/"; done
cp "${CARGO_TARGET_DIR:-target}/debug/dam" "$place/dam"
# What the tests of schemas and documents read, and what those link to.
cp -r schemas docs ./*.md LICENSE-* Cargo.toml Cargo.lock "$place/"
find crates \( -name '*.rs' -o -name '*.toml' \) -exec cp --parents -t "$place" {} +
# Toolchains and packages, for a home of its own in a test. Python is the system's.
mkdir "$place/tmp" "$place/rust" "$place/registry"
cp -r "$(rustc --print sysroot)"/bin "$(rustc --print sysroot)"/lib "$place/rust/"
cp -r "${CARGO_HOME:-$HOME/.cargo}"/registry/index "${CARGO_HOME:-$HOME/.cargo}"/registry/cache "$place/registry/"
mkdir -p "$place/node/bin" "$place/node/lib/node_modules" "$place/pyenv"
cp -L "$(node -p process.execPath)" "$place/node/bin/node"
npm=$(readlink -f "$(command -v npm)")
cp -rL "${npm%/bin/npm-cli.js}" "$place/node/lib/node_modules/npm"
if command -v pyenv >/dev/null; then
    cp -r "$(pyenv root)"/bin "$(pyenv root)"/libexec "$(pyenv root)"/pyenv.d "$place/pyenv/"
fi
# As links, where that is possible: they are large, and nobody writes them.
[ -z "$agents" ] || cp -al "$agents" "$place/agents" 2>/dev/null ||
    { rm -rf "$place/agents" && cp -a "$agents" "$place/agents"; }
[ -z "$projects" ] || cp -r "$projects" "$place/projects"
chown -R "$user" "$place/tmp"

# How much memory a large change takes does not depend on whose it is: once is enough.
run() {
    program=$1
    (cd "$place" && setpriv --reuid "$user" --regid "$user" --init-groups --reset-env \
        env PATH="$PATH" HOME="$place/tmp" TMPDIR="$place/tmp" \
        DAM_TEST_BINARY="$place/dam" DAM_TEST_SOURCE="$place" \
        DAM_TEST_RUST="$place/rust" DAM_TEST_REGISTRY="$place/registry" \
        DAM_TEST_NODE="$place/node" DAM_TEST_PYENV="$place/pyenv" \
        DAM_TEST_AGENTS="$place/agents" DAM_TEST_PROJECTS="$place/projects" \
        "$program" --quiet --skip scale::)
}

# As above, a test that fails once and then passes is told (FLAKY there, twice here).
failed=0
for program in "$place"/bin/*; do
    echo "as $user: $(basename "$program")"
    run "$program" || { echo "once more: $(basename "$program")"; run "$program"; } || failed=1
done
[ "$failed" = 0 ] || { echo "test.sh: tests failed as an ordinary user" >&2; exit 1; }
echo "all tests passed, as root and as $user"
