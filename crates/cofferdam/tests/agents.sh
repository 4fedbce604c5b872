#!/bin/sh
# Installs the agent programs that tests run, for this user, as nvm would have
# them: an npm prefix below `versions/node`. Nothing is done when they are there.
# Prints the directory. About 300 MB are downloaded, and 0.9 GB stay.
set -eu
claude=2.1.332 codex=0.171.0

cache=${XDG_CACHE_HOME:-$HOME/.cache}/cofferdam-tests
place=$cache/agents
node=$(node -p process.version) || { echo "agents.sh: \`node\` is missing" >&2; exit 1; }
want="claude $claude, codex $codex, node $node"
if [ "$(cat "$place/installed" 2>/dev/null)" = "$want" ]; then
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
prefix=$new/versions/node/$node
# Without the packages' own scripts: that of Claude Code links its program to the
# place that the command is a link to, and nothing else.
npm install --global --prefix "$prefix" --cache "$new/cache" --ignore-scripts \
    --no-audit --no-fund --no-update-notifier --loglevel error \
    --fetch-retries 3 --fetch-retry-mintimeout 1000 --fetch-retry-maxtimeout 5000 \
    "@anthropic-ai/claude-code@$claude" "@openai/codex@$codex" >&2 || {
    echo "agents.sh: the agent programs could not be installed with npm; is its registry reachable?" >&2
    exit 1
}
rm -rf "$new/cache"
package=$prefix/lib/node_modules/@anthropic-ai/claude-code
for program in "$package"/node_modules/@anthropic-ai/*/claude; do
    ln -f "$program" "$package/bin/claude.exe"
done
cp "$(node -p process.execPath)" "$prefix/bin/node"
chmod -R a+rX "$new"
echo "$want" >"$new/installed"
rm -rf "$place"
mv "$new" "$place"
echo "$place"
