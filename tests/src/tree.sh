# Runs a script in a tree of a Linux distribution as root, without a network; whatever it changes is thrown away.
# Usage: tree.sh TREE STAGE SCRIPT, where STAGE/given is /given there.
set -eu
tree=$1
stage=$2
root="$stage/root"

if [ "${4:-outside}" = outside ]; then
  exec unshare --mount --propagation private --net sh "$0" "$tree" "$stage" "$3" inside
fi

mkdir "$root" "$stage/changes"
mount -t tmpfs tmpfs "$stage/changes"
mkdir "$stage/changes/upper" "$stage/changes/work"
mount -t overlay -o "lowerdir=$tree,upperdir=$stage/changes/upper,workdir=$stage/changes/work" overlay "$root"
mkdir "$root/given"
mount --bind -o ro "$stage/given" "$root/given"
ip link set lo up 2> /dev/null || true
# Not mounted anew: in namespaces without the right to, a kernel refuses that.
mount --rbind /proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  : > "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
  chroot "$root" /bin/sh -euc "cd /given; $3"
