#!/bin/bash
# Owns the way from a folder with a Debian to a booted machine: run by `unshare` in fresh namespaces, becomes systemd.
# Must not know what the machine is for. systemd-nspawn would do this, but needs a host that runs systemd itself.
set -euo pipefail
root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
for folder in run tmp dev sys/fs/cgroup; do mount -t tmpfs tmpfs "$root/$folder"; done
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir -p "$root/dev/pts" "$root/dev/shm" "$root/sys/fs/cgroup/unified" "$root/sys/fs/cgroup/systemd"
mount -t devpts -o ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx" # units with PrivateDevices= look for it
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
ip link set lo up
export container=unshare
cd "$root"
# Not chroot: units with file systems of their own need a root that is one.
pivot_root . mnt
exec chroot . sh -c 'umount --lazy /mnt && exec /lib/systemd/systemd --log-target=journal systemd.unit=multi-user.target'
