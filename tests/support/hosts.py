"""Hosts of a network, made of namespaces on this machine, for the time of a test.

Every host has processes, mounts, a name, a network and a home folder of its own, and an SSH server. One more,
the desk, is where a person sits: it carries the bridges that join the others. Nothing of this is seen from
outside: the network lives in the desk's namespace, and a host's first process ends with the test, however the
test ends, which ends all its processes and its mounts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PRIVATE, PUBLIC = "10.77.0", "203.0.113"
"""The networks: of the hosts among themselves, and one for the internet, where the default route leads."""

TOOLS = {
    "ip": "iproute2",
    "nft": "nftables",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "rsync": "rsync",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The first process of a host. Its standard input is the test: when that ends, so does the host.
FIRST = r"""
set -eu
hostname "$NAME"
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
aside=/mnt
for hidden in $HIDDEN; do                   # empty, but for what the test needs at its place
    mkdir -p "$hidden"
    mount --rbind "$hidden" $aside
    mount -t tmpfs -o mode=1777 tmpfs "$hidden"
    for kept in $KEPT; do
        case "$kept/" in
        "$hidden"/*)
            mkdir -p "$kept"
            mount --rbind "$aside/${kept#"$hidden"/}" "$kept" ;;
        esac
    done
    umount -l $aside
done
chmod 700 "$HOME"
echo ready
read -r go                                  # the network is there
[ -z "${SSHD:-}" ] || $SSHD
cat > /dev/null || true                     # adopts what loses its parent, until the test ends
exit 0
"""


def missing() -> str:
    """Return what this machine lacks for namespaces with SSH servers; empty where nothing is missing."""
    if os.geteuid() != 0:
        return "it needs root"
    absent = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool, path=PATH)})
    if absent:
        return f"it needs Debian's {', '.join(absent)}"
    bridge = "unshare --fork --pid --net --mount --uts ip link add rayfl type bridge"
    tried = subprocess.run(bridge.split(), capture_output=True, text=True)
    return f"it needs namespaces and bridges: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass
class Host:
    """A host.

    Args:
        name: its name.
        address: its private address.
        public: its address of the internet.
        home: the home folder of its user, as the host sees it.
        first: the process that holds it.
        pid: its first process, as this machine counts.
    """

    name: str
    address: str
    public: str
    home: Path
    first: subprocess.Popen[str]
    pid: int

    def command(self, *command: str) -> list[str]:
        """Return what runs a command on the host, with the environment of a new login."""
        settings = [f"HOME={self.home}", "USER=root", "TERM=dumb", "LC_ALL=C.UTF-8", f"PATH={PATH}"]
        environment = ["env", "-i", "-C", str(self.home), *settings]
        inside = ["--mount", "--net", "--pid", "--uts"]
        return ["nsenter", f"--target={self.pid}", *inside, *environment, *command]

    def run(
        self, *command: str, check: bool = True, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run a command and return its output; errors go to the output too."""
        done = subprocess.run(
            self.command(*command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode:
            raise AssertionError(f"{self.name}: {' '.join(command)}\n{done.stdout}")
        return done

    def write(self, path: str, text: str, mode: int = 0o600) -> None:
        """Write a file of the host, below its home folder."""
        script = f'mkdir -p "$(dirname {path})"; cat > {path}; chmod {mode:o} {path}'
        subprocess.run(self.command("sh", "-c", script), input=text, text=True, check=True)

    def ports(self) -> set[int]:
        """Return the TCP ports on which processes of the host listen, on whatever address."""
        lines = self.run("ss", "--no-header", "--numeric", "--listening", "--tcp").stdout.splitlines()
        return {int(line.split()[3].rpartition(":")[2]) for line in lines}

    def reaches(self, address: str, ports: Sequence[int]) -> set[int]:
        """Return the ports of an address to which this host can connect."""
        script = (
            "import socket, sys\n"
            "from concurrent.futures import ThreadPoolExecutor\n"
            "def tried(port):\n"
            "    with socket.socket() as end:\n"
            "        end.settimeout(2)\n"
            "        return end.connect_ex((sys.argv[1], int(port))) == 0\n"
            "with ThreadPoolExecutor(64) as pool:\n"
            "    print(*(port for port, fine in zip(sys.argv[2:], pool.map(tried, sys.argv[2:])) if fine))\n"
        )
        found = self.run(sys.executable, "-c", script, address, *map(str, ports)).stdout
        return {int(port) for port in found.split()}

    def close(self) -> None:
        """End the host with everything on it."""
        with contextlib.suppress(OSError):
            self.first.stdin.close()  # type: ignore[union-attr]
        try:
            self.first.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.first.kill()  # its child, the first process of the host, dies with it
            self.first.wait()


@contextlib.contextmanager
def hosts(count: int, work: Path, project: Path) -> Iterator[tuple[Host, list[Host]]]:
    """Make a desk and hosts that it reaches by SSH, as root, with the key ``~/.ssh/rayfl_cluster``.

    Root's home folder, ``/tmp`` and ``/dev/shm`` are empty at first, and the hosts, unlike the desk, do not
    have the project. All see this Python's environment.

    Args:
        count: number of hosts.
        work: a folder for keys and settings, which the desk and all hosts share.
        project: the project's folder.

    Yields:
        The desk, and the hosts.
    """
    home = Path("~root").expanduser()
    key = work / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    hidden = [Path("/tmp"), Path("/dev/shm")]
    kept = [work, Path(sys.prefix), Path(sys.base_prefix)]
    with contextlib.ExitStack() as open_hosts:
        desk = _start("desk", 1, home, "", [*hidden, home], [*kept, project])
        open_hosts.callback(desk.close)
        for bridge, network in [("private", PRIVATE), ("public", PUBLIC)]:
            _network(desk, "link", "add", bridge, "type", "bridge")
            _network(desk, "address", "add", f"{network}.1/24", "dev", bridge)
            _network(desk, "link", "set", bridge, "up")
        made = []
        for k in range(count):
            sshd = _sshd(work, f"host{k}", f"{PRIVATE}.{11 + k}", key)
            host = _start(f"host{k}", 11 + k, home, sshd, [*hidden, home, project], kept)
            open_hosts.callback(host.close)
            for bridge, network in [("private", PRIVATE), ("public", PUBLIC)]:
                end = f"{bridge}{k}"
                peer = ["type", "veth", "peer", "name", bridge, "netns", str(host.pid)]
                _network(desk, "link", "add", end, *peer)
                _network(desk, "link", "set", end, "master", bridge, "up")
                _network(host, "address", "add", f"{network}.{11 + k}/24", "dev", bridge)
                _network(host, "link", "set", bridge, "up")
            _network(host, "route", "add", "default", "via", f"{PUBLIC}.1")
            made.append(host)
        for host in [desk, *made]:
            _network(host, "link", "set", "lo", "up")
            host.first.stdin.write("go\n")  # type: ignore[union-attr]
            host.first.stdin.flush()  # type: ignore[union-attr]
        desk.write("~/.ssh/rayfl_cluster", key.read_text())
        yield desk, made


def plug(desk: Host, number: int, inside: bool) -> None:
    """Put the cable of a host into the private network, or pull it out.

    Args:
        desk: where the network is.
        number: of the host, from 0.
        inside: whether the cable is in.
    """
    _network(desk, "link", "set", f"private{number}", "up" if inside else "down")


def _network(host: Host, *command: str) -> None:
    """Run ``ip`` in a host's network, but among this machine's processes, whose numbers name networks."""
    subprocess.run(["nsenter", f"--target={host.pid}", "--net", "ip", *command], check=True)


def _start(
    name: str, number: int, home: Path, sshd: str, hidden: Sequence[Path], kept: Sequence[Path]
) -> Host:
    separate = ["--fork", "--kill-child", "--pid", "--net", "--mount", "--uts", "--propagation=private"]
    settings = {
        "PATH": PATH,
        "NAME": name,
        "HOME": str(home),
        "SSHD": sshd,
        "HIDDEN": " ".join(str(path.resolve()) for path in hidden),
        "KEPT": " ".join(str(path.resolve()) for path in kept),
    }
    first = subprocess.Popen(
        ["unshare", *separate, "bash", "-c", FIRST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=settings,
    )
    if first.stdout.readline() != "ready\n":  # type: ignore[union-attr]
        raise AssertionError(f"{name} does not start")
    [pid] = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    return Host(name, f"{PRIVATE}.{number}", f"{PUBLIC}.{number}", home, first, int(pid))


def _sshd(work: Path, name: str, address: str, key: Path) -> str:
    """Write the settings of a host's SSH server; return the command that starts it."""
    folder = work / name
    folder.mkdir()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key")], check=True
    )
    (folder / "sshd_config").write_text(
        f"ListenAddress {address}\nHostKey {folder}/host_key\nAuthorizedKeysFile {key}.pub\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "StrictModes no\nUsePAM no\nPidFile none\nPrintMotd no\nMaxStartups 100\n"
    )
    return f"{shutil.which('sshd', path=PATH)} -f {folder}/sshd_config -E {folder}/sshd.log"
