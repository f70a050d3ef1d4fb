#!/usr/bin/env bash
# Closes Ray's ports on all addresses of this host but ADDRESS and loopback, for Ray listens on every one.
# Usage: firewall.sh ADDRESS. Without an address of the internet, or with RAYFL_FIREWALL=mine, it does nothing.
set -euo pipefail
[ "${RAYFL_FIREWALL:-}" != mine ] || exit 0
address=$1

# Left out: private, shared and link-local ranges of IPv4, and unique local ones of IPv6.
private='10\.|172\.(1[6-9]|2[0-9]|3[01])\.|192\.168\.|169\.254\.|f[cd]'
private="$private|100\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\."
public=$(ip -oneline address show scope global | awk '{sub("/.*", "", $4); print $4}' | grep -vE "^($private)" || true)
[ -n "$public" ] || exit 0

root=()
[ "$(id -u)" -eq 0 ] || root=(sudo -n)
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
    echo "rayfl: this host has addresses of the internet (${public//$'\n'/, }), and Ray would listen there too." \
        "Closing its ports takes nftables, and root or sudo without a password. Install and allow them; or close" \
        "the TCP ports $RAYFL_PORTS yourself and put 'export RAYFL_FIREWALL=mine' into ~/.profile" >&2
    exit 1
}
