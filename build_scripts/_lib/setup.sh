# Owns the virtual environment of a clone: finds Python and a compiler, builds what must be compiled once for this
# machine, installs the pinned dependencies, and does nothing where all of that is done.
# Must not know what is run in it afterwards. Sourced by build_scripts/demo, test and build (bash, set -euo pipefail).
# shellcheck shell=bash

lib=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
root=$(dirname -- "$(dirname -- "$lib")")
venv=$root/.venv

# A Python path of somebody's own, or pip told to install elsewhere, would go past the virtual environment.
unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() {
    printf '==> [%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"
}

fail() { # MESSAGE REMEDY
    printf '\nError: %s\n%s\n' "$1" "$2" >&2
    exit 1
}

# The folder for what outlives a clone: compiled wheels, and the models that tests use.
cache_folder() {
    local folder=${APPLIANCE_CACHE_DIR:-}
    if [ -z "$folder" ]; then
        [ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] ||
            fail "There is no HOME to keep the compiled wheel in." "Set APPLIANCE_CACHE_DIR to a folder and run this again."
        folder=${XDG_CACHE_HOME:-$HOME/.cache}/appliance
    fi
    { mkdir -p -- "$folder" && [ -w "$folder" ]; } 2>/dev/null ||
        fail "The cache folder $folder cannot be written." "Set APPLIANCE_CACHE_DIR to another folder and run this again."
    (cd -- "$folder" && pwd -P)
}

# Sets `python` to an interpreter that can make virtual environments; adds to `missing` (Debian packages) if there is none.
find_python() {
    local candidate incomplete=""
    python=""
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            python=$(command -v "$candidate")
            return
        fi
        [ -n "$incomplete" ] || incomplete=$("$candidate" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    done
    if [ -n "$incomplete" ]; then
        missing+=("$incomplete-venv")
    else
        fail "Python 3.11 or later was not found${PYTHON:+ ($PYTHON is not)}." \
            "Install it (sudo apt install python3 python3-venv on Debian 12, Ubuntu 24.04 and later), or name one: PYTHON=/path/to/python3 $0"
    fi
}

# Adds to `missing` what a compile needs and is not there.
find_compiler() {
    command -v "${CC:-cc}" >/dev/null && command -v "${CXX:-c++}" >/dev/null || missing+=(build-essential)
    if [ -n "$python" ]; then
        "$python" - <<'PYTHON' || missing+=("$("$python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')")
import pathlib, sys, sysconfig
sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())
PYTHON
    fi
}

need_space() { # FOLDER MEGABYTES WHAT_FOR
    local free
    free=$(df -Pm -- "$1" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$2" ] ||
        fail "$1 has $free MB of free space; $3 needs about $2 MB." "Make room and run this again."
}

pinned() { # PACKAGE → VERSION
    sed -n "s/^$1==//p" "$root/constraints.txt"
}

with_progress() { # LOG COMMAND...
    local log=$1 status=0
    shift
    "$python" "$lib/progress.py" --log "$log" -- "$@" || status=$?
    [ $status -lt 128 ] || { # ended by a signal
        printf '\nStopped. Run it again: it goes on with what is there.\n' >&2
        exit $status
    }
    return $status
}

wheel_folder() { # PACKAGE
    local key
    key=$("$python" "$lib/wheel_key.py" "$1" "$(pinned "$1")")
    printf '%s/wheels/%s' "$cache" "${key:?}"
}

# How many files to compile at once: one per core, if there are 1.5 GB of memory for each.
compile_jobs() {
    local cores memory_mb
    cores=$(nproc)
    memory_mb=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo 2>/dev/null || true)
    local fitting=$((${memory_mb:-100000} / 1500))
    [ $fitting -ge 1 ] || fitting=1
    echo $((fitting < cores ? fitting : cores))
}

# Has the wheel of a package that is only published as source in the cache, and adds its path to `wheels`.
# What an interrupted compile left is removed, except for what it had downloaded.
build_wheel() { # PACKAGE HOW_LONG
    local folder building
    folder=$(wheel_folder "$1")
    if ! compgen -G "$folder/*.whl" >/dev/null; then
        building=$folder.building
        rm -rf -- "$folder" "$building/tmp" "$building/out"
        mkdir -p -- "$building/tmp" "$building/out"
        need_space "$cache" 1500 "compiling $1"
        say "Compiling $1 $(pinned "$1"): once, $2"
        # The compile's own cache folder for pip: pip's usual one may hold a wheel for another processor. Ninja rather
        # than make: it counts its steps, and make would compile one file at a time.
        TMPDIR=$building/tmp PIP_CACHE_DIR=$building/pip CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(compile_jobs)} \
            SKBUILD_NINJA_MAKE_FALLBACK=0 \
            with_progress "$building/build.log" "$python" -m pip wheel -v --no-deps --wheel-dir "$building/out" \
            --build-constraint "$root/constraints.txt" "$1==$(pinned "$1")" ||
            fail "$1 could not be built." "Mend what is said above and run this again."
        mv -- "$building/out" "$folder" # the wheel is there whole or not at all
        rm -rf -- "$building"
    fi
    wheels+=("$(compgen -G "$folder/*.whl")")
}

installing_failed() {
    fail "The packages could not be installed." \
        "Check the network and pip's settings and run this again: it goes on with what is there."
}

# What the environment was made from: when it changes, pip looks at everything again.
fingerprint() {
    { cat -- "$root/pyproject.toml" "$root/constraints.txt" && printf '%s' "$root"; } | sha256sum | cut -d' ' -f1
}

# True if the environment is complete for the extras in `wanted`; notes in `extras` those that it should have.
is_installed() {
    local stamped_print="" stamped_extras="" extra complete=true
    extras=("${wanted[@]}")
    [ ! -f "$venv/.appliance" ] || read -r stamped_print stamped_extras <"$venv/.appliance" || true
    for extra in $stamped_extras; do
        [[ " ${wanted[*]} " == *" $extra "* ]] || extras+=("$extra") # keep what another script has installed
    done
    for extra in "${wanted[@]}"; do
        [[ " $stamped_extras " == *" $extra "* ]] || complete=false
    done
    $complete && [ "$stamped_print" = "$(fingerprint)" ] && "$venv/bin/python" -c pass 2>/dev/null
}

# True if .venv can be gone on with. One that was moved here has scripts that start another folder's Python.
is_usable() {
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 && grep -qF -- "$venv/bin/python" "$venv/bin/pip" 2>/dev/null
}

# Sets `python`, and tells which system packages are missing: of Python always, for compiling only if something must be.
check_system() {
    local missing=() package folder
    python=$venv/bin/python
    is_usable || find_python
    for package in "${compiled[@]}"; do
        [ -z "$python" ] || folder=$(wheel_folder "$package")
        if [ -z "$python" ] || ! compgen -G "$folder/*.whl" >/dev/null; then
            find_compiler
            break
        fi
    done
    [ ${#missing[@]} -eq 0 ] ||
        fail "System packages are missing: ${missing[*]}." "Install them (sudo apt install ${missing[*]}) and run this again."
    need_space "$root" 1500 "the virtual environment"
}

make_environment() {
    if ! is_usable; then
        say "Making the virtual environment $venv with $("$python" -V)"
        "$python" -m venv --clear "$venv" || fail "The virtual environment could not be made." "Mend what is said above and run this again."
        python=$venv/bin/python
    fi
    [ "$("$python" -m pip --version | cut -d' ' -f2)" = "$(pinned pip)" ] ||
        with_progress "$venv/install.log" "$python" -m pip install "pip==$(pinned pip)" || installing_failed
}

# Makes .venv with the project and the named extras in it.
set_up() { # EXTRA...
    local wanted=("$@") extras compiled=(hnswlib llama-cpp-python) wheels=() python project
    ! is_installed || return 0
    exec 9<"$lib/setup.sh" # to lock it: one set-up of a clone at a time
    if ! flock -n 9; then
        say "Waiting for another set-up of this clone"
        flock 9
        ! is_installed || return 0
    fi

    cache=$(cache_folder)
    mkdir -p -- "$cache/wheels"
    check_system
    rm -f -- "$venv/.appliance"
    make_environment

    exec 8>"$cache/wheels/.lock"
    flock -n 8 || { say "Waiting for a compile that another set-up is doing" && flock 8; }
    build_wheel hnswlib "about a minute"
    build_wheel llama-cpp-python "about five minutes on two cores"
    exec 8>&-

    say "Installing the pinned dependencies"
    project=$(IFS=, && printf '%s[%s]' "$root" "${extras[*]}")
    with_progress "$venv/install.log" "$python" -m pip install --constraint "$root/constraints.txt" \
        --build-constraint "$root/constraints.txt" "${wheels[@]}" --editable "$project" || installing_failed
    printf '%s %s\n' "$(fingerprint)" "${extras[*]}" >"$venv/.appliance"
    exec 9>&-
    say "Installed"
}
