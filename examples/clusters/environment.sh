# What every login on a host of a cluster has. RAYFL_VENV, set before, names an environment that is there already.
export RAYFL_VENV="${RAYFL_VENV:-$HOME/rayfl/.venv}"
export PATH="$RAYFL_VENV/bin:$PATH"
export PYTHONPATH="$HOME/rayfl"
export RAY_AUTH_MODE=token
ulimit -Sn "$(ulimit -Hn)"    # Ray opens many files

# Ray's ports, which are chance otherwise, and all that listen on a host with them, most of them on every address.
export RAYFL_RAY_PORTS="--object-manager-port=8076 --node-manager-port=8077 --dashboard-agent-grpc-port=8078
    --metrics-export-port=8079 --runtime-env-agent-port=8080 --min-worker-port=10002 --max-worker-port=19999"
export RAYFL_PORTS="6379, 8076-8080, 8265, 10001-19999, 44217, 44227, 52365"

# What does not fit into the object store goes to a disk, which /tmp need not be. Ray lets everybody write into this folder.
large="${TMPDIR:-/var/tmp}/rayfl-$(id -un)"
mkdir -m 700 "$large" 2> /dev/null || [ -O "$large" ] || echo "rayfl: $large is somebody else's" >&2
export RAY_object_spilling_directory="$large/spilled"

# The head asks every host whether it is there: 2 s after its last answer, 4 s at most for an answer, three times. So a host
# that falls silent is given up within 18 s, where Ray alone takes more than a minute. For networks that lose more: longer.
export RAY_health_check_period_ms=2000 RAY_health_check_timeout_ms=4000 RAY_health_check_failure_threshold=3

# On a busy host parts of Ray take longer to start than the 15 s that it waits, and a host that has failed is not tried
# again. Pauses of chance keep hosts that share a machine from failing together each time.
up_to_five_times() {
    for _ in 1 2 3 4; do
        "$@" && return
        ray stop
        sleep $((RANDOM % 20))
    done
    "$@"
}
