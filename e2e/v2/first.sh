#!/bin/busybox sh
# The first program of the machine: finds the disk and goes there.
b=/bin/busybox
$b mkdir -p /proc /sys /dev /disk
$b mount -t devtmpfs dev /dev
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do
    [ ! -e "/lib/$module.ko" ] || $b insmod "/lib/$module.ko"
done
$b mount -t ext4 /dev/vda /disk && exec $b switch_root /disk /init
echo "no disk"
$b poweroff -f
