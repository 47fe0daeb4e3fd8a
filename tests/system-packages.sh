#!/bin/sh
# Installs the Debian packages named as arguments that are missing, or says the one command that does.
missing=""
for package in "$@"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  echo "Some tests need what Debian calls$missing; install them with your system's package manager." >&2
  exit 0
fi
if [ "$(id -u)" != 0 ]; then
  echo "Some tests need more packages: sudo apt-get install$missing" >&2
  exit 0
fi
# Policy 101: no service that one of them brings is started.
policy=/usr/sbin/policy-rc.d
[ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && trap 'rm -f $policy' EXIT; }
apt-get install -y -q $missing >/dev/null 2>&1 && exit 0
apt-get update -q >/dev/null 2>&1
DEBIAN_FRONTEND=noninteractive apt-get install -y -q $missing >/dev/null || {
  echo "These packages could not be installed:$missing" >&2
  exit 1
}
