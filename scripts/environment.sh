# Sourced by the other scripts: makes a Python environment of this repository and keeps it up to date.
#
#   make_environment NAME REQUIREMENTS     leaves the path of its interpreter in $python
#
# Environments live in .venvs/NAME. One is made again only when its requirements, pyproject.toml or the
# Python it was made with have changed, so that a second call costs a second.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$1"
    [ $# -lt 2 ] || say "  what to do: $2"
    exit 1
}

# The first of Python 3.11 to 3.13 that can make an environment. 3.11 first: the tests' pins are tried there.
find_python() {
    local candidate
    for candidate in "${FLATOUT_BASE_PYTHON:-}" python3.11 python3.12 python3.13 python3 python; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
            >/dev/null 2>&1; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    fail "no Python 3.11, 3.12 or 3.13 with the venv module was found (python3 is: $(python3 --version 2>&1 || true))" \
        "install one (Debian, Ubuntu: apt install python3 python3-venv), or name it: FLATOUT_BASE_PYTHON=/path/to/python"
}

# torch.compile needs a C++ compiler on a CPU. Where we may, install it; else say what will be missing.
need_compiler() {
    ! command -v g++ >/dev/null 2>&1 && ! command -v clang++ >/dev/null 2>&1 || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing g++, which torch.compile needs on a CPU"
        DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null >&2 &&
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++ </dev/null >&2 ||
            say "g++ could not be installed: torch.compile will be refused on a CPU"
    else
        say "no C++ compiler: torch.compile will be refused on a CPU (Debian, Ubuntu: apt install g++)"
    fi
}

make_environment() {
    local name=$1 requirements=$2 base folder wanted
    base=$(find_python)
    folder=$root/.venvs/$name
    python=$folder/bin/python
    wanted=$(cat "$requirements" "$root/pyproject.toml" | "$base" -c \
        'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest(), sys.version.split()[0])')
    if [ "$(cat "$folder/made-from" 2>/dev/null)" = "$wanted" ] && "$python" -c 'import flatout' 2>/dev/null; then
        return
    fi
    say "making .venvs/$name ($("$base" --version), $(basename "$requirements")); minutes the first time"
    rm -rf "$folder"
    "$base" -m venv "$folder"
    "$python" -m pip install -qq --disable-pip-version-check -r "$requirements" -e "$root" </dev/null >&2 ||
        fail "the packages of $(basename "$requirements") could not be installed; pip's own words are above" \
            "check the network and free space ($(df -h --output=avail "$root" | tail -1 | tr -d ' ') left here), then run this again"
    printf '%s\n' "$wanted" >"$folder/made-from"
}
