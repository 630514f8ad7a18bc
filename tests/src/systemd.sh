# Becomes systemd, as pid 1 of namespaces of its own, over a copy-on-write view of this machine's files.
# Usage: systemd.sh STAGE, where STAGE/tree is copied over that view, and STAGE/{units,site,plugins,state} are
# /etc/systemd/system, /etc/coda-host, /usr/lib/coda-host and /var/lib/coda-host there.
set -eu
stage=$1
step=${2:-outside}

if [ "$step" = outside ]; then
  mkdir "$stage/cgroup"
  mount -t cgroup2 cgroup2 "$stage/cgroup"
  own="$stage/cgroup/coda-units-$$"
  mkdir "$own"
  # Not replaced by it: what systemd leaves of its control groups goes when its processes are gone.
  CODA_CGROUP="$own" setpriv --pdeathsig KILL \
    unshare -m -p -u -i -f --kill-child --propagation private sh "$0" "$stage" inside || true
  find "$own" -depth -type d -exec rmdir {} +
  exit
fi

# As pid 1 there: into the control group first, so that it is the root of what the new namespace shows.
if [ "$step" = inside ]; then
  echo 0 > "$CODA_CGROUP/cgroup.procs"
  exec unshare -C sh "$0" "$stage" boot
fi

root="$stage/root"
mkdir "$root" "$stage/changes"
mount -t tmpfs tmpfs "$stage/changes"
mkdir "$stage/changes/upper" "$stage/changes/work"
mount -t overlay -o "lowerdir=/,upperdir=$stage/changes/upper,workdir=$stage/changes/work" overlay "$root"
cp -a "$stage/tree/." "$root/"
cd "$root"
mkdir -p etc/systemd/system etc/coda-host usr/lib/coda-host var/lib/coda-host mnt
mount --bind "$stage/units" etc/systemd/system
mount --bind "$stage/site" etc/coda-host
mount --bind "$stage/plugins" usr/lib/coda-host
mount --bind "$stage/state" var/lib/coda-host
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
  : > "dev/$device"
  mount --bind "/dev/$device" "dev/$device"
done
if [ -e /dev/net/tun ]; then
  mkdir dev/net
  : > dev/net/tun
  mount --bind /dev/net/tun dev/net/tun
fi
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
pivot_root . mnt
cd /
umount -l /mnt
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/lib/systemd/systemd --system --unit=coda.target
