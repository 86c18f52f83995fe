#!/usr/bin/env bash
# Six clinics, two kinds of instruments, one server; then a newcomer without labels. README.md explains it.
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

# 2. Each clinic joins: a key of its own, and a certificate for it by a join string that is good once.
for clinic in clinic-{1..6}; do
    fedserver token create | fedclient join - --config "data/$clinic/clinic.yaml" --device "$clinic"
done

# 3. Two runs side by side: one model for all, and models for the groups that FLUX finds.
# Without privacy=off FLUX asks for descriptors with noise, which 48 patients and 12 held out are too few for.
fleet=(--devices 6 --minimum 6)
fedserver run start fedavg --algorithm fedavg "${fleet[@]}"
fedserver run start flux --algorithm flux --set privacy=off "${fleet[@]}"

# 4. The clinics, each on its own data, until no run needs them.
for clinic in clinic-{1..6}; do
    fedclient run --config "data/$clinic/clinic.yaml" --until-finished >"results/$clinic.log" 2>&1 &
    started+=($!)
done
for run in fedavg flux; do # also prints what `fedserver run show` does
    fedserver run wait "$run" --timeout 120 --json >"results/$run.json"
done

# 5. The newcomer, which has no labels and may not train, asks which model fits its measurements, and uses it.
newcomer=(--config data/newcomer/clinic.yaml)
echo
fedserver token create --role infer-only | fedclient join - "${newcomer[@]}" --device newcomer
fedclient place data/newcomer/measurements.csv "${newcomer[@]}" --run flux --json >results/newcomer.json
fedclient predict data/newcomer/measurements.csv "${newcomer[@]}" --out results/classes.csv

# 6. A clinic that trained gets its own cluster's model, and fine-tunes it on its own patients if that pays.
fedclient place --config data/clinic-2/clinic.yaml --run flux --json >results/clinic.json
fedclient predict data/clinic-2/test.csv --config data/clinic-2/clinic.yaml --json >results/own.json

# The check, which no newcomer could make: the same measurements, with the truth.
echo
fedclient predict data/newcomer-truth.csv "${newcomer[@]}" --json >results/check.json
