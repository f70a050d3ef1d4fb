#!/usr/bin/env bash
# Closes Ray's ports on all addresses of this host but ADDRESS and loopback, for Ray listens on every one.
# Usage: firewall.sh ADDRESS. Without an address of the internet, or with RAYFL_FIREWALL=mine, it does nothing.
set -euo pipefail
[ "${RAYFL_FIREWALL:-}" != mine ] || exit 0
address=${1:?the address that Ray is to use is missing}

# What cannot be looked at counts as an address of the internet: then nothing is started.
if ! listed=$(ip -oneline address show scope global) || [ -z "$listed" ]; then
    echo "rayfl: this host's addresses cannot be told, and Ray would listen on all of them: that takes the command ip" \
        "(iproute2), on the PATH. Install it; or close the TCP ports ${RAYFL_PORTS:-of Ray} yourself and put 'export" \
        "RAYFL_FIREWALL=mine' into ~/.profile" >&2
    exit 1
fi

# Left out: private, shared and link-local ranges of IPv4, and unique local ones of IPv6.
private='10\.|172\.(1[6-9]|2[0-9]|3[01])\.|192\.168\.|169\.254\.|f[cd]'
private="$private|100\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\."
public=
while read -r _ _ _ found _; do    # such as: 2: eth0 inet 10.1.2.3/8 scope global eth0
    [[ $found =~ ^($private) ]] || public="${public:+$public, }${found%%/*}"
    [ -n "$found" ] || public="${public:+$public, }one that is not understood"
done <<< "$listed"
[ -n "$public" ] || exit 0

root=()
[ "$EUID" -eq 0 ] || root=(sudo -n)
"${root[@]}" env PATH="$PATH:/usr/sbin:/sbin" nft -f - <<RULES || {
table inet rayfl
delete table inet rayfl
table inet rayfl {
    chain input {
        type filter hook input priority filter; policy accept;
        iifname "lo" accept
        ip daddr $address accept
        tcp dport { $RAYFL_PORTS } drop
    }
}
RULES
    echo "rayfl: this host has addresses of the internet ($public), and Ray would listen there too." \
        "Closing its ports takes nftables, and root or sudo without a password. Install and allow them; or close" \
        "the TCP ports $RAYFL_PORTS yourself and put 'export RAYFL_FIREWALL=mine' into ~/.profile" >&2
    exit 1
}
