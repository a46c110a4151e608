#!/bin/busybox sh
# The first program of a machine of kernel_vm.sh: mounts the host's files, runs /command there, says how it ended.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for name in $($b cat /modules); do
    [ ! -f "/mod/$name.ko" ] || $b insmod "/mod/$name.ko"
done
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro host /ro
$b mount -t tmpfs rw /rw
$b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work root /new
$b mount -t proc proc /new/proc
$b mount -t sysfs sys /new/sys
$b mount -t devtmpfs dev /new/dev
$b mount -t tmpfs run /new/run
$b mount -t tracefs trace /new/sys/kernel/tracing
$b mount -t bpf bpf /new/sys/fs/bpf
$b mount -t cgroup2 cgroup /new/sys/fs/cgroup
$b ip link set lo up
$b cp /command /new/run/command
$b stty -F /dev/ttyS1 raw
$b chroot /new /bin/bash /run/command >/dev/ttyS1
echo "ended $?"
$b poweroff -f
