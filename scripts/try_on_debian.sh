#!/bin/sh
# Set up and test this commit on a clean Debian: `sh scripts/try_on_debian.sh trixie testing`. As root, with debootstrap; about
# 20 minutes for each. Before a release: its rows in docs/install.md say "tested" for what passes here.
#
# The root has Python, a C compiler, make and git, and no other development package. It stays below FOLDER (/var/tmp/debian).
set -eu
cd "$(dirname "$0")/.."
folder=${FOLDER:-/var/tmp/debian}
mkdir -p "$folder"

inside() {
    # a process namespace of its own: what the tests leave running ends with it
    unshare --mount --pid --fork sh -c '
        root=$1; shift
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        exec chroot "$root" /bin/sh -c "$1"' sh "$root" "$1"
}

for suite; do
    root=$folder/$suite
    if [ ! -e "$root/.ready" ]; then
        rm -rf "$root"
        debootstrap --variant=minbase "$suite" "$root"
        cp /etc/resolv.conf /etc/hosts "$root/etc/"
        inside "apt-get install -y -qq --no-install-recommends ca-certificates gcc libc6-dev make git python3 python3-dev python3-venv"
        touch "$root/.ready"
    fi
    # a machine that reaches its packages in a way of its own has that way inside, too
    for place in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do if [ -e $place ]; then cp -L $place "$root$place"; fi; done
    rm -rf "$root/shardctl"
    git clone -q . "$root/shardctl"
    echo "== $suite: $(git rev-parse --short HEAD)"
    inside "cd /shardctl && python3 --version && make setup && ${COMMAND:-make test}"
done
