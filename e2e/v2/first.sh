#!/bin/busybox sh
# The first program of the machine: finds the disk and goes there.
b=/bin/busybox
$b mkdir -p /proc /sys /dev /disk
$b mount -t devtmpfs dev /dev
$b insmod /lib/virtio_blk.ko
$b mount -t ext4 /dev/vda /disk && exec $b switch_root /disk /init
echo "no disk"
$b poweroff -f
