#!/bin/busybox sh
# The first program of a machine of kernel_vm.sh: mounts the files beneath, runs /command there, says how it ended.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for name in $($b cat /modules); do
    [ ! -f "/mod/$name.ko" ] || $b insmod "/mod/$name.ko"
done
shared=trans=virtio,version=9p2000.L,msize=262144
work=/new$($b cat /work)
$b mount -t 9p -o "$shared,cache=loose,ro" root /ro
$b mount -t tmpfs rw /rw
$b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work root /new
[ -e "$work" ] || { $b mkdir -p "$work" && $b mount -t 9p -o "$shared,cache=loose,ro" checkout "$work"; }
$b mkdir -p /new/proc /new/sys /new/dev /new/run
$b mount -t proc proc /new/proc
$b mount -t sysfs sys /new/sys
$b mount -t devtmpfs dev /new/dev
$b mkdir -p /dev/shm && $b mount -t tmpfs shm /dev/shm
$b mount -t tmpfs run /new/run
$b mount -t tracefs trace /new/sys/kernel/tracing
$b mount -t bpf bpf /new/sys/fs/bpf
$b mount -t cgroup2 cgroup /new/sys/fs/cgroup
$b ip link set lo up
$b mkdir /new/run/said
$b mount -t 9p -o "$shared" said /new/run/said
$b cp /command $b /new/run
$b chroot /new /run/busybox sh /run/command >/new/run/said/output
echo "$?" >/new/run/said/code
$b poweroff -f
