#!/bin/sh
# Tasks to train on, kernels for them, and an export: sh recipes/collect.sh FOLDER [HOW MANY TASKS]
# The same command goes on where an earlier one ended. With a GPU kernels are timed; without one they are right or not.
set -eu
folder=$1
wanted=${2:-600}
mkdir -p "$folder"
optimize tasks --compose "$wanted" -o "$folder/tasks"
optimize suite "$folder/tasks" --authors offline --max-attempts "$wanted" --no-confirm --runs-dir "$folder/runs" --plain
optimize export --format fim --format sft-best --format verl --test 0.1 --seed 1 \
    -o "$folder/export" --runs-dir "$folder/runs" --overwrite
