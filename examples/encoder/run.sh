#!/usr/bin/env bash
# Eight readers of four kinds, one server; then a newcomer with a few labels. README.md explains it.
# Leaves data/ and results/ in this folder; the latter holds what was found, as JSON, and a log of each process.
set -euo pipefail
cd "$(dirname "$0")"
PATH="$PWD/../../.venv/bin:$PATH"
export FEDSERVER_STATE=results/server # every `fedserver` below means this server

started=()
finish() {
    local code=$?
    kill "${started[@]:-}" 2>/dev/null || true
    wait
    ((code == 0)) || echo "run.sh failed; see $PWD/results/*.log" >&2
}
trap finish EXIT

rm -rf results
mkdir results
python make_data.py

# 1. The server, with an authority of its own, on ports that are free.
fedserver init --host 127.0.0.1 --listen 127.0.0.1:0 --join-listen 127.0.0.1:0
fedserver up >results/server.log 2>&1 &
started+=($!)
until [[ -e $FEDSERVER_STATE/address ]]; do
    kill -0 "${started[0]}"
    sleep 0.1
done

# 2. Each reader joins: a key of its own, and a certificate for it by a join string that is good once.
for reader in reader-{1..8}; do
    fedserver token create | fedclient join - --config "data/$reader/reader.yaml" --device "$reader"
done

# 3. Two runs side by side: one model for all, and models for the groups that FMCL finds before any training.
fleet=(--devices 8 --minimum 8)
fedserver run start fedavg --algorithm fedavg "${fleet[@]}"
fedserver run start fmcl --algorithm fmcl "${fleet[@]}"

# 4. The readers, each on its own images, until no run needs them.
for reader in reader-{1..8}; do
    fedclient run --config "data/$reader/reader.yaml" --until-finished >"results/$reader.log" 2>&1 &
    started+=($!)
done
for run in fedavg fmcl; do # also prints what `fedserver run show` does
    fedserver run wait "$run" --timeout 120 --json >"results/$run.json"
done

# 5. The newcomer, which may not train, has 20 labeled images and asks which model fits them.
newcomer=(--config data/newcomer/reader.yaml)
echo
fedserver token create --role infer-only | fedclient join - "${newcomer[@]}" --device newcomer
fedclient place data/newcomer/images.csv "${newcomer[@]}" --run fmcl --json >results/newcomer.json
fedclient predict data/newcomer/test.csv "${newcomer[@]}" --json >results/check.json
