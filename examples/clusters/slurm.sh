#!/usr/bin/env bash
#SBATCH --job-name=rayfl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --open-mode=append
# Starts Ray on a Slurm allocation, runs a command on it, and stops Ray:
#
#   sbatch --nodes=4 examples/clusters/slurm.sh rayfl run --engine.address auto --output /shared/runs/first
#
# Options of sbatch win over those above. docs/howto/slurm.md says what the nodes need, and what each step does.
set -euo pipefail
[ $# -gt 0 ] || { echo "rayfl: usage: sbatch slurm.sh COMMAND..., such as: rayfl run --engine.address auto" >&2; exit 2; }
job=${SLURM_JOB_ID:?start this script with sbatch}
cpus=${SLURM_CPUS_PER_TASK:-1}
step=(srun --overlap --ntasks-per-node=1 --cpus-per-task="$cpus" --kill-on-bad-exit=1)

# What only you can read, in a folder that all nodes share: the token without which Ray answers nobody.
folder=$(mktemp -d "${RAYFL_SHARED:-$HOME}/.rayfl-$job-XXXXXX")
nodes=
clean_up() {
    touch "$folder/stop"
    [ -z "$nodes" ] || wait "$nodes" || true
    rm -rf "$folder"
}
trap clean_up EXIT
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/token
(umask 077; python -c 'import secrets; print(secrets.token_hex(32), end="")' > "$RAY_AUTH_TOKEN_PATH")

# On one node Ray stays on loopback. On several it uses the address by which the last node reaches this one.
address=127.0.0.1
if [ "$SLURM_JOB_NUM_NODES" -eq 1 ]; then
    export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0    # or Ray would take the host's other address for 127.0.0.1
else
    head=$(scontrol show node --oneliner "$SLURMD_NODENAME" | sed 's/.* NodeAddr=\([^ ]*\) .*/\1/')
    last=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
    address=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$last" getent ahostsv4 "$head" | sed 's/ .*//; q')
fi
export RAY_ADDRESS=$address:$((20000 + job % 10000))

# Every node: all ports but that one are Ray's choice, because another job may be on the same node.
cat > "$folder/node.sh" <<'NODE'
set -euo pipefail
folder=$(dirname "$0")
address=${RAY_ADDRESS%:*} port=${RAY_ADDRESS#*:}
unset RAY_ADDRESS             # which is for those who join
if [ "$SLURM_JOB_NUM_NODES" -eq 1 ]; then
    own=$address
else
    own=$(ip -oneline route get "$address" | sed 's/.* src \([^ ]*\).*/\1/')
    private='10\.|172\.(1[6-9]|2[0-9]|3[01])\.|192\.168\.|169\.254\.|f[cd]'
    private="$private|100\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\."
    public=$(ip -oneline address show scope global | sed 's/.* inet6\{0,1\} \([^ ]*\).*/\1/')
    public=$(grep -vE "^($private)" <<< "$public" || true)
    if [ -n "$public" ] && [ "${RAYFL_FIREWALL:-}" != mine ]; then
        echo "rayfl: $(hostname) has addresses of the internet ($(echo $public)), and parts of Ray would listen there." \
            "Ask for one node, where Ray stays on loopback. Or, if a firewall closes the ports, export" \
            "RAYFL_FIREWALL=mine" >&2
        exit 1
    fi
fi
temporary=/tmp/rayfl-$SLURM_JOB_ID
large=${TMPDIR:-/var/tmp}/rayfl-$SLURM_JOB_ID    # /tmp may be memory
export RAY_object_spilling_directory=$large/spilled
for place in "$temporary" "$large"; do    # in them, Ray makes folders in which everybody may write
    mkdir -m 700 "$place" 2> /dev/null || [ -O "$place" ]
done
ulimit -Sn "$(ulimit -Hn)"    # Ray opens many files
ray="setsid ray start --block --disable-usage-stats --node-ip-address=$own --num-cpus=$SLURM_CPUS_PER_TASK
    --min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0"
if [ "$SLURM_NODEID" -eq 0 ]; then
    export AUTOSCALER_METRIC_PORT=-1 DASHBOARD_METRIC_PORT=-1    # which answer without the token
    $ray --head --port="$port" --ray-client-server-port="$((port + 10000))" --include-dashboard=false \
        --temp-dir="$temporary/ray" &
else
    until [ -e "$folder/stop" ] || (: > "/dev/tcp/$address/$port") 2> /dev/null; do sleep 1; done
    $ray --address="$address:$port" &
fi
started=$!
until [ -e "$folder/stop" ] || ! kill -0 $started 2> /dev/null; do sleep 1; done
kill -KILL -- -$started 2> /dev/null || true
rm -rf "$temporary" "$large" || true
[ -e "$folder/stop" ]
NODE
"${step[@]}" bash "$folder/node.sh" &
nodes=$!

NODES=$nodes python - <<'WAIT' || { echo "rayfl: Ray has not started on all nodes" >&2; exit 1; }
import os, socket, sys, time
host, port = os.environ["RAY_ADDRESS"].split(":")
until = time.monotonic() + 300
while time.monotonic() < until:
    if not os.path.exists(f"/proc/{os.environ['NODES']}"):
        sys.exit(1)
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        break
    except OSError:
        time.sleep(0.5)
import ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
while time.monotonic() < until:
    if sum(node["Alive"] for node in ray.nodes()) >= int(os.environ["SLURM_JOB_NUM_NODES"]):
        sys.exit(0)
    time.sleep(0.5)
sys.exit(1)
WAIT

# A signal, which Slurm sends before the time is over, lets rayfl finish its round and save.
"$@" &
command=$! stopping=
trap 'stopping=1; kill -TERM $command 2> /dev/null || true' TERM
code=0
wait $command || code=$?
while [ -n "$stopping" ]; do    # a signal ends a wait
    stopping= code=0
    wait $command || code=$?
done
exit $code
