#!/bin/sh
# Fetches the sources of three published projects, with the tests that they carry,
# each with its language's own tool and from the registry that this is set to. Nothing
# is done when they are there. Prints the directory. About 1 MB is downloaded.
set -eu
rust=semver@1.0.26 python=click@8.1.8 node=mime@1.3.6

cache=${XDG_CACHE_HOME:-$HOME/.cache}/cofferdam-tests
place=$cache/projects
want="$rust $python $node"
if [ "$(cat "$place/fetched" 2>/dev/null)" = "$want" ]; then
    echo "$place"
    exit
fi

# npm trusts the certificates that node brings; the system's are those of its other
# programs.
system=/etc/ssl/certs/ca-certificates.crt
if [ -z "${NODE_EXTRA_CA_CERTS:-}" ] && [ -r "$system" ]; then
    export NODE_EXTRA_CA_CERTS="$system"
fi

mkdir -p "$cache"
new=$(mktemp -d "$cache/new-XXXXXX")
trap 'rm -rf "$new"' EXIT
chmod 755 "$new"
failed() { # PROJECT TOOL
    echo "projects.sh: \`$1\` could not be fetched with $2; is its registry reachable?" >&2
    exit 1
}

# What `vendor` writes is what was published, and one file of its own.
mkdir -p "$new/cargo/src"
: >"$new/cargo/src/lib.rs"
cat >"$new/cargo/Cargo.toml" <<END
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"
[dependencies]
${rust%@*} = "=${rust#*@}"
[workspace]
END
(cd "$new/cargo" && cargo vendor --quiet vendor >/dev/null) || failed "$rust" cargo
mv "$new/cargo/vendor/${rust%@*}" "$new/rust"
rm -rf "$new/cargo" "$new/rust/.cargo-checksum.json"

python3 -m pip download --quiet --disable-pip-version-check --no-deps \
    --no-binary :all: --dest "$new" "${python%@*}==${python#*@}" >&2 || failed "$python" pip
mkdir "$new/python"
tar -xzf "$new/${python%@*}-${python#*@}.tar.gz" -C "$new/python" --strip-components 1 --no-same-owner

(cd "$new" && npm pack --silent --cache "$new/cache" \
    --fetch-retries 3 --fetch-retry-mintimeout 1000 --fetch-retry-maxtimeout 5000 \
    "$node" >/dev/null) || failed "$node" npm
mkdir "$new/node"
tar -xzf "$new/${node%@*}-${node#*@}.tgz" -C "$new/node" --strip-components 1 --no-same-owner

rm -rf "$new/cache" "$new"/*.tar.gz "$new"/*.tgz
chmod -R a+rX "$new"
echo "$want" >"$new/fetched"
rm -rf "$place"
mv "$new" "$place"
echo "$place"
